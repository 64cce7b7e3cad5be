/* tests/unit/model/bad_file_test.c - a file that is not what it should be is refused in one line
 * that names the file and the field, says what was wanted and what was got, and nothing is
 * opened or crashed by it. */
#include <criterion/criterion.h>
#include <string.h>
#include "tests/unit/model/patched.h"
#include "runtime/model/gguf.h"
#include "runtime/model/model.h"
#include "runtime/model/tokenizer.h"

static void expect_refusal(const char *path, int code, const char *what, const char *const *says)
{
    struct error err = {0};
    struct model *m = NULL;
    int rc = model_open(&m, path, &err);
    cr_assert(rc == code && err.code == code, "%s: wants %s, got %s: %s", what,
              error_code_name(code), error_code_name(rc), err.text);
    cr_assert(m == NULL, "%s", what);
    cr_assert(strstr(err.text, path) == err.text, "%s: no path in: %s", what, err.text);
    cr_assert(strpbrk(err.text, "\r\n") == NULL, "%s: %s", what, err.text);
    for (size_t i = 0; says != NULL && i < 3 && says[i] != NULL; i++)
        cr_assert(strstr(err.text, says[i]) != NULL, "%s: no \"%s\" in: %s", what, says[i],
                  err.text);
}

struct change {
    const char *behind; /* a key or tensor, or NULL: `skip` counts from the file's start */
    ptrdiff_t skip;
    uint64_t value;   /* n_bytes of it, little-endian */
    size_t n_bytes;   /* 0: none */
    const char *text; /* or this text instead */
};

struct bad_file {
    const char *what;
    struct change changes[2];
    int code;
    const char *says[3];
};

/* Offsets behind a tensor's name. */
#define DIM(d)            (4 + 8 * (d))
#define TYPE_OF(n_dims)   (4 + 8 * (n_dims))
#define OFFSET_OF(n_dims) (8 + 8 * (n_dims))
#define TWO_TO(n)         ((uint64_t)1 << (n))
#define ARCH(key)         "qwen3moe." key

