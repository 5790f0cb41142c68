/* Root-mean-square normalisation (Zhang and Sennrich, arXiv 1910.07467), f32:
 * y = x / sqrt(mean(x^2) + eps) * weight, row by row. */
#include "ruvllm_kernel.h"

RUVLLM_KERNEL(rmsnorm_forward) {
    const uint32_t rows = ruvllm_symbol(call), dim = ruvllm_symbol(call);
    const float eps = ruvllm_param_f32(call);
    const float *x = RUVLLM_INPUT(call, float, rows, dim);
    const float *weight = RUVLLM_INPUT(call, float, dim);
    float *y = RUVLLM_OUTPUT(call, float, rows, dim);
    RUVLLM_READY(call);

    for (uint32_t row = 0; row < rows; row++, x += dim, y += dim) {
        /* In double, so that rows of any finite numbers come out right; four sums, because a
         * processor can add to one while it waits for another. */
        double sums[4] = {0.0, 0.0, 0.0, 0.0};
        uint32_t i = 0;
        for (; i + 4 <= dim; i += 4) {
            for (uint32_t k = 0; k < 4; k++) sums[k] += (double)x[i + k] * x[i + k];
        }
        for (; i < dim; i++) sums[0] += (double)x[i] * x[i];
        const double sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
        const double scale = 1.0 / ruvllm_sqrt(sum / dim + eps);
        for (i = 0; i < dim; i++) y[i] = (float)(x[i] * scale * weight[i]);
    }
    return RUVLLM_OK;
}
