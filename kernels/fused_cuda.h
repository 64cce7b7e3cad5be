/* kernels/fused_cuda.h - internal to the room: CUDA launchers that do the work of several operations of kernels.h in one launch.
 *
 * Each gives the bits of the operations it stands for, one after the other, and refuses (EBB_EUNSUPPORTED, nothing launched) what
 * any of them would, or a shape that the one launch does not take; the caller then launches them one by one. For a step of one row
 * a launch costs a microsecond or two beside its bytes: these are what a decode step can do without.
 */
#pragma once
#include "kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* rmsnorm, then quantize of its y. n a multiple of 32, rows at 16 bytes. */
struct rmsnorm_quantize_args {
    struct rmsnorm_args norm;
    void *a; /* [n_rows][activation_bytes(n)] */
};

/* head_rope of q, head_rope of k, kv_store of that k and of v. Afterwards q.x is rotated, k.x is as it was. */
struct heads_store_args {
    struct head_rope_args q, k; /* n_rows alike */
    struct kv_store_args store; /* KV_F16; store.k is k.x */
};

/* attention, then quantize of its out, which is written too. */
struct attention_quantize_args {
    struct attention_args attention;
    void *a; /* [n_rows][activation_bytes(n_heads * head_dim)] */
};

int rmsnorm_quantize_cuda(const struct rmsnorm_quantize_args *args, struct exec_stream *s);
int heads_store_cuda(const struct heads_store_args *args, struct exec_stream *s);
int attention_quantize_cuda(const struct attention_quantize_args *args, struct exec_stream *s);

#ifdef __cplusplus
}
#endif
