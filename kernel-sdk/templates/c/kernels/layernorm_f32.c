/* Layer normalisation (Ba, Kiros and Hinton, arXiv 1607.06450), f32:
 * y = (x - mean) / sqrt(variance + eps) * weight + bias, row by row. */
#include "ruvllm_kernel.h"

/* The sum of (x - mean)^power over a row, in double, so that rows of any finite numbers come out right;
 * four sums, because a processor can add to one while it waits for another. */
static inline double sum_of(const float *x, uint32_t dim, double mean, int squared) {
    double sums[4] = {0.0, 0.0, 0.0, 0.0};
    uint32_t i = 0;
    for (; i + 4 <= dim; i += 4) {
        RUVLLM_UNROLL
        for (uint32_t k = 0; k < 4; k++) {
            const double off = x[i + k] - mean;
            sums[k] += squared ? off * off : off;
        }
    }
    for (; i < dim; i++) {
        const double off = x[i] - mean;
        sums[0] += squared ? off * off : off;
    }
    return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

RUVLLM_KERNEL(layernorm_forward) {
    const uint32_t rows = ruvllm_symbol(call), dim = ruvllm_symbol(call);
    const float eps = ruvllm_param_f32(call);
    const float *x = RUVLLM_INPUT(call, float, rows, dim);
    const float *weight_and_bias = RUVLLM_INPUT(call, float, 2, dim);
    float *y = RUVLLM_OUTPUT(call, float, rows, dim);
    RUVLLM_READY(call);

    const float *weight = weight_and_bias, *bias = weight_and_bias + dim;
    for (uint32_t row = 0; row < rows; row++, x += dim, y += dim) {
        const double mean = sum_of(x, dim, 0.0, 0) / dim;
        const double variance = sum_of(x, dim, mean, 1) / dim;
        const double scale = 1.0 / ruvllm_sqrt(variance + eps);
        for (uint32_t i = 0; i < dim; i++) {
            y[i] = (float)((x[i] - mean) * scale * weight[i] + bias[i]);
        }
    }
    return RUVLLM_OK;
}
