/* runtime/engine_state.h - the coordinator's state, and which source owns which part of it.
 *
 *   engine.c        open, attach, loop, stop, close: the one place that polls
 *   bringup.c       stages from launch to LOADED; the same machine serves a restart. links.c: their
 *                   links
 *   sizing.c        what is decided at bring-up: context, KV, segments, threads (pure)
 *   peer.c          one stage: its process, its lines in and out
 *   steps.c         orders of the scheduler to lines; RAN, TOK, LOGITS to requests
 *   vacancy.c       what is free on the cards before loading, and who holds the rest
 *   recovery.c      a stage died or broke its word: a new epoch, replay
 *   connection.c    a controller or client: its lines, its answers in order
 *   cards.c         VRAM, STAT, LEDGER over the cards
 *   leases.c        who has borrowed what (pure); lending.c: how leases end, and who is told
 *   request.c       a tag's life; prompt.c: what PART and GEN say; sampling.c: how its tokens are drawn
 *   trace.c         the stages' spans, made into one file when they have ended
 *   control.c       the control socket and the guard that removes it
 *
 * One thread. Whatever breaks is only marked where it is met (peer->broken, connection->lost) and
 * handled once a turn, so no list changes under a walk. Everything here is freed by engine_close().
 */
#pragma once
#include <stdatomic.h>
#include "protocol/channel.h"
#include "protocol/vram.h"
#include "runtime/engine.h"
#include "runtime/leases.h"
#include "runtime/model/chat.h"
#include "runtime/model/model.h"
#include "runtime/model/tokenizer.h"
#include "runtime/plan.h"
#include "runtime/scheduler.h"
#include "runtime/sizing.h"
#include "runtime/stop_match.h"
#include "runtime/supervisor.h"

#define PEER_WORDS_MAX 240

enum peer_state {
    PEER_DOWN,      /* no process */
    PEER_STARTED,   /* process runs, no HELLO yet */
    PEER_GREETED,   /* HELLO came; holds nothing */
    PEER_LOADING,   /* LOAD sent */
    PEER_REFUSED,   /* LOAD answered by ERR; holds nothing */
    PEER_RELEASING, /* RELEASE sent */
    PEER_HELD,      /* HELD came */
    PEER_FILLING,   /* GO sent */
    PEER_READY      /* LOADED came */
};

enum { LINK_IN = 1, LINK_OUT = 2, LINK_BACK_IN = 4, LINK_BACK_OUT = 8 };

struct held { /* HELD, in bytes */
    uint64_t weights, kv, cache, workspace, stream, link, blas, context, free, total, slots,
        slots_full, host_registered;
    uint64_t kv_blocks, kv_blocks_max, block_tokens, threads;
    uint64_t workspace_mib; /* of its workspace, in MiB: what is lent */
};

struct chunk_grant {   /* HELD, then CHUNKED, CREDITED, receipts: rows of a prompt's step */
    uint32_t held;     /* that the card has workspace for */
    uint32_t lendable; /* that it would have if its cache lent down to the floor */
};

struct kv_grant { /* HELD, then CREDITED: what the card backs, and its figures at that moment */
    uint64_t kv_blocks, free_mib, reserve_mib, cache_mib, cache_floor_mib;
};

#define PEER_HOLDERS_MAX 4

struct peer_holder { /* another process on the card */
    char name[64];
    uint64_t pid, mib;
};

struct card_command;

struct asked { /* a STAT or LEDGER that a stage owes an answer to */
    struct asked *next;
    struct card_command *command;
};

struct asked_queue {
    struct asked *first, *last;
};

struct peer {
    uint32_t index; /* the card's and the stage's number */
    const struct card_setting *card;
    char label[160]; /* cpu:0@host */
    struct process process;
    struct channel channel;
    bool channel_open, broken;
    bool deaf;        /* a line could not be sent: it is dead, or does not read */
    struct error why; /* broken: what it did */
    enum peer_state state;
    char name[128];
    char uuid[64]; /* of the card, as its driver has it; "": it told none */
    uint64_t total_mib, free_mib;
    struct peer_holder
        holders[PEER_HOLDERS_MAX]; /* when the card was last looked at, largest first */
    size_t n_holders;
    bool holders_owed; /* HOLDERS sent */
    struct held held;
    uint64_t sent_mib;  /* the reserve it was last told, by LOAD or VRAM */
    uint64_t cache_mib; /* its expert cache when it last said so, by HELD or a receipt */
    struct kv_grant grant;
    bool credit_owed; /* CREDITED to come */
    struct chunk_grant chunk;
    bool chunk_owed; /* CHUNKED to come */
    uint64_t progress_done, progress_total;
    uint32_t link_wanted, link_done; /* LINK_ bits */
    struct asked_queue stat, ledger;
    struct card_command *vram; /* this card's part of it is not answered yet */
    bool vram_sent;
    uint32_t n_owed;              /* FORKED and DROPPED to come */
    uint64_t heard_us, pinged_us; /* last line; last unanswered PING, 0 none */
    bool warned;
    char words[PEER_WORDS_MAX]; /* last line of its stderr */
    char err_line[512];         /* stderr line being collected */
    size_t n_err_line;
    struct error load_error;
};

enum request_state { REQUEST_PARTS, REQUEST_WAITING, REQUEST_RUNNING, REQUEST_ENDING };

#define PROB_BYTES 1536

