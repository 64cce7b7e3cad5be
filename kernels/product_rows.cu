/* product_rows.cu - products and experts of few rows: how the work of rows_kernel.cuh is cut, and its launches.
 *
 * A plan (product_rows.cuh) follows from sizes and type alone; its figures are measured ones (NOTES.md). What fits into shared
 * memory is the card's: tiles get lower until two of them fit. Where all tiles can run at once, every block of threads has
 * tiles_each of them; else the blocks that run at once share them out. Refuses rows of which two do not fit twice.
 */
#include "kernels/exec_cuda.h"
#include "kernels/ops_cuda.h"
#include "kernels/rows_kernel.cuh"

static size_t ceiling(size_t n, size_t by)
{
    return (n + by - 1) / by;
}

static size_t round_up(size_t n, size_t to)
{
    return ceiling(n, to) * to;
}

static unsigned chain_warps(uint32_t type, const struct rows_plan *plan)
{
    return (unsigned)ceiling(plan->tile_rows, pair_minima(type) ? 16 : 32) * plan->together;
}

/* For blocks of threads that do n_tiles each. Bytes past UINT_MAX show as a total that no card has. */
static struct rows_layout layout_of(uint32_t type, const struct rows_args *args, size_t n_tiles)
{
    const struct rows_plan *plan = &args->plan;
    const size_t n_slots = n_tiles < plan->stages ? n_tiles : plan->stages;
    const size_t height = plan->tile_rows >> args->paired;
    const size_t second =
        round_up(height * args->row_bytes + 16 + 4, 16); /* a word may be read past the end */
    const size_t slot = second << args->paired;
    const size_t kinds = (pair_minima(type) ? 2 : 1) * plan->together;
    size_t kind = round_up(8 * (size_t)args->n_blocks, 16), row = kinds * kind;
    struct rows_layout at;
    row += row / 16 % 2 == 0 ? 16 : 0; /* rows in different banks */
    const size_t next = row * plan->tile_rows;
    const size_t ring = args->job.form == ROWS_DOWN ? activation_row_bytes(args->job.n_in) : 0;
    const size_t parts = ring + n_slots * slot, total = parts + next * (n_tiles < 2 ? 1 : 2);
    at.ring = (unsigned)ring, at.slot = (unsigned)slot, at.second = (unsigned)second;
    at.parts = (unsigned)parts, at.next = (unsigned)next;
    at.row = (unsigned)row, at.kind = (unsigned)kind;
    at.total = total > UINT32_MAX ? UINT32_MAX : (unsigned)total;
    return at;
}

/* Makes tiles lower until two of them fit. */
static void tile_fit(uint32_t type, struct rows_args *args, unsigned limit)
{
    for (;; args->plan.tile_rows /= 2) {
        args->n_tiles = (unsigned)ceiling(args->n_rows, args->plan.tile_rows);
        args->at = layout_of(type, args, 2);
        if (args->at.total <= limit || args->plan.tile_rows % 4 != 0)
            return;
    }
}

/* How many blocks of threads run at once, for each row and rank. */
template <uint32_t type, int n_together>
static size_t abreast_of(const struct rows_args *args, dim3 grid, unsigned n_threads,
                         struct exec_stream *s)
{
    int together = 0;
    (void)cudaOccupancyMaxActiveBlocksPerMultiprocessor(&together, rows_kernel<type, n_together>,
                                                        (int)n_threads, args->at.total);
    const size_t n_sm = (size_t)exec_cuda_n_multiprocessors(s);
    return ceiling((size_t)(together > 0 ? together : 1) * n_sm, (size_t)grid.y * grid.z);
}

