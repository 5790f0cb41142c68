/* Rows of the KV cache to GGML's q8_0 blocks, byte for byte as its reference rounds:
 * d = max |x| / 127, q = round(x / d). */
#include "ruvllm_kernel.h"

/* To the nearest integer, halves away from zero, as roundf; what is not finite gives 0. */
static inline int8_t round_away(float x) {
    if (!ruvllm_is_finite(x)) return 0;
    /* Truncation is exact, and so is what it leaves. */
    const int32_t whole = ruvllm_trunc_i32(x);
    const float rest = x - (float)whole;
    return (int8_t)(whole + (rest >= 0.5f) - (rest <= -0.5f));
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
        float largest = 0.0f;
        for (int i = 0; i < 32; i++) {
            /* NaN loses every comparison. */
            if (ruvllm_abs(x[i]) > largest) largest = ruvllm_abs(x[i]);
        }
        const float d = largest / 127.0f;
        const float inverse = 1.0f / d;
        /* There is nothing to divide by in a block of zeros, or of numbers close to it. */
        const float factor = ruvllm_is_finite(inverse) ? inverse : 0.0f;
        y->d = ruvllm_f32_to_f16(d);
        for (int i = 0; i < 32; i++) y->qs[i] = round_away(x[i] * factor);
    }
    return RUVLLM_OK;
}
