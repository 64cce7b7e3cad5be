/* tools/bench/card_no_cuda.c - in place of card_cuda.c where the CUDA halves are not built. */
#include "tools/bench/card.h"

const struct card_tables *card_tables_cuda(void)
{
    return NULL;
}
