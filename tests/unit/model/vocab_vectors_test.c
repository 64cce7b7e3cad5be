/* tests/unit/model/vocab_vectors_test.c - real vocabularies give the published ids. They are too
 * large to carry: the folder is looked for beside the source tree, and the tests skip without it. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include "runtime/model/gguf.h"
#include "runtime/model/tokenizer.h"

#define VOCABS    EBBTIDE_TEST_DATA "/../../../shared/data/vocabs/"
#define SEPARATOR "\n__ggml_vocab_test__\n"

struct vectors {
    struct gguf *g;
    struct tokenizer *t;
    char *texts, *ids; /* owned: the two files */
};

static char *file_read(const char *path)
{
    FILE *f = fopen(path, "rb");
    char *bytes = calloc(1, 65536);
    cr_assert(f != NULL && bytes != NULL, "%s", path);
    size_t n = fread(bytes, 1, 65535, f);
    cr_assert(n > 0 && n < 65535, "%s", path);
    (void)fclose(f);
    return bytes;
}

static struct vectors vectors_open(const char *name)
{
    struct vectors v = {0};
    struct error err;
    char path[512];
    (void)snprintf(path, sizeof path, VOCABS "ggml-vocab-%s.gguf", name);
    int rc = gguf_open(&v.g, path, &err);
    if (rc == EBB_ENOENT)
        cr_skip_test("no %s: the published vocabularies are not here", path);
    cr_assert(rc == 0, "%s", err.text);
    cr_assert(tokenizer_open(&v.t, v.g, &err) == 0, "%s", err.text);
    (void)snprintf(path, sizeof path, VOCABS "ggml-vocab-%s.gguf.inp", name);
    v.texts = file_read(path);
    (void)snprintf(path, sizeof path, VOCABS "ggml-vocab-%s.gguf.out", name);
    v.ids = file_read(path);
    return v;
}

static void vectors_close(struct vectors *v)
{
    tokenizer_close(v->t);
    gguf_close(v->g);
    free(v->texts);
    free(v->ids);
}

static void expect_ids(const char *text, const int32_t *ids, size_t n_ids, char *wanted)
{
    char *rest = wanted, *end;
    for (size_t i = 0; i < n_ids; i++, rest = end) {
        long id = strtol(rest, &end, 10);
        cr_assert(end != rest && id == ids[i], "\"%s\": id %zu: wants %ld, got %d", text, i, id,
                  ids[i]);
    }
    cr_assert(rest[strspn(rest, " ")] == '\0', "\"%s\": more ids than %zu: %s", text, n_ids, rest);
}

static void expect_all(const char *name)
{
    struct vectors v = vectors_open(name);
    char *text = v.texts, *ids = v.ids;
    size_t count = 0;
    while (text != NULL) {
        char *next = strstr(text, SEPARATOR), *line_end = strchr(ids, '\n'), out[4096];
        int32_t got[1024];
        size_t n = next != NULL ? (size_t)(next - text) : strlen(text), n_got = 0, n_out = 0;
        struct error err;
        if (next == NULL && n > 0 && text[n - 1] == '\n')
            n--; /* the file's own last line end */
        text[n] = '\0';
        if (line_end != NULL)
            *line_end = '\0';
        cr_assert(tokenizer_encode(v.t, text, n, false, got, 1024, &n_got, &err) == 0);
        expect_ids(text, got, n_got, ids);
        cr_assert(tokenizer_decode(v.t, got, n_got, out, sizeof out, &n_out, &err) == 0);
        cr_assert(n_out == n && memcmp(out, text, n) == 0, "\"%s\" decodes to \"%.*s\"", text,
                  (int)n_out, out);
        count++;
        text = next != NULL ? next + strlen(SEPARATOR) : NULL;
        ids = line_end != NULL ? line_end + 1 : ids + strlen(ids);
    }
    cr_assert(count > 40 && *ids == '\0', "%s: %zu texts", name, count);
    vectors_close(&v);
}

Test(vocab_vectors, gpt_2)
{
    expect_all("gpt-2");
}

Test(vocab_vectors, qwen2)
{
    expect_all("qwen2");
}

Test(vocab_vectors, phi_3)
{
    expect_all("phi-3");
}
