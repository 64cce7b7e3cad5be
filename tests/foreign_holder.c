/* tests/foreign_holder.c - a program that has nothing to do with ebbtide and sits on a CPU card's
 * memory.
 *
 *   foreign-holder --namespace X --device K --mib N [--runtime-dir D]
 *
 * Takes N MiB of cpu:K in the account of namespace X, prints "held", waits for the end of its stdin
 * and gives back. It knows no capacity: like a foreign program it takes what it wants. Exit: 0, 1
 * when the account refuses, 2 for a wrong call.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "vmm/driver.h"

#define MIB ((uint64_t)1 << 20)

static int usage(void)
{
    (void)fputs("usage: foreign-holder --namespace X --device K --mib N [--runtime-dir D]\n",
                stderr);
    return 2;
}

static int number(const char *text, long max, long *out)
{
    char *end;
    *out = strtol(text, &end, 10);
    return text[0] != '\0' && *end == '\0' && *out >= 0 && *out <= max ? 0 : -1;
}

static int hold(const struct vmm_host_settings *settings, uint64_t bytes, struct error *err)
{
    struct vmm_driver d;
    vmm_handle handle;
    char sink[256];
    int code = vmm_driver_host_open(&d, settings, err);
    if (code != 0)
        return code;
    code = d.create(&d, bytes, &handle, err);
    if (code == 0) {
        (void)puts("held");
        (void)fflush(stdout);
        while (read(STDIN_FILENO, sink, sizeof sink) > 0)
            ;
        code = d.destroy(&d, handle, err);
    }
    d.close(&d);
    return code;
}

int main(int argc, char **argv)
{
    struct vmm_host_settings settings = {.capacity_bytes = INT64_MAX};
    struct error err = {0};
    long device = 0, mib = 0;
    for (int i = 1; i < argc; i += 2) {
        if (i + 1 == argc)
            return usage();
        const char *value = argv[i + 1];
        int code = 0;
        if (strcmp(argv[i], "--namespace") == 0)
            settings.name_space = value;
        else if (strcmp(argv[i], "--runtime-dir") == 0)
            settings.runtime_dir = value;
        else if (strcmp(argv[i], "--device") == 0)
            code = number(value, 4095, &device);
        else if (strcmp(argv[i], "--mib") == 0)
            code = number(value, 1 << 24, &mib);
        else
            code = -1;
        if (code != 0)
            return usage();
    }
    if (mib == 0)
        return usage();
    settings.device = (int)device;
    if (hold(&settings, (uint64_t)mib * MIB, &err) != 0) {
        (void)fprintf(stderr, "foreign-holder: %s\n", err.text);
        return 1;
    }
    return 0;
}