static const struct bad_file bad_files[] = {
    /* header */
    {"a zip archive", {{.text = "PK\003\004"}}, EBB_EFORMAT, {"magic", "\"GGUF\"", "zip"}},
    {"a web page", {{.text = "<!DO"}}, EBB_EFORMAT, {"magic", "\"<!DO\"", "web page"}},
    {"version 1",
     {{NULL, 4, 1, 4, NULL}},
     EBB_EUNSUPPORTED,
     {"header: version: wants 2 or 3, got 1"}},
    {"version 4",
     {{NULL, 4, 4, 4, NULL}},
     EBB_EUNSUPPORTED,
     {"header: version: wants 2 or 3, got 4"}},
    {"big-endian", {{NULL, 4, 0x03000000, 4, NULL}}, EBB_EUNSUPPORTED, {"version", "big-endian"}},
    {"2^60 tensors",
     {{NULL, 8, TWO_TO(60), 8, NULL}},
     EBB_EFORMAT,
     {"tensor count", "1152921504606846976"}},
    {"2^60 values",
     {{NULL, 16, TWO_TO(60), 8, NULL}},
     EBB_EFORMAT,
     {"metadata count", "1152921504606846976"}},
    {"2^64 - 1 tensors", {{NULL, 8, UINT64_MAX, 8, NULL}}, EBB_EFORMAT, {"tensor count"}},
    {"one tensor too many", {{NULL, 8, 100, 8, NULL}}, EBB_EFORMAT, {"tensor"}},
    {"one value too many", {{NULL, 16, 29, 8, NULL}}, EBB_EFORMAT, {"tensor 1 of 99"}},

    /* metadata */
    {"a key of 2^40 bytes",
     {{NULL, 24, TWO_TO(40), 8, NULL}},
     EBB_EFORMAT,
     {"metadata key 1 of 28", "bytes short"}},
    {"a key of 0 bytes", {{NULL, 24, 0, 8, NULL}}, EBB_EFORMAT, {"metadata key 1 of 28", "got 0"}},
    {"a string of 2^40 bytes",
     {{"general.name", 4, TWO_TO(40), 8, NULL}},
     EBB_EFORMAT,
     {"general.name", "1099511627776", "bytes short"}},
    {"a string of 2^64 - 1 bytes",
     {{"general.name", 4, UINT64_MAX, 8, NULL}},
     EBB_EFORMAT,
     {"general.name", "bytes short"}},
    {"a value of no type",
     {{"general.name", 0, 77, 4, NULL}},
     EBB_EFORMAT,
     {"general.name", "value type", "got 77"}},
    {"an array of 2^60 strings",
     {{"tokenizer.ggml.tokens", 8, TWO_TO(60), 8, NULL}},
     EBB_EFORMAT,
     {"tokenizer.ggml.tokens", "array's length"}},
    {"an array of 2^62 numbers",
     {{"tokenizer.ggml.token_type", 8, TWO_TO(62), 8, NULL}},
     EBB_EFORMAT,
     {"tokenizer.ggml.token_type", "array's length"}},
    {"an array of arrays",
     {{"tokenizer.ggml.tokens", 4, 9, 4, NULL}},
     EBB_EFORMAT,
     {"tokenizer.ggml.tokens"}},
    {"a string that is no text",
     {{"general.name", 12, 0, 0, "e\xff"}},
     EBB_EFORMAT,
     {"general.name", "wants UTF-8, got byte 0xff"}},
    {"a key that is no text", {{NULL, 32, 0xc0, 1, NULL}}, EBB_EFORMAT, {"key wants UTF-8"}},
    {"a token that is no text",
     {{"tokenizer.ggml.tokens", 24, 0xff, 1, NULL}},
     EBB_EFORMAT,
     {"tokenizer.ggml.tokens", "wants UTF-8, got byte 0xff"}},
    {"a tensor's name that is no text",
     {{"blk.0.attn_q.weight", -1, 0xfe, 1, NULL}},
     EBB_EFORMAT,
     {"name wants UTF-8"}},
    {"an array of no type",
     {{"tokenizer.ggml.tokens", 4, 13, 4, NULL}},
     EBB_EFORMAT,
     {"tokenizer.ggml.tokens", "element type", "got 13"}},
    {"a key twice",
     {{"tokenizer.ggml.bos_token_id", -27, 0, 0, "tokenizer.ggml.eos"}},
     EBB_EFORMAT,
     {"tokenizer.ggml.eos_token_id", "wants one value, got two"}},
    {"alignment 0",
     {{"general.file_type", -17, 0, 0, "general.alignment"}, {"general.file_type", 4, 0, 4, NULL}},
     EBB_EFORMAT,
     {"general.alignment", "got 0"}},
    {"alignment 12",
     {{"general.file_type", -17, 0, 0, "general.alignment"}, {"general.file_type", 4, 12, 4, NULL}},
     EBB_EFORMAT,
     {"general.alignment", "power of two", "got 12"}},
    {"alignment 4",
     {{"general.file_type", -17, 0, 0, "general.alignment"}, {"general.file_type", 4, 4, 4, NULL}},
     EBB_EFORMAT,
     {"general.alignment", "got 4"}},
    {"alignment as a float",
     {{"general.file_type", -17, 0, 0, "general.alignment"}, {"general.file_type", 0, 6, 4, NULL}},
     EBB_EFORMAT,
     {"general.alignment", "wants an integer", "f32"}},
    {"alignment that the tensors break",
     {{"general.file_type", -17, 0, 0, "general.alignment"},
      {"general.file_type", 4, 65536, 4, NULL}},
     EBB_EFORMAT,
     {"offset", "multiple of 65536"}},

    /* tensor table */
    {"a name of 2^40 bytes",
     {{"token_embd.weight", -25, TWO_TO(40), 8, NULL}},
     EBB_EFORMAT,
     {"tensor 1 of 99", "bytes short"}},
    {"no dimensions",
     {{"blk.0.attn_q.weight", 0, 0, 4, NULL}},
     EBB_EFORMAT,
     {"blk.0.attn_q.weight", "dimension count", "got 0"}},
    {"five dimensions",
     {{"blk.0.attn_q.weight", 0, 5, 4, NULL}},
     EBB_EFORMAT,
     {"blk.0.attn_q.weight", "dimension count", "got 5"}},
    {"a dimension of 0",
     {{"blk.0.attn_q.weight", DIM(1), 0, 8, NULL}},
     EBB_EFORMAT,
     {"blk.0.attn_q.weight", "dimension 1", "got 0"}},
    {"a dimension of 2^42",
     {{"blk.0.attn_q.weight", DIM(1), TWO_TO(42), 8, NULL}},
     EBB_EFORMAT,
     {"blk.0.attn_q.weight", "256 x 4398046511104", "bytes short"}},
    {"a dimension of 2^63",
     {{"blk.0.attn_q.weight", DIM(1), TWO_TO(63), 8, NULL}},
     EBB_EFORMAT,
     {"blk.0.attn_q.weight", "2^64 values"}},
    {"a row that is no whole block",
     {{"blk.0.attn_q.weight", DIM(0), 255, 8, NULL}},
     EBB_EFORMAT,
     {"blk.0.attn_q.weight", "row length", "got 255"}},
    {"an offset off the alignment",
     {{"blk.0.attn_q.weight", OFFSET_OF(2), 1977345, 8, NULL}},
     EBB_EFORMAT,
     {"blk.0.attn_q.weight", "offset", "multiple of 32"}},
    {"an offset of 2^64 - 32",
     {{"blk.0.attn_q.weight", OFFSET_OF(2), UINT64_MAX - 31, 8, NULL}},
     EBB_EFORMAT,
     {"blk.0.attn_q.weight", "offset"}},
    {"a tensor past the end",
     {{"blk.7.ffn_down_exps.weight", OFFSET_OF(3), 18316288 + 4096, 8, NULL}},
     EBB_EFORMAT,
     {"blk.7.ffn_down_exps.weight", "256 x 256 x 16", "ends 4096 bytes short"}},
    {"a tensor far past the end",
     {{"blk.0.attn_q.weight", OFFSET_OF(2), TWO_TO(50), 8, NULL}},
     EBB_EFORMAT,
     {"blk.0.attn_q.weight", "bytes short"}},
    {"tensors that overlap",
     {{"blk.0.attn_q.weight", OFFSET_OF(2), 1977344 - 32, 8, NULL}},
     EBB_EFORMAT,
     {"offset", "1977344", "got 1977312"}},
    {"tensors in one place",
     {{"blk.0.attn_k.weight", OFFSET_OF(2), 1977344, 8, NULL}},
     EBB_EFORMAT,
     {"offset", "got 1977344"}},
    {"a name twice",
     {{"blk.0.attn_q.weight", -8, 0, 0, "k"}},
     EBB_EFORMAT,
     {"blk.0.attn_k.weight", "wants one tensor, got two"}},

    /* what a model needs */
    {"another architecture",
     {{"general.architecture", 12, 0, 0, "qwen3mox"}},
     EBB_EUNSUPPORTED,
     {"general.architecture", "qwen3moe", "got \"qwen3mox\""}},
    {"no architecture",
     {{"general.architecture", -1, 0, 0, "X"}},
     EBB_EFORMAT,
     {"general.architecture", "got none"}},
    {"a missing tensor",
     {{"blk.7.attn_q.weight", -8, 0, 0, "x"}},
     EBB_EFORMAT,
     {"blk.7.attn_q.weight", "wants one, got none"}},
    {"no embedding",
     {{"token_embd.weight", -1, 0, 0, "x"}},
     EBB_EFORMAT,
     {"token_embd.weight", "wants one, got none"}},
    {"a tensor that is not computed with",
     {{ARCH("block_count"), 4, 7, 4, NULL}},
     EBB_EUNSUPPORTED,
     {"blk.7.", "wants no such tensor"}},
    {"a layer too few",
     {{ARCH("block_count"), 4, 9, 4, NULL}},
     EBB_EFORMAT,
     {"blk.8.attn_norm.weight", "got none"}},
    {"a wrong shape",
     {{"blk.0.attn_q.weight", DIM(1), 256, 8, NULL}},
     EBB_EFORMAT,
     {"blk.0.attn_q.weight", "wants 256 x 512, got 256 x 256"}},
    {"experts of a wrong count",
     {{"blk.3.ffn_up_exps.weight", DIM(2), 15, 8, NULL}},
     EBB_EFORMAT,
     {"blk.3.ffn_up_exps.weight", "wants 256 x 256 x 16, got 256 x 256 x 15"}},
    {"a type that is known by name only",
     {{"blk.0.attn_q.weight", TYPE_OF(2), 39, 4, NULL}},
     EBB_EUNSUPPORTED,
     {"blk.0.attn_q.weight", "got MXFP4 (39)"}},
    {"a type that nobody knows",
     {{"blk.0.attn_q.weight", TYPE_OF(2), 1000, 4, NULL}},
     EBB_EUNSUPPORTED,
     {"blk.0.attn_q.weight", "type 1000"}},
    {"a norm in F16",
     {{"blk.0.attn_norm.weight", TYPE_OF(1), 1, 4, NULL}},
     EBB_EUNSUPPORTED,
     {"blk.0.attn_norm.weight", "wants F32, got F16"}},
    {"a vocabulary of two sizes",
     {{"token_embd.weight", DIM(1), 4095, 8, NULL}},
     EBB_EFORMAT,
     {"tokenizer.ggml.tokens", "4095", "got 4096"}},
    {"0 layers",
     {{ARCH("block_count"), 4, 0, 4, NULL}},
     EBB_EFORMAT,
     {ARCH("block_count"), "got 0"}},
    {"2^32 - 1 layers",
     {{ARCH("block_count"), 4, UINT32_MAX, 4, NULL}},
     EBB_EFORMAT,
     {ARCH("block_count"), "got 4294967295"}},
    {"layers as a string",
     {{ARCH("block_count"), -1, 0, 0, "x"}},
     EBB_EFORMAT,
     {ARCH("block_count"), "got none"}},
    {"a width of 0",
     {{ARCH("embedding_length"), 4, 0, 4, NULL}},
     EBB_EFORMAT,
     {ARCH("embedding_length"), "got 0"}},
    {"another width",
     {{ARCH("embedding_length"), 4, 512, 4, NULL}},
     EBB_EFORMAT,
     {"token_embd.weight", "wants 512 x 4096, got 256 x 4096"}},
    {"a context of 0",
     {{ARCH("context_length"), 4, 0, 4, NULL}},
     EBB_EFORMAT,
     {ARCH("context_length"), "got 0"}},
    {"head_count 0",
     {{ARCH("attention.head_count"), 4, 0, 4, NULL}},
     EBB_EFORMAT,
     {ARCH("attention.head_count:"), "got 0"}},
    {"head_count_kv 0",
     {{ARCH("attention.head_count_kv"), 4, 0, 4, NULL}},
     EBB_EFORMAT,
     {ARCH("attention.head_count_kv"), "got 0"}},
    {"head_count_kv 3",
     {{ARCH("attention.head_count_kv"), 4, 3, 4, NULL}},
     EBB_EFORMAT,
     {ARCH("attention.head_count_kv"), "divisor of 8", "got 3"}},
    {"head_count_kv 16",
     {{ARCH("attention.head_count_kv"), 4, 16, 4, NULL}},
     EBB_EFORMAT,
     {ARCH("attention.head_count_kv"), "got 16"}},
    {"key_length 0",
     {{ARCH("attention.key_length"), 4, 0, 4, NULL}},
     EBB_EFORMAT,
     {ARCH("attention.key_length"), "got 0"}},
    {"key_length 512",
     {{ARCH("attention.key_length"), 4, 512, 4, NULL}},
     EBB_EFORMAT,
     {ARCH("attention.key_length"), "got 512"}},
    {"values of another length",
     {{ARCH("attention.value_length"), 4, 32, 4, NULL}},
     EBB_EUNSUPPORTED,
     {ARCH("attention.value_length"), "wants 64", "got 32"}},
    {"more rotated than there is",
     {{ARCH("attention.key_length"), -20, 0, 0, "rope.dimension_count"},
      {ARCH("attention.value_length"), 4, 32, 4, NULL}},
     EBB_EFORMAT,
     {ARCH("rope.dimension_count"), "wants 1..32, got 64"}},
    {"an epsilon of 0",
     {{ARCH("attention.layer_norm_rms_epsilon"), 4, 0, 4, NULL}},
     EBB_EFORMAT,
     {"layer_norm_rms_epsilon", "got 0"}},
    {"an epsilon that is no number",
     {{ARCH("attention.layer_norm_rms_epsilon"), 4, 0x7fc00000, 4, NULL}},
     EBB_EFORMAT,
     {"layer_norm_rms_epsilon", "finite"}},
    {"a rotation base of 0",
     {{ARCH("rope.freq_base"), 4, 0, 4, NULL}},
     EBB_EFORMAT,
     {ARCH("rope.freq_base"), "got 0"}},
    {"no experts",
     {{ARCH("expert_count"), 4, 0, 4, NULL}},
     EBB_EFORMAT,
     {ARCH("expert_count"), "got 0"}},
    {"no expert used",
     {{ARCH("expert_used_count"), 4, 0, 4, NULL}},
     EBB_EFORMAT,
     {ARCH("expert_used_count"), "got 0"}},
    {"more experts used than there are",
     {{ARCH("expert_used_count"), 4, 17, 4, NULL}},
     EBB_EFORMAT,
     {ARCH("expert_used_count"), "wants 1..16, got 17"}},
    {"more experts used than are computed",
     {{ARCH("expert_used_count"), 4, 17, 4, NULL}, {ARCH("expert_count"), 4, 32, 4, NULL}},
     EBB_EUNSUPPORTED,
     {ARCH("expert_used_count"), "wants at most 16, got 17"}},
    {"another expert width",
     {{ARCH("expert_feed_forward_length"), 4, 128, 4, NULL}},
     EBB_EFORMAT,
     {"ffn_gate_exps", "wants 256 x 128 x 16, got 256 x 256 x 16"}},
};

