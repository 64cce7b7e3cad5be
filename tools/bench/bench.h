/* tools/bench/bench.h - what the parts of ebbtide-bench share: settings, rows of results, time.
 *
 * A part measures and hands rows over as they come; report.c prints them as one aligned table a part, and keeps them for
 * the CSV. Other work shares these machines, so a figure is the median of several short runs, and what is compared is
 * measured in turns. Threads: the main thread measures; only what is measured has others.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include "protocol/error.h"

struct bench_settings {
    bool quick;          /* seconds in all, figures are rough */
    int n_threads;       /* of the kernels and of a stage */
    const char *threads; /* as given to ebbtide; NULL: its own choice */
    const char *kernels; /* name of a kernel set */
    const char *model;   /* NULL: made for the run */
    const char *shape;   /* of the one that is made, */
    uint32_t n_layers;   /* so many of its layers, 0: all */
    const char *cards;   /* of the engine; the first is the one that is measured alone */
    const char *trace;   /* NULL: none is made; of the first engine, FILE.2 of the second, ... */
    bool by_card;        /* --cards: in graphs, by depth and rows, beside the card's own speeds */
};

struct row {
    const char *what; /* "matrix-vector" */
    char type[16], shape[48];
    double value;
    const char *unit;          /* of value and against */
    double against;            /* what it is compared with, its median; 0: nothing */
    double best, best_against; /* of the runs, where the machine may have been busy; 0: not told */
    int n_runs;
};

struct report; /* report.c */
/* The title tells the card's name. */
int report_open(struct report **r, const char *csv_path, const struct bench_settings *s,
                const char *card_name, struct error *err);
/* A new table: its name (one word, for the CSV), a line that explains it, what `against` is, or NULL,
 * and whether rows tell a best. */
void report_part(struct report *r, const char *name, const char *title, const char *against,
                 bool has_best);
void report_row(struct report *r, const struct row *row);
/* The processor's name as the kernel has it. */
void report_cpu_name(char *name, size_t capacity);
void report_note(struct report *r, const char *text); /* on the table only */
/* Writes the CSV. EBB_EIO. */
int report_close(struct report *r, struct error *err);

double bench_now(void);                     /* seconds */
double bench_median(double *values, int n); /* sorts them */

/* Parts. Each measures, reports, and returns 0 or an error. */
int bench_products(const struct bench_settings *s, struct report *r, struct error *err);
int bench_model(const struct bench_settings *s, struct report *r, struct error *err);
int bench_vram(const struct bench_settings *s, struct report *r, struct error *err);
int bench_card_products(const struct bench_settings *s, struct report *r, struct error *err);
int bench_card_model(const struct bench_settings *s, struct report *r, struct error *err);
