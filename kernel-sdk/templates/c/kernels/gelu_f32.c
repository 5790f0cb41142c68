/* GELU in its approximation by tanh (Hendrycks and Gimpel, arXiv 1606.08415), f32. */
#include "ruvllm_kernel.h"

/* x / 2 * (1 + tanh(u)) for u = sqrt(2 / pi) * (x + 0.044715 * x^3), which is x times the sigmoid of 2 u,
 * by the exponential of -|2 u|, which cannot overflow. */
static inline float unit(float x) {
    /* 2 sqrt(2 / pi), and 0.044715 times that. */
    const float twice_u = x * (x * x * 0.07135482f + 1.5957691f);
    const float t = ruvllm_exp_nonpositive(-ruvllm_abs(twice_u));
    return x * ((x < 0.0f ? t : 1.0f) / (1.0f + t));
}

RUVLLM_KERNEL(gelu_forward) {
    const uint32_t rows = ruvllm_symbol(call), dim = ruvllm_symbol(call);
    const float *x = RUVLLM_INPUT(call, float, rows, dim);
    float *y = RUVLLM_OUTPUT(call, float, rows, dim);
    RUVLLM_READY(call);

    const size_t n = (size_t)rows * dim;
    for (size_t i = 0; i < n; i++) y[i] = unit(x[i]);
    return RUVLLM_OK;
}
