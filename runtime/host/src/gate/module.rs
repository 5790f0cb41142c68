//! What a module may look like, checked before any compiler sees it.
//!
//! A kernel computes, and keeps nothing: what could change between calls beside memory and globals,
//! which the host sets back ([`crate::instance`]), is refused here by name.
//!
//! The module is hostile until shown otherwise, so everything here is linear in its size, and its
//! size is capped first. Passing the gate bounds what compilation can cost and guarantees that an
//! instance has no way out of its own memory; it says nothing about what the kernel computes.

use crate::error::Refusal;
use crate::features::{BASELINE, FEATURES, kernel_features};
use crate::graph::{NN_FUNCTIONS, NN_MODULE};
use crate::{DeviceClass, HostLimits};
use ruvllm_abi::export;
use ruvllm_manifest::{WASI_NN, escape_untrusted};
use wasmparser::types::{EntityType, Types};
use wasmparser::{
    BinaryReaderError, Export, ExternalKind, FunctionBody, Global, Import, MemoryType, Operator,
    Parser, Payload, TableType, ValType, Validator, WasmFeatures,
};

/// A reason against a module: a stable code and a sentence.
pub(crate) type ModuleViolation = (&'static str, String);

/// What the manifest says about a module.
pub(crate) struct Declared<'a> {
    pub(crate) entry_point: &'a str,
    /// Whether it has `kernel_backward`; `None` where nothing is said of it.
    pub(crate) backward: Option<bool>,
    /// Whether it asks for threads.
    pub(crate) threads: bool,
    pub(crate) memory_pages: u32,
    pub(crate) table_elements: u32,
    pub(crate) features: &'a [String],
    /// Whether it may import the functions of WASI-NN.
    pub(crate) graphs: bool,
}

/// The most imports that a module may have: some more than there are functions.
const IMPORTS: usize = 8;

fn allowed() -> WasmFeatures {
    let all = FEATURES.iter().chain(&BASELINE);
    // Two encodings that compilers emit without using the rest of their proposals.
    let encodings = WasmFeatures::CALL_INDIRECT_OVERLONG | WasmFeatures::BULK_MEMORY_OPT;
    all.fold(WasmFeatures::FLOATS | encodings, |sum, (_, feature)| sum | *feature)
}

/// The features that a module really uses and that its manifest must declare.
///
/// A feature is in use where the module is no longer valid without it.
///
/// # Errors
/// A sentence: the module is not valid, or uses a feature that this host never runs.
pub fn module_features(wasm: &[u8]) -> Result<Vec<&'static str>, String> {
    validated(wasm, allowed()).map_err(|e| describe_invalid(wasm, &e).1)?;
    let used = FEATURES
        .iter()
        .filter(|(_, feature)| validated(wasm, without(allowed(), *feature)).is_err());
    let graphs = imports(wasm).any(|import| import.module == NN_MODULE).then_some(WASI_NN);
    Ok(used.map(|(name, _)| *name).chain(graphs).collect())
}

/// Validates a module that may use these features.
fn validated(wasm: &[u8], features: WasmFeatures) -> Result<Types, BinaryReaderError> {
    Validator::new_with_features(features).validate_all(wasm)
}

/// Takes a feature out.
fn without(features: WasmFeatures, feature: WasmFeatures) -> WasmFeatures {
    match feature {
        // Relaxed SIMD presupposes SIMD: a module that uses it falls with either.
        WasmFeatures::SIMD => features - feature - WasmFeatures::RELAXED_SIMD,
        // Compilers pad the table index of indirect calls; that alone uses no references.
        WasmFeatures::REFERENCE_TYPES => {
            (features - feature) | WasmFeatures::CALL_INDIRECT_OVERLONG
        }
        _ => features - feature,
    }
}

/// As [`module_features`], of a module that nobody has looked at; none where it is not worth validating, or
/// not valid, which [`check`] tells.
pub(crate) fn used_features(wasm: &[u8], limits: &HostLimits) -> Vec<&'static str> {
    let mut gate = Gate { limits, found: Vec::new(), functions: 0, memories: 0, tables: 0 };
    let bounded = wasm.len() <= limits.module_bytes && gate.structure(wasm, true).is_ok();
    match bounded && gate.found.is_empty() {
        true => module_features(wasm).unwrap_or_default(),
        false => Vec::new(),
    }
}

