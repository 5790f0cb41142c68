/* The low-rank update of Hu et al., arXiv 2106.09685, f32: y = scale * (x A^T) B^T.
 *
 * The factors come in groups of four: a group of A has for each rank the elements
 * A[r][4g .. 4g + 4], a group of B the elements B[4h .. 4h + 4][r]. What lies beyond the true
 * dimension is zero. */
#include "ruvllm_kernel.h"

static inline uint32_t groups_of(uint32_t dim) { return dim / 4 + (dim % 4 != 0); }

static inline uint32_t at_most_four(uint32_t n) { return n < 4 ? n : 4; }

RUVLLM_KERNEL(lora_apply_forward) {
    const uint32_t rows = ruvllm_symbol(call), in_dim = ruvllm_symbol(call);
    const uint32_t groups = ruvllm_symbol(call), rank = ruvllm_symbol(call);
    const uint32_t out_dim = ruvllm_symbol(call);
    const float scale = ruvllm_param_f32(call);
    const float *x = RUVLLM_INPUT(call, float, rows, in_dim);
    const float *ab = RUVLLM_INPUT(call, float, groups, rank, 4);
    float *y = RUVLLM_OUTPUT(call, float, rows, out_dim);
    float *low = RUVLLM_SCRATCH(call, float, rank);
    RUVLLM_READY(call);
    if (groups != groups_of(in_dim) + groups_of(out_dim)) return RUVLLM_INVALID_PARAMS;

    const float *b = ab + (size_t)groups_of(in_dim) * rank * 4;
    for (uint32_t row = 0; row < rows; row++, x += in_dim, y += out_dim) {
        for (uint32_t r = 0; r < rank; r++) low[r] = 0.0f;
        for (uint32_t i = 0; i < in_dim; i += 4) {
            const float *group = ab + (size_t)i * rank;
            const uint32_t lanes = at_most_four(in_dim - i);
            for (uint32_t r = 0; r < rank; r++) {
                float sum = 0.0f;
                for (uint32_t k = 0; k < lanes; k++) sum += x[i + k] * group[4 * r + k];
                low[r] += sum;
            }
        }
        for (uint32_t o = 0; o < out_dim; o += 4) {
            const float *group = b + (size_t)o * rank;
            float sums[4] = {0.0f, 0.0f, 0.0f, 0.0f};
            for (uint32_t r = 0; r < rank; r++) {
                for (uint32_t k = 0; k < 4; k++) sums[k] += low[r] * group[4 * r + k];
            }
            const uint32_t lanes = at_most_four(out_dim - o);
            for (uint32_t k = 0; k < lanes; k++) y[o + k] = scale * sums[k];
        }
    }
    return RUVLLM_OK;
}
