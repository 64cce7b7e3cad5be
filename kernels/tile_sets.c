/* kernels/tile_sets.c - the launchers of the reference, AVX2 and AVX-512 sets for quantised data: names over
 * one walk.
 *
 * Owns nothing. What the sets share is in product.c and experts.c; what they do not, in
 * tile_reference.c, tile_avx2.c and tile_avx512.c. Nothing is refused here.
 */
#include "kernels/ops_cpu.h"
#include "kernels/tile.h"

size_t activation_bytes_reference(size_t n)
{
    return activation_row_bytes(n);
}

size_t activation_bytes_avx2(size_t n)
{
    return activation_row_bytes(n);
}

int quantize_reference(const struct quantize_args *args, struct exec_stream *s)
{
    return quantize_push(args, &tile_ops_reference, s);
}

int quantize_avx2(const struct quantize_args *args, struct exec_stream *s)
{
    return quantize_push(args, &tile_ops_avx2, s);
}

int quantize_avx512(const struct quantize_args *args, struct exec_stream *s)
{
    return quantize_push(args, &tile_ops_avx512, s);
}

int product_reference(const struct product_args *args, struct exec_stream *s)
{
    return product_push(args, &tile_ops_reference, s);
}

int product_avx2(const struct product_args *args, struct exec_stream *s)
{
    return product_push(args, &tile_ops_avx2, s);
}

int product_avx512(const struct product_args *args, struct exec_stream *s)
{
    return product_push(args, &tile_ops_avx512, s);
}

int experts_reference(const struct experts_args *args, struct exec_stream *s)
{
    return experts_push(args, &tile_ops_reference, s);
}

int experts_avx2(const struct experts_args *args, struct exec_stream *s)
{
    return experts_push(args, &tile_ops_avx2, s);
}

int experts_avx512(const struct experts_args *args, struct exec_stream *s)
{
    return experts_push(args, &tile_ops_avx512, s);
}

int swiglu_reference(const struct swiglu_args *args, struct exec_stream *s)
{
    return swiglu_push(args, &tile_ops_reference, s);
}

int swiglu_avx2(const struct swiglu_args *args, struct exec_stream *s)
{
    return swiglu_push(args, &tile_ops_avx2, s);
}

int swiglu_avx512(const struct swiglu_args *args, struct exec_stream *s)
{
    return swiglu_push(args, &tile_ops_avx512, s);
}
