/* kv_store_test.c - keys and values stored by a CUDA card: the bytes that the CPU stores, and none beside them. */
#include "pair.h"

enum { ROWS = 70, SEQUENCES = 3, TABLE = 4, BLOCKS = SEQUENCES * TABLE };

static void both_store(struct pair *p, size_t n_kv_heads, size_t head_dim, enum kv_type type,
                       float *k, float *v)
{
    size_t n = n_kv_heads * head_dim, value = type == KV_F16 ? 2 : 4;
    size_t stride = 2 * KV_BLOCK_TOKENS * n * value + (n % 8 == 0 ? 64 : 4);
    unsigned char *gpu = pair_new(p, BLOCKS * stride), *cpu = pair_new(p, BLOCKS * stride);
    int32_t *tables = pair_new(p, BLOCKS * sizeof *tables);
    int32_t *sequence = pair_new(p, ROWS * sizeof *sequence);
    int32_t *positions = pair_new(p, ROWS * sizeof *positions);
    for (int32_t i = 0; i < BLOCKS; i++)
        tables[i] = (i * 5 + 3) % BLOCKS;
    for (int32_t r = 0; r < ROWS; r++) {
        bool inert = r % 7 == 5;
        sequence[r] = inert ? 1 << 30 : r % SEQUENCES;
        positions[r] = inert ? -1 - r : 17 + r;
    }
    memset(gpu, 0xee, BLOCKS * stride);
    memset(cpu, 0xee, BLOCKS * stride);
    struct kv_store_args args = {
        {gpu, stride, type, n_kv_heads, head_dim, tables, TABLE, sequence, positions}, k, v, ROWS};
    cr_assert_eq(p->cuda->kv_store(&args, p->stream), 0);
    args.kv.base = cpu;
    cr_assert_eq(p->reference->kv_store(&args, p->cpu.stream), 0);
    pair_wait(p);
    cr_assert_eq(memcmp(gpu, cpu, BLOCKS * stride), 0, "%zu heads of %zu, type %d", n_kv_heads,
                 head_dim, (int)type);
}

Test(kv_store, the_bytes_are_those_of_the_cpu_in_both_types_for_any_shape)
{
    static const size_t shapes[][2] = {{4, 128}, {2, 64}, {1, 256}, {3, 96},
                                       {4, 16},  {2, 80}, {1, 20},  {3, 7}};
    struct pair p = pair_open();
    uint64_t state = 51;
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        size_t n = ROWS * shapes[i][0] * shapes[i][1], bytes = n * sizeof(float);
        float *k = pair_take(&p, values_of(n, INPUT_RANDOM, &state), bytes);
        float *v = pair_take(&p, values_of(n, INPUT_ONE_HUGE, &state), bytes);
        both_store(&p, shapes[i][0], shapes[i][1], KV_F16, k, v);
        both_store(&p, shapes[i][0], shapes[i][1], KV_F32, k, v);
    }
    pair_close(&p);
}

Test(kv_store, half_floats_are_rounded_as_on_the_cpu_over_their_whole_range)
{
    static const float edges[] = {
        0.0f,       -0.0f,    65504.0f,     65519.996f,   65520.0f,    -1e30f, 0x1p-24f, 0x1p-25f,
        0x1.8p-25f, 0x1p-14f, 0x1.ffcp-15f, 0x1.00201p0f, 0x1.0060p0f, 1e-45f, INFINITY, -INFINITY};
    enum { N = ROWS * 4 * 128 };
    struct pair p = pair_open();
    uint64_t state = 52;
    float *x[2];
    for (int j = 0; j < 2; j++) {
        x[j] = pair_new(&p, N * sizeof(float));
        for (size_t i = 0; i < N; i++) {
            /* below 2, or up to 2^17 */
            uint32_t bits = random_bits(&state) & 0xbfffffffu;
            memcpy(&x[j][i], &bits, sizeof bits);
            if (i % 3 == 0)
                x[j][i] = ldexpf(random_value(&state), (int)(i % 18));
            if (i < sizeof edges / sizeof edges[0])
                x[j][i] = edges[i];
        }
    }
    both_store(&p, 4, 128, KV_F16, x[0], x[1]);
    pair_close(&p);
}

Test(kv_store, shapes_without_kernels_are_refused)
{
    struct pair p = pair_open();
    struct kv_store_args args = {.kv = {.n_kv_heads = 1, .head_dim = HEAD_DIM_MAX + 1},
                                 .n_rows = 1};
    cr_assert_eq(p.cuda->kv_store(&args, p.stream), EBB_EUNSUPPORTED);
    args.kv.head_dim = 64;
    args.kv.type = (enum kv_type)7;
    cr_assert_eq(p.cuda->kv_store(&args, p.stream), EBB_EUNSUPPORTED);
    pair_close(&p);
}
