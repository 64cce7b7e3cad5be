/* stages/forward.h - the forward pass of a stage: its fixed-address buffers and the launches of a layer, the head and sampling.
 *
 * Everything a step needs is carved once from one block of card memory (the workspace); kernels and graphs see only these addresses.
 * The control thread fills `in` between steps, when nothing is queued, and reads `out` after an event. Nothing here waits.
 *
 * What a layer needs between its first kernel and its last grows with the rows that go through it at once. For rows_base rows it is
 * there for life; for more it lies in a range of addresses of its own, backed by segments of the card's pool as long as they are lent
 * (forward_back(): between layers, when nothing is queued). A step of more rows than there is room for goes through
 * each layer in pieces: what passes from layer to layer (hidden, angles) is there for life for n_rows. So a step runs with whatever is
 * lent, its ids do not depend on it, and memory can be taken back between any two layers.
 */
#pragma once
#include "stages/kv.h"
#include "stages/misses.h"
#include "stages/weights.h"

#define FORWARD_TOP_MAX   1024
#define FORWARD_HEAD_ROWS 64 /* rows of one pass through the head */
#define FORWARD_BIAS_MAX  64 /* biased tokens of a sampled row */
#define FORWARD_SAMPLE_ROWS                                                                        \
    4 /* rows that are sampled at once: each needs scratch for the whole vocabulary */

struct forward_shape {
    const struct model_geometry *geometry; /* borrowed, the model's */
    size_t n_layers;                       /* of this stage */
    size_t n_rows;                         /* most rows of a step */
    size_t rows_base; /* that go through a layer at once in memory of its own; 0: n_rows */
    size_t n_sequences, table_stride;
    bool is_last;
    const struct exec_driver *exec; /* borrowed, with its card */
    struct exec *card;
};

struct forward_in {                             /* written by the control thread between steps */
    int32_t *tokens, *positions, *row_sequence; /* [n_rows] */
    int32_t *head_index;              /* [n_rows]: the rows that go through the head, in passes */
    struct miss_control *miss;        /* [1] */
    int32_t *tables;                  /* [n_sequences][table_stride] */
    struct expert_address *addresses; /* [n_layers][n_experts] */
    double *inv_freq;                 /* [n_rot / 2] */
    struct sample_params *sample;     /* [n_rows], as head_index */
    int32_t *logprobs;          /* alike: how many of the largest, < 0: no log-probabilities */
    struct sample_bias *biases; /* [min(n_rows, n_sequences)][FORWARD_BIAS_MAX], last stage */
    int32_t *history; /* [n_sequences][table_stride * KV_BLOCK_TOKENS], last stage: tokens */
};

struct forward_out {   /* written by kernels */
    uint32_t *heat;    /* [n_layers][n_experts] */
    uint32_t *hits;    /* [n_rows] */
    int32_t *ids;      /* [head_rows] sampled */
    int32_t *top_ids;  /* [head_rows][FORWARD_TOP_MAX] */
    float *top_values; /* alike */
    double *norms;     /* [head_rows], where log-probabilities are wanted */
    float *chosen;     /* alike: the sampled token's logit */
};

struct forward {
    struct forward_shape shape;
    const struct kernel_set *kernels; /* borrowed */
    void *shared;                     /* of the exec: holds `in` and `out` */
    size_t shared_bytes;
    struct fixed_block memory; /* of the card: everything else */
    size_t head_rows;          /* of one pass through the head */
    size_t rows;               /* that go through a layer at once now */
    struct region lent;        /* the layers' buffers while rows > rows_base; pool NULL: never */

    /* As the control thread sees them, and as kernels do: the same memory, or on a device a copy on the card of what every step
     * needs (mirror), while what few steps read stays where both see it. */
    struct forward_in in, card_in;
    struct forward_out out, card_out;
    unsigned char *mirror; /* in `memory`; NULL: no device */
    bool mirrored;         /* since the buffers were made, all of it has been sent once */

    const char *refused; /* the operation whose launch failed last, or NULL */

    float *hidden; /* [n_rows][d_model]: what links carry */
    float *angles; /* [n_rows][n_rot] */
    float *head_hidden, *logits;
    /* Of a layer, [rows]; the addresses move with `rows`, those of rows_base are the graphs'. */
    float *normed, *q, *k, *v, *attended, *router_logits, *mix, *expert_outputs;
    float *gate, *up, *shared_output; /* [rows][d_ff or d_shared] twice, [rows][d_model] */
    int32_t *routed;                  /* [rows][n_experts_used] */
    int32_t *here; /* [MISS_ROWS_MAX][n_experts_used]: those of them that the card computes */
    const struct misses
        *misses; /* while a step is recorded that shares misses with the host; else NULL */
    void *activations, *experts_scratch, *sample_scratch, *attention_scratch;
    size_t base_at; /* in `memory`: where the buffers of rows_base rows begin */
};

/* Makes the buffers. EBB_ENOMEM, EBB_EDRIVER; nothing is left then. */
int forward_open(struct forward *f, struct vmm_driver *driver, const struct kernel_set *kernels,
                 const struct forward_shape *shape, struct error *err);
void forward_close(struct forward *f);

/* Lets the layers' buffers grow into segments of the pool, up to n_rows rows. Nothing is backed yet. EBB_ENOMEM, EBB_EDRIVER. */
int forward_lend_open(struct forward *f, struct pool *pool, struct error *err);
/* Before the pool is closed. */
void forward_lend_close(struct forward *f);
size_t forward_lendable_bytes(const struct forward *f); /* what n_rows rows take beside the base */
/* Segments for so many rows at once; 0 up to rows_base. And the rows that n segments hold: rows_base doubled as often as they fit, at
 * most n_rows. */
size_t forward_segments_for(const struct forward *f, size_t rows);
size_t forward_rows_within(const struct forward *f, size_t n_segments);
static inline size_t forward_n_segments(const struct forward *f)
{
    return f->lent.n_backed;
}
/* Nothing may be queued. Brings what is lent to n_segments, more by free segments of the pool, fewer by giving it the last ones; what
 * was done before an error stays. */
int forward_back(struct forward *f, size_t n_segments, struct error *err);

/* On a device: the step's values to the card, with the tables or the addresses where they changed since the last send; and what
 * kernels counted back, zeroed there. Elsewhere nothing. Both in stream order. */
int forward_send(struct forward *f, bool tables, bool addresses, struct exec_stream *s);
int forward_receive(struct forward *f, struct exec_stream *s);

/* Launchers; 0 or a kernel's code. n_rows is fixed at capture. */
int forward_begin(struct forward *f, const struct weights *w, size_t n_rows, bool embed,
                  struct exec_stream *s);
int forward_layer(struct forward *f, const struct weights *w, const struct kv *kv,
                  const struct model_layer *m, size_t layer, size_t n_rows, struct exec_stream *s);
/* One pass: rows head_index[first .. first + n) to logits, then samples (with log-probabilities where
 * in.logprobs wants them: a row's largest then begin at its FORWARD_TOP_MAX entries), or takes the n_top largest where n_top > 0. */
int forward_head(struct forward *f, const struct weights *w, size_t first, size_t n, size_t n_top,
                 struct exec_stream *s);
