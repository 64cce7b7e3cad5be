/* runtime/launch.h - the command that starts a card's stage, from the launch template.
 *
 * The default "{stage}" starts the stage's executable beside this program directly. Any other
 * template is a shell command, run by /bin/sh -c "exec …": {stage} becomes the quoted executable
 * with its arguments, {host} the card's host, {card} its name (cpu:0). A template without {stage}
 * names another program that speaks the stage dialect.
 */
#pragma once
#include "runtime/settings.h"

#define LAUNCH_ARGS_MAX 12

struct launch {
    char *text; /* owned: backs argv */
    char *argv[LAUNCH_ARGS_MAX];
};

/* vram_mib 0: not passed on. EBB_EINVAL: the template; EBB_ENOENT: no such executable here. */
int launch_open(struct launch *l, const struct settings *s, const struct card_setting *card,
                uint64_t vram_mib, struct error *err);
void launch_close(struct launch *l);

/* The program of a card's stage beside this one. EBB_ENOENT: a card of this host without it. */
int launch_program(const struct card_setting *card, char *path, size_t capacity, struct error *err);

/* "cpu:0", "cuda:1@host". */
void card_label(const struct card_setting *card, char *label, size_t capacity);
