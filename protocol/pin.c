/* protocol/pin.c - reads none, cores, numa, or a list of processors and ranges of them (see pin.h). Pure. */
#include "protocol/pin.h"

#include <stdlib.h>
#include <string.h>

/* Decimal digits at *cursor, which moves behind them; -1: none, or too high. */
static long number_take(const char **cursor)
{
    size_t n = strspn(*cursor, "0123456789");
    long value = n > 0 && n < 6 ? strtol(*cursor, NULL, 10) : -1;
    *cursor += n;
    return value < PIN_PROCESSORS_MAX ? value : -1;
}

static bool list_read(struct pin *pin, const char *text)
{
    const char *c = text;
    for (;; c++) {
        long first = number_take(&c), last = first;
        if (*c == '-') {
            c++;
            last = number_take(&c);
        }
        if (first < 0 || last < first)
            return false;
        for (long i = first; i <= last; i++)
            pin->listed[i] = true;
        if (*c != ',')
            return *c == '\0';
    }
}

int pin_parse(struct pin *pin, const char *text, struct error *err)
{
    static const char *const words[] = {"none", "cores", "numa"};
    *pin = (struct pin){.how = PIN_LIST};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        if (strcmp(text, words[i]) == 0) {
            pin->how = (enum pin_how)i;
            return 0;
        }
    if (strlen(text) >= PIN_TEXT_MAX)
        return error_set(err, EBB_ERANGE, "wanted at most %d bytes, got %zu", PIN_TEXT_MAX - 1,
                         strlen(text));
    if (!list_read(pin, text))
        return error_set(err, EBB_EINVAL,
                         "wanted none, cores, numa or processors such as 0-7,16 (below %d), got "
                         "'%.64s'",
                         PIN_PROCESSORS_MAX, text);
    return 0;
}
