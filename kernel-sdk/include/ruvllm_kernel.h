/*
 * What a kernel of ruvllm is written with in C: the contract of a call (ABI 1), checked views over
 * its regions, binary16 and the block formats. The words are those of the Rust SDK.
 *
 * C99, no library. For wasm32 it is compiled by `ruvllm-pack build`. For any other target the same
 * kernel becomes an ordinary function over a block of memory, to be tested and debugged natively.
 *
 *     RUVLLM_KERNEL(scale_forward) {
 *         const uint32_t rows = ruvllm_symbol(call), dim = ruvllm_symbol(call);
 *         const float factor = ruvllm_param_f32(call);
 *         const float *x = RUVLLM_INPUT(call, float, rows, dim);
 *         float *y = RUVLLM_OUTPUT(call, float, rows, dim);
 *         RUVLLM_READY(call);
 *         for (size_t i = 0; i < (size_t)rows * dim; i++) y[i] = factor * x[i];
 *         return RUVLLM_OK;
 *     }
 *
 * Where the operation has a gradient, a kernel may export that too; the ABI crate's documentation of contracts
 * says what it is given and gives:
 *
 *     RUVLLM_BACKWARD {
 *         const uint32_t rows = ruvllm_symbol(call), dim = ruvllm_symbol(call);
 *         const float factor = ruvllm_param_f32(call);
 *         (void)RUVLLM_INPUT(call, float, rows, dim);
 *         const float *dy = RUVLLM_GRAD_OUTPUT(call, float, rows, dim);
 *         float *dx = RUVLLM_GRAD_INPUT(call, float, rows, dim);
 *         RUVLLM_READY(call);
 *         for (size_t i = 0; i < (size_t)rows * dim; i++) dx[i] = factor * dy[i];
 *         return RUVLLM_OK;
 *     }
 *
 * A kernel whose rows are independent of each other may have threads, as many as its `threads` in pack.toml says.
 * Each computes the rows that are its own:
 *
 *     RUVLLM_KERNEL_WITH_THREADS(scale_rows_forward) {
 *         const uint32_t rows = ruvllm_symbol(call), dim = ruvllm_symbol(call);
 *         const float *factors = RUVLLM_INPUT(call, float, rows);
 *         const float *x = RUVLLM_INPUT(call, float, rows, dim);
 *         float *y = RUVLLM_OUTPUT(call, float, rows, dim);
 *         const ruvllm_range own = ruvllm_own_rows(call, rows);
 *         RUVLLM_READY(call);
 *         for (size_t row = own.start; row < own.end; row++)
 *             for (size_t i = row * dim; i < (row + 1) * dim; i++) y[i] = factors[row] * x[i];
 *         return RUVLLM_OK;
 *     }
 *
 * Invariants: all integers are little endian; every region lies above the kernel's own data and
 * stack, inside its memory; output and scratch overlap nothing. A call that does not hold together
 * ends in a status, never in a trap. Symbols come first, in order of first appearance over the
 * inputs and then the output, then the params of the manifest, then the tensors.
 */
#ifndef RUVLLM_KERNEL_H
#define RUVLLM_KERNEL_H

#include <stddef.h>
#include <stdint.h>

/* ---- the contract ---------------------------------------------------------------------------- */

/* The version of the contract that this header states. */
#define RUVLLM_ABI_VERSION 1
/* Alignment in bytes of every region that the host lays out. */
#define RUVLLM_REGION_ALIGN 64
/* Bytes of scratch that every call provides; its contents are unspecified at entry. */
#define RUVLLM_SCRATCH_BYTES 16384
/* What a message about a failure begins with, and the bytes at the end of scratch that it takes. */
#define RUVLLM_MESSAGE_MAGIC "RVMSG\0\0\001"
#define RUVLLM_MESSAGE_BYTES 256
/* The largest number of words in a params block: symbols, then params. */
#define RUVLLM_MAX_PARAM_WORDS 24
/* The most inputs of a kernel. */
#define RUVLLM_MAX_INPUTS 2

/* The kernel's own revision, which `kernel_info` reports. Define it before including this header. */
#ifndef RUVLLM_REVISION
#define RUVLLM_REVISION 1
#endif

/* What an entry point returns. */
typedef enum ruvllm_status {
    RUVLLM_OK = 0,              /* the output holds the result */
    RUVLLM_INVALID_INPUT = 1,   /* an input has a size or a value that the kernel does not take */
    RUVLLM_INVALID_OUTPUT = 2,  /* the output region does not fit the result */
    RUVLLM_INVALID_PARAMS = 3,  /* the params block is too short or holds a value out of range */
    RUVLLM_OUT_OF_MEMORY = 4,   /* the scratch region is too small for this shape */
    RUVLLM_NOT_IMPLEMENTED = 5, /* the kernel does not do this shape */
    RUVLLM_INTERNAL_ERROR = 6   /* anything else */
} ruvllm_status;

