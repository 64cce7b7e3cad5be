/* tests/unit/runtime/inspect_test.c - `ebbtide inspect` says the same in JSON whatever the model, and ends as it should. */
#include <criterion/criterion.h>
#include <jansson.h>
#include <stdio.h>
#include <unistd.h>
#include "runtime/commands.h"

/* What the command writes to stdout, as JSON; *status is its exit status. */
static json_t *inspect_json(const char *path, int *status)
{
    char *argv[] = {"ebbtide", "inspect", (char *)path, "--json", "--cards", "2", NULL};
    FILE *out = tmpfile();
    int keep = dup(STDOUT_FILENO);
    json_error_t error;
    cr_assert(out != NULL && keep >= 0 && dup2(fileno(out), STDOUT_FILENO) >= 0);
    *status = command_main(6, argv);
    (void)fflush(stdout);
    (void)dup2(keep, STDOUT_FILENO);
    close(keep);
    rewind(out);
    json_t *all = json_loadf(out, 0, &error);
    (void)fclose(out);
    return all;
}

static json_int_t integer(const json_t *o, const char *key)
{
    cr_assert(json_is_integer(json_object_get(o, key)), "%s", key);
    return json_integer_value(json_object_get(o, key));
}

Test(inspect, json_adds_up_to_the_files_tensors)
{
    int status;
    json_t *all = inspect_json(EBBTIDE_TEST_DATA "/demo-moe-30m-q4_k_m.gguf", &status), *one;
    json_int_t by_type = 0, by_split = 0;
    size_t i;
    cr_assert(all != NULL && status == STATUS_DONE);
    cr_assert(json_is_true(json_object_get(all, "supported")));
    cr_assert(json_array_size(json_object_get(all, "problems")) == 0);
    cr_assert(integer(json_object_get(all, "geometry"), "experts") == 16);
    cr_assert(json_array_size(json_object_get(all, "layers")) == 8);
    json_array_foreach(json_object_get(all, "types"), i, one) by_type += integer(one, "bytes");
    one = json_array_get(json_object_get(all, "splits"), 1);
    cr_assert(integer(one, "cards") == 2);
    json_t *shares = json_object_get(one, "shares");
    json_array_foreach(shares, i, one)
    {
        by_split += integer(one, "dense_bytes") + integer(one, "expert_bytes");
        cr_assert(integer(one, "kv_bytes_per_1000_tokens") == 4 * 2 * 2 * 64 * 2 * 1000);
    }
    cr_assert(by_type > 0 && by_type == by_split && by_type < integer(all, "bytes"));
    json_decref(all);
}

Test(inspect, of_every_small_model_is_json)
{
    static const char *const names[] = {"llama", "llama-rope3", "mixtral", "olmoe",
                                        "qwen2", "qwen2moe",    "qwen3",   "qwen3moe"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char path[512];
        int status;
        (void)snprintf(path, sizeof path, EBBTIDE_TEST_DATA "/arch/%s.gguf", names[i]);
        json_t *all = inspect_json(path, &status);
        cr_assert(all != NULL && status == STATUS_DONE, "%s", names[i]);
        cr_assert(json_array_size(json_object_get(all, "layers")) == 2, "%s", names[i]);
        json_decref(all);
    }
}

Test(inspect, of_what_is_no_model_fails)
{
    int status;
    cr_assert(inspect_json(EBBTIDE_TEST_DATA "/routing.json", &status) == NULL);
    cr_assert(status == STATUS_FAILED);
}
