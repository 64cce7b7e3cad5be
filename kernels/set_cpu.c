/* set_cpu.c - the tables of CPU operations and the choice between them.
 *
 * Four constant tables: "reference" is plain C and defines the bits, "avx2" gives the same bits with AVX2, FMA and
 * F16C, "avx512" with those and AVX-512 with VNNI, "float" measures (fp64 sums, activations not quantised). Operations
 * without a faster form are shared.
 * kernel_set_cpu() asks the processor (and through it the operating system) what it runs; nothing is kept, any
 * thread may call. Refuses a set whose instructions the processor lacks.
 */
#include "kernels/ops_cpu.h"
#include <string.h>

static const struct kernel_set set_reference = {
    .name = "reference",
    .activation_bytes = activation_bytes_reference,
    .experts_scratch_bytes = experts_scratch_bytes_reference,
    .sample_scratch_bytes = sample_scratch_bytes_cpu,
    .embed = embed_cpu,
    .rmsnorm = rmsnorm_reference,
    .quantize = quantize_reference,
    .product = product_reference,
    .rope_angles = rope_angles_cpu,
    .head_rope = head_rope_reference,
    .kv_store = kv_store_reference,
    .attention = attention_reference,
    .router = router_reference,
    .experts = experts_reference,
    .combine = combine_cpu,
    .swiglu = swiglu_reference,
    .shared_add = shared_add_reference,
    .gather = gather_cpu,
    .move = move_cpu,
    .sample = sample_reference,
    .top = top_cpu,
    .logprob = logprob_reference,
};

static const struct kernel_set set_avx2 = {
    .name = "avx2",
    .activation_bytes = activation_bytes_avx2,
    .experts_scratch_bytes = experts_scratch_bytes_avx2,
    .sample_scratch_bytes = sample_scratch_bytes_cpu,
    .embed = embed_cpu,
    .rmsnorm = rmsnorm_avx2,
    .quantize = quantize_avx2,
    .product = product_avx2,
    .rope_angles = rope_angles_cpu,
    .head_rope = head_rope_avx2,
    .kv_store = kv_store_avx2,
    .attention = attention_avx2,
    .router = router_avx2,
    .experts = experts_avx2,
    .combine = combine_avx2,
    .swiglu = swiglu_avx2,
    .shared_add = shared_add_avx2,
    .gather = gather_cpu,
    .move = move_cpu,
    .sample = sample_avx2,
    .top = top_cpu,
    .logprob = logprob_avx2,
};

static const struct kernel_set set_avx512 = {
    .name = "avx512",
    .activation_bytes = activation_bytes_reference,
    .experts_scratch_bytes = experts_scratch_bytes_reference,
    .sample_scratch_bytes = sample_scratch_bytes_cpu,
    .embed = embed_cpu,
    .rmsnorm = rmsnorm_avx512,
    .quantize = quantize_avx512,
    .product = product_avx512,
    .rope_angles = rope_angles_cpu,
    .head_rope = head_rope_avx512,
    .kv_store = kv_store_avx512,
    .attention = attention_avx512,
    .router = router_avx512,
    .experts = experts_avx512,
    .combine = combine_avx512,
    .swiglu = swiglu_avx512,
    .shared_add = shared_add_avx512,
    .gather = gather_cpu,
    .move = move_cpu,
    .sample = sample_avx512,
    .top = top_cpu,
    .logprob = logprob_avx512,
};

static const struct kernel_set set_float = {
    .name = "float",
    .activation_bytes = activation_bytes_float,
    .experts_scratch_bytes = experts_scratch_bytes_float,
    .sample_scratch_bytes = sample_scratch_bytes_cpu,
    .embed = embed_cpu,
    .rmsnorm = rmsnorm_float,
    .quantize = quantize_float,
    .product = product_float,
    .rope_angles = rope_angles_cpu,
    .head_rope = head_rope_float,
    .kv_store = kv_store_reference,
    .attention = attention_float,
    .router = router_float,
    .experts = experts_float,
    .combine = combine_cpu,
    .swiglu = swiglu_float,
    .shared_add = shared_add_float,
    .gather = gather_cpu,
    .move = move_cpu,
    .sample = sample_reference,
    .top = top_cpu,
    .logprob = logprob_reference,
};

static bool processor_runs_avx2(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __builtin_cpu_supports("f16c");
#else
    return false;
#endif
}

static bool processor_runs_avx512(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_cpu_init();
    return processor_runs_avx2() && __builtin_cpu_supports("avx512f") &&
           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni");
#else
    return false;
#endif
}

/* A set, and what it needs of the processor: words for people, and the question (NULL: nothing). */
static const struct choice {
    const struct kernel_set *set;
    const char *wants;
    bool (*runs)(void);
} choices[] = {
    {&set_avx512, "AVX2, FMA, F16C and AVX-512 F, BW, VL, DQ and VNNI", processor_runs_avx512},
    {&set_avx2, "AVX2, FMA and F16C", processor_runs_avx2},
    {&set_reference, "", NULL},
    {&set_float, "", NULL},
};
#define N_CHOICES (sizeof choices / sizeof choices[0])

const struct kernel_set *kernel_set_cpu(const char *name, struct error *err)
{
    bool any = strcmp(name, "auto") == 0; /* the first that runs: the fastest */
    for (const struct choice *c = choices; c < choices + N_CHOICES; c++) {
        bool runs = c->runs == NULL || c->runs();
        if (runs && (any || strcmp(name, c->set->name) == 0))
            return c->set;
        if (!runs && strcmp(name, c->set->name) == 0) {
            error_set(err, EBB_EUNSUPPORTED,
                      "kernel set %s: wants a processor with %s; this one lacks them", name,
                      c->wants);
            return NULL;
        }
    }
    error_set(err, EBB_ENOENT, "kernel set: wants auto, reference, avx2, avx512 or float, got '%s'",
              name);
    return NULL;
}
