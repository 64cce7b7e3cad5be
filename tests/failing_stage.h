/* tests/failing_stage.h - whose card it is that fails: failing_cpu.c or gpu/failing_cuda.c, one in each program. */
#pragma once
#include "stages/platform.h"

/* The card's own tables; `program`, `list` and `describe` are not used. */
const struct platform *failing_card(void);
