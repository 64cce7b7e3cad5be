/* protocol/error.h - what a call that can fail says.
 *
 * Every fallible call of every room returns int: 0, or one of the negative codes below, and fills the caller's
 * `struct error` (code and a sentence: what, where, wanted, got). The codes are one table because every one of
 * them may end as `ERR <tag> <code-name> <text>` on a line; error_code_name() gives that name.
 *
 * Header-only on purpose: it is one of the two headers that any room may include (see README, map of rooms),
 * so that the lower rooms need no library for it. Threads: an error belongs to one caller. Nothing here fails.
 */
#pragma once
#include <stdarg.h>
#include <stdio.h>

enum error_code {
    EBB_OK = 0,
    EBB_EINVAL = -1,       /* an argument or a line that breaks its contract */
    EBB_ENOMEM = -2,       /* host memory, or card memory that the driver would not give */
    EBB_EIO = -3,          /* a system call on a file, pipe or socket failed */
    EBB_EFORMAT = -4,      /* a file says something that cannot be */
    EBB_EUNSUPPORTED = -5, /* valid, but not built here */
    EBB_ERANGE = -6,       /* a number outside its range */
    EBB_EBUSY = -7,        /* not now: no credit, lent, full, still loading */
    EBB_EDRIVER = -8,      /* the card's driver refused; its words are in the text */
    EBB_EPEER = -9,        /* another process broke its word or is gone */
    EBB_ECANCEL = -10,     /* somebody asked for it to stop */
    EBB_ENOENT = -11,      /* no such file, tag, device, sequence, key */
    EBB_EAGAIN = -12,      /* nothing to take yet; come back after the next wake-up */
    EBB_EUNKNOWN_VERB = -13,
    EBB_EUNKNOWN_KEY = -14,
    EBB_ELINE_TOO_LONG = -15,
    EBB_EGONE = -16,     /* the tag or the connection has ended */
    EBB_EMISMATCH = -17, /* version, fingerprint, layer range or epoch differ */
};

struct error {
    int code;       /* EBB_OK or an error_code */
    char text[480]; /* one line, no newline, always terminated */
};

/* The name of a code as it stands in an ERR line: "bad-value", "unknown-verb", … Never NULL. */
static inline const char *error_code_name(int code)
{
    switch (code) {
    case EBB_OK: return "ok";
    case EBB_EINVAL: return "bad-value";
    case EBB_ENOMEM: return "out-of-memory";
    case EBB_EIO: return "io";
    case EBB_EFORMAT: return "bad-file";
    case EBB_EUNSUPPORTED: return "unsupported";
    case EBB_ERANGE: return "out-of-range";
    case EBB_EBUSY: return "busy";
    case EBB_EDRIVER: return "driver";
    case EBB_EPEER: return "peer";
    case EBB_ECANCEL: return "cancelled";
    case EBB_ENOENT: return "not-found";
    case EBB_EAGAIN: return "again";
    case EBB_EUNKNOWN_VERB: return "unknown-verb";
    case EBB_EUNKNOWN_KEY: return "unknown-key";
    case EBB_ELINE_TOO_LONG: return "line-too-long";
    case EBB_EGONE: return "gone";
    case EBB_EMISMATCH: return "mismatch";
    default: return "error";
    }
}

/* Fills err (which may be NULL) and returns code, so that `return error_set(err, EBB_EINVAL, "…")` reads as one act. */
__attribute__((format(printf, 3, 4))) static inline int error_set(struct error *err, int code,
                                                                  const char *format, ...)
{
    if (err != NULL) {
        va_list args;
        err->code = code;
        va_start(args, format);
        (void)vsnprintf(err->text, sizeof err->text, format, args);
        va_end(args);
        for (char *c = err->text; *c != '\0'; c++)
            if (*c == '\n' || *c == '\r')
                *c = ' ';
    }
    return code;
}
