//! What a module is given before it is compiled, so that the host can set its state back.
//!
//! - Every mutable global is exported under a name of the host's: a change of scope gives it the
//!   value that it had after `kernel_init`.
//! - `memory.copy` and `memory.fill` become calls of functions that do the same with loads and
//!   stores. An engine carries these two out in its own code, where a write to a page that is
//!   read-only ([`super::fence`]) would end the process; a store of the module's own is a trap.
//!
//! The rest of the module stays as it was, so authors change nothing. What else could outlive a call,
//! growth of the memory, tables that change and segments that are dropped, the gate refuses.

use std::convert::Infallible;
use wasm_encoder::reencode::{Error, Reencode, utils};
use wasm_encoder::{
    BlockType, CodeSection, ExportKind, ExportSection, Function, FunctionSection, InstructionSink,
    MemArg, Module, TypeSection, ValType,
};
use wasmparser::{
    CodeSectionReader, ExportSectionReader, FunctionSectionReader, Operator, Parser, Payload,
    TypeSectionReader,
};

/// Stands for what this module does to others, in the fingerprint of what is compiled.
pub(super) const REVISION: u32 = 1;

/// The name under which the mutable global of that place among all mutable ones is exported.
pub(super) fn global_name(place: usize) -> String {
    format!("ruvllm:mutable-global:{place}")
}

/// The module with what the host needs of it. It must have passed the gate.
///
/// # Errors
/// A sentence: the module cannot be read, which the gate should have said.
pub(super) fn isolated(wasm: &[u8]) -> Result<Vec<u8>, String> {
    let failed = |e: &dyn std::fmt::Display| format!("the module cannot be prepared: {e}");
    let mut rewriter = Rewriter::read(wasm).map_err(|e| failed(&e))?;
    let mut module = Module::new();
    rewriter
        .parse_core_module(&mut module, Parser::new(0), wasm)
        .map_err(|e: Error<Infallible>| failed(&e))?;
    Ok(module.finish())
}

/// What is added to a module, behind its own types, functions and exports.
struct Rewriter {
    /// Indices of the mutable globals.
    mutable: Vec<u32>,
    types: u32,
    functions: u32,
}

impl Rewriter {
    fn read(wasm: &[u8]) -> wasmparser::Result<Self> {
        let mut this = Self { mutable: Vec::new(), types: 0, functions: 0 };
        for payload in Parser::new(0).parse_all(wasm) {
            match payload? {
                Payload::TypeSection(section) => this.types = section.count(),
                Payload::FunctionSection(section) => this.functions = section.count(),
                Payload::GlobalSection(section) => {
                    for (index, global) in (0..).zip(section) {
                        if global?.ty.mutable {
                            this.mutable.push(index);
                        }
                    }
                }
                _ => {}
            }
        }
        Ok(this)
    }

    /// The index of the function in place of `memory.copy`; that in place of `memory.fill` follows. Kernels
    /// import nothing, so the functions of the section are all there are.
    fn copy(&self) -> u32 {
        self.functions
    }
}

impl Reencode for Rewriter {
    type Error = Infallible;

    fn parse_type_section(
        &mut self,
        types: &mut TypeSection,
        section: TypeSectionReader<'_>,
    ) -> Result<(), Error<Infallible>> {
        utils::parse_type_section(self, types, section)?;
        types.ty().function([ValType::I32; 3], []);
        Ok(())
    }

    fn parse_function_section(
        &mut self,
        functions: &mut FunctionSection,
        section: FunctionSectionReader<'_>,
    ) -> Result<(), Error<Infallible>> {
        utils::parse_function_section(self, functions, section)?;
        functions.function(self.types).function(self.types);
        Ok(())
    }

