/* tools/comfy-handoff.c - `ebbtide comfy-handoff`: lend a card's memory to ComfyUI for one workflow.
 *
 * Flags, the workflow's file and the signals; the hand-over is tools/comfy-handoff/handoff.h.
 */
#include <curl/curl.h>
#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "tools/comfy-handoff/handoff.h"
#include "tools/kit/kit.h"

static void help(void)
{
    puts(
        "ebbtide comfy-handoff: lend a card's memory to ComfyUI for one workflow\n\n"
        "Usage\n"
        "  ebbtide comfy-handoff --reserve MIB [flags] WORKFLOW.json\n"
        "  ebbtide comfy-handoff --learn FILE [flags] WORKFLOW.json\n\n"
        "A running engine leaves MIB free on the card that ComfyUI uses; the workflow (in API\n"
        "format; - is stdin) is queued and waited for; ComfyUI is told to free its memory and is\n"
        "watched until it has; then the engine takes its memory again. So it does, too, when the\n"
        "workflow fails, ComfyUI dies or this program is stopped, and by the engine's lease even\n"
        "when it is killed. A second Ctrl-C does not wait for ComfyUI to free.\n\n"
        "Flags\n"
        "  --reserve MIB       what the engine shall leave free on the card\n"
        "  --learn FILE        take the reserve that this workflow's last runs needed from a JSON\n"
        "                      file, where there is no --reserve, and note this run's there\n"
        "  --url URL           ComfyUI's address [default: http://127.0.0.1:8188]\n"
        "  --device N          the engine's number of the card; without it, the card that "
        "ComfyUI's\n"
        "                      process means, where it runs on this host, else by the card's name\n"
        "  --anyway            run the workflow also where less than MIB could be freed\n"
        "  --timeout S         for the workflow, from its queueing on [default: 3600]\n"
        "  --free-timeout S    for ComfyUI to let go [default: 60]\n"
        "  --residue MIB       what ComfyUI may keep, such as its libraries' workspaces\n"
        "                      [default: 512]\n"
        "  --poll S            between two looks at ComfyUI [0.01 to 60; default: 0.5]\n"
        "  --control PATH      the engine's control socket\n"
        "  --name NAME         or the engine by its name; with neither, the only one that runs\n"
        "  --json              what happened, as one JSON object on stdout\n"
        "  --quiet             errors alone on stderr\n"
        "  -h, --help          this page\n\n"
        "Examples\n"
        "  ebbtide comfy-handoff --reserve 12000 portrait.json\n"
        "  ebbtide comfy-handoff --reserve 12000 --learn ~/.comfy-reserves.json portrait.json\n"
        "  ebbtide comfy-handoff --learn ~/.comfy-reserves.json --json portrait.json | jq "
        ".peak_mib");
    exit_status_help(stdout);
}

struct flags {
    struct handoff_settings settings;
    bool json, help;
};

static int seconds_read(const char *flag, double min, double *value, struct error *err)
{
    char *end;
    *value = strtod(optarg, &end);
    if (end == optarg || *end != '\0' || !isfinite(*value) || *value < min || *value > 1e6)
        return error_set(err, EBB_ERANGE, "%s: wanted seconds from %g to 1e6, got '%.100s'", flag,
                         min, optarg);
    return 0;
}

static int number_read(const char *flag, uint64_t min, uint64_t max, uint64_t *value,
                       struct error *err)
{
    if (parse_u64(optarg, min, max, value) != 0)
        return error_set(err, EBB_ERANGE, "%s: wanted a whole number from %llu, got '%.100s'", flag,
                         (unsigned long long)min, optarg);
    return 0;
}

static int flag_take(struct flags *f, int flag, const char *said, struct error *err)
{
    struct handoff_settings *s = &f->settings;
    uint64_t number = 0;
    int code = 0;
    switch (flag) {
    case 'c': s->control = optarg; break;
    case 'n': s->name = optarg; break;
    case 'u': s->url = optarg; break;
    case 'l': s->learn = optarg; break;
    case 'a': s->anyway = true; break;
    case 'q': s->quiet = true; break;
    case 'j': f->json = true; break;
    case 'h': f->help = true; break;
    case 'r':
        s->has_reserve = true;
        return number_read("--reserve", 1, 1u << 30, &s->reserve_mib, err);
    case 'e': return number_read("--residue", 0, 1u << 30, &s->residue_mib, err);
    case 'd':
        s->has_device = true;
        code = number_read("--device", 0, UINT32_MAX, &number, err);
        s->device = (uint32_t)number;
        break;
    case 't': return seconds_read("--timeout", 0, &s->timeout_s, err);
    case 'f': return seconds_read("--free-timeout", 0, &s->free_timeout_s, err);
    case 'p':
        code = seconds_read("--poll", 0.01, &s->poll_s, err);
        if (code == 0 && s->poll_s > 60)
            code = error_set(err, EBB_ERANGE, "--poll: wanted at most 60 s, got '%.100s'", optarg);
        break;
    default: return kit_flag_refuse(flag, said, err);
    }
    if (code == 0 && optarg != NULL && optarg[0] == '\0')
        code = error_set(err, EBB_EINVAL, "%s: wanted a value, got none", said);
    return code;
}

