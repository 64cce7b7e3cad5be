/* tests/unit/vmm/nvml_test.c - NVML is opened once, asked as its interface says, and never required (tests/fake_nvml.c). */
#include "tests/unit/vmm/cache_help.h"

#include <dlfcn.h>
#include <string.h>
#include "vmm/nvml.h"

/* Loads the fake, so that it is the one of its name. */
static void *fake_load(void)
{
    void *fake = dlopen(EBBTIDE_FAKE_NVML, RTLD_NOW);
    cr_assert_not_null(fake, "%s", dlerror());
    return fake;
}

Test(nvml, is_opened_once_whatever_is_asked)
{
    unsigned int *n_init = dlsym(fake_load(), "fake_nvml_n_init");
    struct nvml_memory memory;
    struct vmm_holder list[VMM_HOLDERS_MAX];
    size_t n;
    for (int i = 0; i < 3; i++) {
        cr_assert(nvml_memory_read("GPU-fake", &memory));
        cr_assert_not(nvml_memory_read("GPU-other", &memory));
        nvml_holders_read("GPU-fake", list, &n);
    }
    cr_assert_eq(*n_init, 1);
    cr_assert_eq(memory.total, 1000);
    cr_assert_eq(memory.free, 300);
    cr_assert_eq(memory.used, 700);
}

Test(nvml, a_process_of_both_lists_counts_once_and_an_older_name_of_a_list_serves)
{
    struct vmm_holder list[VMM_HOLDERS_MAX];
    size_t n;
    (void)fake_load();
    nvml_holders_read("GPU-fake", list, &n);
    cr_assert_eq(n, 4);
    const struct {
        int64_t pid;
        uint64_t bytes;
    } wanted[] = {{2000000002, 500}, {2000000003, 70}, {1, 10}, {2000000001, 0}};
    for (size_t i = 0; i < n; i++) {
        cr_assert_eq(list[i].pid, wanted[i].pid);
        cr_assert_eq(list[i].bytes, wanted[i].bytes, "what is not told is 0");
    }
    nvml_holders_read("GPU-other", list, &n);
    cr_assert_eq(n, 0);
}

Test(nvml, one_that_refuses_to_start_is_none)
{
    int *refuses = dlsym(fake_load(), "fake_nvml_refuses");
    struct nvml_memory memory;
    *refuses = 9;
    cr_assert_not(nvml_memory_read("GPU-fake", &memory));
    *refuses = 0;
    cr_assert_not(nvml_memory_read("GPU-fake", &memory), "it was asked once");
}
