/* runtime/model/chat.c - a conversation's turns as token ids, by a row of chat_table.h.
 *
 * Owns the default system prompt; borrows the tokenizer. What a turn is made of (the row's text with
 * its marks, and the content) goes through one writer: marks are looked up and put in by id; all
 * text between two marks, the row's and the content's, is joined before it is encoded, because
 * models see its words cut as in one text, and is encoded with special tokens off, so that what
 * somebody wrote cannot end a turn. A vocabulary without a mark gets it as ordinary text, as such
 * models were shown it.
 */
#include "runtime/model/chat.h"
#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include "runtime/model/chat_table.h"

#define N_TEMPLATES  (sizeof chat_templates / sizeof chat_templates[0])
#define SYSTEM_BYTES 2048 /* a longer default prompt is not taken for one */
#define MARK_BYTES   64

static const char *const role_names[CHAT_ROLES] = {[CHAT_SYSTEM] = "system",
                                                   [CHAT_USER] = "user",
                                                   [CHAT_ASSISTANT] = "assistant",
                                                   [CHAT_TOOL] = "tool"};

struct chat {
    struct tokenizer *t; /* borrowed */
    const struct chat_template *row;
    const char *warning;       /* static, or NULL */
    char system[SYSTEM_BYTES]; /* the default prompt, terminated; empty: none */
};

int chat_role_find(const char *name, size_t n_bytes, enum chat_role *role)
{
    for (size_t i = 0; i < CHAT_ROLES; i++)
        if (strlen(role_names[i]) == n_bytes && memcmp(role_names[i], name, n_bytes) == 0) {
            *role = (enum chat_role)i;
            return 0;
        }
    return EBB_ENOENT;
}

static const char *find(const char *text, size_t n_bytes, const char *what)
{
    return memmem(text, n_bytes, what, strlen(what));
}

const struct chat_template *chat_template_find(const char *text, size_t n_bytes)
{
    const struct chat_template *plain = &chat_templates[N_TEMPLATES - 1];
    for (const struct chat_template *row = chat_templates; row != plain; row++) {
        size_t n = 0;
        while (row->signs[n] != NULL && find(text, n_bytes, row->signs[n]) != NULL)
            n++;
        if (row->signs[n] == NULL)
            return row;
    }
    /* it puts contents and asks for no role */
    if (find(text, n_bytes, "content") != NULL && find(text, n_bytes, "role") == NULL)
        return plain;
    return NULL;
}

const char *chat_template_name(const struct chat_template *row)
{
    return row->name;
}

static const struct chat_template *chatml(void)
{
    return chat_template_find("<|im_start|>", 12);
}

/* The prompt that a ChatML template puts where no other is: a literal between the marks of a system
 * turn, with "\n" as a line end or spelled out. What has a quote or a brace in it is program. */
static void read_default_system(struct chat *c, const char *text, size_t n_bytes)
{
    static const char opening[] = "<|im_start|>system";
    const char *end = text + n_bytes, *at = text;
    while ((at = find(at, (size_t)(end - at), opening)) != NULL) {
        size_t n = 0;
        at += sizeof opening - 1;
        if (end - at >= 2 && at[0] == '\\' && at[1] == 'n')
            at += 2;
        else if (end - at >= 1 && at[0] == '\n')
            at++;
        else
            continue;
        const char *close = find(at, (size_t)(end - at), "<|im_end|>");
        if (close == NULL || (size_t)(close - at) >= SYSTEM_BYTES)
            return;
        for (const char *p = at; p < close && strchr("'\"{}", *p) == NULL; p++) {
            bool is_line_end = p + 1 < close && p[0] == '\\' && p[1] == 'n';
            c->system[n++] = is_line_end ? '\n' : *p;
            p += is_line_end;
            if (p + 1 == close) {
                c->system[n] = '\0';
                return;
            }
        }
        c->system[0] = '\0';
    }
}

int chat_open(struct chat **out, const struct gguf *g, struct tokenizer *t, struct error *err)
{
    struct gguf_string text = {"", 0};
    int rc = gguf_text(g, "tokenizer.chat_template", &text, err);
    if (rc != 0 && rc != EBB_ENOENT)
        return rc;
    struct chat *c = calloc(1, sizeof *c);
    if (c == NULL)
        return error_set(err, EBB_ENOMEM, "no memory for a chat template");
    c->t = t;
    c->row = rc == 0 ? chat_template_find(text.bytes, text.n_bytes) : NULL;
    if (c->row == NULL && rc == 0)
        c->warning = "the model's chat template is not a known one: ChatML stands in for it";
    else if (rc != 0 && tokenizer_special(t, "<|im_start|>") < 0)
        c->warning = "the model has no chat template: ChatML stands in for one";
    if (c->row == NULL)
        c->row = chatml();
    else if (c->row->has_default_system)
        read_default_system(c, text.bytes, text.n_bytes);
    *out = c;
    return 0;
}

