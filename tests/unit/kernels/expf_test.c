/* expf_test.c - the project's own exponential and the SwiGLU made of it. */
#include "inputs.h"
#include "kernels/expf.h"

static float from_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Distance to the true value in units of the fp32 spacing at it. */
static double error_ulp(float x)
{
    double wanted = exp((double)x);
    float near = (float)wanted;
    if (isinf(near) || isinf(ebb_expf(x)))
        return isinf(near) && isinf(ebb_expf(x)) ? 0.0 : INFINITY;
    return fabs((double)ebb_expf(x) - wanted) / ((double)nextafterf(near, INFINITY) - (double)near);
}

Test(expf, errs_by_less_than_two_ulp_over_its_whole_range)
{
    double worst = 0.0;
    float worst_x = 0.0f;
    for (uint64_t bits = 0; bits < 0x100000000ull; bits += 307) {
        float x = from_bits((uint32_t)bits);
        if (!(x > -104.0f && x < 89.0f))
            continue;
        double e = error_ulp(x);
        if (e > worst)
            worst = e, worst_x = x;
    }
    for (uint32_t i = 0; i < 4000000; i++) {
        float x = -104.0f + (float)i * (193.0f / 4000000.0f);
        double e = error_ulp(x);
        if (e > worst)
            worst = e, worst_x = x;
    }
    cr_assert_lt(worst, 2.0, "%g ulp at %a", worst, (double)worst_x);
}

Test(expf, ends_in_zero_infinity_and_nan)
{
    cr_assert_eq(ebb_expf(0.0f), 1.0f);
    cr_assert_eq(ebb_expf(-0.0f), 1.0f);
    cr_assert_eq(ebb_expf(INFINITY), INFINITY);
    cr_assert_eq(ebb_expf(3e38f), INFINITY);
    cr_assert_eq(ebb_expf(88.73f), INFINITY);
    cr_assert_lt(ebb_expf(88.72f), INFINITY);
    cr_assert_eq(ebb_expf(-INFINITY), 0.0f);
    cr_assert_eq(ebb_expf(-104.0f), 0.0f);
    cr_assert_not(signbit(ebb_expf(-3e38f)));
    cr_assert_eq(ebb_expf(-103.0f), 0x1p-149f * 1.0f);
    cr_assert_gt(ebb_expf(-90.0f), 0.0f); /* subnormal, not flushed */
    cr_assert(isnan(ebb_expf(NAN)));
}

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
#include "kernels/expf_avx2.h"
static size_t lanes_that_differ(const float x[8])
{
    float eight[8];
    size_t n = 0;
    _mm256_storeu_ps(eight, ebb_expf8(_mm256_loadu_ps(x)));
    for (int i = 0; i < 8; i++) {
        float one = ebb_expf(x[i]);
        n += memcmp(&one, &eight[i], sizeof one) != 0;
    }
    return n;
}
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq")
#include "kernels/expf_avx512.h"
static size_t lanes_that_differ_of_16(const float x[16])
{
    float sixteen[16];
    size_t n = 0;
    _mm512_storeu_ps(sixteen, ebb_expf16(_mm512_loadu_ps(x)));
    for (int i = 0; i < 16; i++) {
        float one = ebb_expf(x[i]);
        n += memcmp(&one, &sixteen[i], sizeof one) != 0;
    }
    return n;
}
#pragma GCC pop_options

Test(expf, eight_lanes_give_the_bits_of_one)
{
    if (set_named("avx2") == NULL)
        cr_skip("this processor has no AVX2");
    static const float special[8] = {0.0f,        -0.0f,        INFINITY, -INFINITY,
                                     88.7228394f, -103.972077f, 1e-45f,   -87.4f};
    size_t n = lanes_that_differ(special);
    for (uint64_t bits = 0; bits < 0x100000000ull; bits += 8 * 43) {
        float x[8];
        for (uint32_t i = 0; i < 8; i++)
            x[i] = from_bits((uint32_t)bits + 43 * i);
        n += lanes_that_differ(x);
    }
    cr_assert_eq(n, 0, "%zu values differ", n);
}

Test(expf, sixteen_lanes_give_the_bits_of_one)
{
    if (set_named("avx512") == NULL)
        cr_skip("this processor has no AVX-512 with VNNI");
    static const float special[16] = {
        0.0f,   -0.0f,  INFINITY, -INFINITY, 88.7228394f, -103.972077f, 1e-45f, -87.4f,
        88.73f, 88.72f, -104.0f,  -103.0f,   3e38f,       -3e38f,       89.0f,  -90.0f};
    size_t n = lanes_that_differ_of_16(special);
    for (uint64_t bits = 0; bits < 0x100000000ull; bits += 16 * 43) {
        float x[16];
        for (uint32_t i = 0; i < 16; i++)
            x[i] = from_bits((uint32_t)bits + 43 * i);
        n += lanes_that_differ_of_16(x);
    }
    cr_assert_eq(n, 0, "%zu values differ", n);
}
#endif

static void swiglu_run(const char *name, struct card *card, const struct swiglu_args *args)
{
    cr_assert_eq(set_named(name)->swiglu(args, card->stream), 0);
    card_wait(card);
}

Test(swiglu, is_the_formula_in_every_set_and_may_write_over_its_gate)
{
    enum { N = 1003 };
    struct card card = card_open(2);
    uint64_t state = 3;
    float *gate = values_of(N, INPUT_RANDOM, &state), *up = values_of(N, INPUT_RANDOM, &state);
    float reference[N], other[N];
    gate[0] = -200.0f, gate[1] = 200.0f, gate[2] = -89.0f, gate[3] = 0.0f, gate[4] = -3e38f,
    gate[5] = 1e-40f;
    struct swiglu_args args = {gate, up, reference, 17, 59};
    swiglu_run("reference", &card, &args);
    for (size_t i = 0; i < N; i++)
        cr_assert_eq(reference[i], gate[i] * (1.0f / (1.0f + ebb_expf(-gate[i]))) * up[i]);
    args.y = other;
    swiglu_run("float", &card, &args);
    for (size_t i = 0; i < N; i++)
        cr_assert_float_eq(other[i], reference[i], 1e-6f * fabsf(reference[i]) + 1e-36f);
    for (size_t s = 1; s < N_EXACT; s++)
        if (set_named(set_names[s]) != NULL) {
            memcpy(other, gate, sizeof other);
            args.gate = args.y = other;
            swiglu_run(set_names[s], &card, &args);
            cr_assert_eq(memcmp(other, reference, sizeof reference), 0);
        }
    free(gate), free(up);
    card_close(&card);
}
