/* runtime/model/pretokenizer.c - cutting text by a pre-tokeniser's patterns (pretokenizer_table.h),
 * matched by PCRE2.
 *
 * Owns the compiled patterns and the memory of their matches. The just-in-time compiler is used
 * where the library has it; results are the same without. Text must be valid UTF-8 (the tokenizer
 * cuts it so): PCRE2 is told not to check again, which would make a long text quadratic. Every stage
 * sees the piece of the stage before as if it were a whole text: what looks ahead stops at its end.
 * Refused by name: a pre-tokeniser that is not in the table; a guess would give other tokens than
 * the model was trained on.
 */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "runtime/model/pretokenizer.h"
#include <pcre2.h>
#include <string.h>
#include "runtime/model/pretokenizer_table.h"
#include "runtime/model/show.h"

#define N_ROWS (sizeof table / sizeof table[0])

static int row_unknown(const struct gguf *g, struct gguf_string name, struct error *err)
{
    char shown[SHOWN_BYTES], known[320] = "";
    size_t at = 0;
    for (size_t i = 0; i < N_ROWS && at < sizeof known; i++)
        at += (size_t)snprintf(known + at, sizeof known - at, "%s%s", i == 0 ? "" : ", ",
                               table[i].name);
    return error_set(err, EBB_EUNSUPPORTED,
                     "%s: metadata key tokenizer.ggml.pre: got \"%s\", wants one of %s",
                     show_path(gguf_path(g)), show_name(name, shown), known);
}

static int row_find(const struct pretokenizer_row **row, const struct gguf *g, struct error *err)
{
    struct gguf_string name = {"default", 7};
    int rc = gguf_text(g, "tokenizer.ggml.pre", &name, err);
    if (rc != 0 && rc != EBB_ENOENT)
        return rc;
    for (size_t i = 0; i < N_ROWS; i++)
        if (strlen(table[i].name) == name.n_bytes &&
            memcmp(table[i].name, name.bytes, name.n_bytes) == 0) {
            *row = &table[i];
            return 0;
        }
    return row_unknown(g, name, err);
}

static int stage_open(struct pretokenizer *p, const char *pattern, struct error *err)
{
    int number = 0;
    PCRE2_SIZE offset = 0;
    pcre2_code *code = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED,
                                     PCRE2_UTF | PCRE2_UCP, &number, &offset, NULL);
    p->stages[p->n_stages].code = code;
    if (code != NULL) {
        (void)pcre2_jit_compile(code, PCRE2_JIT_COMPLETE); /* or it is interpreted */
        p->stages[p->n_stages].match = pcre2_match_data_create_from_pattern(code, NULL);
    }
    if (p->stages[p->n_stages++].match != NULL)
        return 0;
    return error_set(err, EBB_ENOMEM, "pre-tokeniser: PCRE2 gives error %d at %zu of its pattern",
                     number, (size_t)offset);
}

int pretokenizer_open(struct pretokenizer *p, const struct gguf *g, struct error *err)
{
    memset(p, 0, sizeof *p);
    int rc = row_find(&p->row, g, err);
    if (rc != 0)
        return rc;
    p->adds_bos = p->row->adds_bos;
    p->whole_words = p->row->whole_words;
    p->context = pcre2_match_context_create(NULL);
    if (p->context == NULL)
        rc = error_set(err, EBB_ENOMEM, "pre-tokeniser: no memory");
    for (size_t i = 0; rc == 0 && p->row->patterns[i] != NULL; i++)
        rc = stage_open(p, p->row->patterns[i], err);
    if (rc != 0) {
        pretokenizer_close(p);
        return rc;
    }
    /* a run of one class may be as long as the text */
    p->stack = pcre2_jit_stack_create(32 * 1024, 64 * 1024 * 1024, NULL);
    if (p->stack != NULL)
        pcre2_jit_stack_assign(p->context, NULL, p->stack);
    pcre2_set_match_limit(p->context, UINT32_MAX);
    return 0;
}

void pretokenizer_close(struct pretokenizer *p)
{
    for (size_t i = 0; i < p->n_stages; i++) {
        pcre2_match_data_free(p->stages[i].match);
        pcre2_code_free(p->stages[i].code);
    }
    pcre2_match_context_free(p->context);
    pcre2_jit_stack_free(p->stack);
    memset(p, 0, sizeof *p);
}

void pretokenizer_begin(struct pretokenizer *p, const char *text, size_t n)
{
    p->text = text;
    p->n = n;
    p->at = 0;
    for (size_t i = 0; i < p->n_stages; i++)
        p->stages[i].end = 0;
}

/* The end of the piece of text[at..limit) that stage i begins with: a match, or what is before
 * one. */
static int piece_end(struct pretokenizer *p, size_t i, size_t limit, size_t *end)
{
    size_t n = limit - p->at;
    int rc = pcre2_match(p->stages[i].code, (PCRE2_SPTR)p->text + p->at, n, 0, PCRE2_NO_UTF_CHECK,
                         p->stages[i].match, p->context);
    const PCRE2_SIZE *range = pcre2_get_ovector_pointer(p->stages[i].match);
    if (rc == PCRE2_ERROR_NOMATCH)
        *end = limit;
    else if (rc < 0)
        return EBB_ENOMEM;
    else
        *end = p->at + (range[0] > 0 ? range[0] : range[1] > 0 ? range[1] : n);
    return 0;
}

int pretokenizer_next(struct pretokenizer *p, size_t *start, size_t *end)
{
    size_t limit = p->n;
    *start = *end = p->at;
    for (size_t i = 0; p->at < p->n && i < p->n_stages; i++) {
        if (p->stages[i].end <= p->at) {
            int rc = piece_end(p, i, limit, &p->stages[i].end);
            if (rc != 0)
                return rc;
        }
        limit = p->stages[i].end;
    }
    *end = p->at = limit;
    return 0;
}
