/* GELU in its approximation by tanh (Hendrycks and Gimpel, arXiv 1606.08415), f32. */
#include "ruvllm_kernel.h"

/* x / 2 * (1 + tanh(u)) for u = sqrt(2 / pi) * (x + 0.044715 * x^3), which is x times the sigmoid of 2 u. */
static inline ruvllm_f32x4 unit(ruvllm_f32x4 x) {
    /* 2 sqrt(2 / pi), and 0.044715 times that. */
    const ruvllm_f32x4 slope =
        ruvllm_madd4(x * x, ruvllm_splat4(0.07135482f), ruvllm_splat4(1.5957691f));
    /* Of -infinity, times a sigmoid of zero, NaN would be left. */
    return ruvllm_max4(x, ruvllm_splat4(-0x1.fffffep127f)) * ruvllm_sigmoid4(x * slope);
}

RUVLLM_KERNEL(gelu_forward) {
    const uint32_t rows = ruvllm_symbol(call), dim = ruvllm_symbol(call);
    const float *x = RUVLLM_INPUT(call, float, rows, dim);
    float *y = RUVLLM_OUTPUT(call, float, rows, dim);
    RUVLLM_READY(call);

    const size_t n = (size_t)rows * dim;
    size_t i = 0;
    for (; i + 16 <= n; i += 16) {
        RUVLLM_UNROLL
        for (size_t k = i; k < i + 16; k += 4) ruvllm_store4(y + k, unit(ruvllm_load4(x + k)));
    }
    /* The last elements: each alone, in all lanes of a vector. */
    for (; i < n; i++) y[i] = unit(ruvllm_splat4(x[i]))[0];
    return RUVLLM_OK;
}
