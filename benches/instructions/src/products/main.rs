//! Instructions that products take for each 32 weights and row of activations: of every weight type, with
//! every instruction set that the processor has, AVX-512 and AVX-VNNI included. Prints a table.
//!
//! ```console
//! cd benches/instructions
//! cargo run --release --no-default-features --bin products
//! cargo run --release --no-default-features --bin products -- --types q4_0 --isa avx2 --rows 8,40
//! ```
//!
//! On x86-64 the processor is made to trap after each instruction, and the traps are counted; for 64-bit Arm the
//! log of QEMU, which emulates such a processor (`--emulated`), has a line for each. Both count what is
//! executed, and give the same numbers each time.
//!
//! A matrix of short rows is counted and one of rows twice as long: the difference is what weights take,
//! unpacked, multiplied and scaled, and nothing that a row takes but once, which is little where rows are
//! long. Activations are taken in before, as a model does once for several matrices.
//!
//! For NEON, on a machine with a cross compiler and QEMU (Debian: `gcc-aarch64-linux-gnu`,
//! `libc6-dev-arm64-cross`, `qemu-user`; `rustup target add aarch64-unknown-linux-gnu`):
//!
//! ```console
//! export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
//! export QEMU_LD_PREFIX=/usr/aarch64-linux-gnu
//! cargo build --release --no-default-features --bin products --target aarch64-unknown-linux-gnu
//! cargo run --release --no-default-features --bin products -- \
//!     --emulated target/aarch64-unknown-linux-gnu/release/products
//! ```
//!
//! Instructions are not time: a loop that waits for memory counts as much as one that does not.

#[cfg(target_os = "linux")]
mod emulated;
#[cfg(target_os = "linux")]
mod program;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod stepped;
#[cfg(target_os = "linux")]
mod table;

#[cfg(target_os = "linux")]
fn main() -> std::process::ExitCode {
    match program::main() {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            std::process::ExitCode::FAILURE
        }
    }
}

#[cfg(not(target_os = "linux"))]
fn main() -> std::process::ExitCode {
    eprintln!("error: instructions are counted on Linux only");
    std::process::ExitCode::FAILURE
}
