//! Kernels of real packs with faults put in front of them.
//!
//! The module gets one function more, which takes the entry point's name, decides whether the call
//! fails and how, and asks the original in all other cases. What decides is a hash of the first number
//! of the input: the same call fails in the same way again, and over many calls the faults are
//! spread evenly.

use ruvllm_manifest::KernelEntry;
use wasm_encoder::{
    BlockType, CodeSection, ExportKind, ExportSection, Function, FunctionSection, MemArg, Module,
    RawSection, ValType,
};
use wasmparser::{ExternalKind, Parser, Payload};

/// Where the descriptor has the addresses of input A, of the output and of the params.
const INPUT_A: u64 = 0;
const OUTPUT: u64 = 16;
const PARAMS: u64 = 32;

/// Which calls of a kernel fail.
#[derive(Clone, Copy, Debug)]
pub struct Faults {
    /// Calls fail only where this word of the params block has this value. With a value that golden
    /// inputs do not have, admission sees a good kernel.
    pub only: (u64, i32),
    /// Of 1024 such calls, how many trap.
    pub traps: i32,
    /// How many never end.
    pub loops: i32,
    /// How many return the status 6.
    pub statuses: i32,
    /// How many write a wrong number first in their output.
    pub wrong: i32,
}

/// The module of a kernel that imports nothing, failing as `faults` say.
///
/// # Panics
/// Where the module is not one that a pack may hold: it is part of a test.
pub fn with_faults(wasm: &[u8], entry: &KernelEntry, faults: &Faults) -> Vec<u8> {
    let payloads: Vec<Payload<'_>> =
        Parser::new(0).parse_all(wasm).map(|payload| payload.expect("a module")).collect();
    let original = payloads.iter().find_map(|payload| match payload {
        Payload::ExportSection(section) => section.clone().into_iter().find_map(|export| {
            let export = export.expect("an export");
            (export.name == entry.entry_point).then_some(export.index)
        }),
        _ => None,
    });
    let original = original.expect("the entry point is exported");
    let mut types = Vec::new();
    let mut module = Module::new();
    let mut code = CodeSection::new();
    for payload in &payloads {
        match payload {
            Payload::FunctionSection(section) => {
                types = section.clone().into_iter().map(|ty| ty.expect("a type")).collect();
                let mut functions = FunctionSection::new();
                types.iter().chain([&types[original as usize]]).for_each(|&ty| {
                    functions.function(ty);
                });
                module.section(&functions);
            }
            Payload::ExportSection(section) => {
                let mut exports = ExportSection::new();
                for export in section.clone() {
                    let export = export.expect("an export");
                    let kind = match export.kind {
                        ExternalKind::Func => ExportKind::Func,
                        ExternalKind::Memory => ExportKind::Memory,
                        ExternalKind::Global => ExportKind::Global,
                        other => panic!("an export of kind {other:?}"),
                    };
                    let is_entry = export.name == entry.entry_point;
                    let index = if is_entry { types.len() as u32 } else { export.index };
                    exports.export(export.name, kind, index);
                }
                module.section(&exports);
            }
            Payload::CodeSectionStart { .. } => {}
            Payload::CodeSectionEntry(body) => {
                code.raw(body.as_bytes());
                if code.len() as usize == types.len() {
                    code.function(&wrapper(original, faults));
                    module.section(&code);
                }
            }
            other => {
                if let Some((id, range)) = other.as_section() {
                    let data = &wasm[range];
                    module.section(&RawSection { id, data });
                }
            }
        }
    }
    module.finish()
}

/// The new entry point.
fn wrapper(original: u32, faults: &Faults) -> Function {
    let at = |offset| MemArg { offset, align: 2, memory_index: 0 };
    let (desc, hash) = (0, 1);
    let mut function = Function::new([(1, ValType::I32)]);
    let mut code = function.instructions();
    let (word, value) = faults.only;
    code.local_get(desc).i32_load(at(PARAMS)).i32_load(at(4 * word));
    code.i32_const(value).i32_eq().if_(BlockType::Empty);
    // A number from 0 to 1023, by Knuth's multiplicative hashing.
    code.local_get(desc).i32_load(at(INPUT_A)).i32_load(at(0));
    code.i32_const(0x9e37_79b1_u32 as i32).i32_mul().i32_const(22).i32_shr_u().local_set(hash);
    let mut below = 0;
    let mut share = |code: &mut wasm_encoder::InstructionSink<'_>, count: i32| {
        below += count;
        code.local_get(hash).i32_const(below).i32_lt_u().if_(BlockType::Empty);
    };
    share(&mut code, faults.traps);
    code.unreachable().end();
    share(&mut code, faults.loops);
    code.loop_(BlockType::Empty).br(0).end().end();
    share(&mut code, faults.statuses);
    code.i32_const(6).return_().end();
    share(&mut code, faults.wrong);
    code.local_get(desc).call(original);
    code.local_get(desc).i32_load(at(OUTPUT)).f32_const(7.0.into()).f32_store(at(0));
    code.return_().end();
    code.end().local_get(desc).call(original).end();
    function
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PackBuilder;
    use crate::wat::{self, rmsnorm_f32};

    #[test]
    fn a_module_with_faults_is_one_that_a_pack_may_hold() {
        let faults = Faults { only: (1, 100), traps: 1, loops: 2, statuses: 3, wrong: 4 };
        let wasm = rmsnorm_f32(&wat::Module::default());
        let entry = PackBuilder::new().kernel("rmsnorm_f32", wasm.clone()).build();
        let faulty = with_faults(&wasm, &entry.manifest.kernels[0], &faults);
        wasmparser::validate(&faulty).unwrap();
        assert!(faulty.len() > wasm.len());
    }
}