/// Whether the error goes away with features that this host keeps off.
fn describe_invalid(wasm: &[u8], error: &BinaryReaderError) -> ModuleViolation {
    if validated(wasm, allowed()).is_ok() {
        let what = format!(
            "the module has atomics or a shared memory, which are for kernels that ask for `threads` in their \
             manifest entry: {error}"
        );
        return ("module_threads", what);
    }
    if Validator::new_with_features(WasmFeatures::all()).validate_all(wasm).is_ok() {
        let what = format!("the module uses a feature that kernels may not use: {error}");
        return ("module_feature", what);
    }
    ("module_invalid", format!("the module is not valid WebAssembly: {error}"))
}

/// Which functions a module exports, for an author who has misspelt one. Modules may have thousands.
fn functions_of(exports: &[Export<'_>]) -> String {
    const SHOWN: usize = 8;
    let functions = exports.iter().filter(|export| export.kind == ExternalKind::Func);
    let names: Vec<String> =
        functions.map(|export| escape_untrusted(&shortened(export.name))).collect();
    match names.len() {
        0 => "it exports no function".to_owned(),
        n if n > SHOWN => {
            format!("it exports {} and {} more", names[..SHOWN].join(", "), n - SHOWN)
        }
        _ => format!("it exports {}", names.join(", ")),
    }
}

fn shortened(name: &str) -> String {
    name.chars().take(64).collect()
}

/// Checks a module on its own, as [`crate::Host::install`] does before it compiles anything: against
/// the host's caps, with every feature declared that this host can run. Empty means that it may be
/// compiled.
///
/// ```
/// let wasm = b"\0asm\x01\0\0\0";
/// let found = ruvllm_host::check_module(wasm, "rmsnorm_forward", &Default::default());
/// assert!(found.iter().any(|refusal| refusal.code == "export_missing"));
/// ```
pub fn check_module(wasm: &[u8], entry_point: &str, limits: &HostLimits) -> Vec<Refusal> {
    let features = kernel_features(DeviceClass::Threads).map(str::to_owned).collect::<Vec<_>>();
    let is_shared = |payload| match payload {
        Payload::MemorySection(s) => s.into_iter().flatten().any(|memory| memory.shared),
        _ => false,
    };
    let declared = Declared {
        entry_point,
        backward: None,
        // With threads where it is made for them.
        threads: wasm.len() <= limits.module_bytes && payloads(wasm).any(is_shared),
        memory_pages: limits.memory_pages,
        table_elements: limits.table_elements,
        features: &features,
        graphs: cfg!(feature = "wasi-nn"),
    };
    let found = check(wasm, &declared, limits);
    found.into_iter().map(|(code, what)| Refusal::new("", code, what)).collect()
}

/// Checks a module against the host's caps and its manifest. Empty means that it may be compiled.
pub(crate) fn check(
    wasm: &[u8],
    declared: &Declared<'_>,
    limits: &HostLimits,
) -> Vec<ModuleViolation> {
    if wasm.len() > limits.module_bytes {
        let what =
            format!("the module has {} bytes; this host takes {}", wasm.len(), limits.module_bytes);
        return vec![("module_too_large", what)];
    }
    let mut gate = Gate { limits, found: Vec::new(), functions: 0, memories: 0, tables: 0 };
    // Structure first: it is cheaper than validation and keeps what validation can cost in bounds.
    let structure = gate.structure(wasm, declared.graphs);
    if let Err(error) = structure {
        gate.found.push(describe_invalid(wasm, &error));
    }
    if !gate.found.is_empty() {
        return gate.found;
    }
    let allowed = if declared.threads { allowed() } else { allowed() - WasmFeatures::THREADS };
    let is_declared = |name: &str| declared.features.iter().any(|declared| declared == name);
    let undeclared = FEATURES.iter().filter(|(name, _)| !is_declared(name));
    let declared_only = undeclared.fold(allowed, |rest, (_, feature)| without(rest, *feature));
    // A module that is valid without what is not declared uses nothing of it. Of imports validation says nothing.
    let types = validated(wasm, declared_only);
    let uses_declared_only = types.is_ok() && !imports(wasm).any(|i| i.module == NN_MODULE);
    let types = match types.or_else(|_| validated(wasm, allowed)) {
        Ok(types) => types,
        Err(error) => return vec![describe_invalid(wasm, &error)],
    };
    gate.imports(wasm, &types);
    gate.exports(wasm, &types, declared);
    gate.memory(wasm, declared);
    let used = if uses_declared_only { Ok(Vec::new()) } else { module_features(wasm) };
    match used {
        Ok(used) => {
            for name in used.into_iter().filter(|name| !is_declared(name)) {
                let what = format!(
                    "the module uses `{name}`, which platforms.wasmtime.features does not declare"
                );
                gate.add("feature_undeclared", what);
            }
        }
        Err(what) => gate.add("module_invalid", what),
    }
    gate.found
}

/// Bytes of the memory and the table that an instance of a module begins with.
pub(crate) fn begins_with(wasm: &[u8]) -> usize {
    let bytes = payloads(wasm).map(|payload| match payload {
        Payload::MemorySection(s) => {
            let memories = s.into_iter().flatten();
            memories.map(|memory| memory.initial.saturating_mul(64 << 10)).sum()
        }
        Payload::TableSection(s) => {
            let tables = s.into_iter().flatten();
            tables.map(|table| table.ty.initial.saturating_mul(size_of::<usize>() as u64)).sum()
        }
        _ => 0,
    });
    usize::try_from(bytes.fold(0, u64::saturating_add)).unwrap_or(usize::MAX)
}

/// Where the host's part of a module's memory begins: the value of its export `__heap_base`. `None` where it has none,
/// or one that is no constant.
pub(crate) fn heap_base(wasm: &[u8]) -> Option<u32> {
    let (mut values, mut global) = (Vec::new(), None);
    for payload in payloads(wasm) {
        match payload {
            // Kernels import none, so these have the first indices.
            Payload::GlobalSection(s) => {
                let value = |global: Global<'_>| {
                    let mut init = global.init_expr.get_operators_reader().into_iter();
                    match (init.next(), init.next()) {
                        (Some(Ok(Operator::I32Const { value })), Some(Ok(Operator::End))) => {
                            Some(value.cast_unsigned())
                        }
                        _ => None,
                    }
                };
                values.extend(s.into_iter().map(|global| global.ok().and_then(value)));
            }
            Payload::ExportSection(s) => {
                let mut exports = s.into_iter().flatten();
                let found = exports.find(|export| {
                    export.kind == ExternalKind::Global && export.name == export::HEAP_BASE
                });
                global = found.map(|export| export.index);
            }
            _ => {}
        }
    }
    *values.get(usize::try_from(global?).ok()?)?
}

