/* tests/unit/model/split_test.c - a model in several files is one model, whichever part is named,
 * and parts that do not belong together are refused. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "tests/unit/model/made.h"
#include "runtime/model/model.h"

#define QWEN3 EBBTIDE_TEST_DATA "/arch/qwen3.gguf"
#define LLAMA EBBTIDE_TEST_DATA "/arch/llama.gguf"

static char folder[64];

static const char *part(int number, int count)
{
    static char paths[4][128];
    static int next;
    char *path = paths[next++ % 4];
    (void)snprintf(path, sizeof paths[0], "%s/m-%05d-of-%05d.gguf", folder, number, count);
    return path;
}

/* Three parts: two tensors, none, the others. */
static void write_parts(const char *source)
{
    struct made m;
    (void)snprintf(folder, sizeof folder, "/tmp/ebbtide-split-XXXXXX");
    cr_assert(mkdtemp(folder) != NULL);
    made_open(&m, source);
    made_write_part(&m, part(1, 3), 0, 3, 0, 2);
    made_write_part(&m, part(2, 3), 1, 3, 2, 2);
    made_write_part(&m, part(3, 3), 2, 3, 2, m.n_tensors);
    made_close(&m);
}

static void remove_parts(void)
{
    for (int i = 1; i <= 3; i++)
        (void)unlink(part(i, 3));
    (void)unlink(part(1, 2));
    (void)rmdir(folder);
}

static void expect_refusal(const char *path, int code, const char *named, const char *says)
{
    struct model *m = NULL;
    struct error err = {0};
    int rc = model_open(&m, path, &err);
    cr_assert(rc == code && err.code == code && m == NULL, "%s: %s", error_code_name(rc), err.text);
    cr_assert(strstr(err.text, named) == err.text, "no %s in: %s", named, err.text);
    cr_assert(strstr(err.text, says) != NULL, "no \"%s\" in: %s", says, err.text);
}

Test(split, any_part_opens_all)
{
    struct model *whole = NULL, *m = NULL;
    struct error err;
    uint64_t fingerprint = 0;
    write_parts(QWEN3);
    cr_assert(model_open(&whole, QWEN3, &err) == 0, "%s", err.text);
    for (int i = 1; i <= 3; i++) {
        cr_assert(model_open(&m, part(i, 3), &err) == 0, "%s", err.text);
        cr_assert(gguf_n_parts(m->gguf) == 3);
        cr_assert(gguf_n_tensors(m->gguf) == gguf_n_tensors(whole->gguf));
        cr_assert(strcmp(gguf_path(m->gguf), part(1, 3)) == 0);
        cr_assert(m->geometry.n_layers == 2 &&
                  m->layers[1].down.bytes == whole->layers[1].down.bytes);
        cr_assert(memcmp(m->layers[1].down.data, whole->layers[1].down.data,
                         whole->layers[1].down.bytes) == 0);
        cr_assert(i == 1 || m->fingerprint == fingerprint);
        fingerprint = m->fingerprint;
        const struct gguf_tensor *last = gguf_tensor_at(m->gguf, gguf_n_tensors(m->gguf) - 1);
        cr_assert(last->part == 2 && strcmp(gguf_tensor_path(m->gguf, last), part(3, 3)) == 0);
        model_close(m);
    }
    model_close(whole);
    remove_parts();
}

Test(split, a_missing_part_is_named)
{
    write_parts(QWEN3);
    cr_assert(unlink(part(2, 3)) == 0);
    expect_refusal(part(1, 3), EBB_ENOENT, part(2, 3), "cannot open");
    expect_refusal(part(3, 3), EBB_ENOENT, part(2, 3), "cannot open");
    cr_assert(unlink(part(1, 3)) == 0);
    expect_refusal(part(3, 3), EBB_ENOENT, part(1, 3), "cannot open");
    remove_parts();
}

Test(split, parts_of_different_models_are_refused)
{
    struct made m;
    write_parts(QWEN3);
    made_open(&m, LLAMA); /* has a tensor more */
    made_write_part(&m, part(2, 3), 1, 3, 2, 3);
    expect_refusal(part(1, 3), EBB_EFORMAT, part(2, 3), "split.tensors.count");
    made_close(&m);
    made_open(&m, QWEN3);
    made_write_part(&m, part(2, 3), 1, 4, 2, 2);
    expect_refusal(part(1, 3), EBB_EFORMAT, part(2, 3), "split.count: wants 3");
    made_write_part(&m, part(2, 3), 0, 3, 2, 2); /* a first part in the second's place */
    expect_refusal(part(1, 3), EBB_EFORMAT, part(2, 3), "split.no: wants 1");
    made_write_part(&m, part(2, 3), 1, 3, 2, 3); /* one tensor in two parts */
    expect_refusal(part(1, 3), EBB_EFORMAT, part(1, 3), "split.tensors.count: wants");
    made_write_part(&m, part(2, 3), 1, 3, 2, 2);
    made_write_part(&m, part(3, 3), 2, 3, 1, m.n_tensors - 1);
    expect_refusal(part(1, 3), EBB_EFORMAT, part(3, 3), "wants one tensor, got two");
    made_close(&m);
    remove_parts();
}

Test(split, what_is_wrong_in_a_part_names_that_part)
{
    write_parts(QWEN3);
    cr_assert(truncate(part(3, 3), 4096) == 0);
    expect_refusal(part(1, 3), EBB_EFORMAT, part(3, 3), "short");
    remove_parts();
}

Test(split, a_part_under_another_name_is_refused)
{
    struct made m;
    char path[128];
    write_parts(QWEN3);
    (void)snprintf(path, sizeof path, "%s/model.gguf", folder);
    cr_assert(rename(part(1, 3), path) == 0);
    expect_refusal(path, EBB_EFORMAT, path, "one of 3 parts");
    (void)unlink(path);
    made_open(&m, QWEN3);
    made_write_part(&m, part(1, 2), 0, 3, 0, 2);
    expect_refusal(part(1, 2), EBB_EFORMAT, part(1, 2), "split.count: wants 2");
    made_close(&m);
    remove_parts();
}
