/* attention.cu - which form of attention serves a call on a CUDA card (attention.cuh has the arithmetic).
 *
 * At most SPLIT_MOST rows go to the split form, which has blocks enough for one row and needs scratch; more go to the chunk form,
 * unless so many query heads share a KV head that a row does not fit its block. The choice depends on sizes alone, and
 * both forms give the same bits. Owns nothing.
 * Refuses (EBB_EUNSUPPORTED): KV_F32 and KV_Q8_0, head_dim that is no multiple of 16 or over HEAD_DIM_MAX, query heads that
 * are no multiple of the KV heads, places that are no multiple of 16 bytes.
 */
#include "kernels/attention.cuh"
#include "kernels/ops_cuda.h"

#define SPLIT_MOST            (2 * ATTENTION_SPLIT_ROWS)
#define ATTENTION_CHUNK_GROUP 32 /* most query heads of a KV head that the chunk form takes */

static bool is_computable(const struct attention_args *args)
{
    const struct kv_view *kv = &args->kv;
    uintptr_t places = (uintptr_t)kv->base | kv->block_stride | (uintptr_t)args->q |
                       (uintptr_t)args->out | (uintptr_t)args->scratch;
    bool dims = kv->head_dim > 0 && kv->head_dim % 16 == 0 && kv->head_dim <= HEAD_DIM_MAX;
    return kv->type == KV_F16 && dims && kv->n_kv_heads > 0 &&
           args->n_heads % kv->n_kv_heads == 0 && places % 16 == 0 &&
           args->n_positions <= INT32_MAX;
}

static bool is_split(const struct attention_args *args)
{
    return args->n_rows <= SPLIT_MOST ||
           args->n_heads / args->kv.n_kv_heads > ATTENTION_CHUNK_GROUP;
}

int attention_cuda(const struct attention_args *args, struct exec_stream *s)
{
    if (!is_computable(args))
        return EBB_EUNSUPPORTED;
    if (args->n_rows == 0 || args->n_heads == 0)
        return 0;
    return is_split(args) ? attention_split_cuda(args, NULL, s) : attention_chunk_cuda(args, s);
}

int attention_quantize_cuda(const struct attention_quantize_args *args, struct exec_stream *s)
{
    const struct attention_args *a = &args->attention;
    if (!is_computable(a))
        return EBB_EUNSUPPORTED;
    if (a->n_rows == 0 || a->n_heads == 0)
        return 0;
    /* A block of activations that two heads share is not for the join, which has a head at a time. */
    if (is_split(a) && a->kv.head_dim % 32 == 0)
        return attention_split_cuda(a, args->a, s);
    struct quantize_args quantize = {a->out, args->a, a->n_rows, a->n_heads * a->kv.head_dim};
    int rc = is_split(a) ? attention_split_cuda(a, NULL, s) : attention_chunk_cuda(a, s);
    return rc != 0 ? rc : quantize_cuda(&quantize, s);
}