struct sampling {
    double temperature, top_p, min_p;
    uint64_t top_k, seed;
    double repetition, frequency, presence;
    uint64_t n_repeat;
    size_t n_biases;
    struct logit_bias biases[LOGIT_BIAS_MAX];
    bool has_logprobs;
    uint64_t n_logprobs;
};

struct connection;

struct request {
    struct request *next; /* of its connection */
    struct connection *connection;
    char tag[MESSAGE_TAG_MAX + 1];
    enum request_state state;
    int32_t *ids; /* owned: parts, until the sequence has its copy */
    size_t n_ids, capacity;
    bool has_roles, is_score, ignore_eos;
    struct chat_state chat; /* where its conversation stands */
    struct sampling sampling;
    char *prob; /* owned [PROB_BYTES], where log-probabilities are wanted: the next T's logprob=,
                   a space, its top= if there is one */
    bool has_prob;
    struct sched_seq *seq; /* the scheduler's; NULL before GEN and once it ended */
    struct stop_match stops;
    struct utf8_stream utf8;
    uint32_t n_prompt, n_generated, n_reused, n_pp, n_scored, attempts;
    uint64_t start_us, first_us, last_us, hits, lookups;
    uint64_t last_step; /* ENDING: DONE follows when this step's figures are in */
    const char *reason;
};

enum reply_kind { REPLY_TEXT, REPLY_VRAM, REPLY_STAT, REPLY_LEDGER, REPLY_PLAN, REPLY_LEASES };

/* What a REPLY_VRAM does when its turn comes. VRAM_SETTLE is the engine's own: leases have ended, the
 * cards are told. */
enum vram_action { VRAM_BASE, VRAM_LEASE, VRAM_UNLEASE, VRAM_SETTLE };

struct card_command {          /* a command whose answer has its place in a connection's order */
    struct card_command *next; /* of the connection */
    struct card_command *next_vram; /* in arrival order over all connections */
    struct connection *connection;  /* NULL: lost meanwhile */
    enum reply_kind kind;
    bool bypass; /* never waits behind a VRAM */
    bool started, done;
    uint64_t cards; /* a bit for each card concerned */
    enum vram_action action;
    struct vram_request request; /* VRAM_BASE, VRAM_LEASE; VRAM_UNLEASE: the name alone */
    int pidfd;      /* owned, -1: none. VRAM_LEASE until a process ends, until it is taken */
    bool was_taken; /* VRAM_LEASE: the lease is in the table */
    uint32_t n_missing;
    char **lines; /* owned [n_cards]: an answer per card */
    int64_t freed_mib;
    uint64_t shortfall_mib;
    struct error refused; /* the first card that would not */
    char *text;           /* owned: the whole answer */
};

struct connection {
    struct connection *next;
    struct channel channel;
    bool is_controller, lost;
    int why_lost;    /* EBB_EGONE: the other side went or does not read; else what failed here */
    bool quitting;   /* no more input is taken */
    bool held_back;  /* lines wait until answers are out */
    bool watches;    /* asked for EVENT lines */
    uint64_t number; /* of its own, for as long as the engine lives */
    struct request *requests;
    struct card_command *first, *last; /* answers in order */
    uint32_t n_replies;
};

enum engine_phase { PHASE_BRINGUP, PHASE_SERVING, PHASE_RECOVERING };

struct engine {
    const struct settings *settings; /* borrowed */
    struct engine_events events;
    struct model *model;
    struct tokenizer *tokenizer;
    struct chat *chat;    /* the model's template */
    bool chat_was_warned; /* told that it is a guess */
    char model_path[4096];
    char trace_path[4096]; /* absolute, as stages may be started elsewhere; "": no trace */
    struct plan plan;
    struct sizes sizes;
    struct peer *peers; /* owned [n_peers] */
    uint32_t n_peers;
    struct scheduler *scheduler;
    struct connection *connections;
    struct card_command *vram_first, *vram_last;
    uint64_t n_connections; /* ever made */
    struct leases leases;
    bool unsettled; /* the reserve in force may be another than what a stage was told */

    enum engine_phase phase;
    bool sized, linking, failed, ending, cancelled;
    struct error failure;
    uint32_t epoch, plan_attempts, restart_failures;
    uint64_t look_began_us, looked_us, look_told_us; /* vacancy.c; 0 = never */
    uint64_t available_mib; /* this machine's free memory before the first stage */
    uint64_t surplus_us;    /* since when more KV is granted than needed, 0 = it is not */
    uint64_t retry_us;      /* RECOVERING: launch again at this time; 0 = as soon as may be */
    uint64_t ending_us;

    int fd_wake, fd_listen; /* eventfd of engine_stop(); control socket */
    uint64_t accept_us;     /* not before this time: there was no descriptor for one more client */
    char control_path[512];
    pid_t guard;  /* removes the control socket if we are killed; 0: none */
    int fd_guard; /* its end of input is our death */
    atomic_bool stop;

    struct pollfd *polls; /* owned, grows */
    size_t n_polls_max;
    char *line;           /* owned [LINE_BYTES_MAX]: the line being written */
    char *scratch;        /* owned [LINE_BYTES_MAX]: decoded text */
    int32_t *scratch_ids; /* owned [n_scratch_ids] */
    size_t n_scratch_ids;
    struct message message; /* the line being read */
};

uint64_t now_us(void);
__attribute__((format(printf, 3, 4))) void engine_log(struct engine *e, const char *level,
                                                      const char *format, ...);
void engine_fail(struct engine *e, const struct error *err); /* the engine ends with this */
