/* tools/bench/report.c - rows of results on stdout, and in a CSV file at the end.
 *
 * The CSV file is opened first, so that a bad path is told before minutes of measuring. Columns are fixed widths: the
 * longest names are known here.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tools/bench/bench.h"

struct report {
    FILE *csv;        /* NULL: none; stdout is not closed */
    const char *path; /* borrowed */
    const char *part, *against;
    bool failed;
    int n_threads;
};

double bench_now(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static int rising(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double bench_median(double *values, int n)
{
    qsort(values, (size_t)n, sizeof *values, rising);
    return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

void report_cpu_name(char *name, size_t capacity)
{
    char line[512];
    FILE *f = fopen("/proc/cpuinfo", "r");
    (void)snprintf(name, capacity, "an unknown processor");
    while (f != NULL && fgets(line, sizeof line, f) != NULL) {
        const char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) == 0 && colon != NULL) {
            (void)snprintf(name, capacity, "%.*s", (int)strcspn(colon + 2, "\n"), colon + 2);
            break;
        }
    }
    if (f != NULL)
        (void)fclose(f);
}

int report_open(struct report **out, const char *csv_path, const struct bench_settings *s,
                const char *card_name, struct error *err)
{
    char date[32] = "";
    time_t now = time(NULL);
    struct tm day;
    struct report *r = calloc(1, sizeof *r);
    if (r == NULL)
        return error_set(err, EBB_ENOMEM, "no memory for a report");
    r->n_threads = s->n_threads;
    r->path = csv_path;
    if (csv_path != NULL && (r->csv = fopen(csv_path, "w")) == NULL) {
        free(r);
        return error_set(err, EBB_EIO, "--csv: %s: %s", csv_path, strerror(errno));
    }
    if (r->csv != NULL)
        fputs("part,what,type,shape,threads,value,unit,against,ratio,best,best_ratio,runs\n",
              r->csv);
    if (gmtime_r(&now, &day) != NULL)
        (void)strftime(date, sizeof date, "%Y-%m-%d", &day);
    printf("ebbtide-bench %s, %s, %s, %d thread%s, kernels %s%s\n", EBBTIDE_VERSION, date,
           card_name, s->n_threads, s->n_threads == 1 ? "" : "s", s->kernels,
           s->quick ? ", quick: figures are rough" : "");
    *out = r;
    return 0;
}

void report_part(struct report *r, const char *name, const char *title, const char *against,
                 bool has_best)
{
    r->part = name;
    r->against = against;
    printf("\n%s\n", title);
    if (against != NULL)
        printf("%79s %6s%s\n", against, "ratio", has_best ? "    best  ratio" : "");
    (void)fflush(stdout);
}

void report_note(struct report *r, const char *text)
{
    (void)r;
    printf("  %s\n", text);
}

/* Three digits that mean something. */
static void number_print(char *text, size_t capacity, double value)
{
    int decimals = value >= 100 ? 0 : value >= 10 ? 1 : 2;
    (void)snprintf(text, capacity, "%.*f", decimals, value);
}

void report_row(struct report *r, const struct row *row)
{
    char value[32], against[32], best[32];
    number_print(value, sizeof value, row->value);
    number_print(against, sizeof against, row->against);
    number_print(best, sizeof best, row->best);
    printf("  %-22s %-5s %-24s %8s %-6s", row->what, row->type, row->shape, value, row->unit);
    if (row->against > 0)
        printf(" %6s %6.2f", against, row->value / row->against);
    if (row->best > 0)
        printf("  %6s %6.2f", best, row->best / row->best_against);
    puts("");
    (void)fflush(stdout);
    if (r->csv == NULL)
        return;
    fprintf(r->csv, "%s,%s,%s,%s,%d,%.6g,%s,", r->part, row->what, row->type, row->shape,
            r->n_threads, row->value, row->unit);
    if (row->against > 0)
        fprintf(r->csv, "%.6g,%.4f", row->against, row->value / row->against);
    else
        fputc(',', r->csv);
    if (row->best > 0)
        fprintf(r->csv, ",%.6g,%.4f", row->best, row->best / row->best_against);
    else
        fputs(",,", r->csv);
    fprintf(r->csv, ",%d\n", row->n_runs);
    r->failed = r->failed || ferror(r->csv) != 0;
}

int report_close(struct report *r, struct error *err)
{
    int code = 0;
    if (r->csv != NULL && (fclose(r->csv) != 0 || r->failed))
        code = error_set(err, EBB_EIO, "--csv: %s: writing failed", r->path);
    free(r);
    return code;
}
