/* tools/make-model.c - `ebbtide make-model`: a model file with random weights in the shape of a published model.
 *
 * For measuring and testing where the real file is too large, or not there: sizes, types, routing and the work of a token
 * are those of the model, what it writes is noise. The same arguments give the same bytes on every machine, whatever the
 * number of threads. Ctrl-C leaves nothing behind.
 */
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <signal.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "protocol/message.h"
#include "tools/kit/kit.h"
#include "tools/make-model/output.h"

struct flags {
    const char *shape, *mix, *path, *tokenizer;
    uint64_t n_layers, seed, n_threads;
    bool force, help;
};

static atomic_int stopped; /* the signal's number */

static void on_signal(int number)
{
    stopped = number;
}

static void help(void)
{
    puts("ebbtide make-model: a model file of random weights, in the shape of a published model\n\n"
         "Usage\n"
         "  ebbtide make-model SHAPE -o FILE.gguf [flags]\n\n"
         "Shapes");
    for (size_t i = 0; shape_at(i) != NULL; i++) {
        const struct shape *s = shape_at(i);
        printf("  %-16s %2u layers, width %u, %u experts of width %u, %u used\n", s->name,
               s->n_layers, s->d_model, s->n_experts, s->d_expert, s->n_experts_used);
    }
    puts("\nFlags\n"
         "  -o, --output FILE    where to write it; must not be there yet\n"
         "  --layers N           only the first N layers; default: all of the shape\n"
         "  --type-mix MIX       types of the weights; default: q4_k_m. It keeps the attention's\n"
         "                       values and the experts' down matrices of half of the layers, and\n"
         "                       the output, as Q6_K. Others are one type for all matrices:");
    fputs("                      ", stdout);
    for (size_t i = 1; type_mix_at(i) != NULL; i++)
        printf(" %s%s", type_mix_at(i)->name, i == 7 ? "\n                      " : "");
    puts("\n"
         "  --seed N             default: 0; the same seed gives the same bytes\n"
         "  --tokenizer FILE     take the vocabulary of another model file, cut or padded to the\n"
         "                       shape's size; default: bytes, and tokens that are not used\n"
         "  --threads N          default: the processors\n"
         "  --force              replace a file that is there\n"
         "  -h, --help           this page\n\n"
         "Experts are chosen with the skew of real models: few often, many seldom. What the model\n"
         "writes is noise.\n\n"
         "Examples\n"
         "  ebbtide make-model qwen3-30b-a3b -o /models/random-30b.gguf\n"
         "  ebbtide make-model qwen3-30b-a3b --layers 4 --type-mix q8_0 -o four.gguf\n"
         "  ebbtide make-model tiny-olmoe --seed 7 -o tiny.gguf && ebbtide run -m tiny.gguf "
         "--max-new 8 hello");
    exit_status_help(stdout);
}

static int number_take(const char *flag, const char *text, uint64_t min, uint64_t max, uint64_t *to,
                       struct error *err)
{
    if (parse_u64(text, min, max, to) == 0)
        return 0;
    return error_set(err, EBB_EINVAL,
                     "%s: wanted a whole number from %" PRIu64 " to %" PRIu64 ", got '%s'", flag,
                     min, max, text);
}

static int flag_take(struct flags *f, int letter, struct error *err)
{
    switch (letter) {
    case 'o': f->path = optarg; return 0;
    case 'l': return number_take("--layers", optarg, 1, 4096, &f->n_layers, err);
    case 'm': f->mix = optarg; return 0;
    case 's': return number_take("--seed", optarg, 0, UINT64_MAX, &f->seed, err);
    case 'k': f->tokenizer = optarg; return 0;
    case 't': return number_take("--threads", optarg, 1, 256, &f->n_threads, err);
    case 'f': f->force = true; return 0;
    case 'h': f->help = true; return 0;
    default: return EBB_EINVAL;
    }
}

