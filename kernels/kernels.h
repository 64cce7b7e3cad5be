/* kernels/kernels.h - the operations of a forward pass, as tables of launchers: one `struct kernel_set` per way to
 * compute them. CPU sets: "reference" (plain C, the truth), "avx2" and "avx512" (bit-identical to it), "float"
 * (weights dequantised, activations not quantised, fp64 sums: what the goldens are compared with at 2e-3).
 *
 * A launcher puts work on a stream and returns; it never waits and never allocates. Its args are copied; what they
 * point to must live until the work is done. Sizes and pointers are capture-time constants; what changes from step
 * to step (tokens, positions, tables, addresses, sampling) is read from fixed-address buffers when the work runs.
 * A row whose position is negative is inert: it is skipped or computes to unused numbers, touches no KV and no heat,
 * so that a graph captured for 8 rows serves 5. Launchers return 0, EBB_EUNSUPPORTED (a type or shape the set does
 * not compute; nothing was launched) or what exec returned.
 *
 * Exactness: NUMERICS.md. Tier 1 = the same bits on every device; tier 2 = the same bits on one device kind for any
 * batch, chunk, split and residency; all CPU sets but "float" agree bit for bit in both tiers.
 * Shapes are row-major, last index fastest; `_stride` counts values.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "kernels/exec.h"
#include "kernels/tensor_type.h"

#ifdef __cplusplus
extern "C" {
#endif

#define KV_BLOCK_TOKENS     32  /* positions of one KV block */
#define KV_PARTITION_TOKENS 256 /* attention's fixed partition, cut at multiples from position 0 */
#define EXPERTS_USED_MAX    16  /* most experts one token is routed to */
#define HEAD_DIM_MAX        256

/* How keys and values are stored. KV_Q8_0: blocks of 32 values along head_dim, each an fp16 scale d = amax / 127 (rounded to
 * nearest even) and 32 int8 quants, made by the rule of activations (NUMERICS rule 1, activation.h); a value is d * q, which fp32
 * holds exactly. head_dim must be a multiple of 32. */
enum kv_type { KV_F16 = 0, KV_F32 = 1, KV_Q8_0 = 2 };
#define KV_QUANTS 32 /* values of one scale */

/* Bytes of n values; of KV_Q8_0 n is a multiple of KV_QUANTS. */
static inline size_t kv_values_bytes(enum kv_type type, size_t n)
{
    if (type == KV_Q8_0)
        return n + n / KV_QUANTS * sizeof(uint16_t);
    return n * (type == KV_F16 ? sizeof(uint16_t) : sizeof(float));
}

/* Where an expert's three matrices are now: in a cache slot, or in the mapped model file (a miss). */
struct expert_address {
    const void *gate, *up, *down;
    uint32_t resident; /* 1 = in a slot of the card; counts as a hit */
    uint32_t reserved;
};

/* hidden[r] = row tokens[r] of the table, as fp32; a negative token gives zeros. Tier 1. */
struct embed_args {
    uint32_t type;
    const void *table; /* [n_vocab][d_model] of type */
    size_t n_vocab, d_model, n_rows;
    const int32_t *tokens; /* [n_rows] */
    float *hidden;         /* [n_rows][d_model] */
};

/* y = x / sqrt(mean(x^2) + eps) * weight, row by row. Tier 2. y may be x. */
struct rmsnorm_args {
    const float *x, *weight; /* [n_rows][n], [n] */
    float *y;                /* [n_rows][n] */
    size_t n_rows, n;
    float eps;
};

/* Quantises rows for products (NUMERICS tier 1, rule 1). One row takes activation_bytes(n) bytes, 64-byte aligned. */
struct quantize_args {
    const float *x; /* [n_rows][n], n a multiple of 32 */
    void *a;        /* [n_rows][activation_bytes(n)] */
    size_t n_rows, n;
};

/* y[r][o] = (accumulate ? y[r][o] : 0) + bias[o] + sum_i weights[o][i] * x[r][i]: the product is complete before the
 * bias, then the old y, is added, each with one rounding. Quantised types read `a` (tier 1); F32, F16 and BF16 read
 * `x` (tier 2). */
