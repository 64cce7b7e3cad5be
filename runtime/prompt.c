/* runtime/prompt.c - what PART, GEN and SCORE say: ids, texts and turns to a prompt, and the
 * settings of a request.
 *
 * A refused line leaves everything as it was, the parts gathered so far included. Text is decoded
 * into the engine's scratch (a line bounds it) and ids into scratch_ids, which holds a context and
 * a line's worth of ids more, so that a prompt that is too long is refused with its true length.
 * Control tokens are recognised in role-less text only.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "runtime/model/chat.h"
#include "runtime/request.h"
#include "runtime/sampling.h"

#define TAGS_MAX    1024
#define TOP_DEFAULT 5
#define TOP_MAX     1024

/* What a line adds: at scratch_ids[0..n). */
struct addition {
    size_t n;
    bool has_role;
    struct chat_state chat; /* behind it */
};

static int ids_read(struct engine *e, const char *list, size_t *n, struct error *err)
{
    int32_t id;
    int got;
    while ((got = ids_next(&list, (int32_t)e->model->geometry.n_vocab - 1, &id, err)) > 0) {
        if (*n == e->n_scratch_ids)
            return error_set(err, EBB_ERANGE, "ids: more than %zu ids in a line", e->n_scratch_ids);
        e->scratch_ids[(*n)++] = id;
    }
    if (got == 0 && *n == 0)
        return error_set(err, EBB_EINVAL, "ids: at least one id is wanted");
    return got;
}

/* ids inside a role: the turn around them, behind them in scratch first. */
static int turn_of_ids(struct engine *e, enum chat_role role, const char *list, struct addition *a,
                       struct error *err)
{
    size_t n_content = 0, n = 0, room;
    int code = ids_read(e, list, &n_content, err);
    if (code != 0)
        return code;
    room = e->n_scratch_ids - n_content;
    code = chat_turn_ids(e->chat, &a->chat, role, e->scratch_ids, n_content,
                         e->scratch_ids + n_content, room, &n, err);
    if (code == 0)
        memmove(e->scratch_ids, e->scratch_ids + n_content, n * sizeof *e->scratch_ids);
    a->n = n;
    return code;
}

/* Once, when a template is first used that is only a guess. */
static void chat_warn(struct engine *e)
{
    if (!e->chat_was_warned && chat_warning(e->chat) != NULL)
        engine_log(e, "warn", "%s", chat_warning(e->chat));
    e->chat_was_warned = true;
}

static int addition_read(struct engine *e, const struct message *m, const struct request *r,
                         struct addition *a, struct error *err)
{
    const char *role_name = message_key(m, "role"), *list = message_key(m, "ids");
    enum chat_role role = CHAT_USER;
    size_t n_text = 0;
    *a = (struct addition){.has_role = role_name != NULL, .chat = r->chat};
    if (role_name != NULL)
        chat_warn(e);
    if (role_name != NULL && chat_role_find(role_name, strlen(role_name), &role) != 0)
        return error_set(err, EBB_EINVAL,
                         "role= wants system, user, assistant or tool, got \"%.40s\"", role_name);
    if (list != NULL)
        return role_name != NULL ? turn_of_ids(e, role, list, a, err)
                                 : ids_read(e, list, &a->n, err);
    int code = message_text(m, "text", e->scratch, LINE_BYTES_MAX, &n_text, err);
    if (code != 0)
        return code;
    if (role_name != NULL)
        return chat_turn(e->chat, &a->chat, role, e->scratch, n_text, e->scratch_ids,
                         e->n_scratch_ids, &a->n, err);
    if (r->n_ids == 0 && tokenizer_adds_bos(e->tokenizer) && tokenizer_bos(e->tokenizer) >= 0)
        e->scratch_ids[a->n++] = tokenizer_bos(e->tokenizer);
    return tokenizer_encode(e->tokenizer, e->scratch, n_text, true, e->scratch_ids,
                            e->n_scratch_ids, &a->n, err);
}

static int addition_keep(struct engine *e, struct request *r, const struct addition *a,
                         uint32_t n_most, struct error *err)
{
    size_t n = r->n_ids + a->n;
    if (n > n_most)
        return error_set(err, EBB_ERANGE,
                         "the prompt would have %zu positions; a context of %u holds %u here", n,
                         e->sizes.context, n_most);
    if (n > r->capacity) {
        size_t capacity = n < 1024 ? 1024 : n + n / 2;
        int32_t *ids = realloc(r->ids, capacity * sizeof *ids);
        if (ids == NULL)
            return error_set(err, EBB_ENOMEM, "no memory for a prompt of %zu positions", n);
        r->ids = ids;
        r->capacity = capacity;
    }
    if (a->n > 0)
        memcpy(r->ids + r->n_ids, e->scratch_ids, a->n * sizeof *r->ids);
    r->n_ids = n;
    r->has_roles = r->has_roles || a->has_role;
    if (a->has_role)
        r->chat = a->chat;
    return 0;
}

