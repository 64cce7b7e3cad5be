/* move.c - many blocks of memory to other places at once, for every set: experts that change slots. Owns nothing, refuses nothing. */
#include <string.h>
#include "kernels/ops_cpu.h"

static void move_range(void *ctx, size_t first, size_t last)
{
    const struct move_args *a = ctx;
    for (size_t i = first; i < last; i++)
        memcpy(a->pairs[i].to, a->pairs[i].from, a->bytes);
}

static void move_run(const void *args, struct exec_cpu_worker *w)
{
    struct move_args a = *(const struct move_args *)args;
    exec_cpu_parallel_for(w, a.n, 1, move_range, &a);
}

int move_cpu(const struct move_args *args, struct exec_stream *s)
{
    return exec_cpu_push(s, move_run, args, sizeof *args);
}
