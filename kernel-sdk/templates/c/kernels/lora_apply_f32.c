/* The low-rank update of Hu et al., arXiv 2106.09685, f32: y = scale * (x A^T) B^T.
 *
 * The factors come in groups of four: a group of A has for each rank the elements
 * A[r][4g .. 4g + 4], a group of B the elements B[4h .. 4h + 4][r]. What lies beyond the true
 * dimension is zero. So each step is one multiply-add of a vector. */
#include "ruvllm_kernel.h"

static inline uint32_t groups_of(uint32_t dim) { return dim / 4 + (dim % 4 != 0); }

/* Up to four elements, and zeros behind them. */
static inline ruvllm_f32x4 load_some(const float *from, uint32_t n) {
    float lanes[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    for (uint32_t i = 0; i < n; i++) lanes[i] = from[i];
    return ruvllm_load4(lanes);
}

/* low[k] = scale * sum over i of A[first + k][i] * x[i], for `ranks` ranks, a constant: as many at once
 * as leave registers for the operands. */
static inline __attribute__((always_inline)) void project(const float *x, const float *a,
                                                          uint32_t in_dim, uint32_t rank,
                                                          uint32_t ranks, float scale,
                                                          float *low) {
    ruvllm_f32x4 sums[8];
    RUVLLM_UNROLL
    for (uint32_t k = 0; k < ranks; k++) sums[k] = ruvllm_splat4(0.0f);
    const size_t group = 4 * (size_t)rank;
    for (; in_dim >= 16; in_dim -= 16, x += 16) {
        RUVLLM_UNROLL
        for (uint32_t g = 0; g < 16; g += 4, a += group) {
            const ruvllm_f32x4 v = ruvllm_load4(x + g);
            RUVLLM_UNROLL
            for (uint32_t k = 0; k < ranks; k++) {
                sums[k] = ruvllm_madd4(ruvllm_load4(a + 4 * k), v, sums[k]);
            }
        }
    }
    for (uint32_t i = 0; i < in_dim; i += 4, a += group) {
        const ruvllm_f32x4 v = i + 4 <= in_dim ? ruvllm_load4(x + i) : load_some(x + i, in_dim - i);
        RUVLLM_UNROLL
        for (uint32_t k = 0; k < ranks; k++) {
            sums[k] = ruvllm_madd4(ruvllm_load4(a + 4 * k), v, sums[k]);
        }
    }
    RUVLLM_UNROLL
    for (uint32_t k = 0; k < ranks; k++) low[k] = scale * ruvllm_sum4(sums[k]);
}

/* One group of the output: two chains of the ranks, which `low` has once for each lane. */
static inline __attribute__((always_inline)) ruvllm_f32x4 combine(const ruvllm_f32x4 *low,
                                                                  const float *b, uint32_t ranks) {
    ruvllm_f32x4 even = ruvllm_splat4(0.0f), odd = ruvllm_splat4(0.0f);
    RUVLLM_UNROLL
    for (uint32_t k = 0; k < ranks; k += 2) {
        even = ruvllm_madd4(ruvllm_load4(b + 4 * k), low[k], even);
        odd = ruvllm_madd4(ruvllm_load4(b + 4 * k + 4), low[k + 1], odd);
    }
    return even + odd;
}

/* Every group of the output, for a rank that is a constant and even: what all groups need of `low` stays in
 * registers, and four groups are one turn of the loop. */
static inline __attribute__((always_inline)) void expand_by(const float *low, const float *b,
                                                            uint32_t rank, float *y,
                                                            uint32_t out_dim) {
    ruvllm_f32x4 lows[8];
    RUVLLM_UNROLL
    for (uint32_t k = 0; k < rank; k++) lows[k] = ruvllm_splat4(low[k]);
    for (; out_dim >= 16; out_dim -= 16, y += 16, b += 16 * rank) {
        RUVLLM_UNROLL
        for (uint32_t g = 0; g < 4; g++) {
            ruvllm_store4(y + 4 * g, combine(lows, b + 4 * rank * g, rank));
        }
    }
    for (uint32_t o = 0; o < out_dim; o += 4, b += 4 * rank) {
        float lanes[4];
        ruvllm_store4(lanes, combine(lows, b, rank));
        for (uint32_t k = 0; k < 4 && o + k < out_dim; k++) y[o + k] = lanes[k];
    }
}

/* The same for any rank: eight at once, then those that are left. */
static inline void expand(const float *low, const float *b, uint32_t rank, float *y,
                          uint32_t out_dim) {
    for (uint32_t o = 0; o < out_dim; o += 4) {
        ruvllm_f32x4 sum = ruvllm_splat4(0.0f);
        uint32_t r = 0;
        for (; r + 8 <= rank; r += 8, b += 32) {
            ruvllm_f32x4 lows[8];
            RUVLLM_UNROLL
            for (uint32_t k = 0; k < 8; k++) lows[k] = ruvllm_splat4(low[r + k]);
            sum = sum + combine(lows, b, 8);
        }
        for (; r < rank; r++, b += 4) {
            sum = ruvllm_madd4(ruvllm_load4(b), ruvllm_splat4(low[r]), sum);
        }
        float lanes[4];
        ruvllm_store4(lanes, sum);
        for (uint32_t k = 0; k < 4 && o + k < out_dim; k++) y[o + k] = lanes[k];
    }
}

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
        uint32_t r = 0;
        for (; r + 8 <= rank; r += 8) project(x, ab + 4 * r, in_dim, rank, 8, scale, low + r);
        for (; r + 4 <= rank; r += 4) project(x, ab + 4 * r, in_dim, rank, 4, scale, low + r);
        for (; r < rank; r++) project(x, ab + 4 * r, in_dim, rank, 1, scale, low + r);
        switch (rank) {
        case 4: expand_by(low, b, 4, y, out_dim); break;
        case 8: expand_by(low, b, 8, y, out_dim); break;
        default: expand(low, b, rank, y, out_dim);
        }
    }
    return RUVLLM_OK;
}
