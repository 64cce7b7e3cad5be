/* sample.c - draws one token a row, for every set.
 *
 * A token's mass is an integer: floor(ebb_expf((logit - largest) / temperature) * 2^40). Sums of masses are exact, so
 * no order of addition shows: what is drawn is the same on every device that has the same logits. A token under 2^-40
 * of the likeliest has no mass. "Falling order" is by logit, ties by lower id, but nothing is sorted: top_k and top_p
 * each find where their prefix ends by a radix descent over the logits' bits, adding up counts or masses per bucket.
 * min_p compares masses. The draw walks what is left in the order of ids: the first whose cumulated mass exceeds
 * floor(u * total).
 *
 * Penalties and biases change a copy of the logits, the candidates' keys (a key is its logit's bits in another order), so
 * that the logits stay as they are for log-probabilities. Rows without any are drawn from the logits as ever.
 *
 * NaN logits count as -infinity; with nothing but -infinity the answer is 0. Parameters out of their range act as the
 * nearest sense: temperature not above 0 is greedy, top_p not below 1 keeps all, min_p over 1 keeps the largest.
 * Scratch: n_vocab candidates a row, written before read. Owns nothing; any thread.
 */
#include <math.h>
#include "kernels/ops_cpu.h"
#include "kernels/rows.h"
#include "kernels/sample_rule.h"

#define STEP_BITS 8 /* of a key's 32 are looked at in one step of the descent */

/* Lists of candidates are in ascending id. */
struct candidate {
    uint64_t weight; /* 1 while counting for top_k, then the mass */
    uint32_t key;    /* orders as the logits do */
    int32_t id;
};

double sample_uniform(uint64_t seed, int64_t position)
{
    return sample_fraction(seed, position);
}

/* Adds up the weights of the keys that continue `prefix`, per value of their bits [shift, shift + STEP_BITS). */
static void buckets_add(uint64_t *sums, const struct candidate *c, size_t n, uint32_t prefix,
                        int shift)
{
    uint32_t mask = (1u << STEP_BITS) - 1;
    for (size_t i = 0; i < n; i++)
        if ((c[i].key ^ prefix) >> shift <= mask)
            sums[c[i].key >> shift & mask] += c[i].weight;
}

/* Keeps the shortest falling prefix whose weights reach `wanted` (> 0 and at most their sum); returns its length. */
static size_t candidates_cut(struct candidate *c, size_t n, uint64_t wanted)
{
    uint32_t last = 0; /* the key with which the prefix ends, found from its upper bits down */
    for (int shift = 32 - STEP_BITS; shift >= 0; shift -= STEP_BITS) {
        uint64_t sums[1 << STEP_BITS] = {0};
        uint32_t bucket = (1u << STEP_BITS) - 1;
        buckets_add(sums, c, n, last, shift);
        for (; bucket > 0 && sums[bucket] < wanted; bucket--)
            wanted -= sums[bucket];
        last |= bucket << shift;
    }
    size_t n_kept = 0;
    uint64_t sum = 0; /* of the keys that equal `last`: the lower ids stay until it suffices */
    for (size_t i = 0; i < n; i++) {
        bool equal = c[i].key == last;
        if (c[i].key < last || (equal && sum >= wanted))
            continue;
        sum += equal ? c[i].weight : 0;
        c[n_kept++] = c[i];
    }
    return n_kept;
}

static uint64_t weight_total(const struct candidate *c, size_t n)
{
    uint64_t total = 0;
    for (size_t i = 0; i < n; i++)
        total += c[i].weight;
    return total;
}

/* Turns counts into masses; a mass of 0 leaves the list. */
static size_t candidates_weigh(struct candidate *c, size_t n, float max, float temperature,
                               const struct row_ops *ops)
{
    enum { PIECE = 256 };
    size_t n_kept = 0;
    for (size_t first = 0; first < n; first += PIECE) {
        size_t n_piece = n - first < PIECE ? n - first : PIECE;
        float e[PIECE];
        for (size_t i = 0; i < n_piece; i++) {
            float logit = sample_logit(c[first + i].key);
            e[i] = sample_exponent(logit, max, temperature);
        }
        ops->exponentials(e, n_piece);
        for (size_t i = 0; i < n_piece; i++) {
            uint64_t mass = (uint64_t)((double)e[i] * SAMPLE_MASS_ONE);
            if (mass == 0)
                continue;
            c[n_kept] = c[first + i];
            c[n_kept++].weight = mass;
        }
    }
    return n_kept;
}

static size_t candidates_floor(struct candidate *c, size_t n, float min_p)
{
    double floor_mass = (double)fminf(min_p, 1.0f) * SAMPLE_MASS_ONE;
    size_t n_kept = 0;
    for (size_t i = 0; i < n; i++)
        if ((double)c[i].weight >= floor_mass)
            c[n_kept++] = c[i];
    return n_kept;
}

static int32_t candidates_draw(const struct candidate *c, size_t n, double u)
{
    uint64_t total = weight_total(c, n), target = (uint64_t)(u * (double)total), sum = 0;
    if (target >= total) /* u * total may have been rounded up */
        target = total - 1;
    for (size_t i = 0;; i++) {
        sum += c[i].weight;
        if (sum > target)
            return c[i].id;
    }
}

