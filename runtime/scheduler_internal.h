/* runtime/scheduler_internal.h - the scheduler's own state, shared by its two sources: scheduler.c
 * (sequences, admission, donors, results) and scheduler_step.c (what goes into the next step).
 *
 * Three lists hold every sequence: waiting (in order), live, donors. Steps live in a fixed table;
 * ids only grow.
 */
#pragma once
#include "runtime/scheduler.h"

#define STEPS_MAX 40u /* in flight; a stage queues 64 orders in all */

struct seq_list {
    struct sched_seq *first, *last;
    uint32_t n;
};

struct scheduler {
    struct sched_shape shape;
    struct kv_credit credit;
    uint32_t n_asked;   /* blocks of the ORDER_CREDIT that is not answered, 0 none */
    uint32_t n_refused; /* as many were asked for and not granted */
    uint32_t n_low; /* the least that was given back to since it last grew: less brings nothing */
    uint32_t chunk_asked;    /* rows of the ORDER_CHUNK that is not answered, 0 none */
    uint32_t chunk_held;     /* every stage has workspace for; what runs needs no more */
    uint32_t chunk_lendable; /* more is not asked for */
    bool has_loan;           /* more than chunk_min was asked for since all was given back */
    struct seq_list waiting, live, donors;
    uint64_t turn, order; /* only grow */
    bool *slot_used;      /* owned [n_slots] */

    struct sched_step *steps; /* owned [n_steps_max] */
    uint32_t n_steps_max, n_steps, n_prompt_steps;
    uint64_t next_step, mark;
    bool last_was_prompt;

    struct sched_order *orders; /* owned ring [n_orders_max]: what must go before the next step */
    uint32_t order_first, n_orders, n_orders_max;
};

bool scheduler_build(struct scheduler *s, struct sched_order *out);
