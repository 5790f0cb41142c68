//! The criterion benches of this workspace; `cargo bench -p ruvllm-benches` runs them all.
//!
//! Two more packages lie beside this one, as workspaces of their own because of what they need:
//! `peers` runs llama.cpp, candle and ruvllm on the same files in turn (cmake, a C++ compiler and
//! libclang), `instructions` counts the hot operations' instructions (Valgrind). How to run each is
//! said at the top of `peers/src/main.rs` and `instructions/benches/ops.rs`.

/// A kernel of an operation of its own, with the entry point `run`, that copies its numbers: as little as a host admits.
pub const COPY: &str = r#"(module (memory (export "memory") 1 16)
    (global (export "__heap_base") i32 (i32.const 64))
    (func (export "run") (param $desc i32) (result i32)
        (local $x i32) (local $y i32) (local $end i32)
        (local.set $x (i32.load offset=0 (local.get $desc)))
        (local.set $y (i32.load offset=16 (local.get $desc)))
        (local.set $end (i32.add (local.get $y) (i32.load offset=20 (local.get $desc))))
        (block $done (loop $next
            (br_if $done (i32.ge_u (local.get $y) (local.get $end)))
            (i32.store (local.get $y) (i32.load (local.get $x)))
            (local.set $x (i32.add (local.get $x) (i32.const 4)))
            (local.set $y (i32.add (local.get $y) (i32.const 4)))
            (br $next)))
        (i32.const 0)))"#;
