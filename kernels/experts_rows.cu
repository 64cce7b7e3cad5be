/* experts_rows.cu - the routed experts of a layer for few rows (NUMERICS tier 1): launchers of product_rows.cuh's kernel.
 *
 *   hidden[pair][d_expert]  = swiglu(gate a[row], up a[row])   one launch; two where gate and up are of two types
 *   outputs[pair][d_model]  = down hidden[pair]                one launch, which quantises hidden on the way
 *
 * A pair is row * n_used + rank; its expert and where that lies are read when the work runs. Pairs without an expert do
 * nothing. Heat and hits are counted in the first launch. Refuses what the kernel refuses, before anything is launched.
 */
#include "kernels/activation.cuh"
#include "kernels/exec_cuda.h"
#include "kernels/ops_cuda.h"
#include "kernels/product_rows.cuh"

size_t experts_rows_scratch_cuda(size_t n_rows, size_t n_used, size_t n_experts, size_t d_model,
                                 size_t d_expert)
{
    (void)n_experts, (void)d_model;
    return activation_round(n_rows * n_used * d_expert * sizeof(float), 64);
}

static struct rows_job job_of(const struct experts_args *args, enum rows_form form)
{
    const bool down = form == ROWS_DOWN, first = form == ROWS_GATE_UP || form == ROWS_GATE;
    struct rows_job job = {};
    job.form = form;
    job.addresses = args->addresses;
    job.ids = args->ids;
    job.n_in = down ? args->d_expert : args->d_model;
    job.n_out = down ? args->d_model : args->d_expert;
    job.n_rows = args->n_rows;
    job.n_used = args->n_used;
    job.n_experts = args->n_experts;
    job.a = args->a;
    job.hidden = (float *)args->scratch;
    job.y = args->outputs;
    job.heat = first ? args->heat : NULL;
    job.hits = args->hits;
    return job;
}

static int form_launch(const struct experts_args *args, enum rows_form form, uint32_t type,
                       struct exec_stream *s)
{
    const struct rows_job job = job_of(args, form);
    return rows_launch(type, &job, rows_plan_choose(type, &job), s);
}

int experts_rows_cuda(const struct experts_args *args, struct exec_stream *s)
{
    int rc;
    if (tensor_row_bytes(args->gate_type, args->d_model) == 0 ||
        tensor_row_bytes(args->up_type, args->d_model) == 0 ||
        tensor_row_bytes(args->down_type, args->d_expert) == 0 || args->n_used > EXPERTS_USED_MAX)
        return EBB_EUNSUPPORTED;
    if (args->n_rows == 0 || args->n_used == 0)
        return 0;
    if (args->gate_type == args->up_type) {
        rc = form_launch(args, ROWS_GATE_UP, args->gate_type, s);
    } else {
        rc = form_launch(args, ROWS_GATE, args->gate_type, s);
        if (rc == 0)
            rc = form_launch(args, ROWS_UP, args->up_type, s);
    }
    return rc == 0 ? form_launch(args, ROWS_DOWN, args->down_type, s) : rc;
}
