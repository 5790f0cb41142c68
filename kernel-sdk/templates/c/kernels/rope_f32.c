/* Rotary position embedding (Su et al., RoFormer, arXiv 2104.09864), f32: rotates the first
 * 2 * dim_half elements of each head by the (cos, sin) pairs of its position, copies the rest. */
#include "ruvllm_kernel.h"

RUVLLM_KERNEL(rope_forward) {
    const uint32_t batch = ruvllm_symbol(call), seq = ruvllm_symbol(call);
    const uint32_t heads = ruvllm_symbol(call), dim = ruvllm_symbol(call);
    const uint32_t dim_half = ruvllm_symbol(call);
    (void)ruvllm_param_f32(call); /* theta is information only: the angles come from freqs */
    const uint32_t interleaved = ruvllm_param_u32(call);
    const float *x = RUVLLM_INPUT(call, float, batch, seq, heads, dim);
    const float *freqs = RUVLLM_INPUT(call, float, seq, dim_half, 2);
    float *y = RUVLLM_OUTPUT(call, float, batch, seq, heads, dim);
    RUVLLM_READY(call);
    if (dim_half > dim / 2) return RUVLLM_INVALID_PARAMS;

    /* The partner of a pair is this far away, and pairs are this far apart. */
    const uint32_t partner = interleaved ? 1 : dim_half, stride = interleaved ? 2 : 1;
    for (uint32_t b = 0; b < batch; b++) {
        for (uint32_t s = 0; s < seq; s++) {
            const float *angles = freqs + (size_t)s * dim_half * 2;
            for (uint32_t h = 0; h < heads; h++, x += dim, y += dim) {
                for (uint32_t i = 0; i < dim_half; i++) {
                    const float cosine = angles[2 * i], sine = angles[2 * i + 1];
                    const float p = x[i * stride], q = x[i * stride + partner];
                    y[i * stride] = p * cosine - q * sine;
                    y[i * stride + partner] = p * sine + q * cosine;
                }
                for (uint32_t i = 2 * dim_half; i < dim; i++) y[i] = x[i];
            }
        }
    }
    return RUVLLM_OK;
}
