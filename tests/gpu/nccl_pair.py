"""Bare NCCL between two cards, two processes: `nccl_pair.py A B` prints a line `bytes us` a size, one way. Needs torch: exit 3 without.

A ping-pong on the stream: each process receives, then sends what it got; the way there and back is timed by events, its half told.
"""
import sys
import tempfile

SIZES, N = (4096, 65536, 1 << 20, 64 << 20), 100


def side(rank, devices, path):
    import torch
    import torch.distributed as dist
    device = torch.device("cuda", devices[rank])
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", init_method=f"file://{path}", rank=rank, world_size=2, device_id=device)
    for size in SIZES:
        data = torch.zeros(size, dtype=torch.uint8, device=device)
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        for timed in (False, True):
            torch.cuda.synchronize()
            dist.barrier()
            begin.record()
            for _ in range(N if timed else 10):
                (dist.send if rank == 0 else dist.recv)(data, 1 - rank)
                (dist.recv if rank == 0 else dist.send)(data, 1 - rank)
            end.record()
            torch.cuda.synchronize()
        if rank == 0:
            print(size, f"{begin.elapsed_time(end) * 1e3 / (2 * N):.2f}", flush=True)
    dist.destroy_process_group()


def main():
    try:
        import torch
        import torch.multiprocessing as processes
    except ImportError as missing:
        print(f"no bare NCCL: {missing}", file=sys.stderr)
        return 3
    if not torch.cuda.is_available():
        print("no bare NCCL: torch sees no CUDA card", file=sys.stderr)
        return 3
    with tempfile.TemporaryDirectory() as folder:
        processes.spawn(side, args=([int(a) for a in sys.argv[1:3]], f"{folder}/meet"), nprocs=2)
    return 0


if __name__ == "__main__":
    sys.exit(main())
