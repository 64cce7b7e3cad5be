/* tools/make-model/geometry.c - the tables of shapes and of mixes, and look-ups by name. Constant data, no state. */
#include "tools/make-model/geometry.h"

#include <string.h>

/* Tables read best as tables. */
/* clang-format off */
static const struct shape shapes[] = {
    {.name = "qwen3-30b-a3b", .architecture = "qwen3moe", .n_layers = 48, .d_model = 2048, .n_heads = 32,
     .n_kv_heads = 4, .head_dim = 128, .n_vocab = 151936, .context = 40960, .d_ff = 6144,
     .n_experts = 128, .n_experts_used = 8, .d_expert = 768, .rope_base = 1e6, .rms_eps = 1e-6,
     .qk_norms = NORMS_HEAD},
    {.name = "qwen3-235b-a22b", .architecture = "qwen3moe", .n_layers = 94, .d_model = 4096, .n_heads = 64,
     .n_kv_heads = 4, .head_dim = 128, .n_vocab = 151936, .context = 40960, .d_ff = 12288,
     .n_experts = 128, .n_experts_used = 8, .d_expert = 1536, .rope_base = 1e6, .rms_eps = 1e-6,
     .qk_norms = NORMS_HEAD},
    {.name = "mixtral-8x7b", .architecture = "llama", .n_layers = 32, .d_model = 4096, .n_heads = 32,
     .n_kv_heads = 8, .head_dim = 128, .n_vocab = 32000, .context = 32768, .d_ff = 14336,
     .n_experts = 8, .n_experts_used = 2, .d_expert = 14336, .rope_base = 1e6, .rms_eps = 1e-5},
    {.name = "olmoe-1b-7b", .architecture = "olmoe", .n_layers = 16, .d_model = 2048, .n_heads = 16,
     .n_kv_heads = 16, .head_dim = 128, .n_vocab = 50304, .context = 4096, .d_ff = 1024,
     .n_experts = 64, .n_experts_used = 8, .d_expert = 1024, .rope_base = 1e4, .rms_eps = 1e-5,
     .qk_norms = NORMS_WHOLE},
    {.name = "tiny-qwen3", .architecture = "qwen3moe", .n_layers = 4, .d_model = 256, .n_heads = 4,
     .n_kv_heads = 2, .head_dim = 64, .n_vocab = 1024, .context = 4096, .d_ff = 512,
     .n_experts = 32, .n_experts_used = 4, .d_expert = 256, .rope_base = 1e6, .rms_eps = 1e-6,
     .qk_norms = NORMS_HEAD},
    {.name = "tiny-mixtral", .architecture = "llama", .n_layers = 4, .d_model = 256, .n_heads = 4,
     .n_kv_heads = 2, .head_dim = 64, .n_vocab = 1024, .context = 4096, .d_ff = 512,
     .n_experts = 8, .n_experts_used = 2, .d_expert = 512, .rope_base = 1e6, .rms_eps = 1e-5},
    {.name = "tiny-olmoe", .architecture = "olmoe", .n_layers = 4, .d_model = 256, .n_heads = 4,
     .n_kv_heads = 4, .head_dim = 64, .n_vocab = 1024, .context = 4096, .d_ff = 256,
     .n_experts = 16, .n_experts_used = 4, .d_expert = 256, .rope_base = 1e4, .rms_eps = 1e-5,
     .qk_norms = NORMS_WHOLE},
};

static const struct type_mix mixes[] = {
    {"q4_k_m", TENSOR_Q4_K, TENSOR_Q6_K, 15},
    {"f32",    TENSOR_F32,  TENSOR_F32,  0},
    {"f16",    TENSOR_F16,  TENSOR_F16,  1},
    {"bf16",   TENSOR_BF16, TENSOR_BF16, 32},
    {"q4_0",   TENSOR_Q4_0, TENSOR_Q4_0, 2},
    {"q4_1",   TENSOR_Q4_1, TENSOR_Q4_1, 3},
    {"q5_0",   TENSOR_Q5_0, TENSOR_Q5_0, 8},
    {"q5_1",   TENSOR_Q5_1, TENSOR_Q5_1, 9},
    {"q8_0",   TENSOR_Q8_0, TENSOR_Q8_0, 7},
    {"q2_k",   TENSOR_Q2_K, TENSOR_Q2_K, 10},
    {"q3_k",   TENSOR_Q3_K, TENSOR_Q3_K, 11},
    {"q4_k",   TENSOR_Q4_K, TENSOR_Q4_K, 14},
    {"q5_k",   TENSOR_Q5_K, TENSOR_Q5_K, 16},
    {"q6_k",   TENSOR_Q6_K, TENSOR_Q6_K, 18},
};
/* clang-format on */

#define COUNT(array) (sizeof(array) / sizeof(array)[0])

const struct shape *shape_at(size_t i)
{
    return i < COUNT(shapes) ? &shapes[i] : NULL;
}

const struct type_mix *type_mix_at(size_t i)
{
    return i < COUNT(mixes) ? &mixes[i] : NULL;
}

/* Adds ", name" to a list in text. */
static void list_add(char *text, size_t capacity, const char *name)
{
    size_t n = strlen(text);
    (void)snprintf(text + n, capacity - n, "%s%s", n > 0 ? ", " : "", name);
}

int shape_find(const struct shape **s, const char *name, struct error *err)
{
    char known[256] = "";
    for (size_t i = 0; i < COUNT(shapes); i++) {
        if (strcmp(shapes[i].name, name) == 0) {
            *s = &shapes[i];
            return 0;
        }
        list_add(known, sizeof known, shapes[i].name);
    }
    if (strcmp(name, "gpt-oss-20b") == 0)
        return error_set(err, EBB_EUNSUPPORTED,
                         "gpt-oss-20b: its architecture (gpt-oss) is not computed yet; wanted one "
                         "of %s",
                         known);
    return error_set(err, EBB_ENOENT, "no model '%s'; wanted one of %s", name, known);
}

int type_mix_find(const struct type_mix **m, const char *name, struct error *err)
{
    char known[256] = "";
    for (size_t i = 0; i < COUNT(mixes); i++) {
        if (strcmp(mixes[i].name, name) == 0) {
            *m = &mixes[i];
            return 0;
        }
        list_add(known, sizeof known, mixes[i].name);
    }
    return error_set(err, EBB_ENOENT, "--type-mix: wanted one of %s, got '%s'", known, name);
}
