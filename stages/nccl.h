/* stages/nccl.h - NCCL, found when the program runs: libnccl.so.2 where the loader finds it, and the few of its calls that a link makes.
 *
 * Nothing of NCCL is needed to build or to start a stage. Names, numbers and shapes are those of its public interface, which it keeps for
 * programs built against an older version: the configuration carries its size and version. Threads: as NCCL itself, a communicator
 * belongs to one thread at a time. The library stays loaded once it was: it leaves threads behind.
 */
#pragma once
#include <stddef.h>
#include "protocol/error.h"

#define NCCL_ID_BYTES 128

enum nccl_result { NCCL_SUCCESS = 0, NCCL_IN_PROGRESS = 7 }; /* all others are failures */
enum nccl_type { NCCL_UINT8 = 1 };

struct nccl_id {
    unsigned char bytes[NCCL_ID_BYTES];
};

struct nccl_config; /* nccl.c */
struct nccl_comm;

struct nccl {
    int version; /* 22809: 2.28.9 */
    int (*get_version)(int *version);
    int (*get_id)(struct nccl_id *id);
    int (*init)(struct nccl_comm **comm, int n_ranks, struct nccl_id id, int rank,
                struct nccl_config *config);
    int (*async_error)(struct nccl_comm *comm, int *result);
    int (*send)(const void *from, size_t n, int type, int peer, struct nccl_comm *comm,
                void *stream);
    int (*recv)(void *to, size_t n, int type, int peer, struct nccl_comm *comm, void *stream);
    int (*abort)(struct nccl_comm *comm);
    const char *(*words)(int result);
    const char *(*last_words)(struct nccl_comm *comm);
};

/* The library, loaded at the first call. EBB_EUNSUPPORTED: it is not there or too old; err says which. */
int nccl_open(const struct nccl **out, struct error *err);
/* Begins to make a communicator of two that blocks nobody: async_error() tells when it is there. NCCL's result. */
int nccl_pair_begin(const struct nccl *n, struct nccl_comm **comm, const struct nccl_id *id,
                    int rank);
