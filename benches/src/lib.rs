//! The criterion benches of this workspace; `cargo bench -p ruvllm-benches` runs them all.
//!
//! Two more packages lie beside this one, as workspaces of their own because of what they need:
//! `peers` runs llama.cpp, candle and ruvllm on the same files in turn (cmake, a C++ compiler and
//! libclang), `instructions` counts the hot operations' instructions (Valgrind). How to run each is
//! said at the top of `peers/src/main.rs` and `instructions/benches/ops.rs`.
