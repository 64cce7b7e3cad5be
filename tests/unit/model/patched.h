/* tests/unit/model/patched.h - the demo file with some of its bytes changed, and whole again
 * afterwards.
 *
 * The copy lies in memory (memfd) and is opened through /proc/self/fd, so nothing is left behind
 * even by a test that dies. Its header is the demo's; its tensor data are holes, which no reader of
 * the file's tables looks at.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include "protocol/error.h"

#define DEMO             EBBTIDE_TEST_DATA "/demo-moe-30m-q4_k_m.gguf"
#define DEMO_BYTES       19045088
#define DEMO_TABLE_BYTES 138956 /* magic to the end of the tensor table */

struct patched {
    int fd;
    char path[64];
    unsigned char demo[DEMO_TABLE_BYTES]; /* as it was */
};

void patched_open(struct patched *p);
void patched_close(struct patched *p);

/* Changes n bytes at an offset; `value` is little-endian. */
void patched_number(struct patched *p, size_t at, uint64_t value, size_t n);
void patched_bytes(struct patched *p, size_t at, const void *bytes, size_t n);

/* Undoes everything, the length too. */
void patched_restore(struct patched *p);
void patched_truncate(struct patched *p, size_t bytes);

/* The offset just behind a key's or a tensor's name, found with its length before it. A key's
 * value type (u32) stands there, then the value; a tensor's dimension count (u32), the
 * dimensions (u64 each), type (u32), offset (u64). */
size_t patched_behind(const struct patched *p, const char *name);
