/* stages/registration.c - the list of file pages a device reads, and their registration (see registration.h). */
#include "stages/registration.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PIECE_BYTES       ((size_t)256 << 20)
#define TENSORS_PER_LAYER 23

static int by_base(const void *a, const void *b)
{
    const struct registration_piece *x = a, *y = b;
    return (x->base > y->base) - (x->base < y->base);
}

static void add(struct registration *r, const struct tensor_view *t, size_t page)
{
    if (t->data == NULL || t->bytes == 0)
        return;
    uintptr_t from = (uintptr_t)t->data / page * page;
    uintptr_t end = ((uintptr_t)t->data + t->bytes + page - 1) / page * page;
    r->pieces[r->n_pieces++] =
        (struct registration_piece){.base = (unsigned char *)from, .bytes = end - from};
}

static void add_layer(struct registration *r, const struct model_layer *l, size_t page)
{
    const struct tensor_view *all[TENSORS_PER_LAYER] = {&l->attn_norm,
                                                        &l->q,
                                                        &l->k,
                                                        &l->v,
                                                        &l->o,
                                                        &l->q_norm,
                                                        &l->k_norm,
                                                        &l->ffn_norm,
                                                        &l->q_bias,
                                                        &l->k_bias,
                                                        &l->v_bias,
                                                        &l->o_bias,
                                                        &l->gate,
                                                        &l->up,
                                                        &l->down,
                                                        &l->router,
                                                        &l->gate_exps,
                                                        &l->up_exps,
                                                        &l->down_exps,
                                                        &l->gate_shared,
                                                        &l->up_shared,
                                                        &l->down_shared,
                                                        &l->shared_router};
    for (size_t i = 0; i < TENSORS_PER_LAYER; i++)
        add(r, all[i], page);
}

/* Sorted pieces that touch become one. */
static void join(struct registration *r)
{
    qsort(r->pieces, r->n_pieces, sizeof *r->pieces, by_base);
    size_t n = 0;
    for (size_t i = 0; i < r->n_pieces; i++) {
        struct registration_piece *last = n > 0 ? &r->pieces[n - 1] : NULL, *p = &r->pieces[i];
        if (last == NULL || p->base > last->base + last->bytes) {
            r->pieces[n++] = *p;
            continue;
        }
        size_t reach = (size_t)(p->base - last->base) + p->bytes;
        if (reach > last->bytes)
            last->bytes = reach;
    }
    r->n_pieces = n;
}

/* Pieces longer than PIECE_BYTES are cut. */
static int cut(struct registration *r, struct error *err)
{
    size_t n = 0;
    for (size_t i = 0; i < r->n_pieces; i++)
        n += (r->pieces[i].bytes + PIECE_BYTES - 1) / PIECE_BYTES;
    struct registration_piece *cuts = calloc(n + 1, sizeof *cuts);
    if (cuts == NULL)
        return error_set(err, EBB_ENOMEM, "registration: no memory for %zu pieces", n);
    n = 0;
    for (size_t i = 0; i < r->n_pieces; i++)
        for (size_t at = 0; at < r->pieces[i].bytes; at += PIECE_BYTES) {
            size_t left = r->pieces[i].bytes - at;
            cuts[n++] = (struct registration_piece){
                .base = r->pieces[i].base + at, .bytes = left < PIECE_BYTES ? left : PIECE_BYTES};
            r->bytes += cuts[n - 1].bytes;
        }
    free(r->pieces);
    r->pieces = cuts;
    r->n_pieces = n;
    return 0;
}

int registration_open(struct registration *r, const struct exec_driver *exec, struct exec *card,
                      const struct model *model, uint32_t layer_first, uint32_t layer_last,
                      struct error *err)
{
    *r = (struct registration){.exec = exec, .card = card};
    if (!exec->is_device)
        return 0;
    size_t page = (size_t)sysconf(_SC_PAGESIZE), n_layers = layer_last - layer_first + 1;
    r->pieces = calloc(n_layers * TENSORS_PER_LAYER + 3, sizeof *r->pieces);
    if (r->pieces == NULL)
        return error_set(err, EBB_ENOMEM, "registration: no memory for %zu layers", n_layers);
    if (layer_first == 0)
        add(r, &model->token_embd, page);
    for (uint32_t l = layer_first; l <= layer_last; l++)
        add_layer(r, &model->layers[l], page);
    if (layer_last + 1 == model->geometry.n_layers) {
        add(r, &model->output_norm, page);
        add(r, &model->output, page);
    }
    join(r);
    int rc = cut(r, err);
    if (rc != 0)
        registration_close(r);
    return rc;
}

void registration_close(struct registration *r)
{
    for (size_t i = 0; i < r->n_done; i++)
        r->exec->host_unregister(r->card, r->pieces[i].base, r->pieces[i].bytes);
    free(r->pieces);
    memset(r, 0, sizeof *r);
}

int registration_next(struct registration *r, struct error *err)
{
    if (r->n_done == r->n_pieces)
        return 1;
    const struct registration_piece *p = &r->pieces[r->n_done];
    int rc = r->exec->host_register(r->card, p->base, p->bytes, err);
    if (rc == 0) {
        r->n_done++;
        r->done_bytes += p->bytes;
    }
    return rc;
}