static int flags_read(struct flags *f, int argc, char **argv, struct error *err)
{
    static const struct option options[] = {{"output", required_argument, NULL, 'o'},
                                            {"layers", required_argument, NULL, 'l'},
                                            {"type-mix", required_argument, NULL, 'm'},
                                            {"seed", required_argument, NULL, 's'},
                                            {"tokenizer", required_argument, NULL, 'k'},
                                            {"threads", required_argument, NULL, 't'},
                                            {"force", no_argument, NULL, 'f'},
                                            {"help", no_argument, NULL, 'h'},
                                            {NULL, 0, NULL, 0}};
    int letter;
    *f = (struct flags){.mix = "q4_k_m"};
    opterr = 0;
    while ((letter = getopt_long(argc, argv, ":o:h", options, NULL)) != -1) {
        if (letter == ':' || letter == '?')
            return kit_flag_refuse(letter, argv[optind - 1], err);
        int code = flag_take(f, letter, err);
        if (code != 0)
            return code;
    }
    if (f->help)
        return 0;
    if (argc - optind != 1)
        return error_set(err, EBB_EINVAL, "wanted the name of one shape, got %d", argc - optind);
    f->shape = argv[optind];
    if (f->path == NULL || f->path[0] == '\0')
        return error_set(err, EBB_EINVAL, "wanted a file to write: -o FILE.gguf");
    return 0;
}

static int settings_from(const struct flags *f, struct layout_settings *s, struct error *err)
{
    const struct shape *shape;
    int code = shape_find(&shape, f->shape, err);
    if (code == 0)
        code = type_mix_find(&s->mix, f->mix, err);
    if (code != 0)
        return code;
    s->shape = *shape;
    s->seed = f->seed;
    s->tokenizer = f->tokenizer;
    if (f->n_layers > shape->n_layers)
        return error_set(err, EBB_EINVAL, "--layers: %s has %u, got %" PRIu64, shape->name,
                         shape->n_layers, f->n_layers);
    if (f->n_layers > 0)
        s->shape.n_layers = (uint32_t)f->n_layers;
    return 0;
}

static void progress_tell(size_t done, size_t total)
{
    fprintf(stderr, "\r%3zu %%  %zu of %zu MiB ", done * 100 / total, done >> 20, total >> 20);
}

static double seconds_now(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static int write_model(const struct flags *f, const struct layout_settings *s, struct error *err)
{
    long n_processors = sysconf(_SC_NPROCESSORS_ONLN);
    bool is_told = isatty(STDERR_FILENO) == 1;
    struct output_settings o = {
        .path = f->path,
        .replace = f->force,
        .n_threads = f->n_threads > 0   ? (int)f->n_threads
                     : n_processors > 0 ? (int)n_processors
                                        : 1,
        .stop = &stopped,
        .progress = is_told ? progress_tell : NULL,
    };
    struct layout l;
    double begin = seconds_now();
    int code = layout_open(&l, s, err);
    if (code != 0)
        return code;
    code = output_write(&o, &l, err);
    double seconds = seconds_now() - begin, bytes = (double)l.file_bytes;
    if (is_told)
        fputs("\r\033[K", stderr);
    if (code == 0)
        fprintf(stderr, "%s: %s, %u layer%s, %s, %.2f GB in %.1f s\n", f->path, s->shape.name,
                s->shape.n_layers, s->shape.n_layers == 1 ? "" : "s", s->mix->name, bytes * 1e-9,
                seconds);
    layout_close(&l);
    return code;
}

int main(int argc, char **argv)
{
    struct flags f;
    struct layout_settings settings;
    struct error err = {0};
    struct sigaction stop = {.sa_handler = on_signal};
    int code = flags_read(&f, argc, argv, &err);
    if (code == 0 && f.help) {
        help();
        return STATUS_DONE;
    }
    if (code == 0)
        code = settings_from(&f, &settings, &err);
    if (code != 0)
        return kit_usage("make-model", &err);
    sigemptyset(&stop.sa_mask);
    (void)sigaction(SIGINT, &stop, NULL);
    (void)sigaction(SIGTERM, &stop, NULL);
    (void)sigaction(SIGHUP, &stop, NULL);
    code = write_model(&f, &settings, &err);
    int status = code == 0 ? STATUS_DONE : code == EBB_ECANCEL ? 128 + stopped : STATUS_FAILED;
    return kit_end("make-model", status, &err);
}
