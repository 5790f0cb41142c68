/* The gated unit of Shazeer, arXiv 2002.05202, f32: y = gate * sigmoid(gate) * up. */
#include "ruvllm_kernel.h"

/* g * sigmoid(g), by the exponential of -|g|, which cannot overflow. */
static inline float silu(float g) {
    const float t = ruvllm_exp_nonpositive(-ruvllm_abs(g));
    return g * ((g < 0.0f ? t : 1.0f) / (1.0f + t));
}

RUVLLM_KERNEL(swiglu_forward) {
    const uint32_t rows = ruvllm_symbol(call), dim = ruvllm_symbol(call);
    const float *gate = RUVLLM_INPUT(call, float, rows, dim);
    const float *up = RUVLLM_INPUT(call, float, rows, dim);
    float *y = RUVLLM_OUTPUT(call, float, rows, dim);
    RUVLLM_READY(call);

    const size_t n = (size_t)rows * dim;
    for (size_t i = 0; i < n; i++) y[i] = silu(gate[i]) * up[i];
    return RUVLLM_OK;
}
