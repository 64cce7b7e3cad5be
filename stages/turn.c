/* stages/turn.c - taking turns with other stages of the same physical card (see turn.h).
 *
 * The file is named by the card's UUID, so that it is the same one whatever number a process knows the card by; CPU cards, which are
 * counted by namespace, by that too. Threads: the control thread, which never waits here.
 */
#include "stages/stage.h"

void turn_open(struct stage *s)
{
    char name[sizeof s->turn.lock.file];
    const char *space = s->card_setting.name_space;
    struct error err = {0};
    s->turn = (struct turn){0};
    (void)snprintf(name, sizeof name, "card-%s%s%s.lock", s->card_uuid, space != NULL ? "-" : "",
                   space != NULL ? space : "");
    if (lock_file_open(&s->turn.lock, NULL, name, &err) != 0)
        stage_log("card %u: stages that share it do not take turns: %s", s->load.device, err.text);
}

void turn_close(struct stage *s)
{
    lock_file_close(&s->turn.lock);
    s->turn = (struct turn){.lock.fd = -1};
}

bool turn_take(struct stage *s)
{
    struct turn *t = &s->turn;
    struct error err = {0};
    if (t->held || t->lock.fd < 0)
        return true;
    int got = lock_file_try(&t->lock, &err);
    uint64_t now = now_us();
    if (got == 0 && !t->in_vain) {
        t->asked_us = t->asked_us == 0 ? now : t->asked_us;
        if (now - t->asked_us < TURN_WAIT_US)
            return false;
        stage_log("card %u: another process has kept %s/%s locked for %llu ms (is it stopped?); "
                  "its memory is changed all the same",
                  s->load.device, t->lock.directory, t->lock.file,
                  (unsigned long long)(TURN_WAIT_US / 1000));
    } else if (got < 0) {
        stage_log("card %u: stages that share it no longer take turns: %s", s->load.device,
                  err.text);
        lock_file_close(&t->lock);
    }
    t->held = got > 0;
    t->in_vain = got == 0;
    t->asked_us = 0;
    return true;
}

void turn_give(struct stage *s)
{
    if (s->turn.held)
        lock_file_release(&s->turn.lock);
    s->turn.held = false;
    s->turn.asked_us = 0;
}
