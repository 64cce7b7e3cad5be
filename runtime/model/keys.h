/* runtime/model/keys.h - reading the keys of one architecture, each with its prefix and its range.
 *
 * For geometry.c and rotation.c. A key that was read last is what REFUSE() names.
 */
#pragma once
#include "runtime/model/arch.h"
#include "runtime/model/show.h"

#define ROTATION_TENSOR "rope_freqs.weight" /* read by rotation.c; no view of the model's */

enum presence { REQUIRED, OPTIONAL };

struct keys {
    const struct arch *arch;
    const struct gguf *g;
    struct error *err;
    char key[128]; /* the last one asked for, with its prefix */
};

/* For the key asked for last. */
#define REFUSE(k, code, format, ...)                                                               \
    error_set((k)->err, code, "%s: metadata key %s: " format, show_path(gguf_path((k)->g)),        \
              (k)->key, __VA_ARGS__)

static inline const char *key_of(struct keys *k, const char *name)
{
    (void)snprintf(k->key, sizeof k->key, "%s.%s", k->arch->name, name);
    return k->key;
}

/* An absent optional key leaves *value as it was. */
static inline int finish(struct keys *k, int rc, enum presence p)
{
    if (rc != EBB_ENOENT)
        return rc;
    return p == OPTIONAL ? 0 : REFUSE(k, EBB_EFORMAT, "wants a number, got %s", "none");
}

/* 1..max. */
static inline int read_u32(struct keys *k, const char *name, enum presence p, uint32_t max,
                           uint32_t *value)
{
    return finish(k, gguf_u32(k->g, key_of(k, name), 1, max, value, k->err), p);
}

static inline int read_f32(struct keys *k, const char *name, enum presence p, float *value)
{
    return finish(k, gguf_f32(k->g, key_of(k, name), value, k->err), p);
}

/* rotation.c: n_rot, the base, the pairing, and inv_freq and rope_scale by the file's scaling.
 * head_dim and context_max are known already. */
int rotation_read(struct keys *k, struct model_geometry *m);
