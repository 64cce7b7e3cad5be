/* tools/bench.c - `ebbtide bench`: what this machine gives, in one table and a CSV.
 *
 * Reads flags, finds or makes the model, and runs the parts of tools/bench/ one after another; the first that fails ends
 * it. Nothing is left behind: engines end with their pipes, made models with the run.
 */
#include <getopt.h>
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "kernels/kernels.h"
#include "protocol/message.h"
#include "tools/bench/bench.h"
#include "tools/bench/card.h"
#include "tools/bench/made.h"
#include "tools/kit/kit.h"

typedef int part_run(const struct bench_settings *s, struct report *r, struct error *err);
static const struct part {
    const char *name;
    bool needs_model;
    part_run *cpu, *card; /* by --cpu, by --cards */
} parts[] = {
    {"products", false, bench_products, bench_card_products},
    {"model", true, bench_model, bench_card_model},
    {"vram", true, bench_vram, bench_vram},
};
#define N_PARTS (sizeof parts / sizeof parts[0])

struct flags {
    bool cpu, help;
    const char *only, *csv, *kernels, *cards;
    const struct card_tables *tables; /* of the first card */
    int device;
};

static void help(void)
{
    puts(
        "ebbtide bench: what this machine gives\n\n"
        "Usage\n"
        "  ebbtide bench --cpu [flags]\n"
        "  ebbtide bench --cards cuda:0 [flags]\n\n"
        "Flags\n"
        "  --cpu            measure CPU cards\n"
        "  --cards LIST     measure these cards of this machine: the first alone, then, of the\n"
        "                   model, all together\n"
        "  --only PART      products: products by type and shape, beside the speed of reading\n"
        "                   (of copying, with --cards)\n"
        "                   model: prefill and decode on one stage and two, the hop between them;\n"
        "                   with --cards by depth of context and sequences side by side\n"
        "                   vram: memory given back and taken, by the segment\n"
        "  --model FILE     a model with experts; default: one is made in $TMPDIR for the run\n"
        "                   (two layers of olmoe-1b-7b, 0.7 GB; with --quick a tiny one;\n"
        "                   for a CUDA card all of qwen3-30b-a3b, 18 GB)\n"
        "  --threads N      of the kernels and of each stage; default: the processors, and what\n"
        "                   ebbtide chooses\n"
        "  --kernels SET    auto, avx512, avx2, reference, ...; default: auto\n"
        "  --csv FILE       the rows as comma-separated values too\n"
        "  --trace FILE     what every stage did and when, in Chrome's trace format: of the first\n"
        "                   engine that is started; of the next ones in FILE.2, FILE.3, ...\n"
        "  --quick          a few seconds in all; figures are rough\n"
        "  -h, --help       this page\n\n"
        "A figure is the median of several short runs; what is compared is measured in turns.\n\n"
        "Examples\n"
        "  ebbtide bench --cpu\n"
        "  ebbtide bench --cpu --only model --model model.gguf --threads 8\n"
        "  ebbtide bench --cpu --quick --csv rows.csv\n"
        "  ebbtide bench --cards cuda:0,cuda:1 --only model --model model.gguf");
    exit_status_help(stdout);
}

static int flag_take(struct flags *f, struct bench_settings *s, int letter, struct error *err)
{
    uint64_t n;
    switch (letter) {
    case 'c': f->cpu = true; return 0;
    case 'l': f->cards = optarg; return 0;
    case 'o': f->only = optarg; return 0;
    case 'm': s->model = optarg; return 0;
    case 'k': f->kernels = optarg; return 0;
    case 'v': f->csv = optarg; return 0;
    case 'r': s->trace = optarg; return 0;
    case 'q': s->quick = true; return 0;
    case 'h': f->help = true; return 0;
    default:
        if (parse_u64(optarg, 1, 1024, &n) != 0)
            return error_set(err, EBB_EINVAL, "--threads: wanted a number from 1 to 1024, got '%s'",
                             optarg);
        s->threads = optarg;
        s->n_threads = (int)n;
        return 0;
    }
}

