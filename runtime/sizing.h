/* runtime/sizing.h - what the coordinator decides before LOAD: context, KV positions, segment size,
 * chunk.
 *
 * Pure arithmetic on the model's geometry, the plan and what each card's HELLO says. It only
 * chooses; whether it fits is for the stage to say, which knows its driver. Given values are taken
 * as they are. A chunk that was not given has 64 rows, 1024 where all cards of the run are CUDA
 * cards. Workspace for chunk_min of them is every stage's own; for more it is lent by the expert cache.
 */
#pragma once
#include "runtime/model/model.h"
#include "runtime/plan.h"
#include "runtime/settings.h"

struct sizes {
    uint32_t context, kv_tokens, kv_tokens_max, chunk, chunk_min, n_sequences;
    uint64_t segment_mib;
    const char *kv; /* as LOAD names it: f16, q8_0, f32; constant */
};

/* total_mib: [plan->n_stages], of the cards. attempt 0; each later one asks for less (rows of a long
 * chunk that was not given, KV, then rows of a chunk). EBB_ERANGE: values that exclude each other. EBB_EAGAIN: attempt > 0 and nothing is
 * left to make smaller. */
int sizing_choose(struct sizes *out, const struct settings *s, const struct model *m,
                  const struct plan *plan, const uint64_t *total_mib, uint32_t attempt,
                  struct error *err);

/* Bytes of n_values keys or values of one position, as a stage stores them. */
uint64_t sizing_kv_bytes(const struct sizes *z, uint64_t n_values);

/* Bytes of a layer's and of a stage's tensors that are not experts, as a stage lays them out. */
uint64_t sizing_layer_bytes(const struct model *m, uint32_t layer);
uint64_t sizing_dense_bytes(const struct model *m, const struct plan *plan, uint32_t stage);
/* --vram-mib of a card: as given; 0 where the stage's own default serves; a share of this machine's
 * memory where several CPU cards of one host were given none. */
uint64_t sizing_vram_mib(const struct settings *s, const struct card_setting *card,
                         uint64_t available_mib);
uint64_t sizing_available_mib(void); /* MemAvailable */
