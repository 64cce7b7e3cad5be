/* kernels/combine_avx512.c - the weighted sum of expert outputs, sixteen values at a time: the bits of combine.c.
 *
 * Owns nothing; any thread; refuses nothing. Called only where set_cpu.c has found the instructions.
 */
#include "kernels/ops_cpu.h"
#include "kernels/reduce_avx512.h"
#include "kernels/tile.h"

/* Values i .. i + 15 of the row, of which there are those in `mask`. */
static inline void combine_step(const struct combine_args *p, size_t row, size_t i, __mmask16 mask)
{
    float *hidden = p->hidden + row * p->d_model + i;
    __m512 acc = _mm512_setzero_ps();
    for (size_t pair = row * p->n_used; pair < (row + 1) * p->n_used; pair++)
        if (p->ids[pair] >= 0)
            acc = _mm512_fmadd_ps(_mm512_set1_ps(p->mix[pair]),
                                  reduce_load(p->outputs + pair * p->d_model + i, mask), acc);
    acc = _mm512_add_ps(reduce_load(hidden, mask), acc);
    _mm512_mask_storeu_ps(hidden, mask, acc);
}

static void combine_row(const struct combine_args *p, size_t row)
{
    size_t i = 0;
    for (; i + 16 <= p->d_model; i += 16)
        combine_step(p, row, i, REDUCE_ALL);
    if (i < p->d_model)
        combine_step(p, row, i, reduce_mask(p->d_model - i));
}

int combine_avx512(const struct combine_args *args, struct exec_stream *s)
{
    return combine_push(args, combine_row, s);
}
