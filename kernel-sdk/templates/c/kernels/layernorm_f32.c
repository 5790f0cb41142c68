/* Layer normalisation (Ba, Kiros and Hinton, arXiv 1607.06450), f32:
 * y = (x - mean) / sqrt(variance + eps) * weight + bias, row by row. */
#include "ruvllm_kernel.h"

RUVLLM_KERNEL(layernorm_forward) {
    const uint32_t rows = ruvllm_symbol(call), dim = ruvllm_symbol(call);
    const float eps = ruvllm_param_f32(call);
    const float *x = RUVLLM_INPUT(call, float, rows, dim);
    const float *weight_and_bias = RUVLLM_INPUT(call, float, 2, dim);
    float *y = RUVLLM_OUTPUT(call, float, rows, dim);
    RUVLLM_READY(call);

    const float *weight = weight_and_bias, *bias = weight_and_bias + dim;
    for (uint32_t row = 0; row < rows; row++, x += dim, y += dim) {
        /* In double, so that rows of any finite numbers come out right. */
        double sum = 0.0, squares = 0.0;
        for (uint32_t i = 0; i < dim; i++) sum += x[i];
        const double mean = sum / dim;
        for (uint32_t i = 0; i < dim; i++) squares += (x[i] - mean) * (x[i] - mean);
        const double scale = 1.0 / ruvllm_sqrt(squares / dim + eps);
        for (uint32_t i = 0; i < dim; i++) {
            y[i] = (float)((x[i] - mean) * scale * weight[i] + bias[i]);
        }
    }
    return RUVLLM_OK;
}
