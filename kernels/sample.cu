/* sample.cu - draws one token a row on the card: the same tokens as sample.c from the same logits.
 *
 * logits [n_rows][n_vocab]. A cluster of blocks a row (row_scan.cuh); sample.c has the rules and why they are exact, sample_rule.h
 * the arithmetic. Parameters, histories and biases may lie in pinned host memory: a row's parameters are fetched while its
 * largest logit is looked for, the others are read only where they are asked for. Adjusted logits are kept as keys in scratch,
 * one word a token, which first holds how the history names the token.
 */
#include <cuda_runtime.h>
#include "kernels/exec_cuda.h"
#include "kernels/ops_cuda.h"
#include "kernels/overlap.cuh"
#include "kernels/row_scan.cuh"

#define MARK_RECENT 0x80000000u /* beside the count of generated tokens in a mark */
#define PARAM_WORDS (sizeof(struct sample_params) / 4)

enum { SLOT_LARGEST = 0, SLOT_LARGEST_ADJUSTED = 3, SLOT_TOTAL = 4 };

static_assert(sizeof(struct sample_params) % 4 == 0 && PARAM_WORDS <= 32, "a lane fetches a word");

/* Adds to the marks what the history says; every block takes its share of it. */
static __device__ void history_mark(const struct sample_args &a, const struct sample_params *p,
                                    uint32_t *marks)
{
    const int32_t *history = a.history + (size_t)p->history_row * a.history_stride;
    int64_t recent = sample_recent_first(p), generated = sample_generated_first(p);
    int64_t first = max(min(recent, generated), (int64_t)0);
    for (int64_t i = first + cluster_rank() * ROW_THREADS + threadIdx.x; i < p->position;
         i += cluster_size() * ROW_THREADS) {
        int32_t id = history[i];
        if (id < 0 || (size_t)id >= a.n_vocab)
            continue;
        if (i >= generated)
            atomicAdd(&marks[id], 1u);
        if (i >= recent)
            atomicOr(&marks[id], MARK_RECENT);
    }
}

/* Penalties, then biases; leaves the row's keys in `keys`. */
static __device__ void row_adjust(const struct sample_args &a, const struct sample_params *p,
                                  const struct row *row, uint32_t *keys)
{
    for (uint32_t id = row->first + threadIdx.x % 32; id < row->last; id += 32)
        keys[id] = 0;
    cluster_barrier();
    if (sample_has_repetition(p) || sample_has_counts(p))
        history_mark(a, p, keys);
    cluster_barrier();
    for (uint32_t id = row->first + threadIdx.x % 32; id < row->last; id += 32) {
        uint32_t mark = __ldcg(&keys[id]), key = sample_key(row->logits[id]);
        if (mark != 0)
            key = sample_key_penalised(key, (mark & MARK_RECENT) != 0, mark & ~MARK_RECENT, p);
        keys[id] = key;
    }
    cluster_barrier();
    for (int32_t i = (int32_t)(cluster_rank() * ROW_THREADS + threadIdx.x); i < p->n_bias;
         i += (int32_t)(cluster_size() * ROW_THREADS)) {
        struct sample_bias b = a.biases[p->bias_first + i];
        if (b.id >= 0 && (size_t)b.id < a.n_vocab)
            keys[b.id] = sample_key(sample_logit(__ldcg(&keys[b.id])) + b.bias);
    }
    cluster_barrier();
}

/* What draws from a list: the mass of each of its tokens beside it. */
struct draw_list {
    struct row_list list;
    uint64_t masses[ROW_LIST];
};

static __device__ uint64_t mass_least(const struct sample_params *p)
{
    double least = ceil((double)fminf(p->min_p, 1.0f) * SAMPLE_MASS_ONE);
    return p->min_p > 0.0f && least > 1.0 ? (uint64_t)least : 1;
}

static __device__ uint64_t mass_target(const struct sample_params *p, uint64_t total)
{
    uint64_t target = (uint64_t)(sample_fraction(p->seed, p->position) * (double)total);
    return target < total ? target : total - 1; /* the product may have been rounded up */
}

/* This thread's mass of a falling list, 0 where top_k, top_p or min_p leave its token out. `whole` is what top_p is a share of: 0
 * means what top_k keeps. */
static __device__ uint64_t list_mass(const struct row *row, const struct sample_params *p,
                                     const struct row_filter *f, uint64_t token, uint64_t whole)
{
    uint64_t mass = 0, total;
    if (token != 0) {
        float logit = sample_logit((uint32_t)(token >> 32));
        mass = mass_of(sample_exponent(logit, f->max, f->temperature));
    }
    if (p->top_p < 1.0f) {
        uint64_t upto = block_upto(row, mass, &total);
        if (upto - mass >= mass_wanted(p->top_p, whole != 0 ? whole : total))
            mass = 0;
    }
    return mass >= mass_least(p) ? mass : 0;
}

