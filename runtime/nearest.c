/* runtime/nearest.c - the edit distance behind "did you mean".
 *
 * Three rows of the usual table on the stack, so names are bounded; a longer one is simply far away. Pure, no
 * allocation, no state.
 */
#include "runtime/nearest.h"

#include <stdint.h>
#include <string.h>

#define NAME_BYTES_MAX 63

static size_t min3(size_t a, size_t b, size_t c)
{
    size_t ab = a < b ? a : b;
    return ab < c ? ab : c;
}

size_t name_distance(const char *a, const char *b)
{
    size_t n_a = strlen(a), n_b = strlen(b);
    size_t rows[3][NAME_BYTES_MAX + 1];
    if (n_a > NAME_BYTES_MAX || n_b > NAME_BYTES_MAX)
        return SIZE_MAX / 2;
    for (size_t j = 0; j <= n_b; j++)
        rows[0][j] = j;
    for (size_t i = 1; i <= n_a; i++) {
        const size_t *above = rows[(i - 1) % 3];
        size_t *row = rows[i % 3];
        row[0] = i;
        for (size_t j = 1; j <= n_b; j++) {
            row[j] = min3(above[j] + 1, row[j - 1] + 1, above[j - 1] + (a[i - 1] != b[j - 1]));
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                row[j] = min3(row[j], row[j], rows[(i - 2) % 3][j - 2] + 1);
        }
    }
    return rows[n_a % 3][n_b];
}

void nearest_offer(struct nearest *n, const char *got, const char *candidate)
{
    size_t distance = name_distance(got, candidate);
    if (n->name == NULL || distance < n->distance) {
        n->name = candidate;
        n->distance = distance;
    }
}
