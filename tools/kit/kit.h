/* tools/kit/kit.h - what the tools of a running engine share: flags, finding the engine, replies as rows, tables and JSON.
 *
 * A tool is one question on the control socket and one answer: lines of a verb, then <VERB>-DONE, or an ERR. Replies are
 * kept whole, as they came, so that a pipe can have the protocol's own lines. Only a tool's main exits.
 */
#pragma once
#include <inttypes.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include "protocol/client.h"
#include "protocol/exit_status.h"

#define KIT_LINES_MAX 320 /* more than an engine has cards or leases */

struct kit_flags {
    const char *control, *name; /* borrowed from argv */
    bool json, raw, ledger, help;
    char **bare; /* caller's, argc entries */
    size_t n_bare;
    char **command; /* in argv, ends with NULL: what stands behind "--"; NULL: no "--" */
};
/* A flag of one tool alone: with a value, or (value NULL) without. A list of them ends with a NULL name. */
struct kit_option {
    const char *name;   /* "--for"; "--": a command may follow it */
    const char **value; /* gets a pointer into argv */
    bool *is_set;       /* of a flag without value */
};
/* Reads the flags every tool has, and the options. "-1" and "-" are bare: the tool judges them. */
int kit_flags_parse_with(struct kit_flags *f, int argc, char **argv, char **bare,
                         const struct kit_option *options, struct error *err);
/* The same with --ledger or --raw as the only option. */
int kit_flags_parse(struct kit_flags *f, int argc, char **argv, char **bare, const char *extra,
                    struct error *err);
void kit_flags_help(FILE *out);

struct kit_reply {
    size_t n_lines;
    char *lines[KIT_LINES_MAX];  /* owned: as they came, without LF */
    char *copies[KIT_LINES_MAX]; /* owned: what messages[] point into */
    struct message *messages;    /* owned, n_lines */
    char *places
        [KIT_LINES_MAX]; /* owned: of the card a line is about, "cpu:0@host"; NULL: not known */
    char *done;          /* owned: the <VERB>-DONE line, NULL before it */
    bool is_refused;     /* an ERR came instead; its code and words are the error's */
};
/* Asks and reads the answer. 0 or the exit status to end with (err says why). Free the reply in any case. */
int kit_ask(const struct kit_flags *f, const char *line, struct kit_reply *r, struct error *err);
/* The same over a connection that stays: close the channel where 0 was returned. */
int kit_connect(const struct kit_flags *f, struct channel *c, struct error *err);
int kit_ask_over(struct channel *c, const char *line, struct kit_reply *r, struct error *err);
/* Asks the engine where its cards are, for tables and JSON. What is not told stays unknown. */
void kit_places(const struct kit_flags *f, struct kit_reply *r);
/* What another program needs of a card just to attach to it, in MiB, as the engine's PLAN says; 0: nothing, or it is not told. */
uint64_t kit_attach_mib(struct channel *c, uint32_t device);
/* Of a receipt that leaves less: its device, what is free, what is needed. */
#define KIT_ATTACH_WORDS                                                                           \
    "card %" PRIu32 ": %" PRIu64 " MiB are free; another program needs %" PRIu64 " just to attach"
/* Warns on stderr of receipts that leave less free than another program needs to attach. */
void kit_attach_warn(const struct kit_flags *f, const struct kit_reply *r);
void kit_reply_free(struct kit_reply *r);
void kit_reply_print(FILE *out, const struct kit_reply *r); /* the protocol's lines */

/* A tool that is one question. */
struct kit_tool {
    const char *name, *extra; /* extra: its own flag, --ledger or --raw */
    void (*help)(void);
    /* The question of these flags. An error is one of usage. */
    int (*request)(const struct kit_flags *f, char *line, size_t capacity, struct error *err);
    int (*show)(const struct kit_flags *f, struct kit_reply *r, struct error *err); /* the status */
};
int kit_tool_main(const struct kit_tool *t, int argc, char **argv);
int kit_ask_and_show(const struct kit_tool *t, const struct kit_flags *f, const char *line);
/* Bad usage, told in one line: STATUS_USAGE. */
int kit_usage(const char *tool, const struct error *err);
/* What went wrong, where something did, in one line: the status. */
int kit_end(const char *tool, int status, const struct error *err);
/* What getopt_long() answered for a flag that it does not know, or (':') that lacks its value. */
int kit_flag_refuse(int flag, const char *said, struct error *err);

/* A table of the reply's rows: a column's title and the key it shows. */
struct kit_column {
    const char *title, *key; /* key NULL: the card's place */
    bool is_text;            /* to the left; numbers go to the right */
    uint64_t unit;           /* shown in this, with one decimal; 0: as it is */
};
/* Receipts as --json or --raw say; else a table on a terminal, the protocol's lines in a pipe. The status to end with:
 * STATUS_SHORTFALL where a card has less free than was asked for. */
int kit_receipts_show(const struct kit_flags *f, struct kit_reply *r, struct error *err);
int kit_shortfall_find(const struct kit_reply *r, bool *is_short, struct error *err);
/* The argument that names a card, for the tools that take one. */
int kit_card_check(const char *text, struct error *err);
void kit_table_print(FILE *out, const struct kit_reply *r, const struct kit_column *columns,
                     size_t n_columns);

/* {"<rows>": [ … ]}: numbers as numbers, the rest decoded as text, with the numbers of `done` added to the object where it is not NULL. Printed on one line. */
int kit_json_print(FILE *out, const struct kit_reply *r, const char *rows, struct error *err);
