/* tests/unit/criterion_tsan.c - lets Criterion start under the thread sanitizer.
 *
 * Criterion hands its tests over in memory that both processes map at one address, which it draws by rand_r() from
 * [0x2000.., 0x6000..) in steps of 16 MiB. Most of that range belongs to the thread sanitizer, which refuses it. This
 * rand_r() takes the place of the C library's in the programs that it is linked into, and draws from
 * [0x550000000000, 0x554000000000): the sanitizer leaves it to programs, and no loader puts anything there.
 */
#include <stdlib.h>

int rand_r(unsigned *seed)
{
    *seed = *seed * 1103515245u + 12345u;
    return (int)(0x350000u + (*seed >> 16) % 0x4000u);
}
