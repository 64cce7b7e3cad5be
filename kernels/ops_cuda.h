/* kernels/ops_cuda.h - internal to the room: the CUDA launchers that set_cuda.c joins into the table.
 *
 * One operation a file (<op>.cu), contracts in kernels.h. A product or the experts of a layer have four forms: `_rows` for at
 * most CUDA_ROWS_MAX rows (matrix-vector), `_few` for some more and `_tiles` for any number (both on integer tensor cores),
 * `_plain` for unquantised weights; the dispatcher in set_cuda.c chooses. All forms of quantised operations give the same bits
 * (NUMERICS tier 1).
 */
#pragma once
#include "kernels/kernels.h"

#define CUDA_ROWS_MAX        8
#define CUDA_FEW_MAX         48 /* rows of a product */
#define CUDA_FEW_EXPERTS_MIN 3  /* rows */
#define CUDA_FEW_PAIRS_EACH  4  /* rows an expert has, on average, at most */

#ifdef __cplusplus
extern "C" {
#endif

int embed_cuda(const struct embed_args *args, struct exec_stream *s);
int rmsnorm_cuda(const struct rmsnorm_args *args, struct exec_stream *s);
int quantize_cuda(const struct quantize_args *args, struct exec_stream *s);
int product_rows_cuda(const struct product_args *args, struct exec_stream *s);
int product_few_cuda(const struct product_args *args, struct exec_stream *s);
int product_tiles_cuda(const struct product_args *args, struct exec_stream *s);
int product_plain_cuda(const struct product_args *args, struct exec_stream *s);
int rope_angles_cuda(const struct rope_angles_args *args, struct exec_stream *s);
int head_rope_cuda(const struct head_rope_args *args, struct exec_stream *s);
int kv_store_cuda(const struct kv_store_args *args, struct exec_stream *s);
int attention_cuda(const struct attention_args *args, struct exec_stream *s);
int router_cuda(const struct router_args *args, struct exec_stream *s);
int experts_rows_cuda(const struct experts_args *args, struct exec_stream *s);
int experts_few_cuda(const struct experts_args *args, struct exec_stream *s);
int experts_tiles_cuda(const struct experts_args *args, struct exec_stream *s);
int experts_plain_cuda(const struct experts_args *args, struct exec_stream *s);
int combine_cuda(const struct combine_args *args, struct exec_stream *s);
int swiglu_cuda(const struct swiglu_args *args, struct exec_stream *s);
int shared_add_cuda(const struct shared_add_args *args, struct exec_stream *s);
int gather_cuda(const struct gather_args *args, struct exec_stream *s);
int move_cuda(const struct move_args *args, struct exec_stream *s);
int sample_cuda(const struct sample_args *args, struct exec_stream *s);
int top_cuda(const struct top_args *args, struct exec_stream *s);
int logprob_cuda(const struct logprob_args *args, struct exec_stream *s);

int rmsnorm_quantize_cuda(const struct rmsnorm_quantize_args *args, struct exec_stream *s);
int heads_store_cuda(const struct heads_store_args *args, struct exec_stream *s);
int attention_quantize_cuda(const struct attention_quantize_args *args, struct exec_stream *s);

/* Scratch that each form needs; the table gives the largest. */
size_t experts_rows_scratch_cuda(size_t n_rows, size_t n_used, size_t n_experts, size_t d_model,
                                 size_t d_expert);
size_t experts_few_scratch_cuda(size_t n_rows, size_t n_used, size_t n_experts, size_t d_model,
                                size_t d_expert);
size_t experts_tiles_scratch_cuda(size_t n_rows, size_t n_used, size_t n_experts, size_t d_model,
                                  size_t d_expert);
size_t experts_plain_scratch_cuda(size_t n_rows, size_t n_used, size_t n_experts, size_t d_model,
                                  size_t d_expert);
size_t sample_scratch_bytes_cuda(size_t n_rows, size_t n_vocab);
size_t attention_scratch_bytes_cuda(size_t n_rows, size_t n_heads, size_t head_dim,
                                    size_t n_positions);

#ifdef __cplusplus
}
#endif
