//! Instructions that the hot operations execute, counted by Callgrind: a change of some percent shows
//! on a machine whose clock says nothing.
//!
//! ```console
//! apt-get install valgrind
//! cargo install gungraun-runner --version 0.20.0
//! cd benches/instructions
//! cargo bench                                          # counts, and compares with the run before
//! cargo bench -- --save-baseline=main                  # remembers this run by a name
//! cargo bench -- --baseline=main                       # compares with it
//! cargo bench -- --callgrind-limits='ir=1%'            # another limit than the 2 % set below
//! cargo bench -- '*products*'                          # some of them
//! ```
//!
//! A run in which an operation takes over 2 % more instructions than in the one that it is compared
//! with fails. Counts depend on the compiler, so that none are kept in the repository: make the
//! baseline on the commit before, on the same machine.
//!
//! What is counted is the code of AVX2 and below: Valgrind's processor has no AVX-512, whatever the
//! machine has. `avx2-128` is AVX2 on vectors as wide as a sandboxed kernel's, `scalar` is portable
//! Rust. On other processors than x86-64 the first two are the best that there is. Instructions
//! are not time: a loop that waits for memory counts as much as one that does not.
#![allow(missing_docs, reason = "gungraun's macros make public functions")]

use gungraun::prelude::*;
use gungraun::{Callgrind, EventKind};
use ruvllm_abi::DType;
use ruvllm_host::Policy;
use ruvllm_instructions::{self as ready, Ready};
use ruvllm_native::Isa;

// One decoded token: `[64, 2048]` weights, one row of activations.
#[library_benchmark(setup = ready::product)]
#[bench::avx2_q8_0(Isa::Avx2, DType::Q8_0, 1)]
#[bench::avx2_q4_0(Isa::Avx2, DType::Q4_0, 1)]
#[bench::avx2_q4_k(Isa::Avx2, DType::Q4_K, 1)]
#[bench::avx2_q6_k(Isa::Avx2, DType::Q6_K, 1)]
#[bench::avx2_f16(Isa::Avx2, DType::F16, 1)]
#[bench::scalar_q8_0(Isa::Scalar, DType::Q8_0, 1)]
fn gemv(mut ready: Ready) -> Ready {
    ready.call();
    ready
}

// A tile of a prompt: the same weights, 32 rows of activations.
#[library_benchmark(setup = ready::product)]
#[bench::avx2_q8_0(Isa::Avx2, DType::Q8_0, 32)]
#[bench::avx2_q4_0(Isa::Avx2, DType::Q4_0, 32)]
#[bench::avx2_q4_k(Isa::Avx2, DType::Q4_K, 32)]
#[bench::avx2_q6_k(Isa::Avx2, DType::Q6_K, 32)]
#[bench::avx2_f16(Isa::Avx2, DType::F16, 32)]
fn gemm(mut ready: Ready) -> Ready {
    ready.call();
    ready
}

#[library_benchmark(setup = ready::quantise)]
#[bench::avx2(Isa::Avx2)]
#[bench::scalar(Isa::Scalar)]
fn quantise_activations(mut ready: Ready) -> Ready {
    ready.call();
    ready
}

#[library_benchmark(setup = ready::attend)]
#[bench::avx2(Isa::Avx2, 256)]
#[bench::scalar(Isa::Scalar, 256)]
fn attention_f16_depth_256(mut ready: Ready) -> Ready {
    ready.call();
    ready
}

#[library_benchmark(setup = ready::rmsnorm)]
#[bench::avx2(Isa::Avx2)]
#[bench::avx2_128(Isa::Avx2Narrow)]
#[bench::scalar(Isa::Scalar)]
fn rmsnorm(mut ready: Ready) -> Ready {
    ready.call();
    ready
}

#[library_benchmark(setup = ready::rope)]
#[bench::avx2(Isa::Avx2)]
#[bench::avx2_128(Isa::Avx2Narrow)]
#[bench::scalar(Isa::Scalar)]
fn rope(mut ready: Ready) -> Ready {
    ready.call();
    ready
}

#[library_benchmark(setup = ready::swiglu)]
#[bench::avx2(Isa::Avx2)]
#[bench::avx2_128(Isa::Avx2Narrow)]
#[bench::scalar(Isa::Scalar)]
fn swiglu(mut ready: Ready) -> Ready {
    ready.call();
    ready
}

#[library_benchmark(setup = ready::kv_pack)]
#[bench::avx2(Isa::Avx2)]
#[bench::avx2_128(Isa::Avx2Narrow)]
#[bench::scalar(Isa::Scalar)]
fn kv_pack_q8(mut ready: Ready) -> Ready {
    ready.call();
    ready
}

#[library_benchmark(setup = ready::kv_unpack)]
#[bench::avx2(Isa::Avx2)]
#[bench::avx2_128(Isa::Avx2Narrow)]
#[bench::scalar(Isa::Scalar)]
fn kv_unpack_q8(mut ready: Ready) -> Ready {
    ready.call();
    ready
}

#[library_benchmark(setup = ready::lora)]
#[bench::avx2(Isa::Avx2)]
#[bench::avx2_128(Isa::Avx2Narrow)]
#[bench::scalar(Isa::Scalar)]
fn lora_rank_8(mut ready: Ready) -> Ready {
    ready.call();
    ready
}

// RMSNorm through the host, clocks and copies counted.
#[library_benchmark(setup = ready::host_call)]
#[bench::sandbox(Policy::SandboxFirst)]
#[bench::native_twin(Policy::NativeOnly)]
fn host_call(mut ready: Ready) -> Ready {
    ready.call();
    ready
}

library_benchmark_group!(name = products, benchmarks = [gemv, gemm, quantise_activations]);
library_benchmark_group!(name = attention, benchmarks = [attention_f16_depth_256]);
library_benchmark_group!(
    name = native_twins,
    benchmarks = [rmsnorm, rope, swiglu, kv_pack_q8, kv_unpack_q8, lora_rank_8]
);
library_benchmark_group!(name = host, benchmarks = [host_call]);

main!(
    config = LibraryBenchmarkConfig::default()
        .tool(Callgrind::with_args(["--cache-sim=no"]).soft_limits([(EventKind::Ir, 2.0)])),
    library_benchmark_groups = [products, attention, native_twins, host]
);
