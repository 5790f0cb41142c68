//! The C header holds what the ABI says: constants, layouts, and numbers bit for bit.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

use ruvllm_abi::{
    ABI_VERSION, BackwardDescriptor, DType, KernelDescriptor, KernelInfo, MAX_INPUTS,
    MAX_PARAM_WORDS, REGION_ALIGN, SCRATCH_BYTES, Status, bf16_to_f32, f16_to_f32, f32_to_bf16,
    f32_to_f16, message,
};

/// A compiler of C for this machine; clang where it is, since that compiles kernels.
fn compiler() -> Option<&'static str> {
    let candidates = ["clang", "clang-19", "clang-20", "clang-18", "cc"];
    candidates.into_iter().find(|name| {
        Command::new(name).arg("--version").output().is_ok_and(|out| out.status.success())
    })
}

fn compile(dir: &Path, source: &str) -> Option<std::path::PathBuf> {
    let Some(compiler) = compiler() else {
        eprintln!("skipped: no C compiler here");
        return None;
    };
    let (file, program) = (dir.join("check.c"), dir.join("check"));
    fs::write(dir.join("ruvllm_kernel.h"), ruvllm_pack::scaffold::c_header()).expect("written");
    fs::write(&file, format!("{source}\n")).expect("written");
    let output = Command::new(compiler)
        .args(["-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror", "-O1", "-o"])
        .args([&program, &file])
        .output()
        .expect("the compiler runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(program)
}

fn run(program: &Path) -> Vec<u8> {
    let output = Command::new(program).output().expect("the program runs");
    assert!(output.status.success());
    output.stdout
}

#[test]
fn constants_layouts_status_codes_and_dtypes_are_those_of_the_abi() {
    let mut source = String::from("#include \"ruvllm_kernel.h\"\n#include <stddef.h>\n");
    let mut count = 0;
    let mut equal = |c: &str, value: usize| {
        count += 1;
        writeln!(source, "RUVLLM_STATIC_ASSERT(({c}) == {value}, check_{count});").expect("text");
    };
    equal("RUVLLM_ABI_VERSION", ABI_VERSION as usize);
    equal("RUVLLM_REGION_ALIGN", REGION_ALIGN);
    equal("RUVLLM_SCRATCH_BYTES", SCRATCH_BYTES);
    equal("RUVLLM_MESSAGE_BYTES", message::BYTES);
    equal("RUVLLM_MAX_PARAM_WORDS", MAX_PARAM_WORDS);
    equal("RUVLLM_MAX_INPUTS", MAX_INPUTS);
    equal("sizeof(ruvllm_descriptor)", KernelDescriptor::SIZE);
    equal("sizeof(ruvllm_backward_descriptor)", BackwardDescriptor::SIZE);
    for (field, at) in [
        ("grad_output", std::mem::offset_of!(BackwardDescriptor, grad_output)),
        ("scratch", std::mem::offset_of!(BackwardDescriptor, scratch)),
        ("params", std::mem::offset_of!(BackwardDescriptor, params)),
        ("grad_a", std::mem::offset_of!(BackwardDescriptor, grad_a)),
        ("grad_b", std::mem::offset_of!(BackwardDescriptor, grad_b)),
    ] {
        equal(&format!("offsetof(ruvllm_backward_descriptor, {field})"), at);
    }
    equal("sizeof(ruvllm_kernel_info)", KernelInfo::SIZE);
    for (field, at) in [
        ("input_a", std::mem::offset_of!(KernelDescriptor, input_a)),
        ("input_b", std::mem::offset_of!(KernelDescriptor, input_b)),
        ("output", std::mem::offset_of!(KernelDescriptor, output)),
        ("scratch", std::mem::offset_of!(KernelDescriptor, scratch)),
        ("params", std::mem::offset_of!(KernelDescriptor, params)),
    ] {
        equal(&format!("offsetof(ruvllm_descriptor, {field})"), at);
    }
    for (field, at) in [
        ("abi_version", std::mem::offset_of!(KernelInfo, abi_version)),
        ("revision", std::mem::offset_of!(KernelInfo, revision)),
        ("flags", std::mem::offset_of!(KernelInfo, flags)),
        ("reserved", std::mem::offset_of!(KernelInfo, reserved)),
    ] {
        equal(&format!("offsetof(ruvllm_kernel_info, {field})"), at);
    }
    equal("offsetof(ruvllm_region, offset)", 0);
    equal("offsetof(ruvllm_region, size)", 4);
    equal("sizeof(ruvllm_block_q8_0)", DType::Q8_0.layout().bytes);
    equal("sizeof(ruvllm_block_q4_0)", DType::Q4_0.layout().bytes);
    equal("offsetof(ruvllm_block_q8_0, qs)", 2);
    equal("offsetof(ruvllm_block_q4_0, qs)", 2);
    equal("RUVLLM_BLOCK_ELEMS(ruvllm_block_q8_0)", DType::Q8_0.layout().elems);
    equal("RUVLLM_BLOCK_ELEMS(ruvllm_block_q4_0)", DType::Q4_0.layout().elems);
    equal("RUVLLM_BLOCK_ELEMS(float)", 1);
    for status in Status::ALL {
        equal(&format!("RUVLLM_{}", status.name()), status.code() as usize);
    }
    for (i, dtype) in DType::ALL.iter().enumerate() {
        equal(&format!("RUVLLM_{}", dtype.name().to_uppercase()), i);
    }
    source.push_str("#include <stdio.h>\nint main(void) {\n");
    for dtype in DType::ALL {
        let name = format!("RUVLLM_{}", dtype.name().to_uppercase());
        writeln!(
            source,
            "printf(\"%u %u\\n\", ruvllm_block_elems({name}), ruvllm_block_bytes({name}));"
        )
        .expect("text");
    }
    source.push_str("return 0; }\n");
    let dir = tempfile::tempdir().expect("a temporary directory");
    let Some(program) = compile(dir.path(), &source) else { return };
    let layouts = String::from_utf8(run(&program)).expect("text");
    let expected: Vec<String> = DType::ALL
        .iter()
        .map(|dtype| format!("{} {}", dtype.layout().elems, dtype.layout().bytes))
        .collect();
    assert_eq!(layouts.lines().collect::<Vec<_>>(), expected);
}

#[test]
fn conversions_give_the_bits_of_the_abi_and_the_exponential_is_within_3e_7() {
    let source = r#"
        #include "ruvllm_kernel.h"
        #include <stdio.h>
        int main(void) {
            for (uint32_t i = 0; i < 65536; i++) {
                ruvllm_f16 h = { (uint16_t)i };
                ruvllm_bf16 b = { (uint16_t)i };
                uint32_t out[2] = { ruvllm_float_bits(ruvllm_f16_to_f32(h)),
                                    ruvllm_float_bits(ruvllm_bf16_to_f32(b)) };
                fwrite(out, 4, 2, stdout);
            }
            for (uint32_t i = 0; i < 200000; i++) {
                float x = ruvllm_bits_float(i * 2654435761u);
                uint16_t out[2] = { ruvllm_f32_to_f16(x).bits, ruvllm_f32_to_bf16(x).bits };
                fwrite(out, 2, 2, stdout);
            }
            for (uint32_t i = 0; i < 100000; i++) {
                float y = ruvllm_exp_nonpositive(-0.00087f * (float)i);
                fwrite(&y, 4, 1, stdout);
            }
            return 0;
        }"#;
    let dir = tempfile::tempdir().expect("a temporary directory");
    let Some(program) = compile(dir.path(), source) else { return };
    let bytes = run(&program);
    let (wide, rest) = bytes.split_at(65536 * 8);
    let (narrow, exps) = rest.split_at(200_000 * 4);
    for (bits, out) in (0..=u16::MAX).zip(wide.as_chunks::<8>().0) {
        let word = |i: usize| u32::from_le_bytes([out[i], out[i + 1], out[i + 2], out[i + 3]]);
        assert_eq!(word(0), f16_to_f32(bits).to_bits(), "{bits:#06x}");
        assert_eq!(word(4), bf16_to_f32(bits).to_bits(), "{bits:#06x}");
    }
    for (i, out) in (0..200_000u32).zip(narrow.as_chunks::<4>().0) {
        let x = f32::from_bits(i.wrapping_mul(2_654_435_761));
        assert_eq!(u16::from_le_bytes([out[0], out[1]]), f32_to_f16(x), "{x:e}");
        assert_eq!(u16::from_le_bytes([out[2], out[3]]), f32_to_bf16(x), "{x:e}");
    }
    for (i, out) in (0..100_000u32).zip(exps.as_chunks::<4>().0) {
        let x = -0.00087f32 * i as f32;
        let (got, want) = (f64::from(f32::from_le_bytes(*out)), f64::from(x).exp());
        assert!((got - want).abs() <= 3e-7 * want, "exp({x}) = {got:e}, not {want:e}");
    }
}

#[test]
fn a_kernel_compiled_natively_computes_and_refuses_what_does_not_hold_together() {
    let source = r#"
        #include "ruvllm_kernel.h"
        #include <stdio.h>
        #include <string.h>
        RUVLLM_KERNEL(double_forward) {
            const uint32_t rows = ruvllm_symbol(call), dim = ruvllm_symbol(call);
            const float *x = RUVLLM_INPUT(call, float, rows, dim);
            float *y = RUVLLM_OUTPUT(call, float, rows, dim);
            float *room = RUVLLM_SCRATCH(call, float, 2);
            RUVLLM_READY(call);
            if (dim == 4) return ruvllm_say(call, RUVLLM_NOT_IMPLEMENTED, "dim must not be 4");
            room[1] = 2.0f;
            for (size_t i = 0; i < (size_t)rows * dim; i++) y[i] = room[1] * x[i];
            return RUVLLM_OK;
        }
        static unsigned char memory[1024] __attribute__((aligned(64)));
        static int32_t call_with(ruvllm_descriptor d, uint32_t at) {
            const uint32_t words[2] = {2, 3};
            memcpy(memory + 512, words, sizeof words);
            if (at <= sizeof memory - sizeof d) memcpy(memory + at, &d, sizeof d);
            return double_forward(memory, sizeof memory, at);
        }
        int main(void) {
            const ruvllm_descriptor good = {{64, 24}, {0, 0}, {128, 24}, {256, 64}, {512, 8}};
            for (int i = 0; i < 6; i++) ((float *)(memory + 64))[i] = (float)i;
            if (call_with(good, 0) != RUVLLM_OK) return 1;
            if (((float *)(memory + 128))[5] != 10.0f) return 2;
            ruvllm_descriptor d = good;
            d.input_a.size = 20;
            if (call_with(d, 0) != RUVLLM_INVALID_INPUT) return 3;
            d = good; d.input_a.offset = 1020;
            if (call_with(d, 0) != RUVLLM_INVALID_INPUT) return 4;
            d = good; d.output.offset = 80;
            if (call_with(d, 0) != RUVLLM_INVALID_OUTPUT) return 5;
            d = good; d.params.size = 4;
            if (call_with(d, 0) != RUVLLM_INVALID_PARAMS) return 6;
            d = good; d.scratch.size = 4;
            if (call_with(d, 0) != RUVLLM_OUT_OF_MEMORY) return 7;
            d = good; d.input_a.offset = 66;
            if (call_with(d, 0) != RUVLLM_INVALID_INPUT) return 8;
            d = good; d.params.offset = 0xfffffffeu;
            if (call_with(d, 0) != RUVLLM_INVALID_PARAMS) return 9;
            if (call_with(good, 1000) != RUVLLM_INTERNAL_ERROR) return 10;
            d = good; d.input_a.size = d.output.size = 32; d.scratch.size = 256;
            d.params.offset = 640;
            const uint32_t words[2] = {2, 4};
            memcpy(memory + 640, words, sizeof words);
            if (call_with(d, 0) != RUVLLM_NOT_IMPLEMENTED) return 11;
            if (memory[256] == 'R') return 12; /* its scratch is in use */
            d.scratch.size = 320;
            if (call_with(d, 0) != RUVLLM_NOT_IMPLEMENTED) return 13;
            fwrite(memory + 256, 1, 320, stdout);
            return 0;
        }"#;
    let dir = tempfile::tempdir().expect("a temporary directory");
    let Some(program) = compile(dir.path(), source) else { return };
    let output = Command::new(program).output().expect("the program runs");
    assert_eq!(output.status.code(), Some(0), "the check of that number failed");
    assert_eq!(message::read(&output.stdout), Some(&b"dim must not be 4"[..]));
}

#[test]
fn threads_of_a_kernel_compiled_natively_have_every_row_once() {
    let source = r#"
        #include "ruvllm_kernel.h"
        #include <string.h>
        RUVLLM_KERNEL_WITH_THREADS(count_forward) {
            const uint32_t rows = ruvllm_symbol(call), dim = ruvllm_symbol(call);
            float *y = RUVLLM_OUTPUT(call, float, rows, dim);
            const ruvllm_range own = ruvllm_own_rows(call, rows);
            unsigned char *room = RUVLLM_SCRATCH(call, unsigned char, 64);
            RUVLLM_READY(call);
            for (int i = 0; i < 64; i++) room[i]++;
            for (size_t i = (size_t)own.start * dim; i < (size_t)own.end * dim; i++) y[i] += 1;
            return RUVLLM_OK;
        }
        static unsigned char memory[2048] __attribute__((aligned(64)));
        int main(void) {
            for (uint32_t rows = 0; rows < 9; rows++) {
                for (uint32_t threads = 1; threads < 5; threads++) {
                    const ruvllm_descriptor d = {{0, 0}, {0, 0}, {128, 8 * rows}, {256, 300}, {64, 8}};
                    const uint32_t words[2] = {rows, 2};
                    memset(memory, 0, sizeof memory);
                    memcpy(memory, &d, sizeof d);
                    memcpy(memory + 64, words, sizeof words);
                    for (uint32_t i = 0; i < threads; i++)
                        if (count_forward(memory, sizeof memory, 0, i, threads) != RUVLLM_OK) return 1;
                    for (uint32_t i = 0; i < 2 * rows; i++)
                        if (((float *)(memory + 128))[i] != 1) return 2;
                    uint32_t bytes = 0;
                    for (uint32_t i = 256; i < 556; i++) {
                        if (memory[i] > 1) return 3;
                        bytes += memory[i];
                    }
                    if (bytes != 64 * threads) return 4;
                }
            }
            return 0;
        }"#;
    let dir = tempfile::tempdir().expect("a temporary directory");
    let Some(program) = compile(dir.path(), source) else { return };
    let output = Command::new(program).output().expect("the program runs");
    assert_eq!(output.status.code(), Some(0), "the check of that number failed");
}
