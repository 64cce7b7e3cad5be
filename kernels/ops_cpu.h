/* kernels/ops_cpu.h - internal to the room: the launchers and row functions that set_cpu.c joins into tables.
 *
 * Names are <op>_<set>: `_reference` is plain C and the truth, `_avx2` (only in files *_avx2.c, compiled
 * for AVX2 + FMA + F16C) and `_avx512` (only in files *_avx512.c, compiled for AVX-512 F, BW, VL, DQ and VNNI too) give the
 * same bits faster, `_float` is the fp64 measuring set, `_cpu` serves all.
 * Every launcher checks its shape, then hands a copy of its args to exec_cpu_push(); contracts are in kernels.h.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include "kernels/kernels.h"

/* Operations on quantised data and on experts. */
size_t activation_bytes_reference(size_t n);
size_t activation_bytes_avx2(size_t n);
size_t activation_bytes_float(size_t n);
int quantize_reference(const struct quantize_args *args, struct exec_stream *s);
int quantize_avx2(const struct quantize_args *args, struct exec_stream *s);
int quantize_avx512(const struct quantize_args *args, struct exec_stream *s);
int quantize_float(const struct quantize_args *args, struct exec_stream *s);
int product_reference(const struct product_args *args, struct exec_stream *s);
int product_avx2(const struct product_args *args, struct exec_stream *s);
int product_avx512(const struct product_args *args, struct exec_stream *s);
int product_float(const struct product_args *args, struct exec_stream *s);
size_t experts_scratch_bytes_reference(size_t n_rows, size_t n_used, size_t n_experts,
                                       size_t d_model, size_t d_expert);
size_t experts_scratch_bytes_avx2(size_t n_rows, size_t n_used, size_t n_experts, size_t d_model,
                                  size_t d_expert);
size_t experts_scratch_bytes_float(size_t n_rows, size_t n_used, size_t n_experts, size_t d_model,
                                   size_t d_expert);
int experts_reference(const struct experts_args *args, struct exec_stream *s);
int experts_avx2(const struct experts_args *args, struct exec_stream *s);
int experts_avx512(const struct experts_args *args, struct exec_stream *s);
int experts_float(const struct experts_args *args, struct exec_stream *s);
int combine_cpu(const struct combine_args *args, struct exec_stream *s);
int combine_avx2(const struct combine_args *args, struct exec_stream *s);
int combine_avx512(const struct combine_args *args, struct exec_stream *s);
int swiglu_reference(const struct swiglu_args *args, struct exec_stream *s);
int swiglu_avx2(const struct swiglu_args *args, struct exec_stream *s);
int swiglu_avx512(const struct swiglu_args *args, struct exec_stream *s);
int swiglu_float(const struct swiglu_args *args, struct exec_stream *s);
int embed_cpu(const struct embed_args *args, struct exec_stream *s);

/* Outputs [out_first, out_last) of all rows of a product with F32, F16 or BF16 weights (bias and accumulate included),
 * on the calling thread. */
void product_rows_unquantised_float(const struct product_args *a, size_t out_first,
                                    size_t out_last);

/* Norms, rotation, attention, routing, the shared expert. */
int rmsnorm_reference(const struct rmsnorm_args *args, struct exec_stream *s);
int rmsnorm_avx2(const struct rmsnorm_args *args, struct exec_stream *s);
int rmsnorm_avx512(const struct rmsnorm_args *args, struct exec_stream *s);
int rmsnorm_float(const struct rmsnorm_args *args, struct exec_stream *s);
int rope_angles_cpu(const struct rope_angles_args *args, struct exec_stream *s);
int head_rope_reference(const struct head_rope_args *args, struct exec_stream *s);
int head_rope_avx2(const struct head_rope_args *args, struct exec_stream *s);
int head_rope_avx512(const struct head_rope_args *args, struct exec_stream *s);
int head_rope_float(const struct head_rope_args *args, struct exec_stream *s);
int kv_store_reference(const struct kv_store_args *args, struct exec_stream *s);
int kv_store_avx2(const struct kv_store_args *args, struct exec_stream *s);
int kv_store_avx512(const struct kv_store_args *args, struct exec_stream *s);
int attention_reference(const struct attention_args *args, struct exec_stream *s);
int attention_avx2(const struct attention_args *args, struct exec_stream *s);
int attention_avx512(const struct attention_args *args, struct exec_stream *s);
int attention_float(const struct attention_args *args, struct exec_stream *s);
int router_reference(const struct router_args *args, struct exec_stream *s);
int router_avx2(const struct router_args *args, struct exec_stream *s);
int router_avx512(const struct router_args *args, struct exec_stream *s);
int router_float(const struct router_args *args, struct exec_stream *s);
int shared_add_reference(const struct shared_add_args *args, struct exec_stream *s);
int shared_add_avx2(const struct shared_add_args *args, struct exec_stream *s);
int shared_add_avx512(const struct shared_add_args *args, struct exec_stream *s);
int shared_add_float(const struct shared_add_args *args, struct exec_stream *s);

/* Choosing tokens. */
int gather_cpu(const struct gather_args *args, struct exec_stream *s);
int move_cpu(const struct move_args *args, struct exec_stream *s);
size_t sample_scratch_bytes_cpu(size_t n_rows, size_t n_vocab);
int sample_reference(const struct sample_args *args, struct exec_stream *s);
int sample_avx2(const struct sample_args *args, struct exec_stream *s);
int sample_avx512(const struct sample_args *args, struct exec_stream *s);
int logprob_reference(const struct logprob_args *args, struct exec_stream *s);
int logprob_avx2(const struct logprob_args *args, struct exec_stream *s);
int logprob_avx512(const struct logprob_args *args, struct exec_stream *s);
int top_cpu(const struct top_args *args, struct exec_stream *s);
