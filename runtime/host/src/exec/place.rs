//! Which instruction of a pack's module became one of the module that was compiled.
//!
//! What the host adds to a module ([`super::isolate`]) moves its instructions, but replaces one by one: the
//! n-th of a function stays the n-th.

use wasmparser::{BinaryReaderError, FunctionBody, Operator, Parser, Payload};

/// An instruction of a pack's module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Instruction {
    /// Bytes from the beginning of the module.
    pub(super) offset: u32,
    /// How many bytes of memory it accesses, where it does, and whether it writes them.
    pub(super) access: Option<(Option<u32>, bool)>,
    /// Whether it calls through the table.
    pub(super) is_indirect_call: bool,
}

/// The instruction of `module` that became the one at an offset of `compiled`. `None` where that is in a
/// function that the module does not have.
pub(super) fn instruction(module: &[u8], compiled: &[u8], offset: usize) -> Option<Instruction> {
    let (function, place) = locate(compiled, offset).ok()??;
    let body = bodies(module).nth(function)?.ok()?;
    let mut operators = body.get_operators_reader().ok()?;
    for _ in 0..place {
        operators.read().ok()?;
    }
    let (operator, offset) = operators.read_with_offset().ok()?;
    Some(Instruction {
        offset: u32::try_from(offset).ok()?,
        access: access(&operator).or_else(|| atomic(module.get(offset..)?)),
        is_indirect_call: matches!(operator, Operator::CallIndirect { .. }),
    })
}

/// The function of the code section, and the instruction of that function, that an offset lies in.
fn locate(wasm: &[u8], offset: usize) -> Result<Option<(usize, usize)>, BinaryReaderError> {
    for (function, body) in bodies(wasm).enumerate() {
        let body = body?;
        if !body.range().contains(&offset) {
            continue;
        }
        let mut operators = body.get_operators_reader()?;
        let mut begun = 0usize;
        while !operators.eof() && operators.original_position() <= offset {
            begun += 1;
            operators.read()?;
        }
        // An engine may tell the beginning of a function for what comes first in it.
        return Ok(Some((function, begun.saturating_sub(1))));
    }
    Ok(None)
}

fn bodies(wasm: &[u8]) -> impl Iterator<Item = Result<FunctionBody<'_>, BinaryReaderError>> {
    Parser::new(0).parse_all(wasm).filter_map(|payload| match payload {
        Ok(Payload::CodeSectionEntry(body)) => Some(Ok(body)),
        Ok(_) => None,
        Err(error) => Some(Err(error)),
    })
}

/// How many bytes of memory an instruction accesses, and whether it writes them; see [`atomic`] for those that are.
fn access(operator: &Operator<'_>) -> Option<(Option<u32>, bool)> {
    use Operator::*;
    let (memarg, write) = match operator {
        MemoryCopy { .. } | MemoryFill { .. } => return Some((None, true)),
        I32Load { memarg }
        | I64Load { memarg }
        | F32Load { memarg }
        | F64Load { memarg }
        | I32Load8S { memarg }
        | I32Load8U { memarg }
        | I32Load16S { memarg }
        | I32Load16U { memarg }
        | I64Load8S { memarg }
        | I64Load8U { memarg }
        | I64Load16S { memarg }
        | I64Load16U { memarg }
        | I64Load32S { memarg }
        | I64Load32U { memarg }
        | V128Load { memarg }
        | V128Load8x8S { memarg }
        | V128Load8x8U { memarg }
        | V128Load16x4S { memarg }
        | V128Load16x4U { memarg }
        | V128Load32x2S { memarg }
        | V128Load32x2U { memarg }
        | V128Load8Splat { memarg }
        | V128Load16Splat { memarg }
        | V128Load32Splat { memarg }
        | V128Load64Splat { memarg }
        | V128Load32Zero { memarg }
        | V128Load64Zero { memarg }
        | V128Load8Lane { memarg, .. }
        | V128Load16Lane { memarg, .. }
        | V128Load32Lane { memarg, .. }
        | V128Load64Lane { memarg, .. } => (memarg, false),
        I32Store { memarg }
        | I64Store { memarg }
        | F32Store { memarg }
        | F64Store { memarg }
        | I32Store8 { memarg }
        | I32Store16 { memarg }
        | I64Store8 { memarg }
        | I64Store16 { memarg }
        | I64Store32 { memarg }
        | V128Store { memarg }
        | V128Store8Lane { memarg, .. }
        | V128Store16Lane { memarg, .. }
        | V128Store32Lane { memarg, .. }
        | V128Store64Lane { memarg, .. } => (memarg, true),
        _ => return None,
    };
    // The most that an instruction may be aligned to is its size.
    Some((Some(1 << memarg.max_align), write))
}

