/* Rows of the KV cache from GGML's q8_0 blocks: y = d * q. */
#include "ruvllm_kernel.h"

RUVLLM_KERNEL(kv_unpack_forward) {
    const uint32_t rows = ruvllm_symbol(call), dim = ruvllm_symbol(call);
    const ruvllm_block_q8_0 *x = RUVLLM_INPUT(call, ruvllm_block_q8_0, rows, dim);
    float *y = RUVLLM_OUTPUT(call, float, rows, dim);
    RUVLLM_READY(call);
    /* Rows hold whole blocks, so that all of them are one run of blocks. */
    if (dim % 32 != 0) return RUVLLM_INVALID_PARAMS;

    const size_t blocks = (size_t)rows * (dim / 32);
    for (size_t b = 0; b < blocks; b++, x++, y += 32) {
        const float d = ruvllm_f16_to_f32(x->d);
        for (int i = 0; i < 32; i++) y[i] = d * x->qs[i];
    }
    return RUVLLM_OK;
}
