//! What a module is given before an engine without deadlines runs it.
//!
//! - A counter of *fuel*: entering a function and each turn of a loop takes as much as there are
//!   instructions in it. Where none is left the host is asked ([`TICK`]), who looks at the clock and gives
//!   more, or ends the call. What runs between two looks is bounded, whatever the module does, because
//!   instructions run again only through a loop or a call.
//! - `memory.copy` and `memory.fill` become functions of the module's own, which take fuel for each few KiB.
//! - Functions through which the host grows the memory and learns where its part of it begins: not every
//!   engine has calls for these.
//!
//! Exported functions get names that begin with [`PREFIX`], and nothing else is exported: engines call, or
//! take for a heap, what modules export under some names. Custom sections are left out. The counter and
//! the added functions have indices that the module cannot name, since it was valid without them.

use super::bulk::{self, Pace, Widest};
use super::rewrite::rewritten;
use ruvllm_abi::export;
use std::convert::Infallible;
use std::ffi::CStr;
use wasm_encoder::reencode::{Error, Reencode, utils};
use wasm_encoder::{
    BlockType, CodeSection, ConstExpr, EntityType, ExportKind, ExportSection, Function,
    FunctionSection, GlobalSection, GlobalType, ImportSection, InstructionSink, MemArg, Module,
    SectionId, TypeSection, ValType,
};
use wasmparser::{
    CodeSectionReader, CustomSectionReader, ExportSectionReader, ExternalKind, FunctionBody,
    FunctionSectionReader, GlobalSectionReader, ImportSectionReader, Operator, Parser, Payload,
    TypeSectionReader,
};

/// Stands for what this module does to others, in the fingerprint of what is kept.
pub(super) const REVISION: u32 = 2;

/// The module that the host's function is imported from, and its name: it takes nothing and gives the fuel
/// for what runs next. Old releases link functions of the host with this module and with WASI's alone.
pub(super) const HOST: &CStr = c"env";
pub(super) const TICK: &CStr = c"ruvllm_tick";

/// What the names of a module's own functions begin with.
pub(super) const PREFIX: &str = "kernel:";
/// The function that grows the memory by so many pages, and gives -1 where that cannot be.
pub(super) const GROW: &str = "host:grow";
/// The function that gives the pages of 64 KiB that the memory has.
pub(super) const PAGES: &str = "host:pages";
/// The function that gives the value of `__heap_base`.
pub(super) const HEAP_BASE: &str = "host:heap_base";

/// Fuel between two looks at the clock: below a millisecond where an interpreter takes 10 ns for an
/// instruction.
pub(super) const FUEL: i32 = 50_000;

/// The index of [`TICK`], before all functions of the module.
const TICK_FUNCTION: u32 = 0;

/// The module with what the host needs of it. It must have passed the gate.
///
/// # Errors
/// A sentence: the module cannot be read, which the gate should have said.
pub(super) fn metered(wasm: &[u8]) -> Result<Vec<u8>, String> {
    rewritten(wasm, Meter::read)
}

/// What is added to a module, behind its own types, functions and globals.
struct Meter {
    types: u32,
    functions: u32,
    globals: u32,
    /// The global that is exported as `__heap_base`.
    heap_base: Option<u32>,
    /// Whether the import is there already.
    imported: bool,
}

impl Meter {
    fn read(wasm: &[u8]) -> wasmparser::Result<Self> {
        let mut this =
            Self { types: 0, functions: 0, globals: 0, heap_base: None, imported: false };
        for payload in Parser::new(0).parse_all(wasm) {
            match payload? {
                Payload::TypeSection(section) => this.types = section.count(),
                Payload::FunctionSection(section) => this.functions = section.count(),
                Payload::GlobalSection(section) => this.globals = section.count(),
                Payload::ExportSection(section) => {
                    for export in section {
                        let export = export?;
                        if export.kind == ExternalKind::Global && export.name == export::HEAP_BASE {
                            this.heap_base = Some(export.index);
                        }
                    }
                }
                _ => {}
            }
        }
        Ok(this)
    }

    /// The type of functions that take nothing and give a number; of [`GROW`] and of bulk functions follow.
    fn gives_number(&self) -> u32 {
        self.types
    }

    /// The index of an added function: [`GROW`], [`PAGES`], [`HEAP_BASE`], copying, filling.
    fn added(&self, place: u32) -> u32 {
        1 + self.functions + place
    }

    fn fuel(&self) -> u32 {
        self.globals
    }

    fn import(&mut self, imports: &mut ImportSection) {
        self.imported = true;
        let [module, name] = [HOST, TICK].map(|name| name.to_str().unwrap_or_default());
        imports.import(module, name, EntityType::Function(self.gives_number()));
    }

