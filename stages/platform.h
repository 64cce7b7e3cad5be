/* stages/platform.h - what makes a stage a CPU or a CUDA stage: the four tables it is linked with. Everything else in this room is
 * the same source for both.
 */
#pragma once
#include "kernels/misses.h"
#include "stages/link.h"
#include "stages/pin.h"
#include "vmm/driver.h"

struct platform_card {
    int device;              /* the card's number as its driver counts */
    uint64_t capacity_bytes; /* 0 = the driver's default */
    const char *name_space;  /* of CPU cards' shared account; NULL = default */
};

/* A card of this machine, as `--list` tells it. */
struct platform_listed {
    int device;
    char name[256], uuid[64];
    char compute[16]; /* compute capability, as 9.0; "" where there is no such thing */
    uint64_t total_bytes, free_bytes;
    char why[256]; /* what hinders its use; "" : it can be used */
};
#define PLATFORM_LISTED_MAX 64

struct platform {
    const char *kind;    /* "cpu" | "cuda" */
    const char *program; /* "ebbtide-stage-cpu" */
    int (*memory_open)(struct vmm_driver *d, const struct platform_card *card, struct error *err);
    int (*describe)(const struct platform_card *card, char *name, size_t name_max, char *uuid,
                    size_t uuid_max, struct error *err);
    /* The machine's cards by number, at most PLATFORM_LISTED_MAX; opens none. An error: there are none, and why. NULL: nobody asks. */
    int (*list)(struct platform_listed *cards, size_t *n, struct error *err);
    /* The processors that its threads may use, for `pin`; NULL: its threads are not placed. */
    int (*processors)(struct processor *all, size_t max, size_t *n, struct error *err);
    bool kv_f16_only; /* its kernels read keys and values of half floats alone */
    bool
        host_memory; /* the card's memory is the host's: at a boundary the control thread copies tiles itself */
    const struct exec_driver *exec;
    const struct kernel_set *(*kernels)(const char *name, struct error *err);
    const struct miss_ops *misses; /* NULL: what is not on the card is not shared with the host */
    const struct link_driver *const *links; /* NULL-terminated; the first is the default */
    uint64_t nccl_bytes,
        nccl_link_bytes; /* what NCCL takes of the card at most: once, and for each link */
};

/* The whole program: reads lines from stdin, answers on stdout, logs on stderr. Returns the exit status. */
int stage_main(const struct platform *platform, int argc, char **argv);
