/* tools/kit/kit.h - what the tools of a running engine share: flags, finding the engine, replies as rows, tables and JSON.
 *
 * A tool is one question on the control socket and one answer: lines of a verb, then <VERB>-DONE, or an ERR. Replies are
 * kept whole, as they came, so that a pipe can have the protocol's own lines. Only a tool's main exits.
 */
#pragma once
#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include "protocol/client.h"
#include "protocol/exit_status.h"

#define KIT_LINES_MAX 128 /* more than an engine has cards */

struct kit_flags {
    const char *control, *name; /* borrowed from argv */
    bool json, raw, ledger, help;
    char **bare; /* caller's, argc entries */
    size_t n_bare;
};
/* Reads the flags every tool has, and --ledger or --raw where `extra` names them. "-1" and "-" are bare: the tool judges them. */
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
};
/* Asks and reads the answer. 0 or the exit status to end with (err says why). Free the reply in any case. */
int kit_ask(const struct kit_flags *f, const char *line, struct kit_reply *r, struct error *err);
/* Asks the engine where its cards are, for tables and JSON. What is not told stays unknown. */
void kit_places(const struct kit_flags *f, struct kit_reply *r);
/* Warns on stderr of receipts that leave less free than another program needs to attach. */
void kit_attach_warn(const struct kit_flags *f, const struct kit_reply *r);
void kit_reply_free(struct kit_reply *r);
void kit_reply_print(FILE *out, const struct kit_reply *r); /* the protocol's lines */

/* A table of the reply's rows: a column's title and the key it shows. */
struct kit_column {
    const char *title, *key; /* key NULL: the card's place */
    bool is_text;            /* to the left; numbers go to the right */
    uint64_t unit;           /* shown in this, with one decimal; 0: as it is */
};
void kit_table_print(FILE *out, const struct kit_reply *r, const struct kit_column *columns,
                     size_t n_columns);

/* {"<rows>": [ … ]}: numbers as numbers, the rest decoded as text, with the numbers of `done` added to the object where it is not NULL. Printed on one line. */
int kit_json_print(FILE *out, const struct kit_reply *r, const char *rows, struct error *err);
