/* runtime/cmd_plan.c - `ebbtide plan`: which layers each card would hold, what fits and what it would cost, from the model
 * file alone. Starts no stage.
 */
#include "runtime/commands.h"

#include "runtime/plan_report.h"

static int plan_go(const struct settings *s)
{
    static struct plan_report report;
    struct model *m = NULL;
    struct error err = {0};
    int code = model_open(&m, s->model, &err);
    if (code == 0)
        code = plan_report_make(&report, s, m, &err);
    if (code == 0 && s->json)
        code = plan_report_json(stdout, &report, &err);
    else if (code == 0)
        plan_report_print(stdout, &report);
    if (code != 0)
        fprintf(stderr, "ebbtide: %s\n", err.text);
    model_close(m);
    return code == 0 ? STATUS_DONE : STATUS_FAILED;
}

int command_plan_run(const struct command *c, int argc, char **argv)
{
    return command_flags_only(c, argc, argv, plan_go);
}
