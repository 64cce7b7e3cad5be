/* runtime/doctor.h - what of this machine an engine needs: one check after the other, each with what was found and, where
 * something will not work, how to mend it.
 *
 * Checks look and do not change anything but the runtime directory, which an engine would make too. Threads: one.
 */
#pragma once
#include "runtime/settings.h"

enum finding_level { FINDING_OK, FINDING_MIND, FINDING_FAILS };

struct finding {
    enum finding_level level;
    char text[1200];
    char fix[320]; /* "" : nothing to do */
};

struct doctor_check {
    const char *name;
    void (*look)(const struct settings *s, struct finding *f);
};

extern const struct doctor_check doctor_checks[];
extern const size_t n_doctor_checks;

/* Sets level, text and fix; fix may be NULL. */
__attribute__((format(printf, 4, 5))) void finding_set(struct finding *f, enum finding_level level,
                                                       const char *fix, const char *format, ...);

/* doctor_gpu.c */
bool doctor_wants_cuda(const struct settings *s); /* of this host */
void doctor_cards(const struct settings *s, struct finding *f);
void doctor_cuda_driver(const struct settings *s, struct finding *f);
void doctor_cuda_cards(const struct settings *s, struct finding *f);

/* doctor_machine.c */
void doctor_processor(const struct settings *s, struct finding *f);
void doctor_cores(const struct settings *s, struct finding *f);
void doctor_kernel(const struct settings *s, struct finding *f);
void doctor_limits(const struct settings *s, struct finding *f);
void doctor_memlock(const struct settings *s, struct finding *f);
void doctor_shm(const struct settings *s, struct finding *f);