/* Element types, in the order of the contract. */
typedef enum ruvllm_dtype {
    RUVLLM_F32,
    RUVLLM_F16,
    RUVLLM_BF16,
    RUVLLM_U32,
    RUVLLM_I32,
    RUVLLM_U8,
    RUVLLM_Q8_0,
    RUVLLM_Q4_0,
    RUVLLM_Q4_1,
    RUVLLM_Q5_0,
    RUVLLM_Q5_1,
    RUVLLM_Q4_K,
    RUVLLM_Q5_K,
    RUVLLM_Q6_K
} ruvllm_dtype;

/* Elements of a block; plain types are blocks of one. */
static inline uint32_t ruvllm_block_elems(ruvllm_dtype dtype) {
    return dtype < RUVLLM_Q8_0 ? 1u : dtype < RUVLLM_Q4_K ? 32u : 256u;
}

/* Bytes of a block. */
static inline uint32_t ruvllm_block_bytes(ruvllm_dtype dtype) {
    switch (dtype) {
    case RUVLLM_F32:
    case RUVLLM_U32:
    case RUVLLM_I32: return 4;
    case RUVLLM_F16:
    case RUVLLM_BF16: return 2;
    case RUVLLM_U8: return 1;
    case RUVLLM_Q8_0: return 34;
    case RUVLLM_Q4_0: return 18;
    case RUVLLM_Q4_1: return 20;
    case RUVLLM_Q5_0: return 22;
    case RUVLLM_Q5_1: return 24;
    case RUVLLM_Q4_K: return 144;
    case RUVLLM_Q5_K: return 176;
    case RUVLLM_Q6_K: return 210;
    }
    return 0;
}

/* A byte range of linear memory; an absent one is {0, 0}. */
typedef struct ruvllm_region {
    uint32_t offset;
    uint32_t size;
} ruvllm_region;

/* What an entry point receives. */
typedef struct ruvllm_descriptor {
    ruvllm_region input_a;
    ruvllm_region input_b;
    ruvllm_region output;
    ruvllm_region scratch;
    ruvllm_region params;
} ruvllm_descriptor;

/* What `kernel_backward` receives: as an entry point, with the gradient of the output in its place, and then
 * where the gradients of the inputs go. */
typedef struct ruvllm_backward_descriptor {
    ruvllm_region input_a;
    ruvllm_region input_b;
    ruvllm_region grad_output;
    ruvllm_region scratch;
    ruvllm_region params;
    ruvllm_region grad_a;
    ruvllm_region grad_b;
} ruvllm_backward_descriptor;

/* What `kernel_info` writes. */
typedef struct ruvllm_kernel_info {
    uint32_t abi_version;
    uint32_t revision;
    uint32_t flags;
    uint32_t reserved;
} ruvllm_kernel_info;

/* An IEEE 754 binary16, held as its bits. */
typedef struct ruvllm_f16 {
    uint16_t bits;
} ruvllm_f16;

/* A bfloat16, held as its bits. */
typedef struct ruvllm_bf16 {
    uint16_t bits;
} ruvllm_bf16;

/* 32 elements of q8_0: element j is d * qs[j]. */
typedef struct ruvllm_block_q8_0 {
    ruvllm_f16 d;
    int8_t qs[32];
} ruvllm_block_q8_0;

/* 32 elements of q4_0: element j < 16 is d * (low nibble of qs[j] - 8), element j + 16 the same of
 * the high nibble. */
typedef struct ruvllm_block_q4_0 {
    ruvllm_f16 d;
    uint8_t qs[16];
} ruvllm_block_q4_0;

/* Fails to compile where the condition is false. */
#define RUVLLM_STATIC_ASSERT(condition, name) \
    typedef char ruvllm_static_assert_##name[(condition) ? 1 : -1] __attribute__((unused))

RUVLLM_STATIC_ASSERT(sizeof(ruvllm_descriptor) == 40, descriptor_is_forty_bytes);
RUVLLM_STATIC_ASSERT(sizeof(ruvllm_backward_descriptor) == 56, backward_descriptor_is_56_bytes);
RUVLLM_STATIC_ASSERT(sizeof(ruvllm_kernel_info) == 16, kernel_info_is_sixteen_bytes);
RUVLLM_STATIC_ASSERT(sizeof(ruvllm_block_q8_0) == 34, q8_0_is_34_bytes);
RUVLLM_STATIC_ASSERT(sizeof(ruvllm_block_q4_0) == 18, q4_0_is_18_bytes);

/* ---- numbers --------------------------------------------------------------------------------- */

/* The bits of a float. */
static inline uint32_t ruvllm_float_bits(float x) {
    union { float f; uint32_t u; } cast;
    cast.f = x;
    return cast.u;
}

/* The float of bits. */
static inline float ruvllm_bits_float(uint32_t bits) {
    union { float f; uint32_t u; } cast;
    cast.u = bits;
    return cast.f;
}