struct Gate<'a> {
    limits: &'a HostLimits,
    found: Vec<ModuleViolation>,
    functions: u32,
    memories: u32,
    tables: u32,
}

impl Gate<'_> {
    fn add(&mut self, code: &'static str, what: impl Into<String>) {
        self.found.push((code, what.into()));
    }

    fn cap(&mut self, code: &'static str, name: &str, count: u64, cap: u64) {
        if count > cap {
            self.add(code, format!("the module has {count} {name}; this host takes {cap}"));
        }
    }

    /// Counts and sizes, section by section, of a module that may compute graphs or not.
    fn structure(&mut self, wasm: &[u8], graphs: bool) -> Result<(), BinaryReaderError> {
        let items = u64::from(self.limits.items);
        for payload in Parser::new(0).parse_all(wasm) {
            let count = |n: u32| u64::from(n);
            match payload? {
                Payload::TypeSection(s) => {
                    self.cap("module_items", "types", count(s.count()), items)
                }
                Payload::GlobalSection(s) => {
                    self.cap("module_items", "globals", count(s.count()), items);
                    for (index, global) in s.into_iter().enumerate().take(items as usize) {
                        let ty = global?.ty;
                        if ty.mutable && matches!(ty.content_type, ValType::Ref(_)) {
                            let what = format!(
                                "global {index} is a mutable reference, which would outlive a call; \
                                 kernels may have mutable numbers"
                            );
                            self.add("module_global", what);
                        }
                    }
                }
                Payload::ExportSection(s) => {
                    self.cap("module_items", "exports", count(s.count()), items);
                }
                Payload::ElementSection(s) => {
                    self.cap("module_items", "element segments", count(s.count()), items);
                }
                Payload::ImportSection(s) => {
                    for (place, import) in s.into_imports().enumerate() {
                        let import = import?;
                        if place == IMPORTS {
                            let what = format!("the module has more than {IMPORTS} imports");
                            self.add("module_import", what);
                            break;
                        }
                        let known = NN_FUNCTIONS.iter().any(|(name, _)| *name == import.name);
                        if graphs && import.module == NN_MODULE && known {
                            continue;
                        }
                        let what = format!(
                            "the module imports {:?} from {:?}; kernels may import nothing",
                            import.name, import.module
                        );
                        self.add("module_import", what);
                    }
                }
                Payload::FunctionSection(s) => {
                    let cap = u64::from(self.limits.functions);
                    self.cap("module_functions", "functions", count(s.count()), cap);
                }
                Payload::TableSection(s) => self.tables += s.count(),
                Payload::MemorySection(s) => self.memories += s.count(),
                Payload::StartSection { .. } => {
                    let what = "the module has a start function; kernels may not run code when \
                                they are instantiated: use kernel_init";
                    self.add("module_start", what);
                }
                Payload::DataSection(s) => {
                    self.cap("module_items", "data segments", count(s.count()), items);
                    let size = s.range().len() as u64;
                    let cap = self.limits.data_bytes as u64;
                    self.cap("module_data", "bytes of data", size, cap);
                }
                Payload::CodeSectionEntry(body) => self.function(&body)?,
                _ => {}
            }
            // One objection of a kind tells as much as a thousand.
            if self.found.len() >= 16 {
                break;
            }
        }
        Ok(())
    }

    fn function(&mut self, body: &FunctionBody<'_>) -> Result<(), BinaryReaderError> {
        let index = self.functions;
        self.functions += 1;
        let size = body.range().len();
        if size > self.limits.function_bytes {
            let cap = self.limits.function_bytes;
            let what = format!("function {index} has {size} bytes; this host takes {cap}");
            self.add("module_function_size", what);
            return Ok(());
        }
        let mut locals = 0u64;
        for group in body.get_locals_reader()? {
            locals += u64::from(group?.0);
        }
        if locals > u64::from(self.limits.locals) {
            let cap = self.limits.locals;
            self.add(
                "module_locals",
                format!("function {index} has {locals} locals; this host takes {cap}"),
            );
        }
        let (mut depth, mut deepest) = (0u32, 0u32);
        let mut operators = body.get_operators_reader()?;
        let (mut lasting, mut parking) = (None, None);
        while !operators.eof() {
            let operator = operators.read()?;
            lasting = lasting.or(outlives_a_call(&operator));
            parking = parking.or(parks_a_thread(&operator));
            match operator {
                Operator::Block { .. } | Operator::Loop { .. } | Operator::If { .. } => {
                    depth += 1;
                    deepest = deepest.max(depth);
                }
                Operator::End => depth = depth.saturating_sub(1),
                _ => {}
            }
        }
        if let Some((code, instruction, instead)) = lasting {
            let what = format!(
                "function {index} uses `{instruction}`, whose effect would outlive a call: {instead}"
            );
            self.add(code, what);
        }
        if let Some(instruction) = parking {
            let what = format!(
                "function {index} uses `{instruction}`, which parks a thread where no deadline reaches it: spin in \
                 a bounded loop, or divide the work so that no thread waits for another"
            );
            self.add("module_atomic_wait", what);
        }
        if deepest > self.limits.nesting {
            let cap = self.limits.nesting;
            let what =
                format!("function {index} nests blocks {deepest} deep; this host takes {cap}");
            self.add("module_nesting", what);
        }
        Ok(())
    }

    /// Those that are left are functions of WASI-NN by their names.
    fn imports(&mut self, wasm: &[u8], types: &Types) {
        let is_i32 = |types: &[ValType]| types.iter().all(|ty| *ty == ValType::I32);
        for import in imports(wasm) {
            let params = NN_FUNCTIONS.iter().find(|(name, _)| *name == import.name);
            let fits = match types.as_ref().entity_type_from_import(&import) {
                Some(EntityType::Func(id)) => {
                    let ty = types[id].unwrap_func();
                    let (params, results) = (params.map(|(_, count)| *count), ty.results());
                    is_i32(ty.params())
                        && is_i32(results)
                        && results.len() == 1
                        && params == Some(ty.params().len())
                }
                _ => false,
            };
            if !fits {
                let what = format!(
                    "the import {:?} from {NN_MODULE:?} is of another type than WASI-NN's (WITX)",
                    import.name
                );
                self.add("import_type", what);
            }
        }
    }

    /// The exports that the host looks for, and their types.
    fn exports(&mut self, wasm: &[u8], types: &Types, declared: &Declared<'_>) {
        use ValType::I32;
        let exports: Vec<Export<'_>> = payloads(wasm)
            .filter_map(|payload| match payload {
                Payload::ExportSection(s) => Some(s.into_iter().flatten()),
                _ => None,
            })
            .flatten()
            .collect();
        let find = |name: &str| exports.iter().find(|export| export.name == name);
        let has_backward = find(export::BACKWARD).is_some();
        if declared.backward == Some(false) && has_backward {
            let what = "the module exports \"kernel_backward\", which the manifest does not say: add \
                        \"backward\": true to its entry, as `ruvllm-pack build` does";
            self.add("backward_undeclared", what);
        }
        let needs_backward = declared.backward == Some(true);
        // Descriptor, and with threads the index of this one and how many there are.
        let entry: &[ValType] = if declared.threads { &[I32, I32, I32] } else { &[I32] };
        let functions: [(&str, &[ValType], &[ValType], bool); 5] = [
            (declared.entry_point, entry, &[I32], true),
            (export::INIT, &[I32, I32], &[I32], false),
            (export::BACKWARD, &[I32], &[I32], needs_backward),
            (export::INFO, &[I32], &[I32], false),
            (export::CLEANUP, &[], &[I32], false),
        ];
        for (name, params, results, required) in functions {
            let Some(export) = find(name) else {
                if required && name == export::BACKWARD {
                    let what = "the manifest says \"backward\": true, and the module does not export \
                                \"kernel_backward\"";
                    self.add("export_missing", what);
                } else if required {
                    let what = format!(
                        "the module does not export its entry point {name:?}; {}",
                        functions_of(&exports)
                    );
                    self.add("export_missing", what);
                }
                continue;
            };
            let fits = match types.as_ref().entity_type_from_export(export) {
                Some(EntityType::Func(id)) => {
                    let ty = types[id].unwrap_func();
                    // One that tidies up need not say how that went.
                    let silent = name == export::CLEANUP && ty.results().is_empty();
                    ty.params() == params && (silent || ty.results() == results)
                }
                _ => false,
            };
            if !fits {
                let what = format!("export {name:?} must be a function {params:?} -> {results:?}");
                self.add("export_type", what);
            }
        }
        match find(export::MEMORY) {
            Some(export) if export.kind == ExternalKind::Memory => {}
            Some(_) => self.add("export_type", "export \"memory\" must be a memory"),
            None => self.add("export_missing", "the module does not export its \"memory\""),
        }
        let heap_base =
            find(export::HEAP_BASE).map(|export| types.as_ref().entity_type_from_export(export));
        match heap_base {
            Some(Some(EntityType::Global(global))) if global.content_type == I32 => {}
            Some(_) => self.add("export_type", "export \"__heap_base\" must be an i32 global"),
            None => {
                let what = "the module does not export \"__heap_base\"; link with \
                            --export=__heap_base";
                self.add("export_missing", what);
            }
        }
    }

    /// One bounded memory and at most one bounded table.
    fn memory(&mut self, wasm: &[u8], declared: &Declared<'_>) {
        if self.memories != 1 {
            let what = format!("the module defines {} memories; kernels have one", self.memories);
            self.add("memory_count", what);
        }
        if self.tables > 1 {
            let what =
                format!("the module defines {} tables; kernels have at most one", self.tables);
            self.add("table_count", what);
        }
        for payload in payloads(wasm) {
            match payload {
                Payload::MemorySection(s) => {
                    s.into_iter().flatten().for_each(|memory| self.memory_type(memory, declared));
                }
                Payload::TableSection(s) => {
                    s.into_iter().flatten().for_each(|table| self.table_type(table.ty, declared));
                }
                _ => {}
            }
        }
    }

    fn memory_type(&mut self, memory: MemoryType, declared: &Declared<'_>) {
        if memory.memory64 || memory.page_size_log2.is_some() {
            self.add("memory_kind", "the memory must be plain: 32-bit, 64 KiB pages");
        }
        if declared.threads && !memory.shared {
            let what = "the manifest asks for threads, which share a memory, and the memory of the module is not \
                        shared: link with --shared-memory";
            self.add("memory_kind", what);
        }
        let cap = u64::from(declared.memory_pages);
        match memory.maximum {
            None => {
                let what = "the memory has no maximum; link with --max-memory, at most \
                            max_memory_pages of 64 KiB";
                self.add("memory_unbounded", what);
            }
            Some(maximum) if maximum > cap => {
                let what = format!(
                    "the memory may grow to {maximum} pages; the manifest's max_memory_pages is \
                     {cap}"
                );
                self.add("memory_over_limit", what);
            }
            Some(_) => {}
        }
    }

    fn table_type(&mut self, table: TableType, declared: &Declared<'_>) {
        let cap = u64::from(declared.table_elements);
        let size = table.maximum.unwrap_or(table.initial).max(table.initial);
        if table.shared || table.table64 || size > cap {
            let what = format!(
                "the table may have {size} elements; the manifest's max_table_elements is {cap}"
            );
            self.add("table_over_limit", what);
        }
    }
}