static int flags_read(struct flags *f, int argc, char **argv, struct error *err)
{
    static const struct option options[] = {
        {"control", required_argument, NULL, 'c'},
        {"name", required_argument, NULL, 'n'},
        {"url", required_argument, NULL, 'u'},
        {"learn", required_argument, NULL, 'l'},
        {"anyway", no_argument, NULL, 'a'},
        {"quiet", no_argument, NULL, 'q'},
        {"json", no_argument, NULL, 'j'},
        {"help", no_argument, NULL, 'h'},
        {"reserve", required_argument, NULL, 'r'},
        {"residue", required_argument, NULL, 'e'},
        {"device", required_argument, NULL, 'd'},
        {"timeout", required_argument, NULL, 't'},
        {"free-timeout", required_argument, NULL, 'f'},
        {"poll", required_argument, NULL, 'p'},
        {NULL, 0, NULL, 0},
    };
    int flag, code = 0;
    *f = (struct flags){.settings = {.url = "http://127.0.0.1:8188",
                                     .residue_mib = 512,
                                     .timeout_s = 3600,
                                     .free_timeout_s = 60,
                                     .poll_s = 0.5}};
    opterr = 0;
    while (code == 0 && (flag = getopt_long(argc, argv, ":h", options, NULL)) != -1)
        code = flag_take(f, flag, argv[optind - 1], err);
    if (code != 0 || f->help)
        return code;
    if (argc - optind != 1)
        return error_set(err, EBB_EINVAL, "wanted one workflow's file, got %d", argc - optind);
    if (!f->settings.has_reserve && f->settings.learn == NULL)
        return error_set(err, EBB_EINVAL, "wanted --reserve MIB or --learn FILE, got neither");
    f->settings.workflow_name = argv[optind];
    return 0;
}

/* A workflow in API format: an object of nodes, or one that has it as "prompt". */
static int workflow_read(struct handoff_settings *s, json_t **document, struct error *err)
{
    const char *path = s->workflow_name;
    json_error_t why;
    const char *node;
    json_t *each;
    *document = strcmp(path, "-") == 0 ? json_loadf(stdin, 0, &why) : json_load_file(path, 0, &why);
    if (*document == NULL)
        return error_set(err, EBB_EFORMAT, "%.200s: %s%.200s", path,
                         why.line > 0 ? "no JSON: " : "", why.text);
    s->workflow = json_is_object(json_object_get(*document, "prompt"))
                      ? json_object_get(*document, "prompt")
                      : *document;
    if (json_is_array(json_object_get(*document, "nodes")))
        return error_set(err, EBB_EFORMAT,
                         "%.200s: a workflow as the editor saves it; export it in API format",
                         path);
    if (json_object_size(s->workflow) == 0)
        return error_set(err, EBB_EFORMAT, "%.200s: no workflow: wanted an object of nodes", path);
    json_object_foreach(s->workflow, node, each)
    {
        if (!json_is_string(json_object_get(each, "class_type")))
            return error_set(err, EBB_EFORMAT, "%.200s: node '%.60s' has no class_type", path,
                             node);
    }
    return 0;
}

static void signals_take(void)
{
    struct sigaction act = {.sa_handler = handoff_stop};
    (void)sigaction(SIGINT, &act, NULL);
    (void)sigaction(SIGTERM, &act, NULL);
    (void)sigaction(SIGHUP, &act, NULL);
    (void)signal(SIGPIPE, SIG_IGN);
}

static int handoff(struct flags *f, struct error *err)
{
    static struct handoff h;
    json_t *document;
    int status = STATUS_FAILED;
    if (workflow_read(&f->settings, &document, err) == 0) {
        status = handoff_run(&h, &f->settings, err);
        if (f->json && handoff_report(stdout, &h, status, err) != 0)
            status = STATUS_FAILED;
    }
    json_decref(document);
    return status;
}

int main(int argc, char **argv)
{
    struct flags flags;
    struct error err = {0};
    int status;
    if (flags_read(&flags, argc, argv, &err) != 0)
        return kit_usage("comfy-handoff", &err);
    if (flags.help) {
        help();
        return STATUS_DONE;
    }
    if (curl_global_init(CURL_GLOBAL_DEFAULT) != 0) {
        fputs("ebbtide comfy-handoff: HTTP could not be set up\n", stderr);
        return STATUS_FAILED;
    }
    signals_take();
    status = kit_end("comfy-handoff", handoff(&flags, &err), &err);
    curl_global_cleanup();
    return status;
}
