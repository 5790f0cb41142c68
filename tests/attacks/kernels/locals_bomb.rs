//! A function of a few bytes declares millions of locals.

use super::refused;
use ruvllm_tests::PackBuilder;
use ruvllm_tests::wat::{Module, rmsnorm_f32};
use wasm_encoder::{CodeSection, Function, RawSection, ValType};
use wasmparser::{Parser, Payload};

/// The module with one function more, of so many locals, which takes the place of `$last`.
fn with_locals(locals: u32) -> Vec<u8> {
    let text = Module { fields: "(func $last)".into(), ..Module::default() };
    let wasm = rmsnorm_f32(&text);
    let mut module = wasm_encoder::Module::new();
    for payload in Parser::new(0).parse_all(&wasm) {
        match payload.unwrap() {
            Payload::CodeSectionStart { count, .. } => {
                let bodies: Vec<_> = Parser::new(0)
                    .parse_all(&wasm)
                    .filter_map(|payload| match payload.unwrap() {
                        Payload::CodeSectionEntry(body) => Some(body.as_bytes().to_vec()),
                        _ => None,
                    })
                    .collect();
                assert_eq!(bodies.len(), count as usize);
                let mut code = CodeSection::new();
                let mut bomb = Function::new([(locals, ValType::I64)]);
                bomb.instructions().end();
                code.function(&bomb);
                code.raw(&bodies[1]);
                module.section(&code);
            }
            Payload::CodeSectionEntry(_) => {}
            other => {
                if let Some((id, range)) = other.as_section() {
                    module.section(&RawSection { id, data: &wasm[range] });
                }
            }
        }
    }
    module.finish()
}

#[test]
fn they_are_counted_and_refused() {
    for locals in [5_000, 49_000] {
        let pack = PackBuilder::new().kernel("rmsnorm_f32", with_locals(locals)).build();
        assert_eq!(refused(&pack), ["module_locals"], "{locals}");
    }
    // Beyond what the format itself allows.
    let pack = PackBuilder::new().kernel("rmsnorm_f32", with_locals(u32::MAX)).build();
    assert!(["module_locals", "module_invalid"].contains(&refused(&pack)[0]));
}
