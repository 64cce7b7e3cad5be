/* tests/unit/model/arch_test.c - every architecture's small model opens with the geometry and the
 * tensors that its file has. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>
#include "runtime/model/gguf.h"
#include "runtime/model/model.h"

#define ARCH(name) EBBTIDE_TEST_DATA "/arch/" name ".gguf"

enum feed_forward { DENSE, EXPERTS, EXPERTS_AND_SHARED };

/* Read off the files by hand. */
struct expectation {
    const char *path, *architecture;
    uint32_t n_heads, n_kv_heads, head_dim;
    double rope_base;
    bool rope_halves, tied, biases, head_norms, whole_norms;
    enum feed_forward ff;
    uint32_t d_ff, n_experts, n_used, d_expert, d_shared;
    bool renormalise;
};

/* clang-format off */
static const struct expectation expectations[] = {
    {ARCH("llama"),       "llama",    4, 2, 32, 5e5, false, false, false, false, false, DENSE,   160, 0,  0, 0,   0,   false},
    {ARCH("llama-rope3"), "llama",    4, 2, 32, 5e5, false, true,  false, false, false, DENSE,   256, 0,  0, 0,   0,   false},
    {ARCH("mixtral"),     "llama",    4, 2, 32, 1e6, false, false, false, false, false, EXPERTS, 0,   8,  2, 160, 0,   true},
    {ARCH("qwen2"),       "qwen2",    4, 2, 16, 1e6, true,  false, true,  false, false, DENSE,   160, 0,  0, 0,   0,   false},
    {ARCH("qwen3"),       "qwen3",    4, 2, 64, 1e6, true,  true,  false, true,  false, DENSE,   256, 0,  0, 0,   0,   false},
    {ARCH("qwen3moe"),    "qwen3moe", 4, 2, 64, 1e6, true,  false, false, true,  false, EXPERTS, 0,   12, 3, 96,  0,   true},
    {ARCH("qwen2moe"),    "qwen2moe", 4, 2, 16, 1e6, true,  false, true,  false, false, EXPERTS_AND_SHARED, 0, 10, 4, 96, 192, false},
    {ARCH("olmoe"),       "olmoe",    4, 4, 16, 1e4, true,  false, false, true,  true,  EXPERTS, 0,   16, 4, 96,  0,   false},
};
/* clang-format on */

/* The model, or NULL where one of its types is not computed with: then it was refused by that
 * type's number. */
static struct model *open_or_refused(const char *path)
{
    struct gguf *g = NULL;
    struct model *m = NULL;
    struct error err = {0};
    char number[16] = "";
    cr_assert(gguf_open(&g, path, &err) == 0, "%s", err.text);
    for (size_t i = 0; i < gguf_n_tensors(g); i++)
        if (tensor_type_find(gguf_tensor_at(g, i)->type) == NULL)
            (void)snprintf(number, sizeof number, "(%u)", gguf_tensor_at(g, i)->type);
    gguf_close(g);
    int rc = model_open(&m, path, &err);
    cr_assert(number[0] != '\0' ? rc == EBB_EUNSUPPORTED && strstr(err.text, number) != NULL
                                : rc == 0,
              "%s", err.text);
    return m;
}

static void expect_dims(const struct tensor_view *t, bool is_there, uint64_t d0, uint64_t d1,
                        uint64_t d2)
{
    cr_assert((t->data != NULL) == is_there, "%s", t->name != NULL ? t->name : "no name");
    cr_assert(!is_there || (t->dims[0] == d0 && t->dims[1] == d1 && t->dims[2] == d2), "%s",
              t->name);
}

