/* dequantise_test.c - weights come out as the format's reference library has them. Seen through
 * embed(), which is nothing but the dequantised rows of its table. */
#include <stdio.h>
#include "inputs.h"

static void *file_read(const char *name, const char *suffix, size_t *bytes)
{
    char path[512];
    (void)snprintf(path, sizeof path, "%s/quant/%s.%s", EBBTIDE_TEST_DATA, name, suffix);
    FILE *f = fopen(path, "rb");
    cr_assert_not_null(f, "%s", path);
    cr_assert_eq(fseek(f, 0, SEEK_END), 0);
    *bytes = (size_t)ftell(f);
    rewind(f);
    void *data = bytes_of(*bytes);
    cr_assert_eq(fread(data, 1, *bytes, f), *bytes);
    (void)fclose(f);
    return data;
}

Test(dequantise, gives_every_value_of_the_reference_vectors_bit_for_bit)
{
    struct card card = card_open(1);
    const struct kernel_set *set = set_named("reference");
    for (size_t t = 1; t < N_TYPES; t++) { /* F32 is what the values themselves are */
        const struct tensor_type_info *info = tensor_type_find(type_at(t));
        size_t block_bytes, value_bytes;
        void *blocks = file_read(info->name, "blocks", &block_bytes);
        float *wanted = file_read(info->name, "f32", &value_bytes);
        size_t n_blocks = block_bytes / info->block_bytes;
        cr_assert_eq(value_bytes, n_blocks * info->block_values * sizeof(float));

        float *got = bytes_of(value_bytes);
        int32_t token = 0;
        struct embed_args args = {.type = info->type,
                                  .table = blocks,
                                  .n_vocab = 1,
                                  .d_model = n_blocks * info->block_values,
                                  .n_rows = 1,
                                  .tokens = &token,
                                  .hidden = got};
        cr_assert_eq(set->embed(&args, card.stream), 0);
        card_wait(&card);
        cr_assert_eq(memcmp(got, wanted, value_bytes), 0, "%s", info->name);
        free(blocks), free(wanted), free(got);
    }
    card_close(&card);
}