    fn parse_export_section(
        &mut self,
        exports: &mut ExportSection,
        section: ExportSectionReader<'_>,
    ) -> Result<(), Error<Infallible>> {
        utils::parse_export_section(self, exports, section)?;
        for (place, &index) in self.mutable.iter().enumerate() {
            exports.export(&global_name(place), ExportKind::Global, index);
        }
        Ok(())
    }

    fn parse_code_section(
        &mut self,
        code: &mut CodeSection,
        section: CodeSectionReader<'_>,
    ) -> Result<(), Error<Infallible>> {
        utils::parse_code_section(self, code, section)?;
        code.function(&copy()).function(&fill());
        Ok(())
    }

    fn instruction<'a>(
        &mut self,
        operator: Operator<'a>,
    ) -> Result<wasm_encoder::Instruction<'a>, Error<Infallible>> {
        match operator {
            Operator::MemoryCopy { .. } => Ok(wasm_encoder::Instruction::Call(self.copy())),
            Operator::MemoryFill { .. } => Ok(wasm_encoder::Instruction::Call(self.copy() + 1)),
            other => utils::instruction(self, other),
        }
    }

    fn parse_instruction<'a>(
        &mut self,
        reader: &mut wasmparser::OperatorsReader<'a>,
    ) -> Result<wasm_encoder::Instruction<'a>, Error<Infallible>> {
        self.instruction(reader.read()?)
    }
}

/// Parameters of both functions: target; source, or the byte to fill with; length.
const TARGET: u32 = 0;
const SOURCE: u32 = 1;
const LEN: u32 = 2;

/// Bytes of a vector.
const WIDE: i32 = 16;

const fn at(align: u32) -> MemArg {
    MemArg { offset: 0, align, memory_index: 0 }
}

/// `while len >= step { body }`.
fn while_left(code: &mut InstructionSink<'_>, step: i32, body: impl Fn(&mut InstructionSink<'_>)) {
    code.block(BlockType::Empty).loop_(BlockType::Empty);
    code.local_get(LEN).i32_const(step).i32_lt_u().br_if(1);
    body(code);
    code.br(0).end().end();
}

/// `local += by`.
fn advance(code: &mut InstructionSink<'_>, local: u32, by: i32) {
    code.local_get(local).i32_const(by).i32_add().local_set(local);
}

/// `memory.copy`: forwards where the target lies before the source, backwards otherwise, so that
/// ranges may overlap. Vectors are read whole before they are written.
fn copy() -> Function {
    let mut function = Function::new([]);
    let mut code = function.instructions();
    let code = &mut code;
    let move_one = |code: &mut InstructionSink<'_>, step: i32| {
        if step == WIDE {
            code.v128_load(at(0)).v128_store(at(0));
        } else {
            code.i32_load8_u(at(0)).i32_store8(at(0));
        }
    };
    code.local_get(TARGET).local_get(SOURCE).i32_le_u().if_(BlockType::Empty);
    for step in [WIDE, 1] {
        while_left(code, step, |code| {
            code.local_get(TARGET).local_get(SOURCE);
            move_one(code, step);
            advance(code, TARGET, step);
            advance(code, SOURCE, step);
            advance(code, LEN, -step);
        });
    }
    code.else_();
    for step in [WIDE, 1] {
        while_left(code, step, |code| {
            advance(code, LEN, -step);
            for base in [TARGET, SOURCE] {
                code.local_get(base).local_get(LEN).i32_add();
            }
            move_one(code, step);
        });
    }
    code.end().end();
    function
}

/// `memory.fill`.
fn fill() -> Function {
    let mut function = Function::new([]);
    let mut code = function.instructions();
    let code = &mut code;
    for step in [WIDE, 1] {
        while_left(code, step, |code| {
            code.local_get(TARGET).local_get(SOURCE);
            if step == WIDE {
                code.i8x16_splat().v128_store(at(0));
            } else {
                code.i32_store8(at(0));
            }
            advance(code, TARGET, step);
            advance(code, LEN, -step);
        });
    }
    code.end();
    function
}