struct product_args {
    uint32_t type;
    const void *weights; /* [n_out][n_in] of type */
    size_t n_in, n_out, n_rows;
    const float *x;    /* [n_rows][n_in] */
    const void *a;     /* [n_rows][activation_bytes(n_in)]: x quantised; NULL for F32, F16, BF16 */
    const float *bias; /* [n_out] or NULL */
    float *y;          /* [n_rows][n_out] */
    bool accumulate;
};

/* angles[r][i] = {cos, sin}(position * inv_freq[i]), computed in fp64, rounded once; once per step. Tier 2. */
struct rope_angles_args {
    const int32_t *positions; /* [n_rows] */
    const double *inv_freq;   /* [n_half] */
    size_t n_rows, n_half;
    float scale;   /* of both, after rounding: one product; 1 = none */
    float *angles; /* [n_rows][n_half][2] */
};

/* For every head of every row: RMS norm with weight[head_dim] if given, then rotation by `angles`, in place. Tier 2.
 * Pair i is (i, i + n_half) where halves is set (NeoX), else (2i, 2i + 1); dimensions past 2 * n_half stay. */
struct head_rope_args {
    float *x; /* [n_rows][n_heads][head_dim] */
    size_t n_rows, n_heads, head_dim, n_half;
    const float *norm_weight; /* [head_dim] or NULL */
    float eps;
    const float *angles; /* [n_rows][n_half][2] */
    bool halves;
};

/* The KV blocks of one layer and how rows find theirs. */
struct kv_view {
    void *base;          /* block b at base + b * block_stride */
    size_t block_stride; /* bytes from a block to the next of the same layer */
    /* A block: K [KV_BLOCK_TOKENS][n_kv_heads][head_dim], then V alike. KV_Q8_0: K's quants, so shaped, then its scales
     * [KV_BLOCK_TOKENS][n_kv_heads][head_dim / 32], then V alike: 34 bytes together would leave no quants aligned. */
    enum kv_type type;
    size_t n_kv_heads, head_dim;
    const int32_t
        *tables; /* [n_sequences][table_stride]: block numbers by position / KV_BLOCK_TOKENS */
    size_t table_stride;
    const int32_t *row_sequence; /* [n_rows]: index into tables */
    const int32_t *positions;    /* [n_rows]; negative = inert row */
};

/* Writes rows' k and v at their positions. */
struct kv_store_args {
    struct kv_view kv;
    const float *k, *v; /* [n_rows][n_kv_heads][head_dim] */
    size_t n_rows;
};

/* Causal attention of each row over positions 0..position of its sequence (all of them stored). Tier 2: partitions of
 * KV_PARTITION_TOKENS in ascending order, running maximum and rescale per partition, nothing read past the position. */
struct attention_args {
    struct kv_view kv;
    const float *q; /* [n_rows][n_heads][head_dim] */
    float *out;     /* [n_rows][n_heads][head_dim] */
    size_t n_rows, n_heads;
    float scale;
    size_t
        n_positions; /* more than the largest position of any row: fixes the launch, not the result */
    void *scratch;   /* attention_scratch_bytes(); CPU sets: NULL */
};

/* Router: logits = weights x, softmax over all experts, the n_used largest in falling order (ties: lower id); their
 * probabilities, divided by their sum where renormalise is set, times scale. Tier 2. */
struct router_args {
    uint32_t type;       /* F32, F16 or BF16 */
    const void *weights; /* [n_experts][n_in] */
    const float *x;      /* [n_rows][n_in] */
    size_t n_in, n_experts, n_used, n_rows;
    bool renormalise;
    float scale;
    float *logits;            /* scratch [n_rows][n_experts] */
    int32_t *ids;             /* [n_rows][n_used] */
    float *mix;               /* [n_rows][n_used] */
    const int32_t *positions; /* [n_rows]: inert rows are not routed (ids -1) */
};

/* The routed experts: outputs[r][rank] = down( swiglu(gate x, up x) ). Tier 1. heat[e] += rows that used e;
 * hits[r] += ranks of row r whose expert was resident. A matrix of F32, F16 or BF16 reads its input unquantised (tier 2). */
