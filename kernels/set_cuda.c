/* set_cuda.c - the table of CUDA operations, and which form of a product serves a call.
 *
 * Steps of few rows go to the matrix-vector forms, longer ones to the tensor cores, at first by the form that keeps to the weights'
 * speed, then by the one that shares what it unpacks; unquantised weights have a form of their own. The choice depends on sizes
 * and types alone, all forms give the same bits for quantised types, and where one refuses a shape the next serves it.
 */
#include <string.h>
#include "kernels/ops_cuda.h"

static bool is_quantised(uint32_t type)
{
    const struct tensor_type_info *info = tensor_type_find(type);
    return info != NULL && info->block_values > 1;
}

static size_t round_up(size_t n, size_t to)
{
    return (n + to - 1) / to * to;
}

/* kernels/activation.cuh */
static size_t activation_bytes_cuda(size_t n)
{
    size_t scales = round_up(n / 32 * sizeof(float), 16);
    return round_up(n + 2 * scales + n / 16 * sizeof(int16_t), 64);
}

static size_t experts_scratch_bytes_cuda(size_t n_rows, size_t n_used, size_t n_experts,
                                         size_t d_model, size_t d_expert)
{
    size_t sizes[] = {experts_rows_scratch_cuda(n_rows < CUDA_ROWS_MAX ? n_rows : CUDA_ROWS_MAX,
                                                n_used, n_experts, d_model, d_expert),
                      experts_few_scratch_cuda(n_rows, n_used, n_experts, d_model, d_expert),
                      experts_tiles_scratch_cuda(n_rows, n_used, n_experts, d_model, d_expert),
                      experts_plain_scratch_cuda(n_rows, n_used, n_experts, d_model, d_expert)};
    size_t most = 0;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        most = sizes[i] > most ? sizes[i] : most;
    return most;
}

static int product_cuda(const struct product_args *args, struct exec_stream *s)
{
    int rc = EBB_EUNSUPPORTED;
    if (!is_quantised(args->type))
        return product_plain_cuda(args, s);
    if (args->n_rows > CUDA_ROWS_MAX && args->n_rows <= CUDA_FEW_MAX)
        rc = product_few_cuda(args, s);
    if (rc != EBB_EUNSUPPORTED)
        return rc;
    return args->n_rows <= CUDA_ROWS_MAX ? product_rows_cuda(args, s) : product_tiles_cuda(args, s);
}

/* Experts that two rows share are worth grouping, until there are so many rows that each has more than a few. */
static bool few_serves(const struct experts_args *args)
{
    return args->n_rows >= CUDA_FEW_EXPERTS_MIN &&
           args->n_rows * args->n_used <= CUDA_FEW_PAIRS_EACH * args->n_experts;
}

static int experts_cuda(const struct experts_args *args, struct exec_stream *s)
{
    int rc = EBB_EUNSUPPORTED;
    if (!is_quantised(args->gate_type) || !is_quantised(args->up_type) ||
        !is_quantised(args->down_type))
        return experts_plain_cuda(args, s);
    if (few_serves(args))
        rc = experts_few_cuda(args, s);
    if (rc != EBB_EUNSUPPORTED)
        return rc;
    return args->n_rows <= CUDA_ROWS_MAX ? experts_rows_cuda(args, s) : experts_tiles_cuda(args, s);
}

static const struct kernel_set set_cuda = {
    .name = "cuda",
    .activation_bytes = activation_bytes_cuda,
    .experts_scratch_bytes = experts_scratch_bytes_cuda,
    .sample_scratch_bytes = sample_scratch_bytes_cuda,
    .attention_scratch_bytes = attention_scratch_bytes_cuda,
    .embed = embed_cuda,
    .rmsnorm = rmsnorm_cuda,
    .quantize = quantize_cuda,
    .product = product_cuda,
    .rope_angles = rope_angles_cuda,
    .head_rope = head_rope_cuda,
    .kv_store = kv_store_cuda,
    .attention = attention_cuda,
    .router = router_cuda,
    .experts = experts_cuda,
    .combine = combine_cuda,
    .swiglu = swiglu_cuda,
    .shared_add = shared_add_cuda,
    .gather = gather_cuda,
    .move = move_cuda,
    .sample = sample_cuda,
    .top = top_cuda,
    .logprob = logprob_cuda,
    .rmsnorm_quantize = rmsnorm_quantize_cuda,
    .heads_store = heads_store_cuda,
    .attention_quantize = attention_quantize_cuda,
};

const struct kernel_set *kernel_set_cuda(const char *name, struct error *err)
{
    if (strcmp(name, "auto") == 0 || strcmp(name, "cuda") == 0)
        return &set_cuda;
    error_set(err, EBB_ENOENT, "kernel set: a CUDA card has auto or cuda, got '%s'", name);
    return NULL;
}