static void expect_layer(const struct model_layer *l, const struct expectation *x)
{
    uint32_t q = x->n_heads * x->head_dim, k = x->n_kv_heads * x->head_dim;
    bool moe = x->ff != DENSE, shared = x->ff == EXPERTS_AND_SHARED;
    expect_dims(&l->q, true, 64, q, 1);
    expect_dims(&l->v, true, 64, k, 1);
    expect_dims(&l->o, true, q, 64, 1);
    expect_dims(&l->q_bias, x->biases, q, 1, 1);
    expect_dims(&l->k_bias, x->biases, k, 1, 1);
    expect_dims(&l->v_bias, x->biases, k, 1, 1);
    expect_dims(&l->o_bias, false, 0, 0, 0);
    expect_dims(&l->q_norm, x->head_norms, x->whole_norms ? q : x->head_dim, 1, 1);
    expect_dims(&l->k_norm, x->head_norms, x->whole_norms ? k : x->head_dim, 1, 1);
    expect_dims(&l->gate, !moe, 64, x->d_ff, 1);
    expect_dims(&l->down, !moe, x->d_ff, 64, 1);
    expect_dims(&l->router, moe, 64, x->n_experts, 1);
    expect_dims(&l->up_exps, moe, 64, x->d_expert, x->n_experts);
    expect_dims(&l->down_exps, moe, x->d_expert, 64, x->n_experts);
    expect_dims(&l->gate_shared, shared, 64, x->d_shared, 1);
    expect_dims(&l->down_shared, shared, x->d_shared, 64, 1);
    expect_dims(&l->shared_router, shared, 64, 1, 1);
}

Test(arch, every_small_model_opens_with_the_geometry_of_its_file)
{
    for (size_t i = 0; i < sizeof expectations / sizeof expectations[0]; i++) {
        const struct expectation *x = &expectations[i];
        struct model *m = open_or_refused(x->path);
        if (m == NULL)
            continue;
        const struct model_geometry *g = &m->geometry;
        cr_assert(strcmp(m->architecture, x->architecture) == 0, "%s", x->path);
        cr_assert(g->n_layers == 2 && g->d_model == 64 && g->n_vocab == 320, "%s", x->path);
        cr_assert(g->context_max == 512 && g->rms_eps == 1e-5f, "%s", x->path);
        cr_assert(g->n_heads == x->n_heads && g->n_kv_heads == x->n_kv_heads, "%s", x->path);
        cr_assert(g->head_dim == x->head_dim && g->n_rot == x->head_dim, "%s", x->path);
        cr_assert(g->rope_base == x->rope_base && g->rope_halves == x->rope_halves, "%s", x->path);
        cr_assert(g->qk_norm_whole == x->whole_norms, "%s", x->path);
        cr_assert(g->attention_scale == 1.0f / sqrtf((float)x->head_dim), "%s", x->path);
        cr_assert(g->d_ff == x->d_ff && g->n_experts == x->n_experts, "%s", x->path);
        cr_assert(g->n_experts_used == x->n_used && g->d_expert == x->d_expert, "%s", x->path);
        cr_assert(g->d_shared == x->d_shared, "%s", x->path);
        cr_assert(g->router_renormalise == x->renormalise && g->router_scale == 1, "%s", x->path);
        cr_assert((m->output.data == m->token_embd.data) == x->tied, "%s", x->path);
        for (uint32_t l = 0; l < g->n_layers; l++)
            expect_layer(&m->layers[l], x);
        model_close(m);
    }
}

/* Llama 3's own formula (its reference code): below a low frequency all is divided by 8, above a
 * high one nothing is, between them it is mixed. The file's table was made with original context
 * 8192, low 1, high 4. */
Test(arch, rope_freqs_divide_the_frequencies)
{
    struct model *m = open_or_refused(ARCH("llama-rope3"));
    const struct gguf_tensor *t = gguf_tensor_find(m->gguf, "rope_freqs.weight");
    float first, last;
    memcpy(&first, t->data, sizeof first);
    memcpy(&last, t->data + 15 * sizeof last, sizeof last);
    cr_assert(m->geometry.inv_freq[0] == 1.0 / (double)first && first == 1);
    cr_assert(m->geometry.inv_freq[15] == pow(5e5, -30.0 / 32) / (double)last && last > 1);
    cr_assert(m->geometry.rope_scale == 1);
    model_close(m);
}

Test(arch, without_scaling_the_frequencies_are_powers_of_the_base)
{
    struct model *m = open_or_refused(ARCH("qwen3"));
    for (uint32_t i = 0; i < 32; i++)
        cr_assert(m->geometry.inv_freq[i] == pow(1e6, -2.0 * i / 64));
    model_close(m);
}
