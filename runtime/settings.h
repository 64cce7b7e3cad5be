/* runtime/settings.h - every setting of the engine in one table: key, flag, type, default, range, help.
 *
 * The table (settings_table.c) drives the flags' parser, --help, the reader of YAML files and the sample of one. A
 * setting's key is its flag without the dashes; flags win over the file of --config. Threads: filled once at start, read-only afterwards. Strings are owned by the struct.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include "protocol/error.h"

#define CARDS_MAX 64

enum card_kind { CARD_CPU, CARD_CUDA };

struct card_setting {
    enum card_kind kind;
    uint32_t ordinal;     /* the number within its kind: cpu:1 -> 1 */
    char host[128];       /* "" = this host; from cpu:0@host */
    uint64_t vram_mib;    /* capacity that may be used, 0 = the driver's default */
    uint64_t reserve_mib; /* the start's reserve */
    uint64_t seen_mib;    /* free on it when auto chose it; 0 = not looked at */
    char launch[256];     /* its own launch template; "" = the run's */
    char pin[256];        /* where its threads keep to (protocol/pin.h); "" = the run's */
};

enum on_eof { ON_EOF_FINISH, ON_EOF_CANCEL };

/* How loud the choice of `--cards auto` is told. */
enum auto_level {
    AUTO_QUIET,   /* CPU cards, as on any machine without a GPU */
    AUTO_CHOSEN,  /* CUDA cards */
    AUTO_WARNING, /* CPU cards, though there is a GPU or something is broken */
};

struct settings {
    char *model; /* --model FILE */
    struct card_setting cards[CARDS_MAX];
    size_t n_cards; /* --cards cpu:0,cpu:1 ; default auto */
    bool cards_auto;
    /* Chooses the cards of auto into s->cards, once, when everything else was read; NULL: cpu:0. Set it between
     * settings_default() and the parsing. */
    void (*cards_choose)(struct settings *s);
    char auto_cards[256],
        auto_why[320]; /* what it chose, and why where that needs a reason; else "" */
    enum auto_level auto_level;
    uint64_t
        min_free_mib; /* --min-free-mib: free on every card before loading, 0 = not looked at */
    uint32_t wait_s;  /* --wait-s: how long to wait for it, 0 = not at all */
    char *attach_mib; /* --attach-mib N|auto: card_attach_mib() */
    char *yield;      /* --yield off|auto */
    uint32_t
        yield_quiet_s;   /* --yield-quiet-s: without foreign memory stirring, then it grows, 10 */
    uint64_t budget_mib; /* --budget-mib (host.budget_mib): of a host's memory, 0 = no bound */
    char *miss_threads;  /* --miss-threads N|auto */
    char *miss_share;    /* --miss-share PERCENT|auto */
    char *split;         /* --split 0-3,4-7 | auto */
    uint64_t
        segment_mib; /* --segment-mib, 0 = chosen: 512, or less where a card cannot hold the floor with that */
    char *heat_file;    /* --heat-file: heat of experts kept from run to run; "none" */
    uint32_t context;   /* --context: positions of one sequence, 0 = the model's, at most 8192 */
    uint32_t parallel;  /* --parallel: sequences at once, 4 */
    uint32_t kv_tokens; /* --kv-tokens: positions of all sequences together, 0 = chosen */
    uint32_t kv_tokens_max; /* --kv-tokens-max: what they may grow to, 0 = context * parallel */
    uint32_t chunk;         /* --chunk: rows of a prompt step, 0 = chosen (sizing.h) */
    uint32_t threads; /* --threads: of a CPU card, 0 = as many as processors that it may use */
    char *pin;        /* --pin none|cores|numa|LIST: the processors of CPU cards (protocol/pin.h) */
    char *kernels;    /* --kernels auto|avx512|avx2|reference|float */
    char *kv;         /* --kv f16|q8_0|f32 (float kernels: f32) */
    char *link;       /* --link auto|ipc|nccl|socket: how rows go from a stage to the next */
    char *launch;  /* --launch TEMPLATE: how a stage is started; {stage} {host} {card}; "{stage}" */
    char *name;    /* --name: of the control socket; default "ebbtide-<pid>" */
    char *control; /* --control PATH: of the control socket; "none" = no socket; default by name */
    char *trace;   /* --trace FILE: a picture of the run (trace.h); NULL: none */
    char *name_space;   /* --namespace: CPU cards of one namespace share their account; "default" */
    char *log_level;    /* --log-level error|warn|info|debug */
    enum on_eof on_eof; /* --on-eof finish|cancel */
    uint32_t
        stage_attempts; /* --stage-attempts: restarts after a stage died, before its requests fail; 2 */

