/* Rows of the KV cache from GGML's q8_0 blocks: y = d * q. */
#include "ruvllm_kernel.h"

/* Four quants. */
typedef int8_t int8x4 __attribute__((vector_size(4)));

RUVLLM_KERNEL(kv_unpack_forward) {
    const uint32_t rows = ruvllm_symbol(call), dim = ruvllm_symbol(call);
    const ruvllm_block_q8_0 *x = RUVLLM_INPUT(call, ruvllm_block_q8_0, rows, dim);
    float *y = RUVLLM_OUTPUT(call, float, rows, dim);
    RUVLLM_READY(call);
    /* Rows hold whole blocks, so that all of them are one run of blocks. */
    if (dim % 32 != 0) return RUVLLM_INVALID_PARAMS;

    const size_t blocks = (size_t)rows * (dim / 32);
    for (size_t b = 0; b < blocks; b++, x++, y += 32) {
        const ruvllm_f32x4 d = ruvllm_splat4(ruvllm_f16_to_f32(x->d));
        RUVLLM_UNROLL
        for (int i = 0; i < 32; i += 4) {
            int8x4 q;
            __builtin_memcpy(&q, x->qs + i, sizeof q);
            ruvllm_store4(y + i, d * __builtin_convertvector(q, ruvllm_f32x4));
        }
    }
    return RUVLLM_OK;
}
