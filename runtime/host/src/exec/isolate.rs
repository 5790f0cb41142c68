//! What a module is given before it is compiled, so that the host can set its state back.
//!
//! - Every mutable global is exported under a name of the host's: a change of scope gives it the
//!   value that it had after `kernel_init`.
//! - `memory.copy` and `memory.fill` become calls of functions that do the same with loads and
//!   stores. An engine carries these two out in its own code, where a write to a page that is
//!   read-only ([`super::fence`]) would end the process; a store of the module's own is a trap.
//! - A shared memory, which every instance would have of its own, becomes an import: the host hands all instances
//!   of a kernel with threads the same one ([`super::threads`]).
//!
//! The rest of the module stays as it was, so authors change nothing. What else could outlive a call,
//! growth of the memory, tables that change and segments that are dropped, the gate refuses.

use super::bulk::{self, Widest};
use super::rewrite::rewritten;
use std::convert::Infallible;
use wasm_encoder::reencode::{Error, Reencode, utils};
use wasm_encoder::{
    CodeSection, ExportKind, ExportSection, FunctionSection, ImportSection, MemorySection, Module,
    SectionId, TypeSection, ValType,
};
use wasmparser::{
    CodeSectionReader, ExportSectionReader, FunctionSectionReader, MemorySectionReader, Operator,
    Parser, Payload, TypeSectionReader,
};

/// Stands for what this module does to others, in the fingerprint of what is compiled.
pub(super) const REVISION: u32 = 1;

/// The name under which the mutable global of that place among all mutable ones is exported.
pub(super) fn global_name(place: usize) -> String {
    format!("ruvllm:mutable-global:{place}")
}

/// What a shared memory is imported as: module and name.
const SHARED_MEMORY: (&str, &str) = ("ruvllm", "memory");

/// The module with what the host needs of it. It must have passed the gate.
///
/// # Errors
/// A sentence: the module cannot be read, which the gate should have said.
pub(super) fn isolated(wasm: &[u8]) -> Result<Vec<u8>, String> {
    rewritten(wasm, Rewriter::read)
}

/// What is added to a module, behind its own types, functions and exports.
struct Rewriter {
    /// Indices of the mutable globals.
    mutable: Vec<u32>,
    types: u32,
    /// Those that it imports, too.
    functions: u32,
    /// The memory, where it is shared.
    shared: Option<wasmparser::MemoryType>,
}

impl Rewriter {
    fn read(wasm: &[u8]) -> wasmparser::Result<Self> {
        let mut this = Self { mutable: Vec::new(), types: 0, functions: 0, shared: None };
        for payload in Parser::new(0).parse_all(wasm) {
            match payload? {
                Payload::TypeSection(section) => this.types = section.count(),
                // All of them functions, which come before its own.
                Payload::ImportSection(section) => {
                    this.functions += section.into_imports().count() as u32;
                }
                Payload::FunctionSection(section) => this.functions += section.count(),
                Payload::MemorySection(section) => {
                    let memories = section.into_iter().collect::<wasmparser::Result<Vec<_>>>()?;
                    this.shared = memories.into_iter().find(|memory| memory.shared);
                }
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

    /// The index of the function in place of `memory.copy`; that in place of `memory.fill` follows.
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

    fn intersperse_section_hook(
        &mut self,
        module: &mut Module,
        after: Option<SectionId>,
        before: Option<SectionId>,
    ) -> Result<(), Error<Infallible>> {
        // Imports come behind the types, of which every module has some: its exports' functions have one.
        if let (Some(memory), Some(SectionId::Type)) = (self.shared, after) {
            let (from, name) = SHARED_MEMORY;
            let mut imports = ImportSection::new();
            imports.import(from, name, self.memory_type(memory)?);
            module.section(&imports);
        }
        utils::intersperse_section_hook(self, module, after, before)
    }

    fn parse_memory_section(
        &mut self,
        memories: &mut MemorySection,
        section: MemorySectionReader<'_>,
    ) -> Result<(), Error<Infallible>> {
        match self.shared {
            // It is imported, and the only one.
            Some(_) => Ok(()),
            None => utils::parse_memory_section(self, memories, section),
        }
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
        let (copy, fill) = (bulk::copy(Widest::Vector, None), bulk::fill(Widest::Vector, None));
        code.function(&copy).function(&fill);
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
