/* Rows of the KV cache to GGML's q8_0 blocks, byte for byte as its reference rounds:
 * d = max |x| / 127, q = round(x / d). */
#include "ruvllm_kernel.h"

/* To the nearest integer, halves away from zero, as roundf; NaN gives a number whose low byte is 0. */
static inline ruvllm_i32x4 round_away(ruvllm_f32x4 x) {
    /* The largest number below one half, with the sign of x, keeps 0.49999997 from rounding up. */
    const ruvllm_i32x4 sign = (ruvllm_i32x4)x & INT32_MIN;
    const ruvllm_f32x4 half = (ruvllm_f32x4)(sign | (ruvllm_i32x4)ruvllm_splat4(0.49999997f));
    return ruvllm_trunc4(x + half);
}

typedef int8_t bytes __attribute__((vector_size(16)));

/* Every second byte of both. */
static inline bytes low_bytes(bytes a, bytes b) {
    return __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
}

RUVLLM_KERNEL(kv_pack_forward) {
    const uint32_t rows = ruvllm_symbol(call), dim = ruvllm_symbol(call);
    const float *x = RUVLLM_INPUT(call, float, rows, dim);
    ruvllm_block_q8_0 *y = RUVLLM_OUTPUT(call, ruvllm_block_q8_0, rows, dim);
    RUVLLM_READY(call);
    /* Rows hold whole blocks, so that all of them are one run of blocks. */
    if (dim % 32 != 0) return RUVLLM_INVALID_PARAMS;

    const size_t blocks = (size_t)rows * (dim / 32);
    for (size_t b = 0; b < blocks; b++, x += 32, y++) {
        /* NaN loses every comparison. */
        ruvllm_f32x4 largest[2] = {ruvllm_splat4(0.0f), ruvllm_splat4(0.0f)};
        RUVLLM_UNROLL
        for (int i = 0; i < 8; i++) {
            largest[i % 2] = ruvllm_max4(largest[i % 2], ruvllm_abs4(ruvllm_load4(x + 4 * i)));
        }
        const ruvllm_f32x4 all = ruvllm_max4(largest[0], largest[1]);
        const float low = all[0] < all[1] ? all[1] : all[0];
        const float high = all[2] < all[3] ? all[3] : all[2];
        const float d = (low < high ? high : low) / 127.0f;
        const float inverse = 1.0f / d;
        /* There is nothing to divide by in a block of zeros, or of numbers close to it. */
        const ruvllm_f32x4 factor = ruvllm_splat4(ruvllm_is_finite(inverse) ? inverse : 0.0f);
        y->d = ruvllm_f32_to_f16(d);
        RUVLLM_UNROLL
        for (int i = 0; i < 2; i++) {
            bytes q[4];
            RUVLLM_UNROLL
            for (int k = 0; k < 4; k++) {
                q[k] = (bytes)round_away(ruvllm_load4(x + 16 * i + 4 * k) * factor);
            }
            const bytes all_low = low_bytes(low_bytes(q[0], q[1]), low_bytes(q[2], q[3]));
            __builtin_memcpy(y->qs + 16 * i, &all_low, 16);
        }
    }
    return RUVLLM_OK;
}