struct experts_args {
    uint32_t gate_type, up_type, down_type;
    const struct expert_address *addresses; /* [n_experts], read when the work runs */
    size_t d_model, d_expert, n_experts, n_used, n_rows;
    const float *x;     /* [n_rows][d_model] */
    const void *a;      /* x quantised; NULL where neither gate nor up is of a quantised type */
    const int32_t *ids; /* [n_rows][n_used], -1 = none */
    void *scratch;      /* experts_scratch_bytes() */
    float *outputs;     /* [n_rows][n_used][d_model] */
    uint32_t *heat;     /* [n_experts] */
    uint32_t *hits;     /* [n_rows] */
};

/* hidden[r] += acc, where acc = 0, then acc = fmaf(mix[r][rank], outputs[r][rank], acc) in rank order. Tier 1. */
struct combine_args {
    const float *outputs, *mix;
    const int32_t *ids;
    size_t d_model, n_used, n_rows;
    float *hidden; /* [n_rows][d_model] */
};

/* y[r][i] = silu(gate[r][i]) * up[r][i] with ebb_expf (NUMERICS rule 5). Tier 1. y may be gate. */
struct swiglu_args {
    const float *gate, *up;
    float *y;
    size_t n_rows, n;
};

/* hidden[r] += sigmoid(gate . x[r]) * y[r]: the shared expert. The dot product is tier 2 (like a router's), 1 / (1 + ebb_expf(-z))
 * by IEEE division, the sum one fmaf. gate NULL: hidden[r] += y[r]. Inert rows (position < 0) may be left alone. */
struct shared_add_args {
    const float *gate;  /* [n] or NULL */
    const float *x, *y; /* [n_rows][n] */
    size_t n_rows, n;
    float *hidden; /* [n_rows][n] */
};

/* y[j] = x[index[j]]; an index < 0 gives zeros. */
struct gather_args {
    const float *x;       /* [..][n] */
    const int32_t *index; /* [n_rows] */
    float *y;             /* [n_rows][n] */
    size_t n_rows, n;
};

/* For each of n pairs, `bytes` from one place of the card's memory to another; no place is written that another pair reads or writes. */
struct move_pair {
    const void *from;
    void *to; /* both at multiples of MOVE_ALIGN */
};

#define MOVE_ALIGN 256

struct move_args {
    const struct move_pair *pairs; /* [n], read when the work runs */
    size_t n, bytes;               /* bytes: a multiple of MOVE_ALIGN */
};

struct sample_bias {
    int32_t id;
    float bias;
};

/* How one row is sampled. First the logits are adjusted, each step one fp32 operation with one rounding, in this order:
 *   repetition   of every token among the last n_repeat of the history: l > 0 ? l / repetition : l * repetition, once
 *   frequency    of every token generated before: l - (frequency * times), the product rounded on its own
 *   presence     of the same: l - presence
 *   bias         of every token named: l + bias
 * The history is all tokens before `position`, those from n_prompt on are the generated ones. repetition 1 (or not above
 * 0), frequency 0, presence 0 and no bias leave the bits alone, and nothing is read.
 * Then: temperature 0 = greedy (largest logit, ties: lower id). Else: logits / temperature; keep the top_k largest (0 =
 * all); softmax; keep the shortest falling prefix whose mass reaches top_p (1 = all); keep those with p >= min_p * p_max;
 * renormalise; the first whose cumulated mass exceeds u = sample_uniform(seed, position). */
struct sample_params {
    float temperature, top_p, min_p;
    int32_t top_k;
    uint64_t seed;
    int64_t position; /* of the token to be drawn */
    float repetition, frequency, presence;
    int32_t n_repeat, n_prompt;
    int32_t history_row;        /* of history: this row's tokens */
    int32_t bias_first, n_bias; /* of biases; an id at most once */
};

struct sample_args {
    const float *logits; /* [n_rows][n_vocab] */
    size_t n_rows, n_vocab;
    const struct sample_params *params; /* [n_rows] */
    void *scratch;                      /* sample_scratch_bytes() */
    int32_t *ids;                       /* [n_rows] */
    const int32_t *history; /* [..][history_stride]; ids outside the vocabulary count for nothing */
    size_t history_stride;
    const struct sample_bias *biases;
};

/* norms[r] = ln(sum of e^logit): max + log(mass) in fp64, the mass a sum of integers as in sampling; chosen[r] =
 * logits[r][ids[r]]. A token's log-probability is its logit - norm, rounded once. The same bits in all CPU sets. */
