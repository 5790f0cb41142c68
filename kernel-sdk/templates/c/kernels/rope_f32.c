/* Rotary position embedding (Su et al., RoFormer, arXiv 2104.09864), f32: rotates the first
 * 2 * dim_half elements of each head by the (cos, sin) pairs of its position, copies the rest. */
#include "ruvllm_kernel.h"

/* Pairs whose cosines and sines fit the scratch of a call. */
#define PAIRS 1024

/* Lays out `n` pairs (cos, sin) as cosines and sines. */
static inline void part(const float *angles, float *cosines, float *sines, uint32_t n) {
    for (; n >= 16; n -= 16, angles += 32, cosines += 16, sines += 16) {
        RUVLLM_UNROLL
        for (uint32_t k = 0; k < 16; k += 4) {
            const ruvllm_f32x4 low = ruvllm_load4(angles + 2 * k);
            const ruvllm_f32x4 high = ruvllm_load4(angles + 2 * k + 4);
            ruvllm_store4(cosines + k, __builtin_shufflevector(low, high, 0, 2, 4, 6));
            ruvllm_store4(sines + k, __builtin_shufflevector(low, high, 1, 3, 5, 7));
        }
    }
    for (uint32_t i = 0; i < n; i++) {
        cosines[i] = angles[2 * i];
        sines[i] = angles[2 * i + 1];
    }
}

/* The pairs (a[i], b[i]) of one head, `n` of them. */
static inline void rotate(const float *a, const float *b, const float *cosines, const float *sines,
                          float *ya, float *yb, uint32_t n) {
    for (; n >= 32; n -= 32) {
        RUVLLM_UNROLL
        for (uint32_t k = 0; k < 32; k += 4) {
            const ruvllm_f32x4 p = ruvllm_load4(a + k), q = ruvllm_load4(b + k);
            const ruvllm_f32x4 cosine = ruvllm_load4(cosines + k), sine = ruvllm_load4(sines + k);
            ruvllm_store4(ya + k, ruvllm_madd4(p, cosine, -(q * sine)));
            ruvllm_store4(yb + k, ruvllm_madd4(p, sine, q * cosine));
        }
        a += 32, b += 32, cosines += 32, sines += 32, ya += 32, yb += 32;
    }
    for (uint32_t i = 0; i < n; i++) {
        const float p = a[i], q = b[i];
        ya[i] = p * cosines[i] - q * sines[i];
        yb[i] = p * sines[i] + q * cosines[i];
    }
}

RUVLLM_KERNEL(rope_forward) {
    const uint32_t batch = ruvllm_symbol(call), seq = ruvllm_symbol(call);
    const uint32_t heads = ruvllm_symbol(call), dim = ruvllm_symbol(call);
    const uint32_t dim_half = ruvllm_symbol(call);
    (void)ruvllm_param_f32(call); /* theta is information only: the angles come from freqs */
    const uint32_t interleaved = ruvllm_param_u32(call);
    const float *x = RUVLLM_INPUT(call, float, batch, seq, heads, dim);
    const float *freqs = RUVLLM_INPUT(call, float, seq, dim_half, 2);
    float *y = RUVLLM_OUTPUT(call, float, batch, seq, heads, dim);
    float *cosines = RUVLLM_SCRATCH(call, float, PAIRS);
    float *sines = RUVLLM_SCRATCH(call, float, PAIRS);
    RUVLLM_READY(call);
    if (dim_half > dim / 2) return RUVLLM_INVALID_PARAMS;

    const size_t width = (size_t)heads * dim;
    for (uint32_t b = 0; b < batch; b++) {
        for (uint32_t s = 0; s < seq; s++, x += width, y += width) {
            const float *angles = freqs + (size_t)s * dim_half * 2;
            if (interleaved) {
                for (uint32_t h = 0; h < heads; h++) {
                    const float *from = x + (size_t)h * dim;
                    float *to = y + (size_t)h * dim;
                    for (uint32_t i = 0; i < 2 * dim_half; i += 2) {
                        const float p = from[i], q = from[i + 1];
                        to[i] = p * angles[i] - q * angles[i + 1];
                        to[i + 1] = p * angles[i + 1] + q * angles[i];
                    }
                }
            } else {
                /* The cosines and the sines are laid out apart, once for all heads. */
                for (uint32_t from = 0; from < dim_half; from += PAIRS) {
                    const uint32_t n = dim_half - from < PAIRS ? dim_half - from : PAIRS;
                    part(angles + 2 * (size_t)from, cosines, sines, n);
                    for (uint32_t h = 0; h < heads; h++) {
                        const float *a = x + (size_t)h * dim + from;
                        float *ya = y + (size_t)h * dim + from;
                        rotate(a, a + dim_half, cosines, sines, ya, ya + dim_half, n);
                    }
                }
            }
            for (uint32_t h = 0; h < heads && 2 * dim_half < dim; h++) {
                const size_t head = (size_t)h * dim;
                for (uint32_t i = 2 * dim_half; i < dim; i++) y[head + i] = x[head + i];
            }
        }
    }
    return RUVLLM_OK;
}