static int flags_read(struct flags *f, struct bench_settings *s, int argc, char **argv,
                      struct error *err)
{
    static const struct option options[] = {{"cpu", no_argument, NULL, 'c'},
                                            {"cards", required_argument, NULL, 'l'},
                                            {"only", required_argument, NULL, 'o'},
                                            {"model", required_argument, NULL, 'm'},
                                            {"threads", required_argument, NULL, 't'},
                                            {"kernels", required_argument, NULL, 'k'},
                                            {"csv", required_argument, NULL, 'v'},
                                            {"trace", required_argument, NULL, 'r'},
                                            {"quick", no_argument, NULL, 'q'},
                                            {"help", no_argument, NULL, 'h'},
                                            {NULL, 0, NULL, 0}};
    int letter;
    opterr = 0;
    while ((letter = getopt_long(argc, argv, ":h", options, NULL)) != -1) {
        if (letter == ':' || letter == '?')
            return kit_flag_refuse(letter, argv[optind - 1], err);
        int code = flag_take(f, s, letter, err);
        if (code != 0)
            return code;
    }
    if (optind < argc)
        return error_set(err, EBB_EINVAL, "wanted flags only, got '%s'", argv[optind]);
    if (!f->help && f->cpu == (f->cards != NULL))
        return error_set(err, EBB_EINVAL, "wanted what to measure: --cpu, or --cards cuda:0");
    return 0;
}

/* The first card's tables and kernels, and the model that suits it. */
static int card_check(struct flags *f, struct bench_settings *s, struct error *err)
{
    s->by_card = f->cards != NULL;
    s->cards = s->by_card ? f->cards : "cpu:0";
    int code = card_find(s->cards, &f->tables, &f->device, err);
    if (code != 0)
        return code;
    const struct kernel_set *set = f->tables->kernels(f->kernels, err);
    if (set == NULL)
        return err->code;
    s->kernels = f->tables->is_cuda ? "auto" : set->name; /* the engine's word for it */
    s->shape = f->tables->is_cuda ? "qwen3-30b-a3b" : s->quick ? "tiny-qwen3" : "olmoe-1b-7b";
    s->n_layers = f->tables->is_cuda || s->quick ? 0 : 2;
    return 0;
}

static int flags_check(struct flags *f, struct bench_settings *s, struct error *err)
{
    bool is_known = f->only == NULL;
    int code = card_check(f, s, err);
    if (code != 0)
        return code;
    for (size_t i = 0; i < N_PARTS; i++)
        is_known = is_known || strcmp(parts[i].name, f->only) == 0;
    if (!is_known)
        return error_set(err, EBB_EINVAL, "--only: wanted products, model or vram, got '%s'",
                         f->only);
    if (s->model != NULL && access(s->model, R_OK) != 0)
        return error_set(err, EBB_ENOENT, "--model: %s: there is no such file to read", s->model);
    return 0;
}

static int parts_run(const struct flags *f, struct bench_settings *s, struct report *r,
                     struct error *err)
{
    char made[MADE_PATH_BYTES] = "";
    int code = 0;
    for (size_t i = 0; i < N_PARTS && code == 0; i++) {
        if (f->only != NULL && strcmp(f->only, parts[i].name) != 0)
            continue;
        if (parts[i].needs_model && s->model == NULL) {
            code = made_model(made, s->shape, s->n_layers, err);
            s->model = made;
        }
        if (code == 0)
            code = (s->by_card ? parts[i].card : parts[i].cpu)(s, r, err);
    }
    made_remove(made);
    return code;
}

int main(int argc, char **argv)
{
    long n_processors = sysconf(_SC_NPROCESSORS_ONLN);
    struct bench_settings s = {.n_threads = n_processors > 0 ? (int)n_processors : 1};
    struct flags f = {.kernels = "auto"};
    struct error err = {0}, closing = {0};
    struct report *r;
    char name[256];
    int code = flags_read(&f, &s, argc, argv, &err);
    if (code == 0 && f.help) {
        help();
        return STATUS_DONE;
    }
    if (code == 0)
        code = flags_check(&f, &s, &err);
    if (code != 0)
        return kit_usage("bench", &err);
    made_watch_signals();
    code = f.tables->describe(f.device, name, sizeof name, &err);
    if (code == 0)
        code = report_open(&r, f.csv, &s, name, &err);
    if (code == 0) {
        code = parts_run(&f, &s, r, &err);
        if (report_close(r, &closing) != 0 && code == 0)
            code = closing.code, err = closing;
    }
    return kit_end("bench", code == 0 ? STATUS_DONE : STATUS_FAILED, &err);
}
