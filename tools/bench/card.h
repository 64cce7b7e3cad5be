/* tools/bench/card.h - a card as the bench uses it: memory by its driver, one stream, and the speeds that bound all else.
 *
 * The tables of a CPU card are always here; those of a CUDA card only in a program that was linked with them (card_cuda.c, else
 * card_no_cuda.c). Neither needs a driver before a card is opened. Threads: one owner. Lifetime: close in any case.
 */
#pragma once
#include "kernels/kernels.h"
#include "tools/bench/bench.h"
#include "vmm/driver.h"

#define CARD_BLOCKS_MAX 8
#define CARD_SPEED_RUNS 9

struct card_tables {
    const struct exec_driver *exec;
    const struct kernel_set *(*kernels)(const char *name, struct error *err);
    int (*memory_open)(struct vmm_driver *d, int device, uint64_t bytes, struct error *err);
    int (*describe)(int device, char *name, size_t name_max, struct error *err);
    bool is_cuda;
};
const struct card_tables *card_tables_cpu(void);
const struct card_tables *card_tables_cuda(void); /* NULL: this program was built without */

/* "cuda:0", the first of a list of cards. EBB_EINVAL, EBB_EUNSUPPORTED (built without CUDA). */
int card_find(const char *cards, const struct card_tables **tables, int *device, struct error *err);

struct card_block {
    void *base;
    size_t bytes;
    vmm_handle handle;
    bool mapped;
};

struct card {
    const struct card_tables *tables;
    const struct exec_driver *driver; /* tables->exec */
    const struct kernel_set *set;
    int device;
    struct exec *exec;
    struct exec_stream *stream;
    struct exec_event *event;
    struct vmm_driver memory;
    struct card_block blocks[CARD_BLOCKS_MAX]; /* given back by card_close() */
    size_t n_blocks;
};

/* The first of s->cards, with its kernels. */
int card_open(struct card *c, const struct bench_settings *s, struct error *err);
void card_close(struct card *c); /* also of a zeroed one */

/* Memory of the card, page-aligned; nothing is said of what is in it. */
int card_take(struct card *c, size_t bytes, void **base, struct error *err);
/* Fills `bytes` of the card's memory with n_from bytes of ours, again and again. */
int card_put(struct card *c, void *to, size_t bytes, const void *from, size_t n_from,
             struct error *err);
/* Returns when all that was put on the stream is done. */
int card_wait(struct card *c, struct error *err);

/* Bytes a second, medians of CARD_SPEED_RUNS runs: within the card's memory (read and written counted), and to it from pinned memory
 * of the host. */
struct card_speeds {
    double copy, upload;
};
int card_speeds_measure(const struct bench_settings *s, struct card_speeds *to, struct error *err);
/* Seconds that one copy of `bytes` takes. */
int card_copy_time(struct card *c, void *to, const void *from, size_t bytes, double *seconds,
                   struct error *err);
