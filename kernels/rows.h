/* kernels/rows.h - internal to the room: the inner loops of tier 2, one table per set.
 *
 * An operation's file (norm.c, rope.c, attention.c, router.c) checks, queues and cuts into rows once for all sets and
 * calls these for the arithmetic. rows_reference.c says what the bits are; {rows,attention}_{avx2,avx512}.c match it;
 * rows_float.c and attention_float.c sum in fp64. All run on the calling thread and allocate nothing.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "kernels/kernels.h"
#include "kernels/tile.h"

struct row_ops {
    /* y[i] = (x[i] * (1 / sqrt(sum x^2 / n + eps))) * weight[i]; y may be x. */
    void (*rmsnorm)(const float *x, const float *weight, float *y, size_t n, float eps);
    /* Rotates one head in place: pair (a, b) by (c, s) to (fmaf(-b, s, a * c), fmaf(a, s, b * c)). */
    void (*rotate)(float *x, const float *angles, size_t n_half, bool halves);
    /* n fp32 values to half floats, to nearest even, as the F16C instruction does. */
    void (*halves_store)(uint16_t *to, const float *from, size_t n);
    const struct tile_ops *tiles; /* whose quantize makes the quants of KV_Q8_0 */
    /* One row's attention for all query heads of one KV head; the row is not inert. */
    void (*attend)(const struct attention_args *a, size_t row, size_t kv_head);
    /* x[i] = ebb_expf(x[i]) in place; the same bits in all sets. */
    void (*exponentials)(float *x, size_t n);
    /* p[i] = e^(p[i] - max) / sum, in place. */
    void (*softmax)(float *p, size_t n);
    /* hidden[i] = fmaf(sigmoid(gate . x), y[i], hidden[i]) */
    void (*gated_add)(const float *gate, const float *x, const float *y, float *hidden, size_t n);
    /* Outputs [out_first, out_last) of all rows of a product with F32, F16 or BF16 weights and no bias. */
    void (*logits)(const struct product_args *a, size_t out_first, size_t out_last);
};

extern const struct row_ops rows_reference, rows_avx2, rows_avx512, rows_float;

void logits_reference(const struct product_args *a, size_t out_first, size_t out_last);
void logits_avx2(const struct product_args *a, size_t out_first, size_t out_last);
void logits_avx512(const struct product_args *a, size_t out_first, size_t out_last);
void attend_reference(const struct attention_args *a, size_t row, size_t kv_head);
void attend_avx2(const struct attention_args *a, size_t row, size_t kv_head);
void attend_avx512(const struct attention_args *a, size_t row, size_t kv_head);
void attend_float(const struct attention_args *a, size_t row, size_t kv_head);

/* Items of a loop that keep one thread busy for some ten microseconds when one item is `cost` multiplications. */
static inline size_t rows_grain(size_t cost)
{
    return cost < 65536 ? 65536 / (cost > 0 ? cost : 1) : 1;
}
