//! Native kernels: the mathematics that every sandboxed kernel is held against, and the matrix
//! products and attention that stay native for speed.
//!
//! - [`oracle`] defines each operation in f64; nothing else in the workspace does.
//! - [`ops`] are the native twins of the operations that kernel packs provide, and [`twin`] calls
//!   them by contract, over bytes, which is what the host falls back to.
//! - [`judge`] says whether an output is right, and makes up the calls that kernels are tried on; what
//!   differs between operations is a row of `catalogue`.
//! - [`quant`] reads and writes the block formats, [`gemm`] multiplies by weights stored in them,
//!   [`attention`] reads a key-value cache stored in them.
//! - [`pool`] runs all of it on a fixed set of threads; [`isa`] says which instructions there are;
//!   [`probe`] measures what the machine gives, to hold figures against.
//!
//! Invariants: a function that takes an [`Isa`] gives the same result, up to the stated rounding,
//! for each of them; one that the processor lacks means the best that it has. No function panics
//! on sizes: they are checked first and give a [`NativeError`]. Unsafe code is allowed in the pool
//! and in the files that hold SIMD or prefetch or share mappings, nowhere else.
#![deny(unsafe_code)]

pub mod attention;
mod catalogue;
pub mod error;
pub mod gemm;
pub mod isa;
pub mod judge;
mod mapped;
pub mod ops;
pub mod oracle;
pub mod pool;
mod prefetch;
pub mod probe;
pub mod quant;
pub mod random;
pub mod twin;

pub use error::NativeError;
pub use isa::Isa;
pub use pool::ThreadPool;