    /// Takes fuel, so much as `cost` leaves on the stack, and asks for more where none is left.
    fn take(&self, code: &mut InstructionSink<'_>, cost: impl FnOnce(&mut InstructionSink<'_>)) {
        code.global_get(self.fuel());
        cost(code);
        code.i32_sub().global_set(self.fuel());
        code.global_get(self.fuel()).i32_const(0).i32_lt_s().if_(BlockType::Empty);
        code.call(TICK_FUNCTION).global_set(self.fuel()).end();
    }
}

/// A function that copies or fills takes fuel chunk by chunk, about as much as it has instructions: two for each
/// byte, since a word takes some sixteen.
impl Pace for Meter {
    fn before_chunk(
        &self,
        code: &mut InstructionSink<'_>,
        bytes: &dyn Fn(&mut InstructionSink<'_>),
    ) {
        self.take(code, |code| {
            bytes(code);
            code.i32_const(1).i32_shl();
        });
    }
}

/// How many instructions there are in each loop, by the place of its first one, and in all.
fn costs(operators: &[Operator<'_>]) -> Vec<i32> {
    let mut costs = vec![0; operators.len()];
    let mut open = Vec::new();
    for (at, operator) in operators.iter().enumerate() {
        match operator {
            Operator::Loop { .. } => open.push(Some(at)),
            Operator::Block { .. } | Operator::If { .. } => open.push(None),
            Operator::End => {
                if let Some(Some(begin)) = open.pop() {
                    costs[begin] = i32::try_from(at - begin).unwrap_or(i32::MAX);
                }
            }
            _ => {}
        }
    }
    costs
}

impl Reencode for Meter {
    type Error = Infallible;

    fn function_index(&mut self, function: u32) -> Result<u32, Error<Infallible>> {
        Ok(function + 1)
    }

    fn parse_custom_section(
        &mut self,
        _: &mut Module,
        _: CustomSectionReader<'_>,
    ) -> Result<(), Error<Infallible>> {
        Ok(())
    }

    fn intersperse_section_hook(
        &mut self,
        module: &mut Module,
        after: Option<SectionId>,
        before: Option<SectionId>,
    ) -> Result<(), Error<Infallible>> {
        let is_place = after == Some(SectionId::Type) && before != Some(SectionId::Import);
        if is_place && !self.imported {
            let mut imports = ImportSection::new();
            self.import(&mut imports);
            module.section(&imports);
        }
        Ok(())
    }

    fn parse_type_section(
        &mut self,
        types: &mut TypeSection,
        section: TypeSectionReader<'_>,
    ) -> Result<(), Error<Infallible>> {
        utils::parse_type_section(self, types, section)?;
        types.ty().function([], [ValType::I32]);
        types.ty().function([ValType::I32], [ValType::I32]);
        types.ty().function([ValType::I32; 3], []);
        Ok(())
    }

    /// Kernels import nothing: a section that is there is empty.
    fn parse_import_section(
        &mut self,
        imports: &mut ImportSection,
        _: ImportSectionReader<'_>,
    ) -> Result<(), Error<Infallible>> {
        self.import(imports);
        Ok(())
    }

    fn parse_function_section(
        &mut self,
        functions: &mut FunctionSection,
        section: FunctionSectionReader<'_>,
    ) -> Result<(), Error<Infallible>> {
        utils::parse_function_section(self, functions, section)?;
        let number = self.gives_number();
        functions.function(number + 1).function(number).function(number);
        functions.function(number + 2).function(number + 2);
        Ok(())
    }

    fn parse_global_section(
        &mut self,
        globals: &mut GlobalSection,
        section: GlobalSectionReader<'_>,
    ) -> Result<(), Error<Infallible>> {
        utils::parse_global_section(self, globals, section)?;
        let fuel = GlobalType { val_type: ValType::I32, mutable: true, shared: false };
        globals.global(fuel, &ConstExpr::i32_const(FUEL));
        Ok(())
    }

    fn parse_export_section(
        &mut self,
        exports: &mut ExportSection,
        section: ExportSectionReader<'_>,
    ) -> Result<(), Error<Infallible>> {
        for export in section {
            let export = export?;
            if export.kind == ExternalKind::Func {
                let index = self.function_index(export.index)?;
                exports.export(&format!("{PREFIX}{}", export.name), ExportKind::Func, index);
            }
        }
        for (place, name) in (0..).zip([GROW, PAGES, HEAP_BASE]) {
            exports.export(name, ExportKind::Func, self.added(place));
        }
        Ok(())
    }

    fn parse_code_section(
        &mut self,
        code: &mut CodeSection,
        section: CodeSectionReader<'_>,
    ) -> Result<(), Error<Infallible>> {
        utils::parse_code_section(self, code, section)?;
        let mut grow = Function::new([]);
        grow.instructions().local_get(0).memory_grow(0).end();
        let mut pages = Function::new([]);
        pages.instructions().memory_size(0).end();
        let mut heap_base = Function::new([]);
        match self.heap_base {
            Some(global) => heap_base.instructions().global_get(global).end(),
            None => heap_base.instructions().i32_const(-1).end(),
        };
        let copy = bulk::copy(Widest::Word, Some(&*self));
        let fill = bulk::fill(Widest::Word, Some(&*self));
        code.function(&grow).function(&pages).function(&heap_base);
        code.function(&copy).function(&fill);
        Ok(())
    }

    fn parse_function_body(
        &mut self,
        code: &mut CodeSection,
        body: FunctionBody<'_>,
    ) -> Result<(), Error<Infallible>> {
        let mut function = self.new_function_with_parsed_locals(&body)?;
        let operators = body.get_operators_reader()?.into_iter();
        let operators = operators.collect::<wasmparser::Result<Vec<_>>>()?;
        let all = i32::try_from(operators.len()).unwrap_or(i32::MAX);
        let costs = costs(&operators);
        let charge = |meter: &Self, function: &mut Function, cost: i32| {
            meter.take(&mut function.instructions(), |code| {
                code.i32_const(cost);
            });
        };
        charge(self, &mut function, all);
        for (operator, cost) in operators.into_iter().zip(costs) {
            let instruction = match operator {
                Operator::MemoryCopy { .. } => wasm_encoder::Instruction::Call(self.added(3)),
                Operator::MemoryFill { .. } => wasm_encoder::Instruction::Call(self.added(4)),
                other => utils::instruction(self, other)?,
            };
            function.instruction(&instruction);
            if cost > 0 {
                charge(self, &mut function, cost);
            }
        }
        code.function(&function);
        Ok(())
    }
}

/// A module whose one function gives [`PROBED`] where the engine has SIMD; it is prepared as kernels are.
pub(super) fn simd_probe() -> Vec<u8> {
    let mut module = Module::new();
    let mut types = TypeSection::new();
    types.ty().function([], [ValType::I32]);
    let mut functions = FunctionSection::new();
    functions.function(0);
    let mut memories = wasm_encoder::MemorySection::new();
    memories.memory(wasm_encoder::MemoryType {
        minimum: 1,
        maximum: Some(1),
        memory64: false,
        shared: false,
        page_size_log2: None,
    });
    let mut globals = GlobalSection::new();
    let constant = GlobalType { val_type: ValType::I32, mutable: false, shared: false };
    globals.global(constant, &ConstExpr::i32_const(1024));
    let mut exports = ExportSection::new();
    exports.export(PROBE, ExportKind::Func, 0);
    exports.export(export::HEAP_BASE, ExportKind::Global, 0);
    let at = |offset| MemArg { offset, align: 0, memory_index: 0 };
    let mut probe = Function::new([]);
    let mut code = probe.instructions();
    code.i32_const(0).i32_const(PROBED).i32x4_splat().v128_store(at(64));
    code.i32_const(0).v128_load(at(68)).i32_const(1).i32x4_splat().i32x4_mul();
    code.i32x4_extract_lane(2).end();
    let mut bodies = CodeSection::new();
    bodies.function(&probe);
    module.section(&types).section(&functions).section(&memories).section(&globals);
    module.section(&exports).section(&bodies);
    module.finish()
}

/// The function of [`simd_probe`].
pub(super) const PROBE: &str = "probe";
/// What it gives.
pub(super) const PROBED: i32 = 0x0102_0304;

#[cfg(test)]
mod tests {
    use super::*;
    use ruvllm_tests::wat::{Module as Text, assemble, rmsnorm_f32};
    use wasmparser::{Validator, WasmFeatures};

    fn validate(wasm: &[u8]) {
        Validator::new_with_features(WasmFeatures::all()).validate_all(wasm).unwrap();
    }

    #[test]
    fn what_is_metered_is_valid_and_exports_nothing_that_an_engine_calls_on_its_own() {
        let module = Text {
            fields: r#"(func (export "malloc") (param i32) (result i32) (i32.const 0))
                (func (export "__post_instantiate") (loop $l (br $l)))
                (func $f (memory.copy (i32.const 0) (i32.const 8) (i32.const 16))
                    (memory.fill (i32.const 0) (i32.const 8) (i32.const 16)))"#
                .into(),
            ..Text::default()
        };
        let metered = metered(&rmsnorm_f32(&module)).unwrap();
        validate(&metered);
        let names =
            Parser::new(0).parse_all(&metered).filter_map(|payload| match payload.unwrap() {
                Payload::ExportSection(section) => Some(section),
                _ => None,
            });
        let names: Vec<String> =
            names.flatten().map(|export| export.unwrap().name.to_owned()).collect();
        assert!(names.iter().all(|name| name.starts_with(PREFIX) || name.starts_with("host:")));
    }

    /// What copies and fills bytes in a module that was rewritten, run by an engine that has the two instructions itself.
    #[cfg(feature = "wasmtime")]
    #[test]
    fn what_copies_and_fills_does_what_the_instructions_do_and_looks_at_the_clock_on_the_way() {
        let module = assemble(
            r#"(module (memory 17) (global (export "__heap_base") i32 (i32.const 0))
              (func (export "byte") (param i32) (result i32) (i32.load8_u (local.get 0)))
              (func (export "put") (param i32 i32) (i32.store8 (local.get 0) (local.get 1)))
              (func (export "copy") (param i32 i32 i32)
                (memory.copy (local.get 0) (local.get 1) (local.get 2)))
              (func (export "fill") (param i32 i32 i32)
                (memory.fill (local.get 0) (local.get 1) (local.get 2))))"#,
        );
        let engine = wasmtime::Engine::default();
        let module = wasmtime::Module::new(&engine, metered(&module).unwrap()).unwrap();
        let mut store = wasmtime::Store::new(&engine, 0);
        // None is left then, so that whatever takes some asks again.
        let tick = wasmtime::Func::wrap(&mut store, |mut caller: wasmtime::Caller<'_, i32>| {
            *caller.data_mut() += 1;
            0
        });
        let instance = wasmtime::Instance::new(&mut store, &module, &[tick.into()]).unwrap();
        let name = |name: &str| format!("{PREFIX}{name}");
        let byte = instance.get_typed_func::<i32, i32>(&mut store, &name("byte")).unwrap();
        let put = instance.get_typed_func::<(i32, i32), ()>(&mut store, &name("put")).unwrap();
        let [copy, fill] = ["copy", "fill"]
            .map(|f| instance.get_typed_func::<(i32, i32, i32), ()>(&mut store, &name(f)).unwrap());
        const SIZE: usize = 24 << 10;
        let mut want: Vec<u8> = (0..SIZE).map(|i| (i * 37 % 251) as u8).collect();
        for (i, byte) in want.iter().enumerate() {
            put.call(&mut store, (i as i32, (*byte).into())).unwrap();
        }
        for len in [0, 1, 7, 8, 9, 4095, 4096, 4097, 4103, 4104, 8192, 9001] {
            for (to, from) in [(5, 3), (3, 5), (11, 11), (5000, 1), (1, 5000), (16, 8), (8, 4100)] {
                copy.call(&mut store, (to, from, len)).unwrap();
                let (to, from, len) = (to as usize, from as usize, len as usize);
                want.copy_within(from..from + len, to);
            }
            fill.call(&mut store, (7 + len, 0x1a5 + len, len)).unwrap();
            let (begin, with) = (7 + len as usize, (0x1a5 + len) as u8);
            want[begin..begin + len as usize].fill(with);
            let mut got = |i| byte.call(&mut store, i as i32).unwrap() as u8;
            assert!((0..SIZE).all(|i| got(i) == want[i]), "{len} bytes");
        }
        let mut looks = |what: &wasmtime::TypedFunc<(i32, i32, i32), ()>, params| {
            *store.data_mut() = 0;
            what.call(&mut store, params).unwrap();
            *store.data()
        };
        // One is the function's that calls it.
        assert_eq!(looks(&fill, (0, 7, 1 << 20)), 1 + 256);
        assert_eq!(looks(&copy, (0, 8, 1 << 20)), 1 + 256);
        assert_eq!(looks(&copy, (8, 0, (1 << 20) + 9)), 1 + 257);
        assert!(fill.call(&mut store, (16 << 16, 0, (1 << 16) + 1)).is_err());
    }

    #[test]
    fn the_probe_is_valid_before_and_after() {
        validate(&simd_probe());
        validate(&metered(&simd_probe()).unwrap());
    }

    #[test]
    fn a_loop_costs_what_is_in_it() {
        let wasm = assemble("(module (func (loop nop (loop nop nop) nop) nop))");
        let body = Parser::new(0).parse_all(&wasm).find_map(|payload| match payload.unwrap() {
            Payload::CodeSectionEntry(body) => Some(body),
            _ => None,
        });
        let operators = body.unwrap().get_operators_reader().unwrap().into_iter();
        let operators: Vec<_> = operators.map(|operator| operator.unwrap()).collect();
        let costs: Vec<i32> = costs(&operators).into_iter().filter(|cost| *cost > 0).collect();
        assert_eq!(costs, [7, 3]);
    }
}
