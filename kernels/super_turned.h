/* kernels/super_turned.h - turned blocks of 256 values: Q2_K .. Q6_K; after the lanes, as turned.h.
 *
 * A block is walked group by group: a group is `super_width()` 32-value blocks whose bits share bytes, and is loaded
 * 16 values of each at a time (a part), which is what registers can hold.
 */
#pragma once
#include "kernels/turned.h"

/* Scales of one block of each row. Without sub-scales byte j % 4 of sc[j / 4] and m[j / 4] belongs to 32-value block j;
 * with them byte j % 4 of sc[j / 4] (signed) and m[j / 4] to 16-value block j. */
struct super_scales {
    lanes_float d, dmin;
    lanes_int sc[4], m[4];
};

INLINE void scales_load_q4_k(const struct lane_rows *rows, struct super_scales *s)
{
    const lanes_int six = every_byte(0x3f);
    lanes_int t[4];
    turned_load(rows, 0, t); /* d and dmin, then the twelve bytes of scales: see q4_k_scale() */
    s->d = turned_half(t[0]);
    s->dmin = turned_half_high(t[0]);
    s->sc[0] = bits_and(t[1], six);
    s->m[0] = bits_and(t[2], six);
    s->sc[1] = bits_merged(nibbles_low(t[3]), t[1], -2, 0x30);
    s->m[1] = bits_merged(nibbles_high(t[3]), t[2], -2, 0x30);
}

INLINE void scales_load_q6_k(const struct lane_rows *rows, struct super_scales *s)
{
    turned_load(rows, sizeof(struct block_q6_k) - 16, s->sc);
    s->d = turned_half_high(s->sc[3]);
    turned_load(rows, offsetof(struct block_q6_k, scales), s->sc);
}

INLINE void scales_load_q2_k(const struct lane_rows *rows, struct super_scales *s)
{
    lanes_int t[4];
    turned_load(rows, sizeof(struct block_q2_k) - 16, t);
    s->d = turned_half(t[3]);
    s->dmin = turned_half_high(t[3]);
    turned_load(rows, offsetof(struct block_q2_k, scales), t);
    UNROLL
    for (int i = 0; i < 4; i++) {
        s->sc[i] = nibbles_low(t[i]);
        s->m[i] = nibbles_high(t[i]);
    }
}

/* The last 16 bytes are two of quants, the twelve of scales and d: the lanes straddle. See q3_k_scale(). */
INLINE void scales_load_q3_k(const struct lane_rows *rows, struct super_scales *s)
{
    lanes_int t[4], bytes[3];
    turned_load(rows, sizeof(struct block_q3_k) - 16, t);
    s->d = turned_half_high(t[3]);
    UNROLL
    for (int i = 0; i < 3; i++)
        bytes[i] = bits_or(lanes_shifted(t[i], -16), lanes_shifted(t[i + 1], 16));
    UNROLL
    for (int i = 0; i < 4; i++) {
        lanes_int low = i < 2 ? nibbles_low(bytes[i]) : nibbles_high(bytes[i - 2]);
        s->sc[i] = bytes_minus(bits_merged(low, bytes[2], 4 - 2 * i, 0x30), every_byte(32));
    }
}

INLINE void super_scales_load(uint32_t type, const struct lane_rows *rows, struct super_scales *s)
{
    if (type == TENSOR_Q2_K)
        scales_load_q2_k(rows, s);
    else if (type == TENSOR_Q3_K)
        scales_load_q3_k(rows, s);
    else if (type == TENSOR_Q6_K)
        scales_load_q6_k(rows, s);
    else
        scales_load_q4_k(rows, s);
}

/* a of 32-value block j, and b of one without sub-scales. */
INLINE lanes_float super_a(struct format f, const struct super_scales *s, int j)
{
    return f.has_sub ? s->d : lanes_times(s->d, turned_byte(s->sc[j / 4], j % 4));
}

INLINE lanes_float super_b(struct format f, const struct super_scales *s, int j)
{
    return f.folded ? s->dmin : lanes_times(s->dmin, turned_byte(s->m[j / 4], j % 4));
}

/* The sub-scales, or minima, of the two halves of 32-value block j as the int16 halves of a lane: `first` and `second`
 * say which (0 or 1). */
INLINE lanes_int super_pair(const lanes_int bytes[4], int j, int first, int second)
{
    return turned_pair(bytes[j / 2], j % 2 * 2 + first, j % 2 * 2 + second);
}

/* The two sub-scales of 32-value block j as fp32. */
INLINE void super_sub(const struct super_scales *s, int j, lanes_float sub[2])
{
    UNROLL
    for (int half = 0; half < 2; half++)
        sub[half] = turned_byte_signed(s->sc[j / 2], j % 2 * 2 + half);
}

/* 32-value blocks of a group. */
INLINE int super_width(uint32_t type)
{
    return type == TENSOR_Q4_K || type == TENSOR_Q5_K ? 2 : 4;
}

/* Groups of a block. */
INLINE int super_groups(uint32_t type)
{
    return type == TENSOR_Q4_K || type == TENSOR_Q5_K ? 4 : 2;
}

/* Half of a group's bytes: what holds values 16 * part .. 16 * part + 15 of its blocks. */
struct super_part {
    lanes_int low[2][4], high[4];
};

INLINE void super_part_load(uint32_t type, const struct lane_rows *rows, int group, int part,
                            struct super_part *p)
{
    const size_t g = (size_t)group, at = 16 * (size_t)part;
    switch (type) {
    case TENSOR_Q2_K:
        turned_load(rows, offsetof(struct block_q2_k, q) + 32 * g + at, p->low[0]);
        break;
    case TENSOR_Q3_K:
        turned_load(rows, offsetof(struct block_q3_k, q) + 32 * g + at, p->low[0]);
        turned_load(rows, offsetof(struct block_q3_k, qh) + at, p->high);
        break;
    case TENSOR_Q4_K:
        turned_load(rows, offsetof(struct block_q4_k, q) + 32 * g + at, p->low[0]);
        break;
    case TENSOR_Q5_K:
        turned_load(rows, offsetof(struct block_q5_k, q) + 32 * g + at, p->low[0]);
        turned_load(rows, offsetof(struct block_q5_k, qh) + at, p->high);
        break;
    default:
        turned_load(rows, offsetof(struct block_q6_k, ql) + 64 * g + at, p->low[0]);
        turned_load(rows, offsetof(struct block_q6_k, ql) + 64 * g + 32 + at, p->low[1]);
        turned_load(rows, offsetof(struct block_q6_k, qh) + 32 * g + at, p->high);
    }
}

/* Quants 4i .. 4i + 3 of the part of block k of the group. */
INLINE lanes_int super_quants(uint32_t type, const struct super_part *p, int group, int k, int i)
{
    switch (type) {
    case TENSOR_Q2_K: return bits_moved(p->low[0][i], -2 * k, 0x03);
    case TENSOR_Q3_K:
        return bits_merged(bits_moved(p->low[0][i], -2 * k, 0x03), p->high[i], 2 - 4 * group - k,
                           0x04);
    case TENSOR_Q4_K: return bits_moved(p->low[0][i], -4 * k, 0x0f);
    case TENSOR_Q5_K:
        return bits_merged(bits_moved(p->low[0][i], -4 * k, 0x0f), p->high[i], 4 - 2 * group - k,
                           0x10);
    default:
        return bits_merged(bits_moved(p->low[k % 2][i], k / 2 * -4, 0x0f), p->high[i], 4 - 2 * k,
                           0x30);
    }
}