/* The tag's request, made if there is none; *is_new then. */
static int request_for(struct connection *c, const char *tag, struct request **r, bool *is_new,
                       struct error *err)
{
    size_t n = 0;
    *r = request_find(c, tag);
    *is_new = *r == NULL;
    if (*r != NULL && request_is_active(*r))
        return error_set(err, EBB_EBUSY, "%s is still running: STOP it or wait for its DONE", tag);
    for (const struct request *q = c->requests; q != NULL; q = q->next)
        n++;
    if (*is_new && n >= TAGS_MAX)
        return error_set(err, EBB_ERANGE, "at most %d tags of a connection may be open", TAGS_MAX);
    if (*is_new)
        *r = request_add(c, tag);
    return *r != NULL ? 0 : error_set(err, EBB_ENOMEM, "no memory for a request");
}

int prompt_part(struct engine *e, struct connection *c, const struct message *m, struct error *err)
{
    struct request *r;
    struct addition a;
    bool is_new;
    int code = request_for(c, message_bare(m, 0), &r, &is_new, err);
    if (code != 0)
        return code;
    code = addition_read(e, m, r, &a, err);
    if (code == 0)
        code = addition_keep(e, r, &a, e->sizes.context, err);
    if (code != 0 && is_new)
        request_free(e, r);
    return code;
}

static int optional(int code)
{
    return code == EBB_ENOENT ? 0 : code;
}

static int stops_read(struct engine *e, const struct message *m, struct request *r,
                      struct error *err)
{
    stop_match_close(&r->stops);
    for (size_t i = m->n_bare; i < m->n_fields; i++) {
        const struct message_field *f = &m->fields[i];
        size_t n = 0;
        if (strcmp(f->key, "stop") != 0)
            continue;
        int code = percent_decode(f->value, f->n_bytes, e->scratch, &n, err);
        if (code == 0)
            code = stop_match_add(&r->stops, e->scratch, n, err);
        if (code != 0)
            return code;
    }
    return 0;
}

/* Adds what the line itself brings and the answer's opening, and hands the whole to the
 * scheduler. */
static int submit(struct engine *e, struct request *r, const struct message *m, uint64_t max_new,
                  uint32_t top, struct error *err)
{
    uint32_t n_most = e->sizes.context - (top == 0 ? 1 : 0);
    struct addition a = {0};
    int code = 0;
    if (message_key(m, "ids") != NULL || message_key(m, "text") != NULL)
        code = addition_read(e, m, r, &a, err);
    if (code == 0)
        code = addition_keep(e, r, &a, n_most, err);
    if (code == 0 && r->has_roles && top == 0) {
        a = (struct addition){.has_role = true, .chat = r->chat};
        code = chat_answer_begin(e->chat, &a.chat, e->scratch_ids, e->n_scratch_ids, &a.n, err);
        if (code == 0)
            code = addition_keep(e, r, &a, n_most, err);
    }
    if (code == 0 && r->n_ids == 0)
        code = error_set(err, EBB_EINVAL, "%s has no prompt: give ids= or text=, here or by PART",
                         r->tag);
    if (code != 0)
        return code;
    uint64_t n_max = r->n_ids + max_new;
    r->n_prompt = (uint32_t)r->n_ids;
    return scheduler_submit(e->scheduler, r, r->ids, r->n_prompt,
                            n_max < e->sizes.context ? (uint32_t)n_max : e->sizes.context, top,
                            &r->seq, err);
}

/* GEN and SCORE share their frame: a refusal takes back what the line added. */
static int request_begin(struct engine *e, struct connection *c, const struct message *m,
                         uint64_t max_new, uint64_t top, struct error *err)
{
    struct request *r;
    bool is_new;
    if (e->ending)
        return error_set(err, EBB_EBUSY, "the engine is ending");
    int code = request_for(c, message_bare(m, 0), &r, &is_new, err);
    if (code != 0)
        return code;
    size_t n_ids = r->n_ids;
    struct chat_state chat = r->chat;
    r->is_score = top > 0;
    uint64_t ignore = 0;
    code = sampling_read(m, e->model->geometry.n_vocab, &r->sampling, err);
    if (code == 0)
        code = optional(message_u64(m, "ignore_eos", 0, 1, &ignore, err));
    r->ignore_eos = ignore != 0;
    if (code == 0 && r->sampling.has_logprobs && r->prob == NULL &&
        (r->prob = malloc(PROB_BYTES)) == NULL)
        code = error_set(err, EBB_ENOMEM, "no memory for a token's probabilities");
    if (code == 0)
        code = stops_read(e, m, r, err);
    if (code == 0)
        code = submit(e, r, m, max_new, (uint32_t)top, err);
    if (code != 0) {
        r->n_ids = n_ids;
        r->chat = chat;
        if (is_new)
            request_free(e, r);
        return code;
    }
    free(r->ids);
    r->ids = NULL;
    r->n_ids = r->capacity = 0;
    r->state = REQUEST_WAITING;
    return 0;
}

int prompt_generate(struct engine *e, struct connection *c, const struct message *m,
                    struct error *err)
{
    uint64_t max_new;
    int code = message_bare_u64(m, 1, "max_new", 1, INT32_MAX, &max_new, err);
    return code != 0 ? code : request_begin(e, c, m, max_new, 0, err);
}

int prompt_score(struct engine *e, struct connection *c, const struct message *m, struct error *err)
{
    uint64_t top = TOP_DEFAULT;
    int code = optional(message_u64(m, "top", 1, TOP_MAX, &top, err));
    return code != 0 ? code : request_begin(e, c, m, 0, top, err);
}
