/* runtime/stop_match.c - stop strings over a stream of bytes.
 *
 * `held` has two parts while a call's output is in use: the bytes let out by the last feed stand at
 * its front and are cut off by the next. At most the longest stop string less one byte stays held
 * between calls, so the plain search is short.
 */
#include "runtime/stop_match.h"
#include <stdlib.h>
#include <string.h>

void stop_match_close(struct stop_match *m)
{
    for (size_t i = 0; i < m->n_strings; i++)
        free(m->strings[i]);
    free(m->held);
    *m = (struct stop_match){0};
}

int stop_match_add(struct stop_match *m, const char *string, size_t n_bytes, struct error *err)
{
    if (n_bytes == 0 || n_bytes > STOP_BYTES_MAX)
        return error_set(err, EBB_ERANGE, "stop= wants 1 to %d bytes, got %zu", STOP_BYTES_MAX,
                         n_bytes);
    if (m->n_strings == STOP_STRINGS_MAX)
        return error_set(err, EBB_ERANGE, "at most %d stop= are taken", STOP_STRINGS_MAX);
    char *copy = malloc(n_bytes);
    if (copy == NULL)
        return error_set(err, EBB_ENOMEM, "no memory for a stop string");
    memcpy(copy, string, n_bytes);
    m->strings[m->n_strings] = copy;
    m->lengths[m->n_strings++] = n_bytes;
    return 0;
}

static bool held_append(struct stop_match *m, const char *piece, size_t n_bytes)
{
    if (m->n_held + n_bytes > m->capacity) {
        size_t capacity = m->n_held + n_bytes + STOP_BYTES_MAX;
        char *held = realloc(m->held, capacity);
        if (held == NULL)
            return false;
        m->held = held;
        m->capacity = capacity;
    }
    if (n_bytes > 0)
        memcpy(m->held + m->n_held, piece, n_bytes);
    m->n_held += n_bytes;
    return true;
}

/* Where the first stop string begins. */
static bool match_find(const struct stop_match *m, size_t *at)
{
    bool found = false;
    for (size_t i = 0; i < m->n_strings; i++) {
        const char *hit =
            m->n_held > 0 ? memmem(m->held, m->n_held, m->strings[i], m->lengths[i]) : NULL;
        if (hit != NULL && (!found || (size_t)(hit - m->held) < *at)) {
            *at = (size_t)(hit - m->held);
            found = true;
        }
    }
    return found;
}

/* The longest end of what is held that begins a stop string. */
static size_t suffix_held(const struct stop_match *m)
{
    size_t longest = 0;
    for (size_t i = 0; i < m->n_strings; i++) {
        size_t n = m->lengths[i] - 1 < m->n_held ? m->lengths[i] - 1 : m->n_held;
        for (; n > longest; n--)
            if (memcmp(m->held + m->n_held - n, m->strings[i], n) == 0)
                longest = n;
    }
    return longest;
}

bool stop_match_feed(struct stop_match *m, const char *piece, size_t n_bytes, const char **out,
                     size_t *n_out)
{
    size_t at = 0;
    *out = "";
    *n_out = 0;
    if (m->n_strings == 0) {
        *out = piece;
        *n_out = n_bytes;
        return false;
    }
    if (!held_append(m, piece, n_bytes))
        return true;
    if (m->n_held == 0)
        return false;
    bool met = match_find(m, &at);
    size_t keep = met ? 0 : suffix_held(m);
    *n_out = met ? at : m->n_held - keep;
    /* The kept end moves to the front, the bytes let out behind it: both stay in one buffer. */
    char end[STOP_BYTES_MAX];
    memcpy(end, m->held + m->n_held - keep, keep);
    memmove(m->held + keep, m->held, *n_out);
    memcpy(m->held, end, keep);
    *out = m->held + keep;
    m->n_held = keep;
    return met;
}

void stop_match_flush(struct stop_match *m, const char **out, size_t *n_out)
{
    *out = m->held != NULL ? m->held : "";
    *n_out = m->n_held;
    m->n_held = 0;
}
