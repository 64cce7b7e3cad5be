/* runtime/scheduler.h - what to run next: sequences, prompt chunks, micro-batches, KV credits,
 * prefix reuse.
 *
 * Pure: no process, no clock, no descriptor. The engine submits sequences, asks for orders and
 * sends each to every stage in the order given (FORK, DROP and steps take their place in one
 * order), and reports the tokens and the steps' ends.
 *
 *   admission   first come, first served, at most `parallel`; a sequence starts when blocks for all
 *               its positions are promised
 *   credits     where the stages grant less than they may grow to and ended sequences are given up
 *               already, admission asks for more before anybody waits; one who cannot be served even
 *               alone is refused. What live sequences no longer need is given back when the caller,
 *               who knows the time, says so
 *   prompt      chunks of at most `chunk` rows, each a step of its own; chunk k+1 may be in flight
 *               before k is answered
 *   loans       every stage has workspace for chunks of chunk_min rows. A prompt that has more than
 *               LOAN_CHUNKS of those to run asks the stages, as far as all of them can, for as
 *               many rows as it needs, and waits for the answers; when no prompt that runs needs
 *               more than chunk_min, all is given back
 *   decode      one row a sequence; with n sequences, G groups of about n/G rows are in flight. G is
 *               how many stages can work beside each other: all S of them, unless some take turns on
 *               the same processors, where a larger group reads the weights once for more rows
 *   run-ahead   the next row of a sequence may name the token of a step still in flight
 *               (@step.row); what overran an end is discarded here: a token that comes for an ended
 *               sequence belongs to nobody
 *   donors      an ended sequence stays while nobody needs its blocks; a new one forks the longest
 *               common prefix
 *
 * Prompt steps and decode steps alternate when both wait. Lifetime: a sequence given back by
 * submit() is the scheduler's; the caller may use it until scheduler_end(). Nothing is allocated
 * after submit().
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "protocol/error.h"
#include "runtime/kv_credit.h"

struct sched_shape {
    uint32_t n_stages, parallel; /* stages in the pipeline; sequences at once */
    uint32_t n_groups;           /* G, at most n_stages; 0: n_stages */
    uint32_t n_slots;            /* sequence numbers a stage knows, donors included; > parallel */
    uint32_t chunk;              /* rows of a step at most */
    uint32_t chunk_min;          /* every stage has workspace for; 0: chunk */
    uint32_t context;            /* positions of one sequence at most */
    uint32_t n_blocks, block_tokens; /* KV blocks that the stages may grow to */
    uint32_t n_granted;              /* granted at the start; 0: n_blocks */
    bool run_ahead;
};

enum sched_state { SEQ_WAITING, SEQ_LIVE, SEQ_DONOR };

struct sched_step;

struct sched_seq {
    enum sched_state state;
    uint32_t slot;            /* the number stages know it by, while not waiting */
    void *owner;              /* the caller's; NULL in a donor */
    int32_t *tokens;          /* owned [n_max]: prompt, then what was generated */
    uint32_t n_tokens, n_max; /* known; at most */
    uint32_t
        n_prefill;  /* positions to be run as prompt: the prompt, on a replay all that is known */
    uint32_t n_fed; /* positions that stages have or will have run */
    uint32_t n_sampling;          /* tokens asked for and not yet known */
    uint32_t n_reused;            /* positions that came from a donor */
    uint32_t top;                 /* > 0: scored, want=top:<top>; nothing is sampled */
    struct sched_step *last_step; /* the step that samples the newest unknown token */
    uint32_t last_row;
    uint64_t turn;                 /* when it was last served; for a donor: last used */
    uint64_t order;                /* of submission */
    struct kv_holding holding;     /* block credits */
    struct sched_seq *prev, *next; /* of the list of its state */
};

struct sched_run {
    struct sched_seq *seq; /* NULL: ended meanwhile, its results are nobody's */
    void *owner; /* whom to charge hits to; NULL like seq, but outlives it for the last step */
    uint32_t slot, pos, n_rows, row_first;
    bool is_prompt, wants_token, is_reference;
    uint64_t ref_step; /* is_reference: the one row's token is @ref_step.ref_row */
    uint32_t ref_row;
};

