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

/* The gradients by gate and by up, given that of the output. It is optional: without it the host's own code gives
 * them to who trains a model. */
static inline void unit_backward(ruvllm_f32x4 gate, ruvllm_f32x4 up, ruvllm_f32x4 dy,
                                 ruvllm_f32x4 *dgate, ruvllm_f32x4 *dup) {
    const ruvllm_f32x4 one = ruvllm_splat4(1.0f), s = ruvllm_sigmoid4(gate);
    /* The slope of gate * s is s * (1 + gate * (1 - s)). */
    *dgate = dy * up * s * ruvllm_madd4(gate, one - s, one);
    *dup = dy * gate * s;
}

RUVLLM_BACKWARD {
    const uint32_t rows = ruvllm_symbol(call), dim = ruvllm_symbol(call);
    const float *gate = RUVLLM_INPUT(call, float, rows, dim);
    const float *up = RUVLLM_INPUT(call, float, rows, dim);
    const float *dy = RUVLLM_GRAD_OUTPUT(call, float, rows, dim);
    float *dgate = RUVLLM_GRAD_INPUT(call, float, rows, dim);
    float *dup = RUVLLM_GRAD_INPUT(call, float, rows, dim);
    RUVLLM_READY(call);

    const size_t n = (size_t)rows * dim;
    ruvllm_f32x4 to_gate, to_up;
    size_t i = 0;
    for (; i + 16 <= n; i += 16) {
        RUVLLM_UNROLL
        for (size_t k = i; k < i + 16; k += 4) {
            unit_backward(ruvllm_load4(gate + k), ruvllm_load4(up + k), ruvllm_load4(dy + k), &to_gate,
                          &to_up);
            ruvllm_store4(dgate + k, to_gate);
            ruvllm_store4(dup + k, to_up);
        }
    }
    for (; i < n; i++) {
        unit_backward(ruvllm_splat4(gate[i]), ruvllm_splat4(up[i]), ruvllm_splat4(dy[i]), &to_gate,
                      &to_up);
        dgate[i] = to_gate[0];
        dup[i] = to_up[0];
    }
    return RUVLLM_OK;
}
