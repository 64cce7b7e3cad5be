/* stages/weights.c - lays a stage's dense tensors out in one block of card memory (see weights.h).
 *
 * Two passes over the same list: the first adds up sizes (each tensor at a multiple of 256 bytes), the second gives addresses. An output
 * head tied to the embedding is copied once where both are on this stage.
 */
#include "stages/weights.h"

#include <stdlib.h>
#include <string.h>

#define TENSORS_PER_LAYER 20
#define TENSOR_ALIGN      256

static size_t align_up(size_t n)
{
    return (n + TENSOR_ALIGN - 1) / TENSOR_ALIGN * TENSOR_ALIGN;
}

static void place(struct weights *w, const struct tensor_view *t, struct weight *out)
{
    *out = (struct weight){.type = t->type};
    if (t->data == NULL)
        return;
    w->copies[w->n_copies++] = (struct weight_copy){
        .to = (void *)(uintptr_t)w->copy_bytes, .from = t->data, .bytes = t->bytes};
    out->data =
        (void *)(uintptr_t)(w->copy_bytes +
                            1); /* an offset until the block exists; + 1 keeps it from being NULL */
    w->copy_bytes += align_up(t->bytes);
}

static void rebase(const struct weights *w, struct weight *t)
{
    if (t->data != NULL)
        t->data = (unsigned char *)w->memory.base + ((uintptr_t)t->data - 1);
}

static void layer_each(struct layer_weights *l, struct weight *list[TENSORS_PER_LAYER])
{
    struct weight *all[TENSORS_PER_LAYER] = {
        &l->attn_norm, &l->q,           &l->k,         &l->v,           &l->o,
        &l->q_norm,    &l->k_norm,      &l->q_bias,    &l->k_bias,      &l->v_bias,
        &l->o_bias,    &l->ffn_norm,    &l->gate,      &l->up,          &l->down,
        &l->router,    &l->gate_shared, &l->up_shared, &l->down_shared, &l->shared_router};
    memcpy(list, all, sizeof all);
}

static void place_layer(struct weights *w, const struct model_layer *m, struct layer_weights *l)
{
    const struct tensor_view *from[TENSORS_PER_LAYER] = {
        &m->attn_norm, &m->q,           &m->k,         &m->v,           &m->o,
        &m->q_norm,    &m->k_norm,      &m->q_bias,    &m->k_bias,      &m->v_bias,
        &m->o_bias,    &m->ffn_norm,    &m->gate,      &m->up,          &m->down,
        &m->router,    &m->gate_shared, &m->up_shared, &m->down_shared, &m->shared_router};
    struct weight *to[TENSORS_PER_LAYER];
    layer_each(l, to);
    for (size_t i = 0; i < TENSORS_PER_LAYER; i++)
        place(w, from[i], to[i]);
}

int weights_open(struct weights *w, struct vmm_driver *driver, const struct model *model,
                 uint32_t layer_first, uint32_t layer_last, struct error *err)
{
    memset(w, 0, sizeof *w);
    size_t n_layers = layer_last - layer_first + 1;
    bool first = layer_first == 0, last = layer_last + 1 == model->geometry.n_layers;
    w->layers = calloc(n_layers, sizeof *w->layers);
    w->copies = calloc(n_layers * TENSORS_PER_LAYER + 3, sizeof *w->copies);
    if (w->layers == NULL || w->copies == NULL) {
        weights_close(w);
        return error_set(err, EBB_ENOMEM, "weights: no memory for the table of %zu layers",
                         n_layers);
    }
    if (first)
        place(w, &model->token_embd, &w->token_embd);
    for (size_t i = 0; i < n_layers; i++)
        place_layer(w, &model->layers[layer_first + i], &w->layers[i]);
    if (last) {
        place(w, &model->output_norm, &w->output_norm);
        if (first && model->output.data == model->token_embd.data)
            w->output = w->token_embd;
        else
            place(w, &model->output, &w->output);
    }
    int rc = fixed_block_open(&w->memory, driver, w->copy_bytes, err);
    if (rc != 0) {
        weights_close(w);
        return rc;
    }
    for (size_t i = 0; i < w->n_copies; i++)
        w->copies[i].to = (unsigned char *)w->memory.base + (uintptr_t)w->copies[i].to;
    rebase(w, &w->token_embd);
    rebase(w, &w->output_norm);
    rebase(w, &w->output);
    for (size_t i = 0; i < n_layers; i++) {
        struct weight *list[TENSORS_PER_LAYER];
        layer_each(&w->layers[i], list);
        for (size_t j = 0; j < TENSORS_PER_LAYER; j++)
            rebase(w, list[j]);
    }
    return 0;
}

void weights_close(struct weights *w)
{
    fixed_block_close(&w->memory);
    free(w->copies);
    free(w->layers);
    memset(w, 0, sizeof *w);
}

const struct weight_copy *weights_next(struct weights *w)
{
    return w->next < w->n_copies ? &w->copies[w->next++] : NULL;
}