struct logprob_args {
    const float *logits; /* [n_rows][n_vocab] */
    size_t n_rows, n_vocab;
    const int32_t *ids; /* [n_rows]: the sampled tokens */
    double *norms;      /* [n_rows] */
    float *chosen;      /* [n_rows] */
};

/* The k largest logits of each row, falling, ties: lower id. */
struct top_args {
    const float *logits;
    size_t n_rows, n_vocab, k;
    int32_t *ids;  /* [n_rows][k] */
    float *values; /* [n_rows][k] */
};

/* Several operations in one launch, with the bits of one after the other. A set may lack any of them (NULL), or refuse a
 * shape (EBB_EUNSUPPORTED, nothing launched): the operations are then launched one by one. */

/* rmsnorm, then quantize of its y. */
struct rmsnorm_quantize_args {
    struct rmsnorm_args norm;
    void *a; /* [n_rows][activation_bytes(n)] */
};

/* head_rope of q, head_rope of k, kv_store of that k and of v. Afterwards q.x is rotated, k.x may be as it was. */
struct heads_store_args {
    struct head_rope_args q, k; /* n_rows alike */
    struct kv_store_args store; /* store.k is k.x */
};

/* attention, then quantize of its out, which is written too. */
struct attention_quantize_args {
    struct attention_args attention;
    void *a; /* [n_rows][activation_bytes(n_heads * head_dim)] */
};

struct kernel_set {
    const char *name;
    size_t (*activation_bytes)(size_t n);
    size_t (*experts_scratch_bytes)(size_t n_rows, size_t n_used, size_t n_experts, size_t d_model,
                                    size_t d_expert);
    size_t (*sample_scratch_bytes)(size_t n_rows, size_t n_vocab);
    size_t (*attention_scratch_bytes)(size_t n_rows, size_t n_heads, size_t head_dim,
                                      size_t n_positions); /* NULL: none is needed */

    int (*embed)(const struct embed_args *args, struct exec_stream *s);
    int (*rmsnorm)(const struct rmsnorm_args *args, struct exec_stream *s);
    int (*quantize)(const struct quantize_args *args, struct exec_stream *s);
    int (*product)(const struct product_args *args, struct exec_stream *s);
    int (*rope_angles)(const struct rope_angles_args *args, struct exec_stream *s);
    int (*head_rope)(const struct head_rope_args *args, struct exec_stream *s);
    int (*kv_store)(const struct kv_store_args *args, struct exec_stream *s);
    int (*attention)(const struct attention_args *args, struct exec_stream *s);
    int (*router)(const struct router_args *args, struct exec_stream *s);
    int (*experts)(const struct experts_args *args, struct exec_stream *s);
    int (*combine)(const struct combine_args *args, struct exec_stream *s);
    int (*swiglu)(const struct swiglu_args *args, struct exec_stream *s);
    int (*shared_add)(const struct shared_add_args *args, struct exec_stream *s);
    int (*gather)(const struct gather_args *args, struct exec_stream *s);
    int (*move)(const struct move_args *args, struct exec_stream *s);
    int (*sample)(const struct sample_args *args, struct exec_stream *s);
    int (*top)(const struct top_args *args, struct exec_stream *s);
    int (*logprob)(const struct logprob_args *args, struct exec_stream *s);

    int (*rmsnorm_quantize)(const struct rmsnorm_quantize_args *args, struct exec_stream *s);
    int (*heads_store)(const struct heads_store_args *args, struct exec_stream *s);
    int (*attention_quantize)(const struct attention_quantize_args *args, struct exec_stream *s);
};

/* A CPU set by name: "reference", "avx2", "avx512", "float", or "auto" (the fastest that this processor runs).
 * NULL with err set: EBB_ENOENT (unknown name), EBB_EUNSUPPORTED (this processor lacks the instructions). */
const struct kernel_set *kernel_set_cpu(const char *name, struct error *err);

/* The set of CUDA cards, "cuda" or "auto"; only in programs linked with the room's CUDA half. NULL as above. */
const struct kernel_set *kernel_set_cuda(const char *name, struct error *err);

/* A number in [0, 1) that depends on nothing but its arguments; the same on every device. */
double sample_uniform(uint64_t seed, int64_t position);

#ifdef __cplusplus
}
#endif
