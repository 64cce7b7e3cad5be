/* stages/others.c - who else holds memory of the card (HOLDERS), and how much of the host's memory this stage binds.
 *
 * Both are only told: the driver knows the one, the other is a sum of what load.c made. Threads: the control thread.
 */
#include "stages/stage.h"

#include <string.h>

void holders_command(struct stage *s, const struct message *m)
{
    struct vmm_holder holders[VMM_HOLDERS_MAX];
    struct vmm_memory mem = {0};
    struct error err = {0};
    struct line_writer w;
    size_t n = 0;
    (void)m;
    if (s->memory.holders != NULL && s->memory.holders(&s->memory, holders, &n, &err) != 0)
        n = 0;
    for (size_t i = 0; i < n; i++) {
        line_begin(&w, s->line, sizeof s->line, "HOLDER");
        line_u64(&w, "pid", (uint64_t)holders[i].pid);
        line_text(&w, "name", holders[i].name, strlen(holders[i].name));
        line_u64(&w, "mib", holders[i].bytes / MIB);
        stage_say(s, &w);
    }
    if (s->memory.memory(&s->memory, &mem, &err) != 0)
        stage_log("card %u: %s", s->load.device, err.text);
    line_begin(&w, s->line, sizeof s->line, "HOLDERS-DONE");
    line_u64(&w, "free_mib", mem.free_bytes / MIB);
    line_u64(&w, "total_mib", mem.total_bytes / MIB);
    line_u64(&w, "foreign_mib", mem.foreign_bytes / MIB);
    stage_say(s, &w);
}

uint64_t host_bytes(const struct stage *s, uint64_t registered_bytes)
{
    if (s->card == NULL || !s->platform->exec->is_device)
        return 0;
    return registered_bytes + s->forward.shared_bytes + s->misses.shared_bytes +
           (s->link_shared != NULL ? links_memory_bytes(s) : 0);
}

int host_budget_check(const struct stage *s, struct error *err)
{
    uint64_t wants = host_bytes(s, s->registration.bytes), budget = s->load.host_mib * MIB;
    if (budget == 0 || wants <= budget)
        return 0;
    return error_set(
        err, EBB_EINVAL,
        "layers %u-%u bind %llu MiB of host memory (%llu of the model's file), "
        "host.budget_mib allows %llu: set a larger one, or give this card fewer layers",
        s->load.layer_first, s->load.layer_last, (unsigned long long)((wants + MIB - 1) / MIB),
        (unsigned long long)(s->registration.bytes / MIB), (unsigned long long)s->load.host_mib);
}