/// Instructions whose effect the host cannot set back: the code that they are refused with, their name,
/// and what to do.
fn outlives_a_call(operator: &Operator<'_>) -> Option<(&'static str, &'static str, &'static str)> {
    const MEMORY: &str = "a kernel's memory has the size that the host gives it; work in `scratch`, \
                          and build without an allocator";
    const SEGMENT: &str = "use active data and element segments";
    const TABLE: &str = "a kernel's table stays as its element segments make it";
    Some(match operator {
        Operator::MemoryGrow { .. } => ("module_memory_grow", "memory.grow", MEMORY),
        Operator::MemoryInit { .. } => ("module_segment", "memory.init", SEGMENT),
        Operator::DataDrop { .. } => ("module_segment", "data.drop", SEGMENT),
        Operator::ElemDrop { .. } => ("module_segment", "elem.drop", SEGMENT),
        Operator::TableInit { .. } => ("module_table_write", "table.init", TABLE),
        Operator::TableCopy { .. } => ("module_table_write", "table.copy", TABLE),
        Operator::TableFill { .. } => ("module_table_write", "table.fill", TABLE),
        Operator::TableSet { .. } => ("module_table_write", "table.set", TABLE),
        Operator::TableGrow { .. } => ("module_table_write", "table.grow", TABLE),
        _ => return None,
    })
}