struct sched_step {
    uint64_t id; /* 0: unused */
    uint32_t n_rows, n_runs;
    bool is_prompt, tokens_came;
    uint64_t ran; /* bit per stage */
    uint64_t mark;
    struct sched_run *runs; /* owned [parallel] */
};

enum sched_order_kind {
    ORDER_START,
    ORDER_FORK,
    ORDER_DROP,
    ORDER_STEP,
    ORDER_CREDIT,
    ORDER_CHUNK,
    ORDER_REFUSE
};

struct sched_order {
    enum sched_order_kind kind;
    struct sched_seq *seq;   /* START: it was admitted (again, after a reset). REFUSE: it needs n
                                blocks, which cannot be had; scheduler_end() is due now */
    uint32_t new_slot, slot; /* FORK new old; DROP slot */
    uint32_t n;              /* FORK; CREDIT: blocks to be granted in all; CHUNK: rows of a
                                step to have workspace for, chunk_min: no loan; REFUSE */
    struct sched_step *step; /* STEP */
};

#define LOAN_CHUNKS 2u

struct scheduler;

int scheduler_open(struct scheduler **s, const struct sched_shape *shape, struct error *err);
void scheduler_close(struct scheduler *s);

/* Queues a sequence: a copy of the prompt, n_max positions in all at most (prompt included; clipped
 * to the context). `top` > 0 scores the prompt. EBB_ERANGE: can never fit; EBB_ENOMEM. */
int scheduler_submit(struct scheduler *s, void *owner, const int32_t *prompt, uint32_t n_prompt,
                     uint32_t n_max, uint32_t top, struct sched_seq **out, struct error *err);

/* The sequence's request is over. last_step: the id of the last step whose hits still count for the
 * owner, as those of the steps before it do, 0 none. The sequence becomes a donor or is dropped;
 * the pointer must not be used afterwards. */
void scheduler_end(struct scheduler *s, struct sched_seq *seq, uint64_t last_step);

/* The owner is gone for good: no run in flight is charged to it any more. */
void scheduler_forget(struct scheduler *s, const void *owner);

/* The next order to send, false: nothing to do until something is reported. */
bool scheduler_next(struct scheduler *s, struct sched_order *out);

struct sched_step *scheduler_step(struct scheduler *s, uint64_t id); /* in flight, else NULL */
/* A sampled token. EBB_EPEER: no such step or row, or it came before. *seq NULL: it overran an end,
 * discard. */
int scheduler_token(struct scheduler *s, struct sched_step *step, uint32_t row, int32_t id,
                    struct sched_seq **seq, struct error *err);
/* Stage `stage` has run the step. true: all have, and its tokens came; the caller looks at its
 * runs, then retires it. */
bool scheduler_ran(struct scheduler *s, struct sched_step *step, uint32_t stage);
void scheduler_retire(struct scheduler *s, struct sched_step *step);

/* The stages have forgotten everything: steps in flight and donors are gone, live sequences wait at
 * the front to be run again from position 0 over all tokens known so far. */
void scheduler_reset(struct scheduler *s);

/* The answer to ORDER_CREDIT: what every stage grants now. Also without one, after a reset. */
void scheduler_credited(struct scheduler *s, uint32_t n_granted);
/* What was refused may be had now: memory was given back. */
void scheduler_credit_retry(struct scheduler *s);
/* Nobody waits, and more is granted than live sequences and the start's amount need. */
bool scheduler_has_surplus(const struct scheduler *s);
/* Asks for no more than that, giving up ended sequences that stand in the way. */
void scheduler_give_back(struct scheduler *s);

/* The answer to ORDER_CHUNK: rows that every stage has workspace for. */
void scheduler_chunked(struct scheduler *s, uint32_t n_rows);
/* Something changed on a card: every stage can lend workspace for n_rows now, and nobody knows what is
 * left of a loan; the next long prompt asks. */
void scheduler_lendable(struct scheduler *s, uint32_t n_rows);

struct sched_counts {
    uint32_t n_waiting, n_live, n_donors, n_steps, n_blocks_free;
    uint32_t n_credit_asked; /* ORDER_CREDIT is not answered yet */
    uint32_t n_chunk_asked;  /* nor ORDER_CHUNK */
    uint32_t n_chunk_held, n_chunk_lendable;
};
struct sched_shape scheduler_shape(const struct scheduler *s);
struct sched_counts scheduler_counts(const struct scheduler *s);
