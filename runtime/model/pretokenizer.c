/* runtime/model/pretokenizer.c - the patterns of the pre-tokenisers in use, matched by PCRE2.
 *
 * Owns the compiled pattern and the memory of a match. The just-in-time compiler is used where the
 * library has it; results are the same without. Text must be valid UTF-8 (the tokenizer cuts it
 * so): PCRE2 is told not to check again, which would make a long text quadratic. Refused by name: a
 * pre-tokeniser that is not in the table; a guess would give other tokens than the model was
 * trained on.
 *
 * The patterns are the published ones of the models. They say \s for Unicode's White_Space, PCRE2's
 * \s differs from it by U+180E: so the set is spelled out.
 */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "runtime/model/pretokenizer.h"
#include <pcre2.h>
#include <string.h>
#include "runtime/model/show.h"

#define SPACES                                                                                     \
    "\\t-\\r "                                                                                     \
    "\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"
#define SPACE           "[" SPACES "]"
#define TRAILING_SPACES SPACE "+(?![^" SPACES "])|" SPACE "+"
#define OTHER           "[^" SPACES "\\p{L}\\p{N}]"

#define PATTERN_GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?" OTHER "+|" TRAILING_SPACES
#define PATTERN_LLAMA3(digits)                                                                     \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" digits "| ?" OTHER               \
    "+[\\r\\n]*|" SPACE "*[\\r\\n]+|" TRAILING_SPACES

struct pretokenizer_row {
    const char *name; /* tokenizer.ggml.pre */
    const char *pattern;
    bool adds_bos, whole_words;
};

static const struct pretokenizer_row table[] = {
    {"gpt-2", PATTERN_GPT2, false, false},
    {"olmo", PATTERN_GPT2, false, false},
    {"llama-bpe", PATTERN_LLAMA3("\\p{N}{1,3}"), true, true},
    {"qwen2", PATTERN_LLAMA3("\\p{N}"), false, false},
};

static int row_find(const struct pretokenizer_row **row, const struct gguf *g, struct error *err)
{
    struct gguf_string name;
    char shown[SHOWN_BYTES];
    int rc = gguf_text(g, "tokenizer.ggml.pre", &name, err);
    if (rc == EBB_ENOENT)
        return error_set(err, EBB_EFORMAT,
                         "%s: metadata key tokenizer.ggml.pre: wants a name, got none",
                         show_path(gguf_path(g)));
    if (rc != 0)
        return rc;
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        if (strlen(table[i].name) == name.n_bytes &&
            memcmp(table[i].name, name.bytes, name.n_bytes) == 0) {
            *row = &table[i];
            return 0;
        }
    return error_set(
        err, EBB_EUNSUPPORTED,
        "%s: metadata key tokenizer.ggml.pre: wants gpt-2, olmo, llama-bpe or qwen2, got \"%s\"",
        show_path(gguf_path(g)), show_name(name, shown));
}

int pretokenizer_open(struct pretokenizer *p, const struct gguf *g, struct error *err)
{
    int number = 0;
    PCRE2_SIZE offset = 0;
    memset(p, 0, sizeof *p);
    int rc = row_find(&p->row, g, err);
    if (rc != 0)
        return rc;
    p->adds_bos = p->row->adds_bos;
    p->whole_words = p->row->whole_words;
    p->code = pcre2_compile((PCRE2_SPTR)p->row->pattern, PCRE2_ZERO_TERMINATED,
                            PCRE2_UTF | PCRE2_UCP, &number, &offset, NULL);
    if (p->code != NULL) {
        (void)pcre2_jit_compile(p->code, PCRE2_JIT_COMPLETE); /* or it is interpreted */
        p->match = pcre2_match_data_create_from_pattern(p->code, NULL);
        p->context = pcre2_match_context_create(NULL);
    }
    if (p->match == NULL || p->context == NULL) {
        pretokenizer_close(p);
        return error_set(err, EBB_ENOMEM,
                         "pre-tokeniser: PCRE2 gives error %d at %zu of its pattern", number,
                         (size_t)offset);
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
    pcre2_match_data_free(p->match);
    pcre2_match_context_free(p->context);
    pcre2_jit_stack_free(p->stack);
    pcre2_code_free(p->code);
    memset(p, 0, sizeof *p);
}

int pretokenizer_next(struct pretokenizer *p, const char *text, size_t n, size_t at, size_t *end)
{
    int rc =
        pcre2_match(p->code, (PCRE2_SPTR)text, n, at, PCRE2_NO_UTF_CHECK, p->match, p->context);
    const PCRE2_SIZE *range = pcre2_get_ovector_pointer(p->match);
    if (rc == PCRE2_ERROR_NOMATCH)
        *end = n;
    else if (rc < 0)
        return EBB_ENOMEM;
    else /* what a pattern jumps over is a word too */
        *end = range[0] > at ? range[0] : range[1] > at ? range[1] : n;
    return 0;
}
