/* stages/stage.h - the inside of a stage process: one card, its memory, its queue of steps, its lines. Shared by the sources of this
 * room; the way in from outside is stage_main() (platform.h).
 *
 * One control thread owns everything. It reads lines, launches work, asks events, and never waits in the driver: stage.c polls the
 * protocol, the links and the exec together. Work is launched from boundaries: moments when nothing is queued on the compute stream.
 * At a boundary uploads are published, VRAM commands served, links made anew, and then the next piece of work goes out.
 *
 *   sampling.c  settings of a draw, histories, PROB
 *   stage.c   the loop and the program        load.c   LOAD, HELD, GO, RELEASE        links.c  LINK, tiles and ids
 *   queue.c   ROWS, STEP, FORK, DROP, CANCEL  run.c    executes the queue              vram.c   VRAM, STAT, LEDGER
 *   others.c  HOLDERS, host memory            yield.c  gives way to foreign memory    turn.c   one of a card's stages at a time
 *   budget.c  CREDIT, CHUNK: what KV and the workspace take from the expert cache and give back
 *   link_room.c  memory that NCCL takes
 */
#pragma once
#include "protocol/channel.h"
#include "protocol/vram.h"
#include "stages/experts.h"
#include "stages/forward.h"
#include "stages/graphs.h"
#include "stages/platform.h"
#include "stages/refill.h"
#include "stages/registration.h"
#include "stages/trace.h"
#include "stages/turn.h"
#include "stages/yield.h"
#include "vmm/ledger.h"

#define MIB (UINT64_C(1) << 20)

#define QUEUE_MAX      64 /* steps, forks and drops waiting */
#define VRAM_QUEUE_MAX 256
#define DEFERRED_MAX   8    /* LINK lines waiting for a boundary */
#define SAMPLED_MAX    4096 /* sampled ids remembered for @step.row */
#define WHOLE_STEP_ROWS                                                                            \
    8 /* steps of at most this many rows are launched whole, longer ones layer by layer */
#define LINK_TILES 4
#define INPUT_WATCH_US                                                                             \
    5000 /* so long a device's thread watches for a step's input without sleeping */

enum stage_state { STAGE_EMPTY, STAGE_HELD, STAGE_LOADING, STAGE_SERVING };

enum link_want { LINK_BY_SOCKET, LINK_BY_IPC, LINK_BY_NCCL }; /* LOAD link= */

struct load_settings {
    char model[4096], trace[4096]; /* trace: "" = none is made */
    uint64_t fingerprint;          /* 0 = not checked */
    uint32_t device, stage, n_stages, layer_first, layer_last;
    uint64_t reserve_mib, segment_mib, kv_tokens, kv_tokens_max, host_mib;
    bool yields;
    uint64_t yield_quiet_us;
    uint32_t context, n_sequences, chunk, chunk_min, n_threads, epoch;
    char kernels[16];
    char heat_file[4096]; /* "": none */
    enum kv_type kv;
    enum link_want link;
    uint32_t miss_threads;
    bool miss_threads_given; /* else: as many as processors that may be used, but for two */
    int miss_percent;        /* of absent experts, or MISS_SHARE_AUTO */
    struct pin pin;
    uint32_t share,
        n_shares; /* this card is number `share` of the run's n_shares cards of its kind on this host */
};

enum want { WANT_NONE, WANT_LAST, WANT_TOP };

struct step_run {
    uint32_t seq, pos, row_first, n_rows, n_top;
    enum want want;
    struct sample_params sample; /* bias_first: in the item's biases */
    int32_t n_logprobs;          /* < 0: none wanted */
};

struct step_token { /* id >= 0, or the token sampled in `step` for `row` */
    int32_t id;
    uint32_t row;
    uint64_t step;
};

enum item_kind { ITEM_STEP, ITEM_FORK, ITEM_DROP, ITEM_CREDIT, ITEM_CHUNK };