/// The name of an instruction that waits for another thread.
fn parks_a_thread(operator: &Operator<'_>) -> Option<&'static str> {
    match operator {
        Operator::MemoryAtomicWait32 { .. } => Some("memory.atomic.wait32"),
        Operator::MemoryAtomicWait64 { .. } => Some("memory.atomic.wait64"),
        _ => None,
    }
}

/// The imports of a module that has already been parsed once without error.
fn imports(wasm: &[u8]) -> impl Iterator<Item = Import<'_>> {
    let sections = payloads(wasm).filter_map(|payload| match payload {
        Payload::ImportSection(s) => Some(s.into_imports().flatten()),
        _ => None,
    });
    sections.flatten()
}

/// The sections of a module that has already been parsed once without error.
fn payloads(wasm: &[u8]) -> impl Iterator<Item = Payload<'_>> {
    Parser::new(0).parse_all(wasm).map_while(Result::ok)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::features::THREADS;

    const PLAIN: &str = r#"
        (memory (export "memory") 1 4)
        (global (export "__heap_base") i32 (i32.const 1024))
        (func (export "run") (param i32) (result i32) i32.const 0)"#;

    fn codes_of(
        wat: &str,
        backward: Option<bool>,
        limits: &HostLimits,
        features: &[&str],
    ) -> Vec<&'static str> {
        let wasm = wat::parse_str(format!("(module {wat})")).unwrap();
        let features: Vec<String> = features.iter().map(|&f| f.to_owned()).collect();
        let declared = Declared {
            entry_point: "run",
            backward,
            threads: features.iter().any(|feature| feature == THREADS),
            memory_pages: 16,
            table_elements: 8,
            features: &features,
            graphs: features.iter().any(|feature| feature == WASI_NN),
        };
        check(&wasm, &declared, limits).into_iter().map(|(code, _)| code).collect()
    }

    fn codes_with(wat: &str, limits: &HostLimits, features: &[&str]) -> Vec<&'static str> {
        codes_of(wat, Some(false), limits, features)
    }

    fn codes(wat: &str) -> Vec<&'static str> {
        codes_with(wat, &HostLimits::default(), &[])
    }

    #[test]
    fn a_plain_module_passes() {
        assert!(codes(PLAIN).is_empty());
    }

    #[test]
    fn imports_and_start_are_refused() {
        assert_eq!(codes(&format!("(import \"env\" \"f\" (func)) {PLAIN}")), ["module_import"]);
        assert_eq!(codes(&format!("{PLAIN} (func $s) (start $s)")), ["module_start"]);
        let memory = "(import \"env\" \"memory\" (memory 1 2))";
        assert_eq!(codes(memory), ["module_import"]);
    }

    #[test]
    fn who_computes_graphs_imports_the_functions_of_wasi_nn_and_nothing_else() {
        let import = |module: &str, name: &str, params: &str| {
            format!("(import \"{module}\" \"{name}\" (func {params} (result i32))) {PLAIN}")
        };
        let named = import("wasi_ephemeral_nn", "load_by_name", "(param i32 i32 i32)");
        let with = |wat: &str| codes_with(wat, &HostLimits::default(), &[WASI_NN]);
        assert_eq!(codes(&named), ["module_import"]);
        assert_eq!(with(&named), [""; 0]);
        assert_eq!(with(&import("wasi_ephemeral_nn", "other", "")), ["module_import"]);
        assert_eq!(with(&import("wasi_nn", "compute", "(param i32)")), ["module_import"]);
        let often = "(import \"wasi_ephemeral_nn\" \"compute\" (func (param i32) (result i32)))";
        assert_eq!(with(&format!("{} {PLAIN}", often.repeat(8))), [""; 0]);
        let env = "(import \"env\" \"f\" (func))";
        assert_eq!(with(&format!("{} {env} {PLAIN}", often.repeat(8))), ["module_import"]);
        let wide = import("wasi_ephemeral_nn", "compute", "(param i64)");
        assert_eq!(with(&wide), ["import_type"]);
        let global = "(import \"wasi_ephemeral_nn\" \"compute\" (global i32))";
        assert_eq!(with(&format!("{global} {PLAIN}")), ["import_type"]);
        let wasm = wat::parse_str(format!("(module {named})")).unwrap();
        assert_eq!(module_features(&wasm).unwrap(), [WASI_NN]);
    }

    #[test]
    fn the_memory_is_one_and_bounded() {
        let with = |memory: &str| codes(&PLAIN.replace("1 4", memory));
        assert_eq!(with("1"), ["memory_unbounded"]);
        assert_eq!(with("1 17"), ["memory_over_limit"]);
        assert_eq!(with("1 4 shared"), ["module_threads"]);
        assert_eq!(with("i64 1 4"), ["module_feature"]);
        assert_eq!(codes(&format!("{PLAIN} (memory 1 1)")), ["module_feature"]);
        let none = codes(&PLAIN.replace("(memory (export \"memory\") 1 4)", ""));
        assert_eq!(none, ["export_missing", "memory_count"]);
    }

    #[test]
    fn exports_must_be_there_with_their_types() {
        assert_eq!(codes(&PLAIN.replace("\"run\"", "\"walk\"")), ["export_missing"]);
        assert_eq!(codes(&PLAIN.replace("(param i32)", "(param i64)")), ["export_type"]);
        assert_eq!(codes(&PLAIN.replace("__heap_base", "heap")), ["export_missing"]);
        let init = format!("{PLAIN} (func (export \"kernel_init\"))");
        assert_eq!(codes(&init), ["export_type"]);
    }

    #[test]
    fn gradients_are_there_where_the_manifest_says_so_and_nowhere_else() {
        let backward = r#"(func (export "kernel_backward") (param i32) (result i32) i32.const 0)"#;
        let with = format!("{PLAIN} {backward}");
        let says = |wat: &str, backward| codes_of(wat, backward, &HostLimits::default(), &[]);
        assert_eq!(says(&with, Some(true)), [""; 0]);
        assert_eq!(says(&with, Some(false)), ["backward_undeclared"]);
        assert_eq!(says(PLAIN, Some(true)), ["export_missing"]);
        assert_eq!(says(&with, None), [""; 0]);
        let other = format!("{PLAIN} (func (export \"kernel_backward\"))");
        assert_eq!(says(&other, Some(true)), ["export_type"]);
    }

    #[test]
    fn a_kernel_that_asks_for_threads_shares_its_memory_and_never_waits() {
        let threads = |wat: &str| codes_with(wat, &HostLimits::default(), &[THREADS]);
        let shared = PLAIN
            .replace("1 4", "1 4 shared")
            .replace("(param i32)", "(param $d i32) (param $index i32) (param $count i32)");
        assert_eq!(threads(&shared), [""; 0]);
        let add = "(func (drop (i32.atomic.rmw.add (i32.const 0) (i32.const 1))) (atomic.fence))";
        assert_eq!(threads(&format!("{shared} {add}")), [""; 0]);
        let notify = "(func (drop (memory.atomic.notify (i32.const 0) (i32.const 1))))";
        assert_eq!(threads(&format!("{shared} {notify}")), [""; 0]);
        for wait in [
            "(memory.atomic.wait32 (i32.const 0) (i32.const 0) (i64.const -1))",
            "(memory.atomic.wait64 (i32.const 0) (i64.const 0) (i64.const -1))",
        ] {
            let waits = format!("{shared} (func (drop {wait}))");
            assert_eq!(threads(&waits), ["module_atomic_wait"]);
            assert_eq!(codes(&waits), ["module_atomic_wait"]);
        }
        assert_eq!(threads(&shared.replace("1 4 shared", "1 4")), ["memory_kind"]);
        assert_eq!(threads(&shared.replace("1 4 shared", "1 17 shared")), ["memory_over_limit"]);
        assert_eq!(threads(&shared.replace("(param $count i32)", "")), ["export_type"]);
        // Nobody else has any of it.
        assert_eq!(codes(&shared), ["module_threads"]);
        assert_eq!(codes(&format!("{PLAIN} {add}")), ["module_threads"]);
        let wasm = wat::parse_str(format!("(module {shared})")).unwrap();
        assert_eq!(module_features(&wasm).unwrap(), [THREADS]);
        assert_eq!(check_module(&wasm, "run", &HostLimits::default()), []);
    }

    #[test]
    fn cleaning_up_may_or_may_not_say_how_it_went() {
        let cleanup =
            |results| codes(&format!("{PLAIN} (func (export \"kernel_cleanup\") {results})"));
        assert_eq!(cleanup(""), [""; 0]);
        assert_eq!(cleanup("(result i32) i32.const 0"), [""; 0]);
        assert_eq!(cleanup("(result f32) f32.const 0"), ["export_type"]);
        assert_eq!(cleanup("(param i32)"), ["export_type"]);
    }

    #[test]
    fn sizes_are_capped() {
        let limits = HostLimits {
            functions: 2,
            locals: 4,
            nesting: 3,
            items: 4,
            data_bytes: 16,
            function_bytes: 64,
            ..HostLimits::default()
        };
        let codes = |wat: String| codes_with(&wat, &limits, &[]);
        assert_eq!(codes(format!("{PLAIN} (func) (func)")), ["module_functions"]);
        let locals = "(local i32 i32 i32 i32 i32)";
        assert_eq!(codes(format!("{PLAIN} (func {locals})")), ["module_locals"]);
        let nested = "(block (block (block (block))))";
        assert_eq!(codes(format!("{PLAIN} (func {nested})")), ["module_nesting"]);
        let data = "(data (i32.const 0) \"0123456789abcdef0123\")";
        assert_eq!(codes(format!("{PLAIN} {data}")), ["module_data"]);
        let long = "i32.const 0 drop ".repeat(40);
        assert_eq!(codes(format!("{PLAIN} (func {long})")), ["module_function_size"]);
        assert_eq!(codes(format!("{PLAIN} (table 9 funcref)")), ["table_over_limit"]);
        let globals = "(global i32 (i32.const 0))".repeat(4);
        assert_eq!(codes(format!("{PLAIN} {globals}")), ["module_items"]);
    }

    #[test]
    fn features_in_use_must_be_declared() {
        let simd = format!("{PLAIN} (func (drop (v128.const i32x4 0 0 0 0)))");
        let limits = HostLimits::default();
        assert_eq!(codes(&simd), ["feature_undeclared"]);
        assert!(codes_with(&simd, &limits, &["simd"]).is_empty());
        let copy = "(func (memory.copy (i32.const 0) (i32.const 0) (i32.const 0)))";
        assert_eq!(codes(&format!("{PLAIN} {copy}")), ["feature_undeclared"]);
        let relaxed = "(func (param v128) (result v128)
            (f32x4.relaxed_madd (local.get 0) (local.get 0) (local.get 0)))";
        let wasm = wat::parse_str(format!("(module {PLAIN} {relaxed})")).unwrap();
        assert_eq!(module_features(&wasm).unwrap(), ["simd", "relaxed-simd"]);
        // In code that cannot be reached, no vector is needed for it.
        let dead = format!("{PLAIN} (func unreachable f32x4.relaxed_madd drop)");
        let of = |features: &[&'static str]| codes_with(&dead, &limits, features);
        assert_eq!(of(&["simd"]), ["feature_undeclared"]);
        assert_eq!(of(&["relaxed-simd"]), ["feature_undeclared"]);
        assert!(of(&["simd", "relaxed-simd"]).is_empty());
        let plain = wat::parse_str(format!("(module {PLAIN})")).unwrap();
        assert!(module_features(&plain).unwrap().is_empty());
    }

    #[test]
    fn garbage_is_refused_without_a_panic() {
        let wasm = wat::parse_str(format!("(module {PLAIN})")).unwrap();
        let declared = Declared {
            entry_point: "run",
            backward: None,
            threads: false,
            memory_pages: 16,
            table_elements: 8,
            features: &[],
            graphs: false,
        };
        for cut in 0..wasm.len() {
            assert!(!check(&wasm[..cut], &declared, &HostLimits::default()).is_empty(), "{cut}");
        }
    }
}
