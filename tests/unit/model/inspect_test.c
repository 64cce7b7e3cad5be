/* tests/unit/model/inspect_test.c - what a file holds is added up to the byte, also of a file that
 * is not supported, and then it is said why. */
#include <criterion/criterion.h>
#include <string.h>
#include "tests/unit/model/made.h"
#include "tests/unit/model/patched.h"
#include "runtime/model/inspect.h"

#define QWEN2MOE EBBTIDE_TEST_DATA "/arch/qwen2moe.gguf"
#define QWEN3    EBBTIDE_TEST_DATA "/arch/qwen3.gguf"

static uint64_t bytes_of(const struct inspection *x, enum inspect_group group)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < x->groups[group].n_types; i++)
        bytes += x->groups[group].types[i].bytes;
    return bytes;
}

Test(inspect, every_byte_of_a_tensor_is_counted_once_in_each_view)
{
    static const char *const paths[] = {DEMO, QWEN2MOE, QWEN3};
    for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++) {
        struct inspection x;
        struct gguf *g = NULL;
        struct error err;
        uint64_t tensors = 0, groups = 0;
        cr_assert(inspect_open(&x, paths[i], &err) == 0, "%s", err.text);
        cr_assert(gguf_open(&g, paths[i], &err) == 0);
        for (size_t t = 0; t < gguf_n_tensors(g); t++)
            tensors += gguf_tensor_at(g, t)->bytes;
        for (size_t k = 0; k < GROUP_COUNT; k++)
            groups += bytes_of(&x, (enum inspect_group)k);
        struct inspect_share all = inspect_share(&x, 0, x.n_layers - 1);
        cr_assert(groups == tensors && all.dense_bytes + all.expert_bytes == tensors, "%s",
                  paths[i]);
        cr_assert(all.expert_bytes == bytes_of(&x, GROUP_EXPERTS));
        cr_assert(x.is_supported && x.n_problems == 0, "%s: %s", paths[i], x.problems[0]);
        cr_assert(bytes_of(&x, GROUP_OTHER) == 0);
        gguf_close(g);
        inspect_close(&x);
    }
}

Test(inspect, a_tied_head_is_a_second_copy_on_another_card)
{
    struct inspection x;
    struct error err;
    cr_assert(inspect_open(&x, QWEN3, &err) == 0 && x.is_tied);
    struct inspect_share all = inspect_share(&x, 0, 1), a = inspect_share(&x, 0, 0),
                         b = inspect_share(&x, 1, 1);
    cr_assert(a.dense_bytes + b.dense_bytes == all.dense_bytes + x.embedding_bytes);
    cr_assert(a.kv_bytes + b.kv_bytes == all.kv_bytes && all.kv_bytes == 2 * 2 * 2 * 64 * 2 * 1000);
    inspect_close(&x);
}

static bool says(const struct inspection *x, const char *text)
{
    for (size_t i = 0; i < x->n_problems; i++)
        if (strstr(x->problems[i], text) != NULL)
            return true;
    return false;
}

Test(inspect, what_is_not_supported_is_still_told_with_the_reasons)
{
    struct made m;
    struct inspection x;
    struct error err;
    made_open(&m, QWEN3);
    made_set_text(&m, "general.architecture", "gpt-oss");
    made_set_u32(&m, "gpt-oss.embedding_length", 64);
    made_set_u32(&m, "gpt-oss.attention.head_count", 4);
    made_set_text(&m, "tokenizer.ggml.model", "bert");
    made_set_text(&m, "tokenizer.chat_template", "{{ role }}");
    for (size_t i = 0; i < m.n_tensors; i++)
        if (m.tensors[i].dims[0] == 256)
            m.tensors[i].type = 16; /* of 256 values: its rows are whole blocks */
    made_write(&m);
    cr_assert(inspect_open(&x, m.path, &err) == 0, "%s", err.text);
    cr_assert(!x.is_supported && strcmp(x.architecture, "gpt-oss") == 0);
    cr_assert(x.n_layers == 2 && x.geometry.d_model == 64 && x.geometry.n_heads == 4);
    cr_assert(says(&x, "general.architecture: wants one of llama") && says(&x, "got \"gpt-oss\""));
    cr_assert(says(&x, "IQ2_XXS (16) is not computed with"));
    cr_assert(says(&x, "tokenizer.ggml.model") && says(&x, "got \"bert\""));
    inspect_close(&x);
    made_set_text(&m, "tokenizer.ggml.model", "gpt2");
    made_write(&m);
    cr_assert(inspect_open(&x, m.path, &err) == 0, "%s", err.text);
    cr_assert(!x.template_is_known && says(&x, "chat template is not a known one"));
    inspect_close(&x);
    made_close(&m);
}

Test(inspect, what_is_no_container_is_refused)
{
    struct inspection x;
    struct error err;
    cr_assert(inspect_open(&x, EBBTIDE_TEST_DATA "/routing.json", &err) == EBB_EFORMAT);
    cr_assert(inspect_open(&x, EBBTIDE_TEST_DATA "/none.gguf", &err) == EBB_ENOENT);
}
