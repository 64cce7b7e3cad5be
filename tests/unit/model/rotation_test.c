/* tests/unit/model/rotation_test.c - a file's stretching of rotary positions is in the frequencies
 * as its formulas have it. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>
#include "tests/unit/model/made.h"
#include "runtime/model/model.h"

#define QWEN3       EBBTIDE_TEST_DATA "/arch/qwen3.gguf"
#define LLAMA_ROPE3 EBBTIDE_TEST_DATA "/arch/llama-rope3.gguf"

static struct model *opened(struct made *m)
{
    struct model *model = NULL;
    struct error err;
    made_write(m);
    cr_assert(model_open(&model, m->path, &err) == 0, "%s", err.text);
    return model;
}

static double plain(uint32_t i)
{
    return pow(1e6, -2.0 * i / 64);
}

static bool is_near(double a, double b)
{
    return fabs(a - b) <= 1e-12 * fabs(b);
}

static void expect_linear(struct made *m, double factor)
{
    struct model *model = opened(m);
    for (uint32_t i = 0; i < 32; i++)
        cr_assert(is_near(model->geometry.inv_freq[i], plain(i) / factor), "pair %u", i);
    cr_assert(model->geometry.rope_scale == 1);
    model_close(model);
}

Test(rotation, linear_divides_all)
{
    struct made m;
    made_open(&m, QWEN3);
    made_set_f32(&m, "qwen3.rope.scaling.factor", 4);
    expect_linear(&m, 4); /* a factor alone means it */
    made_set_text(&m, "qwen3.rope.scaling.type", "linear");
    expect_linear(&m, 4);
    made_set_text(&m, "qwen3.rope.scaling.type", "none");
    expect_linear(&m, 1);
    made_remove(&m, "qwen3.rope.scaling.type");
    made_remove(&m, "qwen3.rope.scaling.factor");
    made_set_f32(&m, "qwen3.rope.scale_linear", 2);
    expect_linear(&m, 2);
    made_close(&m);
}

/* With base 1e6, 64 dimensions and 32768 positions: a pair turns t times at
 * 64 ln(32768 / 2 pi t) / (2 ln 1e6), which is 11.8 for 32 turns and 19.8 for one: so pairs up to
 * 11 stay, pairs from 20 on are stretched. */
Test(rotation, yarn_keeps_fast_pairs_and_stretches_slow_ones)
{
    struct made m;
    made_open(&m, QWEN3);
    made_set_text(&m, "qwen3.rope.scaling.type", "yarn");
    made_set_f32(&m, "qwen3.rope.scaling.factor", 4);
    made_set_u32(&m, "qwen3.rope.scaling.original_context_length", 32768);
    struct model *model = opened(&m);
    const double *f = model->geometry.inv_freq;
    for (uint32_t i = 0; i < 32; i++) {
        double ramp = i <= 11 ? 0 : i >= 20 ? 1 : (i - 11) / 9.0;
        double wanted = plain(i) * (1 - ramp) + plain(i) / 4 * ramp;
        cr_assert(is_near(f[i], wanted), "pair %u: wants %.17g, got %.17g", i, wanted, f[i]);
    }
    cr_assert(fabsf(model->geometry.rope_scale - (0.1f * logf(4) + 1)) < 1e-6f);
    model_close(model);

    made_set_f32(&m, "qwen3.rope.scaling.attn_factor", 0.5f);
    model = opened(&m);
    cr_assert(fabsf(model->geometry.rope_scale - 0.5f * (0.1f * logf(4) + 1)) < 1e-6f);
    model_close(model);
    made_close(&m);
}

Test(rotation, a_table_of_the_file_divides_pair_by_pair)
{
    struct made m;
    float factors[16];
    made_open(&m, LLAMA_ROPE3);
    for (size_t i = 0; i < m.n_tensors; i++)
        if (memcmp(m.tensors[i].name.bytes, "rope_freqs.", 11) == 0) {
            memcpy(factors, m.tensors[i].data, sizeof factors);
            for (size_t k = 0; k < 16; k++)
                factors[k] *= 2;
            m.tensors[i].data = (const unsigned char *)factors;
        }
    struct model *model = opened(&m), *good = NULL;
    struct error err;
    cr_assert(model_open(&good, LLAMA_ROPE3, &err) == 0);
    for (uint32_t i = 0; i < 16; i++) {
        cr_assert(is_near(model->geometry.inv_freq[i], good->geometry.inv_freq[i] / 2));
        cr_assert(
            is_near(model->geometry.inv_freq[i], pow(5e5, -2.0 * i / 32) / (double)factors[i]));
    }
    model_close(model);
    model_close(good);
    factors[3] = 0;
    made_write(&m);
    cr_assert(model_open(&model, m.path, &err) == EBB_EFORMAT);
    cr_assert(strstr(err.text, "rope_freqs.weight: value 3: wants a positive number") != NULL, "%s",
              err.text);
    made_close(&m);
}

Test(rotation, other_kinds_are_refused_by_name)
{
    static const char *const kinds[] = {"longrope", "dynamic", "su", ""};
    struct made m;
    struct model *model;
    struct error err;
    made_open(&m, QWEN3);
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        made_set_text(&m, "qwen3.rope.scaling.type", kinds[i]);
        made_write(&m);
        cr_assert(model_open(&model, m.path, &err) == EBB_EUNSUPPORTED);
        cr_assert(strstr(err.text, "qwen3.rope.scaling.type") != NULL, "%s", err.text);
    }
    made_close(&m);
}