template <uint32_t type, int n_together>
static int launch_type(struct rows_args *args, struct exec_stream *s)
{
    int device = 0, limit = 0;
    const struct rows_job *job = &args->job;
    dim3 grid(1, (unsigned)job->n_used, (unsigned)ceiling(job->n_rows, n_together));
    (void)cudaGetDevice(&device);
    (void)cudaDeviceGetAttribute(&limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    tile_fit(type, args, (unsigned)limit);
    const unsigned n_threads = 32 * (args->plan.n_compute + chain_warps(type, &args->plan));
    if (args->at.total > (unsigned)limit || n_threads > ROWS_THREADS_MAX)
        return EBB_EUNSUPPORTED;
    (void)cudaFuncSetAttribute(rows_kernel<type, n_together>,
                               cudaFuncAttributeMaxDynamicSharedMemorySize, limit);
    args->at = layout_of(type, args, args->plan.tiles_each);
    grid.x = (unsigned)ceiling(args->n_tiles, args->plan.tiles_each);
    if (args->at.total > (unsigned)limit ||
        abreast_of<type, n_together>(args, grid, n_threads, s) < grid.x) {
        args->at = layout_of(type, args, args->plan.stages);
        if (args->at.total > (unsigned)limit) {
            args->plan.stages = 2;
            args->at = layout_of(type, args, 2);
        }
        const size_t abreast = abreast_of<type, n_together>(args, grid, n_threads, s);
        grid.x = (unsigned)(args->n_tiles < abreast ? args->n_tiles : abreast);
    }
    overlap_launch(rows_kernel<type, n_together>, grid, n_threads, args->at.total,
                   exec_cuda_stream(s), args);
    return exec_cuda_launched(s);
}

template <uint32_t type> static int launch_together(struct rows_args *args, struct exec_stream *s)
{
    switch (args->plan.together) {
    case 1: return launch_type<type, 1>(args, s);
    case 2: return launch_type<type, 2>(args, s);
    case 4: return launch_type<type, 4>(args, s);
    default: return EBB_EUNSUPPORTED;
    }
}

int rows_launch(uint32_t type, const struct rows_job *job, struct rows_plan plan,
                struct exec_stream *s)
{
    struct rows_args args = {};
    args.job = *job;
    args.plan = plan;
    args.row_bytes = tensor_row_bytes(type, job->n_in);
    args.matrix_bytes = job->n_out * args.row_bytes;
    args.paired = job->form == ROWS_GATE_UP;
    args.n_rows = (unsigned)(job->n_out << args.paired);
    args.n_blocks = (unsigned)(job->n_in / 32);
    args.n_pairs = (args.n_blocks + 1) / 2;
    if (args.row_bytes == 0 || job->n_out > INT32_MAX / 2 || job->n_in > INT32_MAX / 2 ||
        plan.stages < 2 || plan.stages > ROWS_STAGES_MAX || plan.tiles_each == 0)
        return EBB_EUNSUPPORTED;
    switch (type) {
    case TENSOR_Q4_0: return launch_together<TENSOR_Q4_0>(&args, s);
    case TENSOR_Q4_1: return launch_together<TENSOR_Q4_1>(&args, s);
    case TENSOR_Q5_0: return launch_together<TENSOR_Q5_0>(&args, s);
    case TENSOR_Q5_1: return launch_together<TENSOR_Q5_1>(&args, s);
    case TENSOR_Q8_0: return launch_together<TENSOR_Q8_0>(&args, s);
    case TENSOR_Q2_K: return launch_together<TENSOR_Q2_K>(&args, s);
    case TENSOR_Q3_K: return launch_together<TENSOR_Q3_K>(&args, s);
    case TENSOR_Q4_K: return launch_together<TENSOR_Q4_K>(&args, s);
    case TENSOR_Q5_K: return launch_together<TENSOR_Q5_K>(&args, s);
    case TENSOR_Q6_K: return launch_together<TENSOR_Q6_K>(&args, s);
    default: return EBB_EUNSUPPORTED;
    }
}

static struct rows_plan product_plan(uint32_t type, const struct rows_job *job, size_t row_bytes)
{
    const bool small = job->n_out < 16384;
    struct rows_plan plan = {16, 2, 4, 1, 1};
    if (job->n_rows > 1) {
        plan.together = job->n_rows == 2 || type == TENSOR_Q6_K ? 2 : 4;
        plan.n_compute = small || plan.together == 2 ? 4 : 8;
    } else if (row_bytes <= 768) {
        plan.tile_rows = 32;
    } else if (small) {
        plan.tile_rows = job->n_out <= 1024 ? 8 : 16;
        plan.n_compute = row_bytes < 2048 && job->n_out > 4096 ? 2 : 4;
    } else if (row_bytes > 2048) {
        plan.tile_rows = 8;
    }
    return plan;
}

struct rows_plan rows_plan_choose(uint32_t type, const struct rows_job *job)
{
    static const struct rows_plan gate_up = {32, 2, 4, 1, 1};
    const struct rows_plan down = {128, 2, type == TENSOR_Q4_K ? 3u : 6u, 1, 1};
    const size_t row_bytes = tensor_row_bytes(type, job->n_in);
    struct rows_plan plan = job->form == ROWS_PRODUCT ? product_plan(type, job, row_bytes)
                            : job->form == ROWS_DOWN  ? down
                                                      : gate_up;
    while (plan.tile_rows > 2 && plan.tile_rows * row_bytes > 81920)
        plan.tile_rows /= 2;
    return plan;
}

int product_rows_cuda(const struct product_args *args, struct exec_stream *s)
{
    struct rows_job job = {};
    job.form = ROWS_PRODUCT;
    job.weights = (const unsigned char *)args->weights;
    job.n_in = args->n_in;
    job.n_out = args->n_out;
    job.n_rows = args->n_rows;
    job.n_used = 1;
    job.a = args->a;
    job.bias = args->bias;
    job.y = args->y;
    job.accumulate = args->accumulate;
    if (tensor_row_bytes(args->type, args->n_in) == 0 || (uintptr_t)args->weights % 2 != 0)
        return EBB_EUNSUPPORTED;
    if (args->n_out == 0 || args->n_rows == 0)
        return 0;
    return rows_launch(args->type, &job, rows_plan_choose(args->type, &job), s);
}
