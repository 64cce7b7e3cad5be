/* stages/nccl.c - finds NCCL when it is asked for (see nccl.h). Structures are written down from its public documentation. */
#include "stages/nccl.h"

#include <dlfcn.h>
#include <limits.h>

#define LIBRARY "libnccl.so.2"
#define VERSION_LEAST                                                                              \
    21800 /* 2.18: communicators that do not block, with a limit to what they take of the card */
#define CONFIG_MAGIC 0xcafebeefu
#define UNSET        INT_MIN
/* Blocks of a kernel that sends or receives: each has buffers of its own on the card, and takes a multiprocessor while it waits. */
#define BLOCKS_MAX 4

struct nccl_config { /* of 2.18 */
    size_t size;
    unsigned magic, version;
    int blocking, cluster_size, blocks_min, blocks_max;
    const char *net_name;
    int split_share;
};

static int symbols_find(struct nccl *n, void *library, struct error *err)
{
    struct {
        void **entry;
        const char *name;
    } all[] = {{(void **)&n->get_version, "ncclGetVersion"},
               {(void **)&n->get_id, "ncclGetUniqueId"},
               {(void **)&n->init, "ncclCommInitRankConfig"},
               {(void **)&n->async_error, "ncclCommGetAsyncError"},
               {(void **)&n->send, "ncclSend"},
               {(void **)&n->recv, "ncclRecv"},
               {(void **)&n->abort, "ncclCommAbort"},
               {(void **)&n->words, "ncclGetErrorString"},
               {(void **)&n->last_words, "ncclGetLastError"}};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        *all[i].entry = dlsym(library, all[i].name);
        if (*all[i].entry == NULL)
            return error_set(err, EBB_EUNSUPPORTED, "%s has no %s: it is too old", LIBRARY,
                             all[i].name);
    }
    return 0;
}

int nccl_open(const struct nccl **out, struct error *err)
{
    static struct nccl found;
    *out = &found;
    if (found.version != 0)
        return 0;
    void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL)
        return error_set(err, EBB_EUNSUPPORTED, "no NCCL: %.300s", dlerror());
    struct nccl n = {0};
    int rc = symbols_find(&n, library, err);
    if (rc != 0)
        return rc;
    if (n.get_version(&n.version) != NCCL_SUCCESS || n.version < VERSION_LEAST)
        return error_set(err, EBB_EUNSUPPORTED, "%s is version %d, %d or newer is needed", LIBRARY,
                         n.version, VERSION_LEAST);
    found = n;
    return 0;
}

int nccl_pair_begin(const struct nccl *n, struct nccl_comm **comm, const struct nccl_id *id,
                    int rank)
{
    struct nccl_config config = {.size = sizeof config,
                                 .magic = CONFIG_MAGIC,
                                 .version = VERSION_LEAST,
                                 .cluster_size = UNSET,
                                 .blocks_min = UNSET,
                                 .blocks_max = BLOCKS_MAX,
                                 .split_share = UNSET};
    return n->init(comm, 2, *id, rank, &config);
}