static void apply(struct patched *p, const struct change *c)
{
    size_t at =
        (size_t)((ptrdiff_t)(c->behind != NULL ? patched_behind(p, c->behind) : 0) + c->skip);
    if (c->text != NULL)
        patched_bytes(p, at, c->text, strlen(c->text));
    else if (c->n_bytes != 0)
        patched_number(p, at, c->value, c->n_bytes);
}

Test(bad_file, is_refused_naming_file_and_field)
{
    static struct patched p;
    patched_open(&p);
    for (size_t i = 0; i < sizeof bad_files / sizeof bad_files[0]; i++) {
        const struct bad_file *bad = &bad_files[i];
        apply(&p, &bad->changes[0]);
        apply(&p, &bad->changes[1]);
        expect_refusal(p.path, bad->code, bad->what, bad->says);
        patched_restore(&p);
    }
    struct model *m;
    struct error err;
    cr_assert(model_open(&m, p.path, &err) == 0, "the copy itself: %s", err.text);
    model_close(m);
    patched_close(&p);
}

Test(bad_file, truncated_anywhere_is_refused)
{
    static struct patched p;
    patched_open(&p);
    for (size_t bytes = (DEMO_BYTES - 1) / 65536 * 65536; bytes > DEMO_TABLE_BYTES;
         bytes -= 65536) {
        patched_truncate(&p, bytes);
        expect_refusal(p.path, EBB_EFORMAT, "in the tensors", (const char *[3]){"tensor", "short"});
    }
    for (size_t bytes = DEMO_TABLE_BYTES; bytes > 4096; bytes -= 1009) {
        patched_truncate(&p, bytes);
        expect_refusal(p.path, EBB_EFORMAT, "in the tables", (const char *[3]){" file "});
    }
    for (size_t bytes = 4096; bytes-- > 24;) {
        patched_truncate(&p, bytes);
        expect_refusal(p.path, EBB_EFORMAT, "early in the tables", NULL);
    }
    for (size_t bytes = 24; bytes-- > 1;) {
        patched_truncate(&p, bytes);
        expect_refusal(p.path, EBB_EFORMAT, "in the header", (const char *[3]){"header"});
    }
    patched_close(&p);
}

