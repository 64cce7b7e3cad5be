/* stages/registration.h - the pages of the model file that a device card reads: the experts of the stage's layers, which kernels read
 * where they lie when they are not in the cache, and the dense weights, which are copied from there.
 *
 * cuMemHostRegister pins whole pages, and no page twice. So the tensors' byte ranges are widened to pages, joined where they touch,
 * and cut into pieces that are registered one at a time, between lines. A card that is no device registers nothing.
 * Threads: the control thread. Owns the list of pieces; the mapping is the model's and must outlive the registration.
 */
#pragma once
#include "kernels/exec.h"
#include "runtime/model/model.h"

struct registration_piece {
    unsigned char *base; /* page-aligned */
    size_t bytes;
};

struct registration {
    const struct exec_driver *exec; /* borrowed, with its card */
    struct exec *card;
    struct registration_piece *pieces; /* owned, ascending, sharing no page */
    size_t n_pieces, n_done;
    uint64_t bytes, done_bytes; /* of all pieces; of those registered */
};

/* Lists what a stage of layers [first, last] reads. EBB_ENOMEM. */
int registration_open(struct registration *r, const struct exec_driver *exec, struct exec *card,
                      const struct model *model, uint32_t layer_first, uint32_t layer_last,
                      struct error *err);
void registration_close(
    struct registration *r); /* gives back what was registered; a zeroed one is fine */

/* Registers the next piece. 1 = there was none left, 0 = one was registered, < 0: the driver refused. */
int registration_next(struct registration *r, struct error *err);