/// As [`access`], of an atomic instruction that begins these bytes. From opcode 0x10 on there are loads, stores and seven
/// kinds that do both, each kind for i32, i64 and narrower parts of either (threads proposal, binary format).
fn atomic(code: &[u8]) -> Option<(Option<u32>, bool)> {
    const SIZES: [u32; 7] = [4, 8, 1, 2, 1, 2, 4];
    let [0xfe, code @ 0x10..=0x4e, ..] = code else { return None };
    let (kind, of) = ((code - 0x10) / 7, (code - 0x10) % 7);
    Some((Some(SIZES[usize::from(of)]), kind > 0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exec::isolate::isolated;

    /// The instructions of the only function of a module, each found through the module that is compiled.
    fn instructions(body: &str) -> (Vec<u8>, Vec<Instruction>) {
        let text = format!(
            "(module (memory (export \"memory\") 1 1) (table 1 funcref) (global (mut i32) (i32.const 0))
               (func (export \"go\") (param i32) (result i32) {body}))"
        );
        let module = wat::parse_str(text).unwrap();
        let compiled = isolated(&module).unwrap();
        let body = bodies(&compiled).next().unwrap().unwrap();
        let mut found = Vec::new();
        let mut operators = body.get_operators_reader().unwrap();
        while !operators.eof() {
            let (_, offset) = operators.read_with_offset().unwrap();
            found.extend(instruction(&module, &compiled, offset));
        }
        let helper = bodies(&compiled).nth(1).unwrap().unwrap().range().start;
        assert_eq!(instruction(&module, &compiled, helper), None, "it is not of the pack");
        (module, found)
    }

    #[test]
    fn instructions_are_found_where_they_were_before_the_module_was_changed() {
        let (module, found) = instructions(
            "(memory.copy (i32.const 1) (i32.const 2) (i32.const 3))
             (i64.store16 (i32.const 4) (i64.const 5))
             (call_indirect (param) (i32.const 6))
             (i32.load8_u (local.get 0))",
        );
        let opcodes: Vec<u8> = found.iter().map(|i| module[i.offset as usize]).collect();
        assert_eq!(
            opcodes,
            [0x41, 0x41, 0x41, 0xfc, 0x41, 0x42, 0x3d, 0x41, 0x11, 0x20, 0x2d, 0x0b]
        );
        assert_eq!(found[3].access, Some((None, true)));
        assert_eq!(found[6].access, Some((Some(2), true)));
        assert!(found[8].is_indirect_call && found[8].access.is_none());
        assert_eq!(found[10].access, Some((Some(1), false)));
    }

    #[test]
    fn atomic_instructions_are_told_by_their_opcodes() {
        let rmw = ["add", "sub", "and", "or", "xor", "xchg"];
        let kinds = ["load", "store"].map(|name| (name.to_owned(), String::new())).into_iter();
        let kinds = kinds.chain(rmw.map(|name| ("rmw".to_owned(), format!(".{name}"))));
        for (kind, op) in kinds.chain([("rmw".to_owned(), ".cmpxchg".to_owned())]) {
            for (of, bytes) in
                [("i32", 4), ("i64", 8), ("i32", 1), ("i32", 2), ("i64", 1), ("i64", 2), ("i64", 4)]
            {
                let whole = (of == "i32" && bytes == 4) || bytes == 8;
                let part = if whole { String::new() } else { (8 * bytes).to_string() };
                let unsigned = if whole || kind == "store" { "" } else { "_u" };
                let name = format!("{of}.atomic.{kind}{part}{op}{unsigned}");
                let operands = match (kind.as_str(), op.as_str()) {
                    ("load", _) => 0,
                    (_, ".cmpxchg") => 2,
                    _ => 1,
                };
                let operands = format!("({of}.const 0)").repeat(operands);
                let result = if kind == "store" { "" } else { "drop" };
                let text = format!(
                    "(module (memory (export \"memory\") 1 1 shared)
                       (func (export \"go\") (i32.const 0) {operands} {name} {result}))"
                );
                let module = wat::parse_str(text).unwrap();
                let body = bodies(&module).next().unwrap().unwrap();
                let mut operators = body.get_operators_reader().unwrap();
                let mut found = Vec::new();
                while !operators.eof() {
                    let (_, offset) = operators.read_with_offset().unwrap();
                    found.extend(atomic(&module[offset..]));
                }
                assert_eq!(found, [(Some(bytes), kind != "load")], "{name}");
            }
        }
    }
}