Test(bad_file, of_another_kind_is_named)
{
    static struct patched p;
    expect_refusal(EBBTIDE_TEST_DATA, EBB_EFORMAT, "a directory", (const char *[3]){"directory"});
    expect_refusal("/dev/null", EBB_EFORMAT, "a device", (const char *[3]){"device"});
    expect_refusal(EBBTIDE_TEST_DATA "/none.gguf", EBB_ENOENT, "no file",
                   (const char *[3]){"cannot open"});
    expect_refusal(EBBTIDE_TEST_DATA "/routing.json", EBB_EFORMAT, "JSON",
                   (const char *[3]){"magic", "JSON"});
    patched_open(&p);
    patched_truncate(&p, 0);
    expect_refusal(p.path, EBB_EFORMAT, "empty", (const char *[3]){"empty"});
    patched_truncate(&p, 65);
    expect_refusal(p.path, EBB_EFORMAT, "65 zeros", (const char *[3]){"magic", "zeros"});
    patched_bytes(&p, 0, p.demo, 65);
    expect_refusal(p.path, EBB_EFORMAT, "65 bytes", (const char *[3]){"wants at most"});
    patched_close(&p);
}

/* Opens all there is to open; what comes of it does not matter. */
static void open_everything(const char *path)
{
    struct error err;
    struct gguf *g;
    struct model *m;
    struct tokenizer *t;
    int32_t ids[64];
    size_t n_ids = 0;
    if (gguf_open(&g, path, &err) == 0) {
        if (tokenizer_open(&t, g, &err) == 0) {
            (void)tokenizer_encode(t, "Call me <|im_end|>", 18, true, ids, 64, &n_ids, &err);
            tokenizer_close(t);
        }
        gguf_close(g);
    }
    if (model_open(&m, path, &err) == 0)
        model_close(m);
}

