/* runtime/model/utf8.h - where characters begin and end (RFC 3629: no surrogates, nothing
 * overlong, up to U+10FFFF). */
#pragma once
#include <stdbool.h>
#include <stddef.h>

/* The length that a character beginning with this byte has: 1..4, or 0 if no character begins
 * so. */
static inline size_t utf8_length(unsigned char lead)
{
    if (lead < 0x80)
        return 1;
    if (lead < 0xc2 || lead > 0xf4)
        return 0;
    return lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
}

/* Whether `next` can be byte number `at` (1..3) of a character that begins with `lead`. */
static inline bool utf8_continues(unsigned char lead, size_t at, unsigned char next)
{
    unsigned char low = 0x80, high = 0xbf;
    if (at == 1) {
        low = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : low;
        high = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : high;
    }
    return next >= low && next <= high;
}

/* The length of the whole character at bytes[0], 0 if there is none in n bytes. */
static inline size_t utf8_character(const unsigned char *bytes, size_t n)
{
    size_t length = n == 0 ? 0 : utf8_length(bytes[0]);
    if (length > n)
        return 0;
    for (size_t i = 1; i < length; i++)
        if (!utf8_continues(bytes[0], i, bytes[i]))
            return 0;
    return length;
}

/* How many of the n bytes are whole characters from the first on. */
static inline size_t utf8_valid(const unsigned char *bytes, size_t n)
{
    size_t at = 0;
    for (size_t length; at < n; at += length) {
        length = bytes[at] < 0x80 ? 1 : utf8_character(bytes + at, n - at);
        if (length == 0)
            break;
    }
    return at;
}