static size_t argmax(const float *logits, size_t n)
{
    size_t best = 0;
    float max = -INFINITY;
    for (size_t i = 0; i < n; i++)
        if (logits[i] > max) {
            max = logits[i];
            best = i;
        }
    return best;
}

#define RECENT (UINT64_C(1) << 32) /* beside the count of generated tokens in a weight */

/* Marks in the weights, which begin at 0, how the row's history names each token. */
static void history_count(struct candidate *c, size_t n_vocab, const struct sample_params *p,
                          const int32_t *history)
{
    int64_t recent = sample_recent_first(p), generated = sample_generated_first(p);
    int64_t first = recent < generated ? recent : generated;
    for (int64_t i = first > 0 ? first : 0; i < p->position; i++) {
        if (history[i] < 0 || (size_t)history[i] >= n_vocab)
            continue;
        uint64_t *weight = &c[history[i]].weight;
        *weight += i >= generated;
        *weight |= i >= recent ? RECENT : 0;
    }
}

/* Penalties, then biases; weights are 1 again afterwards. Returns the best token: the largest, ties by lower id. */
static size_t candidates_adjust(struct candidate *c, size_t n_vocab, const struct sample_params *p,
                                const struct sample_args *a)
{
    size_t best = 0;
    if (sample_has_repetition(p) || sample_has_counts(p))
        history_count(c, n_vocab, p, a->history + (size_t)p->history_row * a->history_stride);
    for (size_t i = 0; i < n_vocab; i++) {
        if (c[i].weight != 0)
            c[i].key = sample_key_penalised(c[i].key, (c[i].weight & RECENT) != 0,
                                            (uint32_t)c[i].weight, p);
        c[i].weight = 1;
    }
    for (int32_t i = 0; i < p->n_bias; i++) {
        const struct sample_bias *b = &a->biases[p->bias_first + i];
        if (b->id >= 0 && (size_t)b->id < n_vocab)
            c[b->id].key = sample_key(sample_logit(c[b->id].key) + b->bias);
    }
    for (size_t i = 1; i < n_vocab; i++)
        if (c[i].key > c[best].key)
            best = i;
    return best;
}

static int32_t sample_row(const float *logits, const struct sample_params *params,
                          const struct sample_args *a, struct candidate *c,
                          const struct row_ops *ops)
{
    bool adjusted = sample_adjusts(params);
    bool greedy = !(params->temperature > 0.0f);
    size_t best = adjusted ? 0 : argmax(logits, a->n_vocab), n = a->n_vocab;
    if (!adjusted && (greedy || !(logits[best] > -INFINITY)))
        return (int32_t)best;
    for (size_t i = 0; i < n; i++)
        c[i] =
            (struct candidate){.weight = !adjusted, .key = sample_key(logits[i]), .id = (int32_t)i};
    if (adjusted)
        best = candidates_adjust(c, n, params, a);
    float max = sample_logit(c[best].key);
    if (greedy || !(max > -INFINITY))
        return (int32_t)best;
    if (params->top_k > 0 && (size_t)params->top_k < n)
        n = candidates_cut(c, n, (uint64_t)params->top_k);
    n = candidates_weigh(c, n, max, params->temperature, ops);
    if (params->top_p < 1.0f) {
        double wanted = ceil((double)params->top_p * (double)weight_total(c, n));
        n = candidates_cut(c, n, wanted > 1.0 ? (uint64_t)wanted : 1);
    }
    if (params->min_p > 0.0f)
        n = candidates_floor(c, n, params->min_p);
    return candidates_draw(c, n, sample_uniform(params->seed, params->position));
}

struct sample_job {
    struct sample_args args;
    const struct row_ops *ops;
};

static void sample_range(void *ctx, size_t first, size_t last)
{
    const struct sample_job *job = ctx;
    const struct sample_args *a = &job->args;
    for (size_t r = first; r < last; r++)
        a->ids[r] = sample_row(a->logits + r * a->n_vocab, &a->params[r], a,
                               (struct candidate *)a->scratch + r * a->n_vocab, job->ops);
}

static void sample_run(const void *args, struct exec_cpu_worker *w)
{
    struct sample_job job = *(const struct sample_job *)args;
    exec_cpu_parallel_for(w, job.args.n_rows, rows_grain(8 * job.args.n_vocab), sample_range, &job);
}

size_t sample_scratch_bytes_cpu(size_t n_rows, size_t n_vocab)
{
    return n_rows * n_vocab * sizeof(struct candidate);
}

static int sample_push(const struct sample_args *args, const struct row_ops *ops,
                       struct exec_stream *s)
{
    struct sample_job job = {*args, ops};
    if (args->n_vocab == 0)
        return EBB_EUNSUPPORTED;
    return exec_cpu_push(s, sample_run, &job, sizeof job);
}

int sample_reference(const struct sample_args *args, struct exec_stream *s)
{
    return sample_push(args, &rows_reference, s);
}

int sample_avx2(const struct sample_args *args, struct exec_stream *s)
{
    return sample_push(args, &rows_avx2, s);
}

int sample_avx512(const struct sample_args *args, struct exec_stream *s)
{
    return sample_push(args, &rows_avx512, s);
}
