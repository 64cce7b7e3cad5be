/* tools/make-model/random.h - a random word for every (key, counter): nothing is carried from one to the next.
 *
 * So any thread can make any part of a file, and the bytes depend on the seed alone. The function is the finisher of
 * SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014) over a Weyl sequence: some
 * gigabytes a second and thread, and good enough for weights. Pure.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>

static inline uint64_t random_mix(uint64_t z)
{
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static inline uint64_t random_word(uint64_t key, uint64_t counter)
{
    return random_mix(key + (counter + 1) * 0x9e3779b97f4a7c15u);
}

/* A key of its own for each part of what is made from a seed. */
static inline uint64_t random_key(uint64_t seed, uint64_t part)
{
    return random_mix(random_mix(seed ^ 0x6a09e667f3bcc909u) + part * 0xd1342543de82ef95u);
}