static uint64_t random_next(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    uint64_t x = *state ^ *state >> 29;
    return x * 0x9e3779b97f4a7c15u >> 16;
}

/* Half of the places lie in the first 1 KiB and in the tensor table, where the structure is. */
static size_t random_place(uint64_t *state)
{
    switch (random_next(state) % 4) {
    case 0: return random_next(state) % 1024;
    case 1: return DEMO_TABLE_BYTES - 1 - random_next(state) % 6000;
    default: return random_next(state) % DEMO_TABLE_BYTES;
    }
}

Test(bad_file, with_flipped_bytes_never_crashes)
{
    static struct patched p;
    uint64_t state = 20240607;
    patched_open(&p);
    for (int i = 0; i < 2000; i++) {
        size_t at = random_place(&state);
        patched_number(&p, at, p.demo[at] ^ (1 + random_next(&state) % 255), 1);
        open_everything(p.path);
        patched_bytes(&p, at, p.demo + at, 1);
    }
    patched_close(&p);
}

Test(bad_file, with_extreme_numbers_never_crashes)
{
    static const uint64_t extremes[] = {
        0,          1,          1u << 31,   UINT32_MAX,     TWO_TO(32),
        TWO_TO(62), TWO_TO(63), UINT64_MAX, UINT64_MAX - 7, DEMO_BYTES};
    static struct patched p;
    uint64_t state = 7;
    patched_open(&p);
    for (int i = 0; i < 1000; i++) {
        size_t at = random_place(&state), n = random_next(&state) % 2 == 0 ? 4 : 8;
        if (at + n > DEMO_TABLE_BYTES)
            at = DEMO_TABLE_BYTES - n;
        patched_number(&p, at, extremes[random_next(&state) % 10], n);
        open_everything(p.path);
        patched_bytes(&p, at, p.demo + at, n);
    }
    patched_close(&p);
}
