/* kernels/combine_avx2.c - the weighted sum of expert outputs, eight values at a time: the bits of
 * combine.c.
 *
 * Owns nothing; any thread; refuses nothing. Compiled with -mavx2 -mfma -mf16c and called only
 * where set_cpu.c has found all three.
 */
#include <immintrin.h>
#include <math.h>
#include "kernels/ops_cpu.h"
#include "kernels/tile.h"

static void combine_row(const struct combine_args *p, size_t row)
{
    const size_t first = row * p->n_used, last = first + p->n_used;
    float *hidden = p->hidden + row * p->d_model;
    size_t i = 0;
    for (; i + 8 <= p->d_model; i += 8) {
        __m256 acc = _mm256_setzero_ps();
        for (size_t pair = first; pair < last; pair++)
            if (p->ids[pair] >= 0)
                acc = _mm256_fmadd_ps(_mm256_set1_ps(p->mix[pair]),
                                      _mm256_loadu_ps(p->outputs + pair * p->d_model + i), acc);
        _mm256_storeu_ps(hidden + i, _mm256_add_ps(_mm256_loadu_ps(hidden + i), acc));
    }
    for (; i < p->d_model; i++) {
        float acc = 0.0f;
        for (size_t pair = first; pair < last; pair++)
            if (p->ids[pair] >= 0)
                acc = fmaf(p->mix[pair], p->outputs[pair * p->d_model + i], acc);
        hidden[i] += acc;
    }
}

int combine_avx2(const struct combine_args *args, struct exec_stream *s)
{
    return combine_push(args, combine_row, s);
}