void chat_close(struct chat *c)
{
    free(c);
}

const char *chat_name(const struct chat *c)
{
    return c->row->name;
}

const char *chat_warning(const struct chat *c)
{
    return c->warning;
}

struct chat_out {
    const struct chat *c;
    int32_t *ids;
    size_t ids_max, n_ids;
    char *text; /* owned: since the last mark */
    size_t n_text, capacity;
    bool mid_text;
    struct error *err;
};

static int put_text(struct chat_out *o, const char *text, size_t n_bytes)
{
    if (n_bytes > SIZE_MAX / 2 - o->n_text)
        return error_set(o->err, EBB_ENOMEM, "no memory for a turn of %zu bytes", n_bytes);
    if (o->n_text + n_bytes > o->capacity) {
        size_t capacity = 2 * (o->n_text + n_bytes) + 64;
        char *bytes = realloc(o->text, capacity);
        if (bytes == NULL)
            return error_set(o->err, EBB_ENOMEM, "no memory for a turn of %zu bytes", n_bytes);
        o->text = bytes;
        o->capacity = capacity;
    }
    if (n_bytes != 0)
        memcpy(o->text + o->n_text, text, n_bytes);
    o->n_text += n_bytes;
    return 0;
}

/* Encodes what was gathered. Behind a mark a SentencePiece vocabulary puts a space of its own; a
 * text that has one already gets no second. */
static int flush(struct chat_out *o)
{
    int rc = 0;
    size_t n_stripped = 0;
    if (o->c->row->marks_strip && !o->mid_text && tokenizer_adds_space(o->c->t))
        while (n_stripped < o->n_text && isspace((unsigned char)o->text[n_stripped]))
            n_stripped++;
    o->n_text -= n_stripped;
    if (o->n_text == 0)
        return 0;
    memmove(o->text, o->text + n_stripped, o->n_text);
    if (o->mid_text || o->text[0] == ' ')
        rc =
            tokenizer_encode_on(o->c->t, o->text, o->n_text, o->ids, o->ids_max, &o->n_ids, o->err);
    else
        rc = tokenizer_encode(o->c->t, o->text, o->n_text, false, o->ids, o->ids_max, &o->n_ids,
                              o->err);
    o->n_text = 0;
    o->mid_text = true;
    return rc;
}

static int put_ids(struct chat_out *o, const int32_t *ids, size_t n)
{
    int rc = flush(o);
    if (rc == 0 && n > o->ids_max - o->n_ids)
        rc = error_set(o->err, EBB_ERANGE,
                       "a turn wants more than the %zu tokens there is room for", o->ids_max);
    if (rc != 0)
        return rc;
    if (n != 0)
        memcpy(o->ids + o->n_ids, ids, n * sizeof *ids);
    o->n_ids += n;
    return 0;
}

/* A special token; -1: nothing. */
static int put_mark(struct chat_out *o, int32_t id)
{
    int rc = id >= 0 ? put_ids(o, &id, 1) : 0;
    if (rc == 0 && id >= 0)
        o->mid_text = false;
    return rc;
}

/* A row's text with its marks. */
static int put_pattern(struct chat_out *o, const char *pattern)
{
    int rc = 0;
    for (const char *p = pattern; rc == 0 && *p != '\0'; p++) {
        if (*p == BOS[0]) {
            rc = put_mark(o, tokenizer_bos(o->c->t));
        } else if (*p == EOS[0]) {
            rc = put_mark(o, tokenizer_eos(o->c->t));
        } else if (*p == MARK_BEGIN) {
            char mark[MARK_BYTES];
            size_t n = (size_t)(strchr(p, MARK_END) - p) - 1;
            (void)snprintf(mark, sizeof mark, "%.*s", (int)n, p + 1);
            int32_t id = tokenizer_special(o->c->t, mark);
            rc = id >= 0 ? put_mark(o, id) : put_text(o, mark, n);
            p += n + 1;
        } else {
            rc = put_text(o, p, 1);
        }
    }
    return rc;
}

