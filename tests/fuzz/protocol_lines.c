/* tests/fuzz/protocol_lines.c - the fuzz target of the line protocol, for libFuzzer:
 *
 *   clang -g -O1 -D_GNU_SOURCE -I. -fsanitize=fuzzer,address,undefined tests/fuzz/protocol_lines.c \
 *       protocol/line.c protocol/message.c protocol/grammar.c protocol/vram.c -o build/fuzz-lines
 *   build/fuzz-lines -max_len=4096 -max_total_time=60
 *
 * The promises are in protocol_lines.h, which the unit tests run too, with seeded random bytes.
 */
#include "tests/fuzz/protocol_lines.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
    fuzz_protocol_lines((const char *)data, n_bytes);
    return 0;
}
