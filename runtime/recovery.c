/* runtime/recovery.c - what a stage's death costs: a little time, no token.
 *
 * The epoch rises, whatever was in flight is forgotten, every live sequence will be run again as a
 * prompt over all tokens known, and bringup.c starts what is down and makes the links anew. Stages
 * that live keep their caches. Each recovery counts against the requests that were running; one
 * whose count passes stage_attempts fails with the stage's words. A restart that fails is tried
 * again with growing pauses, and then counts against the waiting ones as well, so that nobody waits
 * for ever.
 */
#include "runtime/recovery.h"
#include "runtime/bringup.h"
#include "runtime/cards.h"
#include "runtime/connection.h"
#include "runtime/lending.h"
#include "runtime/request.h"
#include "runtime/steps.h"

#define PAUSE_FIRST_US UINT64_C(100000)
#define PAUSE_MAX_US   UINT64_C(5000000)

static void request_charge(struct engine *e, struct request *r, bool again, const struct error *why)
{
    if (r->state == REQUEST_ENDING)
        request_end(e, r, r->reason, NULL);
    else if ((r->state == REQUEST_RUNNING || (again && r->state == REQUEST_WAITING)) &&
             ++r->attempts > e->settings->stage_attempts)
        request_end(e, r, "error", why);
}

static void requests_charge(struct engine *e, bool again, const struct error *why)
{
    for (struct connection *c = e->connections; c != NULL; c = c->next)
        for (struct request *r = c->requests, *next; r != NULL; r = next) {
            next = r->next;
            request_charge(e, r, again, why);
        }
}

void recovery_begin(struct engine *e, const struct error *why)
{
    bool again = e->phase == PHASE_RECOVERING;
    engine_log(e, "warn", "%s; %s", why->text,
               again ? "starting it failed, trying again" : "restarting and replaying");
    e->phase = PHASE_RECOVERING;
    e->epoch++;
    e->linking = false;
    e->retry_us = 0;
    if (again) {
        uint64_t pause = PAUSE_FIRST_US << (e->restart_failures < 6 ? e->restart_failures : 6);
        e->retry_us = now_us() + (pause < PAUSE_MAX_US ? pause : PAUSE_MAX_US);
        e->restart_failures++;
    }
    for (uint32_t i = 0; i < e->n_peers; i++) {
        e->peers[i].n_owed = 0;
        e->peers[i].credit_owed = false;
        e->peers[i].chunk_owed = false;
    }
    scheduler_reset(e->scheduler);
    requests_charge(e, again, why);
    if (e->restart_failures > e->settings->stage_attempts)
        cards_give_up(e, why);
}

void recovery_check(struct engine *e)
{
    struct error why = {0};
    for (uint32_t i = 0; i < e->n_peers; i++) {
        struct peer *p = &e->peers[i];
        if (!p->broken)
            continue;
        if (why.code == 0)
            why = p->why;
        if (e->phase == PHASE_BRINGUP) {
            engine_fail(e, &p->why);
            return;
        }
        peer_close(e, p);
    }
    if (why.code != 0)
        recovery_begin(e, &why);
}

void recovery_done(struct engine *e)
{
    bool was_recovery = e->phase == PHASE_RECOVERING;
    e->phase = PHASE_SERVING;
    e->restart_failures = 0;
    e->unsettled = true;
    for (uint32_t i = 0; i < e->n_peers; i++)
        cards_peer_ready(e, &e->peers[i]);
    steps_credits_known(e);
    scheduler_lendable(e->scheduler, steps_prompt_chunk(e));
    steps_chunks_known(e);
    if (was_recovery)
        engine_log(e, "info", "all stages run again, epoch %u", e->epoch);
}