static int put_content(struct chat_out *o, const char *text, size_t n_bytes)
{
    if (o->c->row->trims) {
        while (n_bytes > 0 && isspace((unsigned char)text[n_bytes - 1]))
            n_bytes--;
        while (n_bytes > 0 && isspace((unsigned char)*text))
            text++, n_bytes--;
    }
    return put_text(o, text, n_bytes);
}

/* What a conversation begins with; a system prompt of its own comes first where it brings none. */
static int put_beginning(struct chat_out *o, struct chat_state *s, enum chat_role role)
{
    const struct chat_template *row = o->c->row;
    int rc = 0;
    if (s->begun)
        return 0;
    s->begun = true;
    if (!row->bos_in_turns && (row->begins_with_bos || tokenizer_adds_bos(o->c->t)))
        rc = put_mark(o, tokenizer_bos(o->c->t));
    if (rc == 0 && row->begin != NULL)
        rc = put_pattern(o, row->begin);
    if (rc != 0 || role == CHAT_SYSTEM || o->c->system[0] == '\0')
        return rc;
    rc = put_pattern(o, row->turns[CHAT_SYSTEM].before);
    if (rc == 0)
        rc = put_content(o, o->c->system, strlen(o->c->system));
    return rc == 0 ? put_pattern(o, row->turns[CHAT_SYSTEM].after) : rc;
}

/* Up to a turn's content. */
static int put_before(struct chat_out *o, struct chat_state *s, enum chat_role role)
{
    const struct chat_template *row = o->c->row;
    bool goes_on = s->in_user && (role == CHAT_USER || role == CHAT_SYSTEM);
    int rc = put_beginning(o, s, role);
    if (rc == 0 && s->in_user && !goes_on) /* the user said nothing */
        rc = put_pattern(o, row->turns[CHAT_USER].after);
    if (rc == 0 && !goes_on)
        rc = put_pattern(o, row->turns[role].before);
    s->in_user = role == CHAT_SYSTEM && row->system_opens_user;
    return rc;
}

/* Keeps the outcome of a turn, or nothing of it. */
static int finish(struct chat_out *o, int rc, struct chat_state *s, struct chat_state next,
                  size_t *n_ids)
{
    if (rc == 0)
        rc = flush(o);
    free(o->text);
    if (rc != 0)
        return rc;
    next.mid_text = o->mid_text;
    *s = next;
    *n_ids = o->n_ids;
    return 0;
}

int chat_turn(const struct chat *c, struct chat_state *s, enum chat_role role, const char *text,
              size_t n_bytes, int32_t *ids, size_t ids_max, size_t *n_ids, struct error *err)
{
    struct chat_out o = {c, ids, ids_max, *n_ids, NULL, 0, 0, s->mid_text, err};
    struct chat_state next = *s;
    int rc = put_before(&o, &next, role);
    if (rc == 0)
        rc = put_content(&o, text, n_bytes);
    if (rc == 0)
        rc = put_pattern(&o, c->row->turns[role].after);
    return finish(&o, rc, s, next, n_ids);
}

int chat_turn_ids(const struct chat *c, struct chat_state *s, enum chat_role role,
                  const int32_t *content, size_t n_content, int32_t *ids, size_t ids_max,
                  size_t *n_ids, struct error *err)
{
    struct chat_out o = {c, ids, ids_max, *n_ids, NULL, 0, 0, s->mid_text, err};
    struct chat_state next = *s;
    int rc = put_before(&o, &next, role);
    if (rc == 0)
        rc = put_ids(&o, content, n_content);
    o.mid_text = o.mid_text || n_content != 0;
    if (rc == 0)
        rc = put_pattern(&o, c->row->turns[role].after);
    return finish(&o, rc, s, next, n_ids);
}

int chat_answer_begin(const struct chat *c, struct chat_state *s, int32_t *ids, size_t ids_max,
                      size_t *n_ids, struct error *err)
{
    struct chat_out o = {c, ids, ids_max, *n_ids, NULL, 0, 0, s->mid_text, err};
    struct chat_state next = *s;
    int rc = put_beginning(&o, &next, CHAT_USER);
    if (rc == 0 && next.in_user)
        rc = put_pattern(&o, c->row->turns[CHAT_USER].after);
    next.in_user = false;
    if (rc == 0)
        rc = put_pattern(&o, c->row->answer);
    return finish(&o, rc, s, next, n_ids);
}