struct item {
    enum item_kind kind;
    uint32_t epoch;
    uint64_t step;
    uint32_t through; /* last stage that runs it */
    bool cancelled;
    size_t n_runs, n_rows;
    struct step_run *runs;     /* owned [rows_max] */
    struct step_token *tokens; /* owned [rows_max] */
    size_t n_biases;
    struct sample_bias *biases;          /* owned [n_sampled_max][FORWARD_BIAS_MAX] */
    struct error broken;                 /* what was wrong with a line of it */
    uint32_t seq_new, seq_old, n_shared; /* FORK; DROP uses seq_old */
    uint32_t n_wanted;                   /* blocks of CREDIT, rows of CHUNK */
};

struct queue {
    struct item items[QUEUE_MAX]; /* a ring */
    size_t first, n_used;
    bool building;                  /* items[first + n_used] takes ROWS */
    size_t rows_max, n_sampled_max; /* rows of a step; sampled ones of them */
};

enum run_phase { RUN_IDLE, RUN_INPUT, RUN_LAYERS, RUN_SENDING, RUN_HEAD };

struct runner {
    enum run_phase phase;
    struct item *item; /* in the queue, its first */
    bool busy;         /* compute work is out; `done` tells */
    struct exec_event *done;
    size_t next_layer, n_arrived, n_sent;
    size_t n_top, n_sample;           /* rows in head_index: top rows first, then sampled ones */
    size_t top_k;                     /* the most that any of the top rows wants */
    size_t head_next;                 /* first entry of head_index not launched */
    size_t head_launched;             /* entries of the pass that is out */
    int32_t *sampled_ids;             /* owned [rows_max], as head_index's sampled part */
    uint64_t started_us, launched_us; /* of the step; its first layer */
};

enum moving { MOVING_NOTHING, MOVING_KV_GROWS, MOVING_KV_SHRINKS, MOVING_WORKSPACE_GROWS };

enum link_way { LINK_IN, LINK_OUT, LINK_BACK_IN, LINK_BACK_OUT, LINK_N_WAYS };

/* Memory of the card for a library that takes it by itself (link_room.c). */
struct link_room {
    uint64_t bytes; /* to be kept for it in all; 0: none */
    uint64_t taken_bytes;
    struct fixed_block block; /* what it has not taken */
    bool is_given;            /* it may take now; beside_bytes: before */
    uint64_t beside_bytes;
};

struct vram_pending {
    bool to_start, is_own; /* own: yield.c's, without a receipt */
    uint64_t reserve_mib, arrived_us;
};

struct sampled {
    uint64_t step;
    int32_t row, id;
};

struct stage {
    const struct platform *platform;
    struct platform_card card_setting;
    char card_name[128], card_uuid[64];
    struct channel control;
    enum stage_state state;
    bool quitting;
    int exit_status;

    struct vmm_driver memory; /* open for the whole life */
    struct load_settings load;
    struct exec *card;
    struct pin_choice pinned;
    struct pin_bound bound; /* the control thread, from LOAD to RELEASE */
    struct exec_stream *compute;
    struct model *model;
    const struct kernel_set *kernels;
    struct weights weights;
    struct kv kv;
    struct experts experts;
    struct refill refill;
    struct forward forward;
    struct graphs graphs;
    struct misses misses;
    struct registration registration;
    struct fixed_block link_memory; /* of the tiles; a device's are in link_shared */
    void *link_shared;
    struct fixed_block
        link_memory_in; /* link=ipc: the ring that the stage before maps; nccl: both ways' rings */
    struct link_ring link_rings[2]; /* of in and out, in there; without one its base is NULL */
    struct link_room link_room;
    size_t n_layers;
    uint64_t load_started_us, load_done_bytes, load_total_bytes, load_told_bytes;

    uint32_t epoch;
    const struct link_driver *link_driver;
    struct link *links[LINK_N_WAYS];
    bool link_told[LINK_N_WAYS]; /* out, back-out: LINKED …=ok was said */
    bool link_failed
        [LINK_N_WAYS]; /* closed at the next epoch: copies of its tiles may still be on the stream */
    char *deferred[DEFERRED_MAX]; /* LINK lines for the next boundary */
    size_t n_deferred;
    struct link_id outbox[SAMPLED_MAX]; /* ids not yet taken by the back link */
    uint64_t outbox_step[SAMPLED_MAX];
    size_t n_outbox;

