/* kernels/sample_rule.h - the arithmetic of sampling (kernels.h, struct sample_params), for the CPU and for CUDA. Internal.
 *
 * Everything is one IEEE operation at a time or integers, so that both draw the same tokens from the same logits. What
 * is drawn is described in sample.c.
 */
#pragma once
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include "kernels/kernels.h"

#ifdef __CUDACC__
#define EBB_SAMPLE_DEVICE __host__ __device__
#else
#define EBB_SAMPLE_DEVICE
#endif

#define SAMPLE_MASS_ONE 0x1p40 /* a vocabulary of 2^23 tokens still fits into 64 bits */

/* splitmix64: its output function, and its step. */
EBB_SAMPLE_DEVICE static inline uint64_t sample_mix(uint64_t x)
{
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

/* sample_uniform(): the seed is mixed once to a place in splitmix64's sequence, the position counts steps from there;
 * the upper 53 bits of the output are the fraction. */
EBB_SAMPLE_DEVICE static inline double sample_fraction(uint64_t seed, int64_t position)
{
    const uint64_t step = 0x9e3779b97f4a7c15u;
    uint64_t x = sample_mix(seed + step) + ((uint64_t)position + 1) * step;
    return (double)(sample_mix(x) >> 11) * 0x1p-53;
}

/* Keys order as logits do: NaN and -infinity lowest, -0 equal to +0. */
EBB_SAMPLE_DEVICE static inline uint32_t sample_key(float logit)
{
    uint32_t bits;
    if (logit != logit)
        logit = -INFINITY;
    logit = logit + 0.0f;
    memcpy(&bits, &logit, sizeof bits);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

/* The logit that sample_key() made the key of; -infinity for NaN. */
EBB_SAMPLE_DEVICE static inline float sample_logit(uint32_t key)
{
    uint32_t bits = key & 0x80000000u ? key ^ 0x80000000u : ~key;
    float logit;
    memcpy(&logit, &bits, sizeof logit);
    return logit;
}

/* What a mass is the exponential of; NaN, and -infinity at an infinite temperature, have no mass. */
EBB_SAMPLE_DEVICE static inline float sample_exponent(float logit, float max, float temperature)
{
    float z = (logit - max) / temperature;
    return logit == max ? 0.0f : z <= 0.0f ? z : -INFINITY;
}

EBB_SAMPLE_DEVICE static inline bool sample_has_repetition(const struct sample_params *p)
{
    return p->repetition > 0.0f && p->repetition != 1.0f && p->n_repeat > 0;
}

EBB_SAMPLE_DEVICE static inline bool sample_has_counts(const struct sample_params *p)
{
    return p->frequency != 0.0f || p->presence != 0.0f;
}

EBB_SAMPLE_DEVICE static inline bool sample_adjusts(const struct sample_params *p)
{
    return sample_has_repetition(p) || sample_has_counts(p) || p->n_bias > 0;
}

/* Where the part of the history begins that repetition and that counts look at. */
EBB_SAMPLE_DEVICE static inline int64_t sample_recent_first(const struct sample_params *p)
{
    return sample_has_repetition(p) ? p->position - p->n_repeat : p->position;
}

EBB_SAMPLE_DEVICE static inline int64_t sample_generated_first(const struct sample_params *p)
{
    return sample_has_counts(p) ? p->n_prompt : p->position;
}

/* The key of a token that was generated `times` times and may be among the recent ones. */
EBB_SAMPLE_DEVICE static inline uint32_t
sample_key_penalised(uint32_t key, bool recent, uint32_t times, const struct sample_params *p)
{
    float logit = sample_logit(key);
    if (recent)
        logit = logit > 0.0f ? logit / p->repetition : logit * p->repetition;
    if (times > 0) {
        float taken = p->frequency * (float)times;
        logit = logit - taken;
        logit = logit - p->presence;
    }
    return sample_key(logit);
}
