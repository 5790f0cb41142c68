/* The gated unit of Shazeer, arXiv 2002.05202, f32: y = gate * sigmoid(gate) * up. */
#include "ruvllm_kernel.h"

static inline ruvllm_f32x4 unit(ruvllm_f32x4 gate, ruvllm_f32x4 up) {
    return gate * ruvllm_sigmoid4(gate) * up;
}

RUVLLM_KERNEL(swiglu_forward) {
    const uint32_t rows = ruvllm_symbol(call), dim = ruvllm_symbol(call);
    const float *gate = RUVLLM_INPUT(call, float, rows, dim);
    const float *up = RUVLLM_INPUT(call, float, rows, dim);
    float *y = RUVLLM_OUTPUT(call, float, rows, dim);
    RUVLLM_READY(call);

    const size_t n = (size_t)rows * dim;
    size_t i = 0;
    for (; i + 32 <= n; i += 32) {
        RUVLLM_UNROLL
        for (size_t k = i; k < i + 32; k += 4) {
            ruvllm_store4(y + k, unit(ruvllm_load4(gate + k), ruvllm_load4(up + k)));
        }
    }
    /* The last elements: each alone, in all lanes of a vector. */
    for (; i < n; i++) y[i] = unit(ruvllm_splat4(gate[i]), ruvllm_splat4(up[i]))[0];
    return RUVLLM_OK;
}