/* Widens a binary16. Exact. */
static inline float ruvllm_f16_to_f32(ruvllm_f16 h) {
    const uint32_t sign = (uint32_t)(h.bits & 0x8000u) << 16;
    const uint32_t magnitude = h.bits & 0x7fffu;
    if (magnitude >= 0x7c00u) {
        /* Infinity and NaN: the exponent becomes all ones, the payload stays. */
        return ruvllm_bits_float(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
    }
    /* Placed 13 bits higher the value is 2^-112 of what it should be, subnormals included. */
    const float scaled = ruvllm_bits_float(magnitude << 13) * 0x1p112f;
    return ruvllm_bits_float(sign | ruvllm_float_bits(scaled));
}

/* Rounds to binary16: to nearest, ties to even. */
static inline ruvllm_f16 ruvllm_f32_to_f16(float x) {
    const uint32_t bits = ruvllm_float_bits(x);
    const uint32_t sign = (bits >> 16) & 0x8000u;
    const uint32_t magnitude = bits & 0x7fffffffu;
    ruvllm_f16 h;
    if (magnitude > 0x7f800000u) {
        h.bits = (uint16_t)(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
    } else if (magnitude >= 0x47800000u) {
        h.bits = (uint16_t)(sign | 0x7c00u);
    } else if (magnitude < 0x38800000u) {
        /* Subnormal or zero: adding 0.5 makes the float unit round at bit 2^-24. */
        const float rounded = ruvllm_bits_float(magnitude) + 0.5f;
        h.bits = (uint16_t)(sign | (ruvllm_float_bits(rounded) - 0x3f000000u));
    } else {
        const uint32_t odd = (magnitude >> 13) & 1u;
        h.bits = (uint16_t)(sign | ((magnitude - 0x38000000u + 0xfffu + odd) >> 13));
    }
    return h;
}

/* Widens a bfloat16. Exact. */
static inline float ruvllm_bf16_to_f32(ruvllm_bf16 h) {
    return ruvllm_bits_float((uint32_t)h.bits << 16);
}

/* Rounds to bfloat16: to nearest, ties to even. */
static inline ruvllm_bf16 ruvllm_f32_to_bf16(float x) {
    const uint32_t bits = ruvllm_float_bits(x);
    ruvllm_bf16 h;
    if ((bits & 0x7fffffffu) > 0x7f800000u) {
        h.bits = (uint16_t)((bits >> 16) | 0x40u);
    } else {
        h.bits = (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
    }
    return h;
}

/* Absolute value. */
static inline float ruvllm_abs(float x) { return __builtin_fabsf(x); }

/* Square root, correctly rounded. */
static inline double ruvllm_sqrt(double x) { return __builtin_sqrt(x); }

/* Whether the number is neither infinite nor NaN. */
static inline int ruvllm_is_finite(float x) {
    return (ruvllm_float_bits(x) & 0x7f800000u) != 0x7f800000u;
}

/* Toward zero, clamped to the range of int32_t; NaN gives 0. Never traps. */
static inline int32_t ruvllm_trunc_i32(float x) {
    if (!(x > -2147483648.0f)) return x <= -2147483648.0f ? INT32_MIN : 0;
    if (x >= 2147483648.0f) return INT32_MAX;
    return (int32_t)x;
}

/* e^x for x <= 0, with a relative error below 3e-7; zero below -87.33, where the result leaves the
 * normal range. NaN stays. Cody and Waite's reduction to |r| <= ln 2 / 2 and a polynomial of degree 6. */
static inline float ruvllm_exp_nonpositive(float x) {
    /* Adding 1.5 * 2^23 leaves round(x / ln 2) in the low bits of the sum. */
    const float shifter = 12582912.0f;
    const float low = -87.33f;
    const float at = x < low ? low : x;
    const float shifted = at * 1.44269504f + shifter;
    const float n = shifted - shifter;
    float r = n * -0.69314575f + at;
    r = n * -1.4286068e-6f + r;
    float p = 1.0f / 720.0f;
    p = p * r + 1.0f / 120.0f;
    p = p * r + 1.0f / 24.0f;
    p = p * r + 1.0f / 6.0f;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    const float scale = ruvllm_bits_float((ruvllm_float_bits(shifted) + 127u) << 23);
    return x < low ? 0.0f : p * scale;
}

/* ---- four numbers at a time ------------------------------------------------------------------ */

/* Every turn of a loop asks whether there is time left, and that costs as much as a few vectors: a loop
 * should do the work of some 32 numbers in a turn, a sum that of 128. In front of an inner loop with a
 * constant bound this writes its body out. */
#if defined(__clang__)
#define RUVLLM_UNROLL _Pragma("clang loop unroll(full)")
#else
#define RUVLLM_UNROLL
#endif

/* Four floats. The operators of C work on all of them. */
typedef float ruvllm_f32x4 __attribute__((vector_size(16)));

/* Four integers; comparing vectors gives all ones or zero. */
typedef int32_t ruvllm_i32x4 __attribute__((vector_size(16)));

/* Four from memory; no alignment is asked for. */
static inline ruvllm_f32x4 ruvllm_load4(const float *from) {
    ruvllm_f32x4 v;
    __builtin_memcpy(&v, from, sizeof v);
    return v;
}

/* Four to memory. */
static inline void ruvllm_store4(float *to, ruvllm_f32x4 v) { __builtin_memcpy(to, &v, sizeof v); }

/* The same number four times. */
static inline ruvllm_f32x4 ruvllm_splat4(float x) {
    const ruvllm_f32x4 v = {x, x, x, x};
    return v;
}

/* a * b + c, rounded once or twice. */
static inline ruvllm_f32x4 ruvllm_madd4(ruvllm_f32x4 a, ruvllm_f32x4 b, ruvllm_f32x4 c) {
#if defined(__wasm_relaxed_simd__)
    return __builtin_wasm_relaxed_madd_f32x4(a, b, c);
#else
    return a * b + c;
#endif
}

/* The larger ones: of a where a number is none. */
static inline ruvllm_f32x4 ruvllm_max4(ruvllm_f32x4 a, ruvllm_f32x4 b) {
#if defined(__wasm_simd128__)
    return __builtin_wasm_pmax_f32x4(a, b);
#else
    const ruvllm_i32x4 less = a < b;
    return (ruvllm_f32x4)((less & (ruvllm_i32x4)b) | (~less & (ruvllm_i32x4)a));
#endif
}

/* The smaller ones: of a where a number is none. */
static inline ruvllm_f32x4 ruvllm_min4(ruvllm_f32x4 a, ruvllm_f32x4 b) {
#if defined(__wasm_simd128__)
    return __builtin_wasm_pmin_f32x4(a, b);
#else
    const ruvllm_i32x4 less = b < a;
    return (ruvllm_f32x4)((less & (ruvllm_i32x4)b) | (~less & (ruvllm_i32x4)a));
#endif
}

/* Absolute values. */
static inline ruvllm_f32x4 ruvllm_abs4(ruvllm_f32x4 v) {
    return (ruvllm_f32x4)((ruvllm_i32x4)v & INT32_MAX);
}

/* The sum of the four. */
static inline float ruvllm_sum4(ruvllm_f32x4 v) { return (v[0] + v[2]) + (v[1] + v[3]); }

/* Toward zero; unspecified where that is no int32_t. Never traps. */
static inline ruvllm_i32x4 ruvllm_trunc4(ruvllm_f32x4 v) {
#if defined(__wasm_relaxed_simd__)
    return __builtin_wasm_relaxed_trunc_s_i32x4_f32x4(v);
#elif defined(__wasm_simd128__)
    return __builtin_wasm_trunc_saturate_s_i32x4_f32x4(v);
#else
    const ruvllm_i32x4 whole = {ruvllm_trunc_i32(v[0]), ruvllm_trunc_i32(v[1]),
                                ruvllm_trunc_i32(v[2]), ruvllm_trunc_i32(v[3])};
    return whole;
#endif
}

/* 1 / (1 + e^-x), with a relative error below 3e-7 where the result is a normal number. NaN stays.
 *
 * With -x = n ln 2 + r and |r| <= ln 2 / 2, e^r = (a + r) / (a - r) for a = r coth(r / 2), which three
 * terms give to 2e-8. One division then serves for both: (a - r) / ((a - r) + 2^n (a + r)). */
static inline ruvllm_f32x4 ruvllm_sigmoid4(ruvllm_f32x4 v) {
    /* Above it is 1; below, 2^127 (a + r) is infinite and it is 0. */
    const ruvllm_f32x4 x = ruvllm_min4(ruvllm_max4(v, ruvllm_splat4(-88.2f)), ruvllm_splat4(87.0f));
    /* Adding 1.5 * 2^23 + 127 leaves n + 127, the exponent's bits of 2^n, in the low bits of the sum. */
    const ruvllm_f32x4 shifter = ruvllm_splat4(12583039.0f);
    const ruvllm_f32x4 shifted = ruvllm_madd4(x, ruvllm_splat4(-1.44269504f), shifter);
    const ruvllm_f32x4 n = shifted - shifter;
    ruvllm_f32x4 minus_r = ruvllm_madd4(n, ruvllm_splat4(0.69314575f), x);
    minus_r = ruvllm_madd4(n, ruvllm_splat4(1.4286068e-6f), minus_r);
    const ruvllm_f32x4 square = minus_r * minus_r;
    ruvllm_f32x4 a =
        ruvllm_madd4(square, ruvllm_splat4(-1.0f / 360.0f), ruvllm_splat4(1.0f / 6.0f));
    a = ruvllm_madd4(a, square, ruvllm_splat4(2.0f));
    const ruvllm_f32x4 power = (ruvllm_f32x4)((ruvllm_i32x4)shifted << 23);
    const ruvllm_f32x4 below = a + minus_r;
    return below / ruvllm_madd4(power, a - minus_r, below);
}

/* ---- a call ---------------------------------------------------------------------------------- */

/* The memory that a call may name: floor .. len of a linear memory that starts at base. The base is
 * an address, not a pointer: that of linear memory is zero, and C does not let a null pointer be
 * added to. */
typedef struct ruvllm_memory {
    uintptr_t base;
    size_t floor;
    size_t len;
} ruvllm_memory;

/* A checked call. The first thing that does not fit sets `status`; RUVLLM_READY returns it. A call whose address left
 * the kernel's own code could not stay in registers, and a call costs as much as its checks do: what has it is
 * inlined, all of it. */
typedef struct ruvllm_call {
    ruvllm_memory memory;
    ruvllm_descriptor desc; /* of a call for gradients, with that of the output as the output */
    ruvllm_status status;
    const char *what; /* of a tensor that does not fit, what it is not */
    uint32_t words_taken;
    uint32_t inputs_taken;
    uint32_t scratch_taken;
    ruvllm_region gradients[RUVLLM_MAX_INPUTS]; /* where those of the inputs go */
    uint32_t gradients_taken;
    uint32_t thread; /* the index of this one */
    uint32_t threads;
} ruvllm_call;

/* From the first row to the one behind the last. */
typedef struct ruvllm_range {
    uint32_t start;
    uint32_t end;
} ruvllm_range;

static inline void ruvllm_fail(ruvllm_call *call, ruvllm_status status) {
    if (call->status == RUVLLM_OK) call->status = status;
}

static inline int ruvllm_inside(const ruvllm_memory *memory, ruvllm_region region) {
    const uint64_t end = (uint64_t)region.offset + region.size;
    return region.size == 0 || (region.offset >= memory->floor && end <= memory->len);
}

static inline int ruvllm_overlap(ruvllm_region a, ruvllm_region b) {
    return a.size != 0 && b.size != 0 && (uint64_t)a.offset + a.size > b.offset &&
           (uint64_t)b.offset + b.size > a.offset;
}

/* Reads the descriptor at `at` and checks every region that it names. */
static inline ruvllm_call ruvllm_call_open(ruvllm_memory memory, uint32_t at) {
    const ruvllm_region own = {at, sizeof(ruvllm_descriptor)};
    ruvllm_call call = {memory, {{0, 0}, {0, 0}, {0, 0}, {0, 0}, {0, 0}}, RUVLLM_OK, NULL, 0, 0, 0,
                        {{0, 0}, {0, 0}}, 0, 0, 1};
    if (!ruvllm_inside(&memory, own)) {
        call.status = RUVLLM_INTERNAL_ERROR;
        return call;
    }
    __builtin_memcpy(&call.desc, (const void *)(memory.base + at), sizeof call.desc);
    const ruvllm_descriptor *d = &call.desc;
    if (ruvllm_overlap(d->output, d->input_a) || ruvllm_overlap(d->output, d->input_b) ||
        ruvllm_overlap(d->output, d->params)) {
        ruvllm_fail(&call, RUVLLM_INVALID_OUTPUT);
    }
    if (ruvllm_overlap(d->scratch, d->input_a) || ruvllm_overlap(d->scratch, d->input_b) ||
        ruvllm_overlap(d->scratch, d->params) || ruvllm_overlap(d->scratch, d->output)) {
        ruvllm_fail(&call, RUVLLM_OUT_OF_MEMORY);
    }
    if (!ruvllm_inside(&memory, d->input_a)) ruvllm_fail(&call, RUVLLM_INVALID_INPUT);
    if (!ruvllm_inside(&memory, d->input_b)) ruvllm_fail(&call, RUVLLM_INVALID_INPUT);
    if (!ruvllm_inside(&memory, d->params)) ruvllm_fail(&call, RUVLLM_INVALID_PARAMS);
    if (!ruvllm_inside(&memory, d->output)) ruvllm_fail(&call, RUVLLM_INVALID_OUTPUT);
    if (!ruvllm_inside(&memory, d->scratch)) ruvllm_fail(&call, RUVLLM_OUT_OF_MEMORY);
    return call;
}

/* The call as one of the threads that compute it together sees it: of the scratch it has a part of its own, of those
 * the last has the end, where the host looks for a message. */
static inline ruvllm_call ruvllm_call_open_part(ruvllm_memory memory, uint32_t at, uint32_t thread,
                                                uint32_t threads) {
    ruvllm_call call = ruvllm_call_open(memory, at);
    ruvllm_region *scratch = &call.desc.scratch;
    uint32_t each;
    if (thread >= threads) return call;
    call.thread = thread;
    call.threads = threads;
    each = scratch->size / threads / RUVLLM_REGION_ALIGN * RUVLLM_REGION_ALIGN;
    scratch->offset += thread * each;
    scratch->size = thread + 1 == threads ? scratch->size - thread * each : each;
    return call;
}

/* The rows that this thread computes, of so many that there are. The others are not to be written. */
static inline ruvllm_range ruvllm_own_rows(const ruvllm_call *call, uint32_t rows) {
    const uint32_t each = rows / call->threads, more = rows % call->threads;
    const uint32_t start = each * call->thread + (call->thread < more ? call->thread : more);
    const ruvllm_range own = {start, start + each + (call->thread < more ? 1 : 0)};
    return own;
}

/* Reads the descriptor of a call for gradients at `at` and checks every region that it names. */
static inline ruvllm_call ruvllm_backward_open(ruvllm_memory memory, uint32_t at) {
    const ruvllm_region own = {at, sizeof(ruvllm_backward_descriptor)};
    /* The beginning is that of any other call, where nothing written overlaps anything. */
    ruvllm_call call = ruvllm_call_open(memory, at);
    ruvllm_backward_descriptor d;
    uint32_t i;
    if (!ruvllm_inside(&memory, own)) ruvllm_fail(&call, RUVLLM_INTERNAL_ERROR);
    if (call.status == RUVLLM_INTERNAL_ERROR) return call;
    __builtin_memcpy(&d, (const void *)(memory.base + at), sizeof d);
    call.gradients[0] = d.grad_a;
    call.gradients[1] = d.grad_b;
    for (i = 0; i < RUVLLM_MAX_INPUTS; i++) {
        const ruvllm_region to = call.gradients[i];
        if (ruvllm_overlap(to, d.input_a) || ruvllm_overlap(to, d.input_b) ||
            ruvllm_overlap(to, d.grad_output) || ruvllm_overlap(to, d.params) ||
            ruvllm_overlap(to, call.gradients[1 - i]) || !ruvllm_inside(&memory, to)) {
            ruvllm_fail(&call, RUVLLM_INVALID_OUTPUT);
        }
        if (ruvllm_overlap(to, d.scratch)) ruvllm_fail(&call, RUVLLM_OUT_OF_MEMORY);
    }
    return call;
}

/* The next word of the params block. */
static inline uint32_t ruvllm_word(ruvllm_call *call) {
    const uint32_t at = call->words_taken * 4;
    uint32_t word = 0;
    if (call->status != RUVLLM_OK || call->desc.params.size < at + 4) {
        ruvllm_fail(call, RUVLLM_INVALID_PARAMS);
        return 0;
    }
    __builtin_memcpy(&word, (const void *)(call->memory.base + call->desc.params.offset + at), 4);
    call->words_taken++;
    return word;
}

/* The next bound shape symbol. */
static inline uint32_t ruvllm_symbol(ruvllm_call *call) { return ruvllm_word(call); }

/* The next param, by its type in the manifest. */
static inline uint32_t ruvllm_param_u32(ruvllm_call *call) { return ruvllm_word(call); }
static inline int32_t ruvllm_param_i32(ruvllm_call *call) { return (int32_t)ruvllm_word(call); }
static inline float ruvllm_param_f32(ruvllm_call *call) {
    return ruvllm_bits_float(ruvllm_word(call));
}

/* Where a region starts, if it holds exactly the shape; a shape counts elements, not blocks. */
static inline void *ruvllm_view(ruvllm_call *call, ruvllm_region region, ruvllm_status status,
                                const char *what, const uint32_t *shape, size_t rank,
                                uint32_t block_elems, uint32_t block_bytes, uint32_t align) {
    uint64_t elems = 1;
    size_t i;
    if (call->status != RUVLLM_OK) return NULL;
    for (i = 0; i < rank; i++) {
        elems *= shape[i];
        /* More than fits memory; going on might overflow. */
        if (elems > UINT32_MAX) {
            ruvllm_fail(call, status);
            call->what = what;
            return NULL;
        }
    }
    if (elems % block_elems != 0 || elems / block_elems * block_bytes != region.size ||
        (region.size != 0 && region.offset % align != 0)) {
        ruvllm_fail(call, status);
        call->what = what;
        return NULL;
    }
    return (void *)(call->memory.base + region.offset);
}

static inline const void *ruvllm_input(ruvllm_call *call, const char *const what[2],
                                       const uint32_t *shape, size_t rank, uint32_t block_elems,
                                       uint32_t block_bytes, uint32_t align) {
    const uint32_t which = call->inputs_taken++;
    if (which >= RUVLLM_MAX_INPUTS) ruvllm_fail(call, RUVLLM_INVALID_INPUT);
    return ruvllm_view(call, which == 0 ? call->desc.input_a : call->desc.input_b,
                       RUVLLM_INVALID_INPUT, what[which != 0], shape, rank, block_elems,
                       block_bytes, align);
}

static inline void *ruvllm_gradient(ruvllm_call *call, const char *const what[2],
                                    const uint32_t *shape, size_t rank, uint32_t block_elems,
                                    uint32_t block_bytes, uint32_t align) {
    const uint32_t which = call->gradients_taken++;
    if (which >= RUVLLM_MAX_INPUTS) ruvllm_fail(call, RUVLLM_INVALID_OUTPUT);
    return ruvllm_view(call, call->gradients[which == 0 ? 0 : 1], RUVLLM_INVALID_OUTPUT,
                       what[which != 0], shape, rank, block_elems, block_bytes, align);
}

/* Takes room for `bytes` of scratch at an alignment that is a power of two. */
static inline void *ruvllm_scratch(ruvllm_call *call, uint64_t bytes, uint32_t align) {
    const uint64_t base = call->desc.scratch.offset;
    const uint64_t at = (base + call->scratch_taken + align - 1) & ~(uint64_t)(align - 1);
    if (call->status != RUVLLM_OK || bytes > call->desc.scratch.size ||
        at + bytes > base + call->desc.scratch.size) {
        ruvllm_fail(call, RUVLLM_OUT_OF_MEMORY);
        return NULL;
    }
    call->scratch_taken = (uint32_t)(at + bytes - base);
    return (void *)(uintptr_t)(call->memory.base + at);
}

/* Leaves a text about a failure for whoever looks into it, at the end of scratch unless that is taken, and
 * gives the status back: return ruvllm_say(call, RUVLLM_INVALID_PARAMS, "eps must be positive"); */
static inline ruvllm_status ruvllm_say(ruvllm_call *call, ruvllm_status status, const char *text) {
    const ruvllm_region scratch = call->desc.scratch;
    unsigned char *message;
    uint32_t length = 0;
    if (scratch.size < RUVLLM_MESSAGE_BYTES ||
        call->scratch_taken > scratch.size - RUVLLM_MESSAGE_BYTES ||
        !ruvllm_inside(&call->memory, scratch)) {
        return status;
    }
    message = (unsigned char *)(uintptr_t)(call->memory.base + scratch.offset + scratch.size -
                                           RUVLLM_MESSAGE_BYTES);
    while (text[length] != 0 && length < RUVLLM_MESSAGE_BYTES - 12) {
        message[12 + length] = (unsigned char)text[length];
        length++;
    }
    __builtin_memcpy(message, RUVLLM_MESSAGE_MAGIC, 8);
    __builtin_memcpy(message + 8, &length, 4);
    return status;
}

/* Elements of a block of this type: no plain type has the size of a block. */
#define RUVLLM_BLOCK_ELEMS(type) \
    ((sizeof(type) == sizeof(ruvllm_block_q8_0) || sizeof(type) == sizeof(ruvllm_block_q4_0)) ? 32u \
                                                                                              : 1u)
#define RUVLLM_SHAPE(...) \
    ((const uint32_t[]){__VA_ARGS__}), (sizeof((const uint32_t[]){__VA_ARGS__}) / sizeof(uint32_t))

/* What is said of a tensor that has another size, in the words of the source. */
#define RUVLLM_IS_NOT(what, type, ...) what " is not " #type " [" #__VA_ARGS__ "]"
/* The same of the first and of the second of two. */
#define RUVLLM_ONE_IS_NOT(what, type, ...)                           \
    ((const char *const[]){RUVLLM_IS_NOT(what " 1", type, __VA_ARGS__), \
                           RUVLLM_IS_NOT(what " 2", type, __VA_ARGS__)})

/* The next input as a tensor of `type`, row-major, of this shape. */
#define RUVLLM_INPUT(call, type, ...)                                                        \
    ((const type *)ruvllm_input((call), RUVLLM_ONE_IS_NOT("input", type, __VA_ARGS__),       \
                                RUVLLM_SHAPE(__VA_ARGS__), RUVLLM_BLOCK_ELEMS(type),         \
                                (uint32_t)sizeof(type), (uint32_t)__alignof__(type)))

/* The output as a tensor of `type`, row-major, of this shape. */
#define RUVLLM_OUTPUT(call, type, ...)                                                    \
    ((type *)ruvllm_view((call), (call)->desc.output, RUVLLM_INVALID_OUTPUT,              \
                         RUVLLM_IS_NOT("the output", type, __VA_ARGS__),                  \
                         RUVLLM_SHAPE(__VA_ARGS__), RUVLLM_BLOCK_ELEMS(type),             \
                         (uint32_t)sizeof(type), (uint32_t)__alignof__(type)))

/* In a call for gradients: that of the output, in its shape. */
#define RUVLLM_GRAD_OUTPUT(call, type, ...)                                               \
    ((const type *)ruvllm_view((call), (call)->desc.output, RUVLLM_INVALID_INPUT,         \
                               RUVLLM_IS_NOT("the gradient", type, __VA_ARGS__),          \
                               RUVLLM_SHAPE(__VA_ARGS__), RUVLLM_BLOCK_ELEMS(type),       \
                               (uint32_t)sizeof(type), (uint32_t)__alignof__(type)))

/* In a call for gradients: where that of the next input goes, in its shape. All of it must be written. */
#define RUVLLM_GRAD_INPUT(call, type, ...)                                                 \
    ((type *)ruvllm_gradient((call), RUVLLM_ONE_IS_NOT("gradient", type, __VA_ARGS__),     \
                             RUVLLM_SHAPE(__VA_ARGS__), RUVLLM_BLOCK_ELEMS(type),          \
                             (uint32_t)sizeof(type), (uint32_t)__alignof__(type)))

/* Room for `count` of `type` in the scratch region. */
#define RUVLLM_SCRATCH(call, type, count)                                     \
    ((type *)ruvllm_scratch((call), (uint64_t)(count) * sizeof(type),         \
                            (uint32_t)__alignof__(type)))

/* Ends the kernel with the status of the first thing that did not fit, which is said where it is a tensor. */
#define RUVLLM_READY(call)                                                                   \
    do {                                                                                     \
        if ((call)->status != RUVLLM_OK)                                                     \
            return (call)->what ? ruvllm_say((call), (call)->status, (call)->what)           \
                                : (call)->status;                                            \
    } while (0)

/* ---- entry points ---------------------------------------------------------------------------- */

#if defined(__wasm__)

extern unsigned char __heap_base;

/* This instance's memory above __heap_base, where nothing of the kernel's own lies. */
static inline ruvllm_memory ruvllm_linear_memory(void) {
    ruvllm_memory memory;
    memory.base = 0;
    memory.floor = (size_t)&__heap_base;
    memory.len = (size_t)__builtin_wasm_memory_size(0) * 65536u;
    return memory;
}

/* `kernel_info`, which says what the module is. */
#define RUVLLM_EXPORT_INFO                                                              \
    __attribute__((export_name("kernel_info"))) int32_t kernel_info(uint32_t out) {     \
        const ruvllm_region region = {out, sizeof(ruvllm_kernel_info)};                 \
        const ruvllm_kernel_info info = {RUVLLM_ABI_VERSION, RUVLLM_REVISION, 0, 0};    \
        const ruvllm_memory memory = ruvllm_linear_memory();                            \
        if (!ruvllm_inside(&memory, region)) return RUVLLM_INVALID_OUTPUT;              \
        __builtin_memcpy((void *)(memory.base + out), &info, sizeof info);              \
        return RUVLLM_OK;                                                               \
    }

/* Declares a kernel: exports it under the name, and `kernel_info`. The body follows in braces; it
 * has `call` and returns a status. */
#define RUVLLM_KERNEL(name)                                                             \
    static ruvllm_status name##_body(ruvllm_call *call);                                \
    __attribute__((export_name(#name))) int32_t name(uint32_t desc) {                   \
        ruvllm_call call = ruvllm_call_open(ruvllm_linear_memory(), desc);              \
        return (int32_t)(call.status != RUVLLM_OK ? call.status : name##_body(&call));  \
    }                                                                                   \
    RUVLLM_EXPORT_INFO                                                                  \
    static ruvllm_status name##_body(ruvllm_call *call)

/* Declares a kernel with threads. Its body runs in each of them, all at once, and writes the rows of
 * ruvllm_own_rows. */
#define RUVLLM_KERNEL_WITH_THREADS(name)                                                         \
    static ruvllm_status name##_body(ruvllm_call *call);                                         \
    __attribute__((export_name(#name))) int32_t name(uint32_t desc, uint32_t i, uint32_t n) {    \
        ruvllm_call call = ruvllm_call_open_part(ruvllm_linear_memory(), desc, i, n);            \
        return (int32_t)(call.status != RUVLLM_OK ? call.status : name##_body(&call));           \
    }                                                                                            \
    RUVLLM_EXPORT_INFO                                                                           \
    static ruvllm_status name##_body(ruvllm_call *call)

/* Declares the gradient of the kernel and exports it as `kernel_backward`. The body follows in braces, as that
 * of a kernel does. */
#define RUVLLM_BACKWARD                                                                         \
    static ruvllm_status kernel_backward_body(ruvllm_call *call);                               \
    __attribute__((export_name("kernel_backward"))) int32_t kernel_backward(uint32_t desc) {    \
        ruvllm_call call = ruvllm_backward_open(ruvllm_linear_memory(), desc);                  \
        return (int32_t)(call.status != RUVLLM_OK ? call.status : kernel_backward_body(&call)); \
    }                                                                                           \
    static ruvllm_status kernel_backward_body(ruvllm_call *call)

#else

/* Off wasm a kernel is a function over any memory; regions are offsets into it. */
#define RUVLLM_KERNEL(name)                                                             \
    static ruvllm_status name##_body(ruvllm_call *call);                                \
    int32_t name(unsigned char *base, size_t len, uint32_t desc);                       \
    int32_t name(unsigned char *base, size_t len, uint32_t desc) {                      \
        const ruvllm_memory memory = {(uintptr_t)base, 0, len};                         \
        ruvllm_call call = ruvllm_call_open(memory, desc);                              \
        return (int32_t)(call.status != RUVLLM_OK ? call.status : name##_body(&call));  \
    }                                                                                   \
    static ruvllm_status name##_body(ruvllm_call *call)

/* Called as often as it is to have threads, with the index of each. */
#define RUVLLM_KERNEL_WITH_THREADS(name)                                                         \
    static ruvllm_status name##_body(ruvllm_call *call);                                         \
    int32_t name(unsigned char *base, size_t len, uint32_t desc, uint32_t i, uint32_t n);        \
    int32_t name(unsigned char *base, size_t len, uint32_t desc, uint32_t i, uint32_t n) {       \
        const ruvllm_memory memory = {(uintptr_t)base, 0, len};                                  \
        ruvllm_call call = ruvllm_call_open_part(memory, desc, i, n);                            \
        return (int32_t)(call.status != RUVLLM_OK ? call.status : name##_body(&call));           \
    }                                                                                            \
    static ruvllm_status name##_body(ruvllm_call *call)

#define RUVLLM_BACKWARD                                                                         \
    static ruvllm_status kernel_backward_body(ruvllm_call *call);                               \
    int32_t kernel_backward(unsigned char *base, size_t len, uint32_t desc);                    \
    int32_t kernel_backward(unsigned char *base, size_t len, uint32_t desc) {                   \
        const ruvllm_memory memory = {(uintptr_t)base, 0, len};                                 \
        ruvllm_call call = ruvllm_backward_open(memory, desc);                                  \
        return (int32_t)(call.status != RUVLLM_OK ? call.status : kernel_backward_body(&call)); \
    }                                                                                           \
    static ruvllm_status kernel_backward_body(ruvllm_call *call)

#endif

#endif /* RUVLLM_KERNEL_H */
