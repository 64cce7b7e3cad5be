/* stages/link_memory.c - what links of a stage are made of: the driver that LOAD asks for, and the memory of their tiles.
 *
 * Made at LOAD, outside the segment pool, it belongs to the stage and outlives every link. Tiles may always go through sockets, so there
 * are some where the control thread sees them; rings of the card are beside them.
 */
#include "stages/nccl.h"
#include "stages/stage.h"

#include <string.h>
#include <unistd.h>

static const char *const want_names[] = {"socket", "ipc", "nccl"};

int link_want_read(const char *name, enum link_want *want, struct error *err)
{
    *want = LINK_BY_SOCKET;
    for (size_t i = 0; name != NULL && i < sizeof want_names / sizeof want_names[0]; i++)
        if (strcmp(name, want_names[i]) == 0) {
            *want = (enum link_want)i;
            return 0;
        }
    if (name == NULL)
        return 0;
    return error_set(err, EBB_EINVAL, "link: ipc, nccl or socket wanted, got %.40s", name);
}

bool link_is_back(enum link_way way)
{
    return way == LINK_BACK_IN || way == LINK_BACK_OUT;
}

struct link_settings link_settings_for(const struct stage *s, enum link_way way)
{
    size_t rows = s->queue.rows_max < LINK_TILE_ROWS ? s->queue.rows_max : LINK_TILE_ROWS;
    struct link_settings all = {.exec = s->platform->exec,
                                .card = s->card,
                                .epoch = s->epoch,
                                .row_values = s->model->geometry.d_model,
                                .tile_rows = rows,
                                .tiles = LINK_TILES};
    size_t at = 0;
    bool in_ring = s->link_rings[LINK_IN].base != NULL && s->link_shared == NULL;
    if (!link_is_back(way) && s->link_rings[way].base != NULL)
        all.ring = &s->link_rings[way];
    if (in_ring && way == LINK_IN) {
        all.memory = all.ring->base; /* the control thread reaches it: should it be a socket */
        return all;
    }
    for (int w = in_ring ? LINK_OUT : LINK_IN; w < (int)way;
         w++) { /* the ways lie behind one another in link_memory */
        struct link_settings before = all;
        before.row_values = link_is_back((enum link_way)w) ? 0 : all.row_values;
        at += link_memory_bytes(&before);
    }
    if (link_is_back(way))
        all.row_values = 0;
    unsigned char *base = s->link_shared != NULL ? s->link_shared : s->link_memory.base;
    all.memory = base != NULL ? base + at : NULL;
    return all;
}

/* A device's ring is no place for the control thread, which needs one of its own should the link be a socket. */
size_t links_memory_bytes(const struct stage *s)
{
    struct link_settings last = link_settings_for(s, LINK_BACK_OUT),
                         rows = link_settings_for(s, LINK_IN);
    bool only_out = s->link_rings[LINK_IN].base != NULL && !s->platform->exec->is_device;
    return (only_out ? 1 : 2) * link_memory_bytes(&rows) + 2 * link_memory_bytes(&last);
}

/* What a card that cannot share memory lacks is no error: the link is a socket then. */
static int ring_open(struct stage *s, struct error *err)
{
    struct link_settings in = link_settings_for(s, LINK_IN);
    struct error why = {0};
    int fd = -1;
    int rc =
        fixed_block_open_shared(&s->link_memory_in, &s->memory, link_memory_bytes(&in), &fd, &why);
    if (rc == EBB_ENOMEM) {
        *err = why;
        return rc;
    }
    if (rc != 0) {
        stage_log("stage %u: link: socket, not ipc: %s", s->load.stage, why.text);
        return 0;
    }
    s->link_rings[LINK_IN] = (struct link_ring){.kind = s->memory.name,
                                                .base = s->link_memory_in.base,
                                                .bytes = s->link_memory_in.bytes,
                                                .fd = fd};
    return 0;
}

/* The rings of both ways lie behind one another, and NCCL has its room. */
static int nccl_open_memory(struct stage *s, struct error *err)
{
    const struct nccl *library;
    struct link_settings rows = link_settings_for(s, LINK_IN);
    size_t bytes = link_memory_bytes(&rows);
    bool has[2] = {s->load.stage > 0, s->load.stage + 1 < s->load.n_stages};
    size_t n = (size_t)has[LINK_IN] + (size_t)has[LINK_OUT];
    struct error why = {0};
    int rc = nccl_open(&library, &why);
    if (rc != 0)
        return error_set(err, rc, "link: nccl wanted: %.300s", why.text);
    rc = fixed_block_open(&s->link_memory_in, &s->memory, n * bytes, err);
    for (int way = LINK_IN; rc == 0 && way <= LINK_OUT; way++)
        if (has[way])
            s->link_rings[way] =
                (struct link_ring){.kind = s->memory.name,
                                   .base = (unsigned char *)s->link_memory_in.base +
                                           (way == LINK_OUT && has[LINK_IN] ? bytes : 0),
                                   .bytes = bytes,
                                   .fd = -1};
    return rc == 0
               ? link_room_open(s, s->platform->nccl_bytes + n * s->platform->nccl_link_bytes, err)
               : rc;
}

/* The driver that LOAD asks for; a platform without it has the default, and says so. */
static const struct link_driver *driver_for(const struct stage *s)
{
    const struct link_driver *const *links = s->platform->links;
    for (size_t i = 0; links[i] != NULL; i++)
        if (strcmp(links[i]->name, want_names[s->load.link]) == 0)
            return links[i];
    stage_log("stage %u: link: %s, not %s: a %s card has no such link", s->load.stage,
              links[0]->name, want_names[s->load.link], s->platform->kind);
    return links[0];
}

/* Tiles go through sockets, so a device's are where the control thread sees them. */
int links_memory_open(struct stage *s, struct error *err)
{
    const struct exec_driver *exec = s->platform->exec;
    int rc = 0;
    s->link_driver = driver_for(s);
    if (s->link_driver == &link_ipc && s->load.stage > 0)
        rc = ring_open(s, err);
    else if (s->link_driver == &link_nccl)
        rc = nccl_open_memory(s, err);
    if (rc != 0)
        return rc;
    return exec->is_device
               ? exec->shared_alloc(s->card, links_memory_bytes(s), &s->link_shared, err)
               : fixed_block_open(&s->link_memory, &s->memory, links_memory_bytes(s), err);
}

void links_memory_close(struct stage *s)
{
    if (s->link_shared != NULL)
        s->platform->exec->shared_free(s->card, s->link_shared);
    s->link_shared = NULL;
    fixed_block_close(&s->link_memory);
    if (s->link_rings[LINK_IN].base != NULL && s->link_rings[LINK_IN].fd >= 0)
        (void)close(s->link_rings[LINK_IN].fd);
    memset(s->link_rings, 0, sizeof s->link_rings);
    fixed_block_close(&s->link_memory_in);
    link_room_close(s);
}