    /* of a request made by `ebbtide run` */
    uint32_t max_new;                 /* --max-new, 256 */
    double temperature, top_p, min_p; /* 0, 1, 0 */
    uint32_t top_k;                   /* 0 = all */
    uint64_t seed;
    double repeat_penalty, frequency_penalty, presence_penalty; /* 1, 0, 0 */
    uint32_t repeat_last_n;                                     /* 64 */
    char *logit_bias; /* --logit-bias ID:X,...; NULL: none */
    char *logprobs;   /* --logprobs N, 0..20; NULL: none are told */
    bool ignore_eos;
    char *output;      /* --output text|ids|jsonl */
    char *prompt;      /* the bare argument or --text; NULL: none */
    char *prompt_file; /* -f/--file: the prompt's file, "-" = stdin; NULL: none */
    bool chat;         /* --chat: the prompt is a user's turn */

    /* of ids given as numbers: `ebbtide score`, and `run` in place of a prompt */
    char *ids;          /* --ids 1,2,3 */
    char *ids_file;     /* --ids-file FILE, "-" = stdin */
    uint32_t score_top; /* --top, 5 */

    /* of `ebbtide inspect` */
    bool json;              /* --json */
    uint32_t inspect_cards; /* --cards N: splits over 1..N cards, 4 */

    /* of `ebbtide plan` and `ebbtide config` */
    bool why;             /* --why */
    char *config_checked; /* --check FILE */
    bool config_print;    /* --print */

    char *config; /* --config FILE: settings, under the flags */

    bool help; /* -h/--help was met: parsing ended there, nothing else counts */
};

/* What another program needs of a card just to attach to it: as set, else 0 on a CPU card, and on a CUDA card 305 or what a
 * context there was seen to take (0: none was), if that is more. */
uint64_t card_attach_mib(const struct settings *s, const struct card_setting *card,
                         uint64_t context_mib);
/* 0, EBB_ENOMEM: some default is missing. To be freed in any case. */
int settings_default(struct settings *s);
void settings_free(struct settings *s);
/* Reads flags (both `--key value` and `--key=value`), the file of --config before them. Bare arguments are left in argv order through bare[] (argc entries).
 * EBB_EINVAL, EBB_ERANGE, EBB_EUNKNOWN_KEY (names the nearest). */
int settings_parse(struct settings *s, int argc, char **argv, char **bare, size_t *n_bare,
                   struct error *err);
/* The same for a command that has only the flags of these groups: another group's flag is refused by name. */
int settings_parse_groups(struct settings *s, const char *const *groups, size_t n_groups, int argc,
                          char **argv, char **bare, size_t *n_bare, struct error *err);
/* Reads a file of settings alone. *n_keys: how many keys it gave. EBB_ENOENT, EBB_EIO, EBB_EFORMAT (not YAML, or not of
 * the form), EBB_EINVAL, EBB_ERANGE, EBB_EUNKNOWN_KEY; the words are "file:line: key: expected ..., got ...". */
int settings_read(struct settings *s, const char *path, size_t *n_keys, struct error *err);
/* The sample file: every key with its help, range and default; it reads back as settings_default(). */
void settings_sample(FILE *out);
/* The flags of a command's --help, from the table. `groups`: which ("engine", "controller", "request", "output", "prompt", "ids",
 * "score", "inspect", "common"). */
void settings_help(FILE *out, const char *const *groups, size_t n_groups);
const char *settings_group_title(const char *group);