    struct queue queue;
    struct runner run;
    struct sampled sampled[SAMPLED_MAX]; /* ring */
    size_t n_sampled;

    struct vram_pending
        vram[VRAM_QUEUE_MAX]; /* a ring; the first is being served while vram_moving */
    size_t vram_first, n_vram;
    bool vram_moving;
    uint64_t vram_started_us, vram_before_mib;
    size_t vram_segments_before;
    uint64_t reserve_mib; /* in force */
    struct yield yield;
    struct turn turn;

    enum moving moving; /* the copies of a CREDIT or a CHUNK are on the compute stream */
    bool
        chunk_asked; /* the last CHUNK asked for more rows than the smallest: what is lent is in use */

    uint64_t n_steps, n_tokens, n_hits, n_lookups; /* tokens: sampled in its steps, here or later */
    struct trace trace;
    char line[LINE_BYTES_MAX]; /* where answers are written */
};

uint64_t now_us(void);
void stage_log(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Sends what the writer holds; a line that does not fit or a lost controller ends the stage. */
void stage_say(struct stage *s, struct line_writer *w);
void stage_refuse(struct stage *s, const char *tag, const struct error *err);
/* An error after which the stage cannot go on: told, logged, exit status 1. */
void stage_fail(struct stage *s, const struct error *err);

/* load.c */
void load_command(struct stage *s, const struct message *m);
void load_go(struct stage *s);
void load_release(struct stage *s);   /* to STAGE_EMPTY, whatever there is */
void load_heat_save(struct stage *s); /* at the end of a stage that served */
void load_advance(struct stage *s);   /* in STAGE_LOADING: the next pieces */

/* links.c */
void link_command(struct stage *s, const struct message *m,
                  const char *line); /* line: the same, not taken apart */
void links_close(struct stage *s);
size_t links_poll_fds(struct stage *s, struct pollfd *fds, size_t max);
void links_service(struct stage *s);
bool links_are_copying(const struct stage *s); /* tiles, on a stream */
int links_due_ms(const struct stage *s);       /* links_service() by then; -1: a descriptor tells */
void links_deferred(struct stage *s); /* at a boundary: LINK lines that had to wait for one */
/* Tiles of step's rows into hidden; advances run.n_arrived. */
int links_take_rows(struct stage *s, const struct item *item, struct error *err);
/* Sends rows of hidden from run.n_sent on, as far as there is credit. 1 = all sent. */
int links_send_rows(struct stage *s, const struct item *item, struct error *err);
void links_send_ids(struct stage *s, uint64_t step, const int32_t *rows, const int32_t *ids,
                    size_t n);

/* link_memory.c */
int link_want_read(const char *name, enum link_want *want, struct error *err);
bool link_is_back(enum link_way way);
struct link_settings link_settings_for(const struct stage *s, enum link_way way);
size_t links_memory_bytes(const struct stage *s); /* of the ways, a device's rings not counted */
/* Makes it, and chooses by what driver rows travel. */
int links_memory_open(struct stage *s, struct error *err);
void links_memory_close(struct stage *s); /* after links_close() */

/* link_room.c */
int link_room_open(struct stage *s, uint64_t bytes, struct error *err);
void link_room_give(struct stage *s);   /* links begin or end: NCCL may take and give */
void link_room_settle(struct stage *s); /* none of them does any more */
void link_room_close(struct stage *s);

void sampled_remember(struct stage *s, uint64_t step, int32_t row, int32_t id);
bool sampled_find(const struct stage *s, uint64_t step, uint32_t row, int32_t *id);

/* queue.c */
int queue_open(struct queue *q, size_t rows_max, size_t n_sampled_max, struct error *err);
void queue_close(struct queue *q);
void queue_clear(struct queue *q);
void queue_rows(struct stage *s, const struct message *m);
void queue_step(struct stage *s, const struct message *m);
void queue_cancel(struct stage *s, const struct message *m);
void queue_fork(struct stage *s, const struct message *m);
void queue_drop(struct stage *s, const struct message *m);
void queue_credit(struct stage *s, const struct message *m);
void queue_chunk(struct stage *s, const struct message *m);
struct item *queue_first(struct queue *q);
void queue_pop(struct queue *q);

/* sampling.c */
/* How the run's last row is sampled, from its ROWS line; the biases go to the end of the item's. */
int sampling_read(struct stage *s, struct item *it, struct step_run *run, const struct message *m,
                  struct error *err);
/* Last stage, when a step's input is here: its tokens join their sequences' histories. */
void history_take(struct stage *s, struct item *it);
void history_fork(struct stage *s, uint32_t seq_new, uint32_t seq_old, uint32_t n);
/* Entry `entry` of head_index is sampled for this run. */
void sampling_place(struct stage *s, const struct item *it, const struct step_run *run,
                    size_t entry);
/* Row `in_pass` of a pass through the head, entry `entry` of head_index: says its PROB if one was wanted. */
void sampling_say(struct stage *s, const struct item *it, size_t entry, size_t in_pass);

/* run.c */
int run_open(struct stage *s, struct error *err);
void run_close(struct stage *s);
void run_advance(struct stage *s); /* as far as it goes without waiting */
void run_reset(struct stage *s);   /* at a boundary: forgets the step that runs */
bool run_at_boundary(const struct stage *s);
/* A step waits for its rows or ids, and has not waited long. */
bool run_awaits_input(const struct stage *s);
/* The next boundary comes after all that is on the compute stream now; what that is, for the trace. */
void run_flush(struct stage *s, const char *what);
/* uploads.c: experts_settle() and experts_upload(), as far as a refill may go, told to its clock and to the trace. At a boundary free
 * slots wait until the next step is out, if there is one. */
int uploads_settle(struct stage *s, struct error *err);
int uploads_start(struct stage *s, bool at_boundary, struct error *err);

/* others.c */
void holders_command(struct stage *s, const struct message *m);
/* Host memory that this stage binds, with these bytes of the model's file: registered or shared with a device; 0 on a card that is
 * none. */
uint64_t host_bytes(const struct stage *s, uint64_t registered_bytes);
/* After registration_open(): what will be bound stays within host_mib. EBB_EINVAL. */
int host_budget_check(const struct stage *s, struct error *err);

/* budget.c */
bool budget_is_next(
    const struct stage *s); /* a CREDIT or a CHUNK is the queue's first, and no step runs */
/* At a boundary, with budget_is_next(): serves it. False: uploads or copies that run must end first. */
bool budget_begin(struct stage *s);
void budget_finish(struct stage *s); /* at a boundary: what the copies were made for */
/* The workspace to n_segments of the pool, where nothing is queued; more only as far as segments lie free. False: the driver would not. */
bool budget_workspace(struct stage *s, size_t n_segments);
/* Rows of a step for which there is workspace, and for which there would be if the cache lent down to its floor. */
uint32_t budget_rows_held(const struct stage *s);
uint32_t budget_rows_lendable(const struct stage *s);

/* vram.c */
void vram_command(struct stage *s, const struct message *m);
void vram_advance(struct stage *s); /* at a boundary, or while moving */
/* Commands are queued or moves run, and it is this stage's turn: no new work goes out. */
bool vram_is_waiting(const struct stage *s);
void stat_command(struct stage *s);
void ledger_command(struct stage *s);
void ledger_read(struct stage *s, struct ledger *out);
void held_say(struct stage *s);
/* What n segments of the card's pool are. */
uint64_t segments_mib(const struct stage *s, size_t n);
/* Segments that a VRAM command moves: all of the pool but KV's. */
static inline size_t vram_n_segments(const struct stage *s)
{
    return experts_n_held(&s->experts) + s->experts.n_workspace;
}
struct vram_split { /* segments */
    size_t cache, workspace;
};
/* What cache and workspace may have so that reserve_mib stays free: the cache between its floor and everything, the workspace from
 * nothing to all rows. Less is taken from a workspace that nobody uses, then from the cache, then from one in use; more goes to the
 * cache first. Where the driver will not say what is free, what they have, and err has its words. */
struct vram_split vram_wanted(struct stage *s, uint64_t reserve_mib, struct error *err);
/* Makes segments for such a split of more than there are, cache first. What cannot be had is told in err. */
void vram_grow(struct stage *s, const struct vram_split *wanted, struct error *err);
