/* An operation of your own: y = a * x + b, f32. Hosts that have never heard of it call it by name, by
 * its manifest. */
#include "ruvllm_kernel.h"

RUVLLM_KERNEL(affine_forward) {
    const uint32_t rows = ruvllm_symbol(call), dim = ruvllm_symbol(call);
    const float a = ruvllm_param_f32(call), b = ruvllm_param_f32(call);
    const float *x = RUVLLM_INPUT(call, float, rows, dim);
    float *y = RUVLLM_OUTPUT(call, float, rows, dim);
    RUVLLM_READY(call);

    const size_t n = (size_t)rows * dim;
    for (size_t i = 0; i < n; i++) y[i] = a * x[i] + b;
    return RUVLLM_OK;
}
