/* runtime/cmd_doctor.c - `ebbtide doctor`: every check, a line each, and what to do where one does not hold.
 *
 * Takes the engine's flags, so that it looks at the run that is meant. Exit 0: everything will work; 1: something will not.
 */
#include "runtime/commands.h"

#include "runtime/doctor.h"

static int doctor_go(const struct settings *s)
{
    static const char *const words[] = {
        [FINDING_OK] = "ok", [FINDING_MIND] = "mind", [FINDING_FAILS] = "FAILS"};
    size_t counts[3] = {0};
    for (size_t i = 0; i < n_doctor_checks; i++) {
        struct finding f = {0};
        doctor_checks[i].look(s, &f);
        counts[f.level]++;
        printf("%-5s  %-13s  %s\n", words[f.level], doctor_checks[i].name, f.text);
        if (f.fix[0] != '\0')
            printf("%-5s  %-13s  -> %s\n", "", "", f.fix);
    }
    printf("\n%zu ok, %zu to mind, %zu that will not work\n", counts[FINDING_OK],
           counts[FINDING_MIND], counts[FINDING_FAILS]);
    return counts[FINDING_FAILS] == 0 ? STATUS_DONE : STATUS_FAILED;
}

int command_doctor_run(const struct command *c, int argc, char **argv)
{
    return command_flags_only(c, argc, argv, doctor_go);
}
