/* tests/unit/model/model_test.c - what the demo file says, as the reader and the model tell it. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>
#include "tests/unit/model/patched.h"
#include "runtime/model/gguf.h"
#include "runtime/model/model.h"

static struct gguf *demo_gguf(void)
{
    struct gguf *g = NULL;
    struct error err;
    cr_assert(gguf_open(&g, DEMO, &err) == 0, "%s", err.text);
    return g;
}

static struct model *demo_model(const char *path)
{
    struct model *m = NULL;
    struct error err;
    cr_assert(model_open(&m, path, &err) == 0, "%s", err.text);
    return m;
}

Test(gguf, finds_keys_and_tensors_by_their_whole_name)
{
    struct gguf *g = demo_gguf();
    cr_assert(gguf_n_tensors(g) == 99);
    cr_assert(gguf_file_bytes(g) == DEMO_BYTES);
    cr_assert(gguf_data_offset(g) == 138976);
    cr_assert(strcmp(gguf_path(g), DEMO) == 0);
    for (size_t i = 0; i < gguf_n_tensors(g); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(g, i);
        char name[80] = "";
        memcpy(name, t->name.bytes, t->name.n_bytes);
        cr_assert(gguf_tensor_find(g, name) == t, "%s", name);
        name[t->name.n_bytes - 1] = '\0';
        cr_assert(gguf_tensor_find(g, name) == NULL, "%s", name);
    }
    cr_assert(gguf_find(g, "general.name") != NULL);
    cr_assert(gguf_find(g, "general.nam") == NULL);
    cr_assert(gguf_find(g, "") == NULL);
    gguf_close(g);
}

Test(gguf, typed_reads_say_what_is_wrong)
{
    struct gguf *g = demo_gguf();
    struct error err;
    struct gguf_string text;
    uint32_t n = 77;
    float f = 7;
    bool flag = true;
    cr_assert(gguf_u32(g, "qwen3moe.block_count", 1, 100, &n, &err) == 0 && n == 8);
    cr_assert(gguf_u32(g, "qwen3moe.block_count", 9, 100, &n, &err) == EBB_EFORMAT && n == 8);
    cr_assert(strstr(err.text, DEMO ": metadata key qwen3moe.block_count: wants 9..100, got 8") !=
              NULL);
    cr_assert(gguf_u32(g, "qwen3moe.no_such", 0, 1, &n, &err) == EBB_ENOENT && n == 8);
    cr_assert(gguf_u32(g, "general.name", 0, 1, &n, &err) == EBB_EFORMAT && n == 8);
    cr_assert(gguf_f32(g, "qwen3moe.rope.freq_base", &f, &err) == 0 && f == 1e6f);
    cr_assert(gguf_f32(g, "qwen3moe.block_count", &f, &err) == EBB_EFORMAT && f == 1e6f);
    cr_assert(gguf_bool(g, "tokenizer.ggml.add_bos_token", &flag, &err) == 0 && !flag);
    cr_assert(gguf_bool(g, "qwen3moe.block_count", &flag, &err) == EBB_EFORMAT);
    cr_assert(gguf_text(g, "general.architecture", &text, &err) == 0);
    cr_assert(text.n_bytes == 8 && memcmp(text.bytes, "qwen3moe", 8) == 0);
    cr_assert(gguf_text(g, "qwen3moe.block_count", &text, &err) == EBB_EFORMAT);
    gguf_close(g);
}

Test(gguf, walks_an_array_of_strings)
{
    struct gguf *g = demo_gguf();
    const struct gguf_value *v = gguf_find(g, "tokenizer.ggml.tokens");
    size_t cursor = 0;
    struct gguf_string s = {0};
    cr_assert(v != NULL && v->type == GGUF_ARRAY && v->element_type == GGUF_STRING);
    cr_assert(v->n_elements == 4096);
    for (uint64_t i = 0; i < v->n_elements; i++) {
        s = gguf_array_string(v, &cursor);
        cr_assert(i != 1 || (s.n_bytes == 12 && memcmp(s.bytes, "<|im_start|>", 12) == 0));
    }
    cr_assert(s.n_bytes == 6 && memcmp(s.bytes, "\304\240rock", 6) == 0);
    gguf_close(g);
}

Test(gguf, fingerprint_is_of_the_tables_and_the_size)
{
    static struct patched p;
    struct gguf *g = demo_gguf(), *other = NULL;
    struct error err;
    patched_open(&p);
    cr_assert(gguf_open(&other, p.path, &err) == 0, "%s", err.text);
    cr_assert(gguf_fingerprint(other) == gguf_fingerprint(g), "the data are no part of it");
    gguf_close(other);

    patched_truncate(&p, DEMO_BYTES + 1);
    cr_assert(gguf_open(&other, p.path, &err) == 0, "%s", err.text);
    cr_assert(gguf_fingerprint(other) != gguf_fingerprint(g), "a byte more");
    gguf_close(other);

    patched_restore(&p);
    patched_bytes(&p, patched_behind(&p, "general.name") + 12, "E", 1);
    cr_assert(gguf_open(&other, p.path, &err) == 0, "%s", err.text);
    cr_assert(gguf_fingerprint(other) != gguf_fingerprint(g), "another name");
    gguf_close(other);
    gguf_close(g);
    patched_close(&p);
}

Test(gguf, version_2_is_read_like_3)
{
    static struct patched p;
    struct gguf *g = NULL;
    struct error err;
    patched_open(&p);
    patched_number(&p, 4, 2, 4);
    cr_assert(gguf_open(&g, p.path, &err) == 0, "%s", err.text);
    cr_assert(gguf_n_tensors(g) == 99 && gguf_n_parts(g) == 1);
    gguf_close(g);
    patched_close(&p);
}

Test(gguf, keeps_any_text_and_tensors_of_unknown_type)
{
    static struct patched p;
    struct gguf *g = NULL;
    struct error err;
    patched_open(&p);
    patched_bytes(&p, patched_behind(&p, "general.name") + 12, "\0\x7f\n", 3);
    patched_number(&p, patched_behind(&p, "blk.0.attn_q.weight") + 20, 1000, 4);
    cr_assert(gguf_open(&g, p.path, &err) == 0, "%s", err.text);
    cr_assert(gguf_tensor_find(g, "blk.0.attn_q.weight")->bytes == 0);
    cr_assert(gguf_tensor_find(g, "blk.0.attn_k.weight")->bytes != 0);
    gguf_close(g);
    patched_close(&p);
}

Test(model, geometry_is_what_the_keys_say)
{
    struct model *m = demo_model(DEMO);
    const struct model_geometry *x = &m->geometry;
    cr_assert(strcmp(m->architecture, "qwen3moe") == 0);
    cr_assert(x->n_layers == 8 && x->d_model == 256 && x->n_heads == 8 && x->n_kv_heads == 2);
    cr_assert(x->head_dim == 64 && x->n_vocab == 4096 && x->context_max == 2048 && x->n_rot == 64);
    cr_assert(x->rms_eps == 1e-6f && x->rope_base == 1e6 && x->rope_halves);
    cr_assert(x->n_experts == 16 && x->n_experts_used == 4 && x->d_expert == 256);
    cr_assert(x->router_renormalise && x->router_scale == 1);
    cr_assert(m->fingerprint == gguf_fingerprint(m->gguf));
    cr_assert(x->attention_scale == 0.125f && !x->qk_norm_whole && x->d_ff == 0 &&
              x->d_shared == 0);
    cr_assert(x->rope_scale == 1);
    for (uint32_t i = 0; i < x->n_rot / 2; i++)
        cr_assert(x->inv_freq[i] == pow(x->rope_base, -2.0 * i / x->n_rot), "pair %u", i);
    model_close(m);
}

static void expect_view(const struct tensor_view *v, const char *name, const char *type,
                        size_t rows)
{
    size_t row = v->dims[0] / tensor_type_find(v->type)->block_values *
                 tensor_type_find(v->type)->block_bytes;
    cr_assert(v->data != NULL && strcmp(v->name, name) == 0, "%s", name);
    cr_assert(strcmp(tensor_type_find(v->type)->name, type) == 0, "%s", name);
    cr_assert(v->bytes == row * rows, "%s", name);
    cr_assert((uintptr_t)v->data % 32 == 0, "%s", name);
}

Test(model, every_tensor_of_every_layer_has_its_view)
{
    struct model *m = demo_model(DEMO);
    expect_view(&m->token_embd, "token_embd.weight", "Q8_0", 4096);
    expect_view(&m->output, "output.weight", "Q6_K", 4096);
    expect_view(&m->output_norm, "output_norm.weight", "F32", 1);
    for (uint32_t i = 0; i < m->geometry.n_layers; i++) {
        const struct model_layer *l = &m->layers[i];
        cr_assert(l->attn_norm.data && l->ffn_norm.data && l->q_norm.data && l->k_norm.data);
        cr_assert(l->v.data && l->o.data && l->router.data && l->up_exps.data);
        cr_assert(l->q.dims[0] == 256 && l->q.dims[1] == 512 && l->q.dims[2] == 1);
        cr_assert(l->o.dims[0] == 512 && l->o.dims[1] == 256 && l->down_exps.dims[2] == 16);
    }
    expect_view(&m->layers[0].q, "blk.0.attn_q.weight", "Q4_K", 512);
    expect_view(&m->layers[7].down_exps, "blk.7.ffn_down_exps.weight",
                tensor_type_find(m->layers[7].down_exps.type)->name, 256 * 16);
    model_close(m);
}

Test(model, experts_lie_behind_one_another)
{
    struct model *m = demo_model(DEMO);
    const struct tensor_view *t = &m->layers[2].gate_exps;
    size_t bytes, total = 0;
    for (uint32_t e = 0; e < m->geometry.n_experts; e++) {
        cr_assert(model_expert(t, e, &bytes) == (const unsigned char *)t->data + total);
        total += bytes;
    }
    cr_assert(total == t->bytes);
    model_close(m);
}

Test(model, without_a_head_of_its_own_the_embedding_is_the_head)
{
    static struct patched p;
    struct model *m = NULL;
    struct error err;
    patched_open(&p);
    /* takes output.weight out: what stands behind its record moves up, the count falls */
    size_t name = patched_behind(&p, "output.weight") - 21,
           next = patched_behind(&p, "output.weight") + 32;
    patched_bytes(&p, name, p.demo + next, DEMO_TABLE_BYTES - next);
    patched_number(&p, 8, 98, 8);
    cr_assert(model_open(&m, p.path, &err) == 0, "%s", err.text);
    cr_assert(m->output.data == m->token_embd.data && m->output.type == m->token_embd.type);
    model_close(m);
    patched_close(&p);
}

Test(model, closing_nothing_is_fine)
{
    model_close(NULL);
    gguf_close(NULL);
}
