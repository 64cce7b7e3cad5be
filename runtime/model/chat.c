/* runtime/model/chat.c - a conversation's turns as token ids, in ChatML.
 *
 * Stateless; owns nothing but the text of one turn while it is encoded. The marks are looked up as
 * control tokens and put in by id; all text between them is encoded with special tokens off, so
 * that what somebody wrote cannot end a turn. A vocabulary without the marks gets them as ordinary
 * text, as such models were shown them.
 */
#include "runtime/model/chat.h"
#include <stdlib.h>
#include <string.h>

#define TURN_BEGIN "<|im_start|>"
#define TURN_END   "<|im_end|>"

static const char *const role_names[] = {[CHAT_SYSTEM] = "system",
                                         [CHAT_USER] = "user",
                                         [CHAT_ASSISTANT] = "assistant",
                                         [CHAT_TOOL] = "tool"};

int chat_role_find(const char *name, size_t n_bytes, enum chat_role *role)
{
    for (size_t i = 0; i < sizeof role_names / sizeof role_names[0]; i++)
        if (strlen(role_names[i]) == n_bytes && memcmp(role_names[i], name, n_bytes) == 0) {
            *role = (enum chat_role)i;
            return 0;
        }
    return EBB_ENOENT;
}

struct chat_out {
    struct tokenizer *t;
    int32_t *ids;
    size_t ids_max, n_ids;
    struct error *err;
};

static int put_text(struct chat_out *o, const char *text, size_t n_bytes)
{
    return tokenizer_encode(o->t, text, n_bytes, false, o->ids, o->ids_max, &o->n_ids, o->err);
}

static int put_id(struct chat_out *o, int32_t id)
{
    if (o->n_ids >= o->ids_max)
        return error_set(o->err, EBB_ERANGE,
                         "a turn wants more than the %zu tokens there is room for", o->ids_max);
    o->ids[o->n_ids++] = id;
    return 0;
}

/* begin, head, text, end, newline; with `end` NULL it stops after text. Between two marks the
 * words are cut as in one text, because that is how models see it: so the parts are joined
 * before they are encoded. */
static int put_turn(struct chat_out *o, const char *head, const char *text, size_t n_bytes,
                    const char *end)
{
    int32_t begin_id = tokenizer_special(o->t, TURN_BEGIN),
            end_id = tokenizer_special(o->t, TURN_END);
    bool has_marks = begin_id >= 0 && end_id >= 0;
    size_t room = n_bytes + sizeof TURN_BEGIN + strlen(head) + sizeof TURN_END + 1, n = 0;
    char *joined = room > n_bytes ? malloc(room) : NULL;
    if (joined == NULL)
        return error_set(o->err, EBB_ENOMEM, "no memory for a turn of %zu bytes", n_bytes);
    n = (size_t)snprintf(joined, room, "%s%s", has_marks ? "" : TURN_BEGIN, head);
    if (n_bytes != 0)
        memcpy(joined + n, text, n_bytes);
    n += n_bytes;
    if (end != NULL && !has_marks)
        n += (size_t)snprintf(joined + n, room - n, "%s\n", end);
    int rc = has_marks ? put_id(o, begin_id) : 0;
    if (rc == 0)
        rc = put_text(o, joined, n);
    if (rc == 0 && end != NULL && has_marks)
        rc = put_id(o, end_id);
    if (rc == 0 && end != NULL && has_marks)
        rc = put_text(o, "\n", 1);
    free(joined);
    return rc;
}

int chat_turn(struct tokenizer *t, enum chat_role role, const char *text, size_t n_bytes,
              int32_t *ids, size_t ids_max, size_t *n_ids, struct error *err)
{
    struct chat_out o = {t, ids, ids_max, *n_ids, err};
    char head[32];
    (void)snprintf(head, sizeof head, "%s\n", role_names[role]);
    int rc = put_turn(&o, head, text, n_bytes, TURN_END);
    if (rc == 0)
        *n_ids = o.n_ids;
    return rc;
}

int chat_answer_begin(struct tokenizer *t, int32_t *ids, size_t ids_max, size_t *n_ids,
                      struct error *err)
{
    struct chat_out o = {t, ids, ids_max, *n_ids, err};
    int rc = put_turn(&o, "assistant\n", "", 0, NULL);
    if (rc == 0)
        *n_ids = o.n_ids;
    return rc;
}
