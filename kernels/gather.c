/* gather.c - picks rows by number, for every set: the rows whose logits are wanted. Owns nothing, refuses nothing. */
#include <string.h>
#include "kernels/ops_cpu.h"
#include "kernels/rows.h"

static void gather_range(void *ctx, size_t first, size_t last)
{
    const struct gather_args *a = ctx;
    for (size_t j = first; j < last; j++) {
        float *y = a->y + j * a->n;
        if (a->index[j] < 0)
            memset(y, 0, a->n * sizeof *y);
        else
            memcpy(y, a->x + (size_t)a->index[j] * a->n, a->n * sizeof *y);
    }
}

static void gather_run(const void *args, struct exec_cpu_worker *w)
{
    struct gather_args a = *(const struct gather_args *)args;
    exec_cpu_parallel_for(w, a.n_rows, rows_grain(a.n), gather_range, &a);
}

int gather_cpu(const struct gather_args *args, struct exec_stream *s)
{
    return exec_cpu_push(s, gather_run, args, sizeof *args);
}