/* Draws from the n best tokens, by one block: sorts them falling, cuts, sorts what is left by id, and walks it. */
static __device__ uint32_t list_draw(const struct row *row, const struct sample_params *p,
                                     const struct row_filter *f, struct draw_list *s, uint32_t n,
                                     uint64_t whole)
{
    row_sort(&s->list, n);
    if (whole == 0) /* there is a top_k */
        n = min(n, (uint32_t)p->top_k);
    uint64_t token = threadIdx.x < n ? s->list.tokens[threadIdx.x] : 0, total;
    uint64_t mass = list_mass(row, p, f, token, whole);
    s->masses[threadIdx.x] = mass;
    s->list.tokens[threadIdx.x] = mass != 0 ? token << 32 | threadIdx.x : 0;
    row_sort(&s->list, n);
    token = s->list.tokens[threadIdx.x];
    mass = token != 0 ? s->masses[(uint32_t)token] : 0;
    uint64_t upto = block_upto(row, mass, &total), target = mass_target(p, total);
    if (upto > target && upto - mass <= target)
        row->shared->found = ~(uint32_t)(token >> 32);
    __syncthreads();
    return row->shared->found;
}

/* Draws from all tokens that top_k and top_p leave, wherever they are. */
static __device__ uint32_t row_draw(const struct row *row, const struct sample_params *p,
                                    struct row_filter *f)
{
    f->masses = true;
    f->mass_floor = mass_least(p);
    uint64_t target = mass_target(p, row_total(row, f, SLOT_TOTAL));
    return row_find(row, f, ROW_NO_KEY, target, SLOT_TOTAL);
}

/* The same after cutting: from a list, if that holds the tokens in question. */
static __device__ uint32_t row_cut_draw(struct row *row, const struct sample_params *p,
                                        struct row_filter *f, bool cuts_k, uint32_t highest,
                                        struct draw_list *list)
{
    uint64_t total;
    f->masses = !cuts_k;
    struct row_choice choice = row_choose(row, f, (uint64_t)p->top_k, p->top_p, &total);
    if (choice.bucket > 0) {
        row_range(row, f, highest, choice.bucket);
        uint32_t n = row_collect(row, f, row->shared->range[0], &list->list);
        if (n <= ROW_LIST)
            return cluster_rank() == 0 ? list_draw(row, p, f, list, n, cuts_k ? 0 : total)
                                       : ROW_NOBODY;
    }
    row_cut(row, f, cuts_k ? 0 : 1, highest, choice);
    if (cuts_k && p->top_p < 1.0f) {
        f->masses = true;
        choice = row_choose(row, f, 0, p->top_p, &total);
        row_cut(row, f, 1, highest, choice);
    }
    return row_draw(row, p, f);
}

/* The drawn id, in the block that has it; ROW_NOBODY in the others. */
static __device__ uint32_t row_sample(struct row *row, const struct sample_params *p,
                                      uint32_t n_vocab, uint32_t highest, struct draw_list *list)
{
    struct row_filter f = row_filter_open(sample_logit(highest), p->temperature);
    bool cuts_k = p->top_k > 0 && (uint32_t)p->top_k < n_vocab;
    if (cuts_k || p->top_p < 1.0f)
        return row_cut_draw(row, p, &f, cuts_k, highest, list);
    return row_draw(row, p, &f);
}

static __global__ void __launch_bounds__(ROW_THREADS) sample_kernel(const struct sample_args a)
{
    __shared__ struct row_shared shared;
    __shared__ struct sample_params p;
    __shared__ struct draw_list list;
    const uint32_t n_vocab = (uint32_t)a.n_vocab;
    overlap_wait();
    overlap_announce();
    struct row row = row_open(a.logits + blockIdx.y * a.n_vocab, n_vocab, &shared);
    uint32_t word = 0;
    if (threadIdx.x < PARAM_WORDS)
        word = ((const uint32_t *)&a.params[blockIdx.y])[threadIdx.x];
    uint64_t best = row_largest(&row, SLOT_LARGEST);
    if (threadIdx.x < PARAM_WORDS)
        ((uint32_t *)&p)[threadIdx.x] = word;
    __syncthreads();
    if (sample_adjusts(&p)) {
        uint32_t *keys = (uint32_t *)a.scratch + blockIdx.y * a.n_vocab;
        row_adjust(a, &p, &row, keys);
        row.keys = keys;
        best = row_largest(&row, SLOT_LARGEST_ADJUSTED);
    }
    uint32_t highest = (uint32_t)(best >> 32), id = ROW_NOBODY;
    if (p.temperature > 0.0f && sample_logit(highest) > -INFINITY)
        id = row_sample(&row, &p, n_vocab, highest, &list);
    else if (cluster_rank() == 0)
        id = ~(uint32_t)best;
    if (threadIdx.x == 0 && id != ROW_NOBODY)
        a.ids[blockIdx.y] = (int32_t)id;
    cluster_barrier();
}

size_t sample_scratch_bytes_cuda(size_t n_rows, size_t n_vocab)
{
    return n_rows * n_vocab * sizeof(uint32_t);
}

int sample_cuda(const struct sample_args *args, struct exec_stream *s)
{
    if (args->n_vocab == 0 || args->n_vocab > INT32_MAX || args->n_rows > 65535)
        return EBB_EUNSUPPORTED;
    if (args->n_rows == 0)
        return 0;
    row_launch(sample_kernel, args, args->n_rows, s);
    return exec_cuda_launched(s);
}
