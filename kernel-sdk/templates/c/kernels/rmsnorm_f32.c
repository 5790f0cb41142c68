/* Root-mean-square normalisation (Zhang and Sennrich, arXiv 1910.07467), f32:
 * y = x / sqrt(mean(x^2) + eps) * weight, row by row. */
#include "ruvllm_kernel.h"

/* The sum of the squares, in eight vectors, because a processor can add to one while it waits for
 * another. */
static inline float sum_of_squares(const float *x, uint32_t dim) {
    ruvllm_f32x4 sums[8];
    RUVLLM_UNROLL
    for (uint32_t k = 0; k < 8; k++) sums[k] = ruvllm_splat4(0.0f);
    uint32_t i = 0;
    for (; i + 128 <= dim; i += 128) {
        /* What one sum takes stands together: all eight in the making would not fit the registers. */
        RUVLLM_UNROLL
        for (uint32_t k = 0; k < 8; k++) {
            RUVLLM_UNROLL
            for (uint32_t j = 0; j < 4; j++) {
                const ruvllm_f32x4 v = ruvllm_load4(x + i + 32 * j + 4 * k);
                sums[k] = ruvllm_madd4(v, v, sums[k]);
            }
        }
    }
    for (; i + 32 <= dim; i += 32) {
        RUVLLM_UNROLL
        for (uint32_t k = 0; k < 8; k++) {
            const ruvllm_f32x4 v = ruvllm_load4(x + i + 4 * k);
            sums[k] = ruvllm_madd4(v, v, sums[k]);
        }
    }
    float sum = ruvllm_sum4(((sums[0] + sums[1]) + (sums[2] + sums[3])) +
                            ((sums[4] + sums[5]) + (sums[6] + sums[7])));
    for (; i < dim; i++) sum += x[i] * x[i];
    return sum;
}

RUVLLM_KERNEL(rmsnorm_forward) {
    const uint32_t rows = ruvllm_symbol(call), dim = ruvllm_symbol(call);
    const float eps = ruvllm_param_f32(call);
    const float *x = RUVLLM_INPUT(call, float, rows, dim);
    const float *weight = RUVLLM_INPUT(call, float, dim);
    float *y = RUVLLM_OUTPUT(call, float, rows, dim);
    RUVLLM_READY(call);

    for (uint32_t row = 0; row < rows; row++, x += dim, y += dim) {
        double sum = sum_of_squares(x, dim);
        double mean = sum / dim + eps;
        /* Beyond the range in which a sum in f32 is accurate, and of NaN, once more in double. */
        const int in_range = sum <= 1e37 && mean >= 1e-30;
        if (!in_range) {
            sum = 0.0;
            for (uint32_t i = 0; i < dim; i++) sum += (double)x[i] * x[i];
            mean = sum / dim + eps;
        }
        const double scale = 1.0 / ruvllm_sqrt(mean);
        uint32_t i = 0;
        if (in_range) {
            const ruvllm_f32x4 scales = ruvllm_splat4((float)scale);
            for (; i + 64 <= dim; i += 64) {
                RUVLLM_UNROLL
                for (uint32_t k = i; k < i + 64; k += 4) {
                    ruvllm_store4(y + k, ruvllm_load4(x + k) * scales * ruvllm_load4(weight + k));
                }
            }
        }
        for (; i < dim; i++) y[i] = (float)(x[i] * scale * weight[i]);
    }
    return RUVLLM_OK;
}
