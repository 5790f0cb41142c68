//! What a kernel's module consists of, and its normal form.

use ruvllm_abi::export;
use serde::Serialize;
use wasm_encoder::{ExportSection, MemorySection, MemoryType, Module, RawSection};
use wasmparser::{ExternalKind, Operator, Parser, Payload, TypeRef};

/// Facts about a module that people ask for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ModuleFacts {
    /// `module.name` of each import; a kernel has none.
    pub imports: Vec<String>,
    /// Names of the exports.
    pub exports: Vec<String>,
    /// Names and sizes in bytes of the custom sections, which are data that no host looks at; none
    /// after a build.
    pub custom_sections: Vec<(String, usize)>,
    /// Functions that it defines.
    pub functions: u32,
    /// Pages of memory at start.
    pub memory_pages: u64,
    /// The most pages that it may grow to.
    pub max_memory_pages: Option<u64>,
    /// `unreachable` instructions: each is a place where the kernel can give up with a trap.
    pub trap_sites: usize,
    /// Loops, whose back-edges check the deadline.
    pub loops: usize,
}

impl ModuleFacts {
    /// Reads a module without compiling it.
    ///
    /// # Errors
    /// What the parser says about bytes that are no module.
    pub fn read(wasm: &[u8]) -> Result<ModuleFacts, String> {
        let mut facts = ModuleFacts::default();
        facts.collect(wasm).map_err(|error| error.to_string())?;
        Ok(facts)
    }

    fn collect(&mut self, wasm: &[u8]) -> Result<(), wasmparser::BinaryReaderError> {
        for payload in Parser::new(0).parse_all(wasm) {
            match payload? {
                Payload::ImportSection(section) => {
                    for import in section.into_imports() {
                        let import = import?;
                        self.imports.push(format!("{}.{}", import.module, import.name));
                    }
                }
                Payload::ExportSection(section) => {
                    for export in section {
                        self.exports.push(export?.name.to_owned());
                    }
                }
                Payload::CustomSection(section) => {
                    self.custom_sections.push((section.name().to_owned(), section.data().len()));
                }
                Payload::FunctionSection(section) => self.functions = section.count(),
                Payload::MemorySection(section) => {
                    for memory in section {
                        let memory = memory?;
                        self.memory_pages = memory.initial;
                        self.max_memory_pages = memory.maximum;
                    }
                }
                Payload::CodeSectionEntry(body) => {
                    let mut operators = body.get_operators_reader()?;
                    while !operators.eof() {
                        match operators.read()? {
                            Operator::Unreachable => self.trap_sites += 1,
                            Operator::Loop { .. } => self.loops += 1,
                            _ => {}
                        }
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// The module without custom sections (names, producers, debug information), with no exports but
/// those that the ABI looks for, and without the function table that compilers of C leave behind
/// where nothing uses it. What runs is untouched. Where the entry point is missing all functions stay
/// exported: the refusal then names them.
///
/// With `threads`, its memory becomes one that instances share. A linker would do that as well, but it would
/// also have the instances lay out their data at run time, and wait for each other.
///
/// # Errors
/// What the parser says about bytes that are no module.
pub fn normalise(wasm: &[u8], entry_point: &str, threads: bool) -> Result<Vec<u8>, String> {
    let wanted = [
        entry_point,
        export::MEMORY,
        export::HEAP_BASE,
        export::INIT,
        export::BACKWARD,
        export::INFO,
        export::CLEANUP,
        if threads { export::STACK_POINTER } else { entry_point },
    ];
    let keep_tables = uses_tables(wasm).map_err(|error| error.to_string())?;
    let has_entry = ModuleFacts::read(wasm)?.exports.iter().any(|name| name == entry_point);
    let mut module = Module::new();
    for payload in Parser::new(0).parse_all(wasm) {
        let payload = payload.map_err(|error| error.to_string())?;
        match &payload {
            Payload::CustomSection(_) => {}
            Payload::TableSection(_) if !keep_tables => {}
            Payload::ExportSection(section) => {
                let mut exports = ExportSection::new();
                for export in section.clone() {
                    let export = export.map_err(|error| error.to_string())?;
                    let is_function = export.kind == ExternalKind::Func;
                    if wanted.contains(&export.name) || (is_function && !has_entry) {
                        exports.export(export.name, kind(export.kind)?, export.index);
                    }
                }
                module.section(&exports);
            }
            Payload::MemorySection(section) if threads => {
                let mut memories = MemorySection::new();
                for memory in section.clone() {
                    let memory = memory.map_err(|error| error.to_string())?;
                    memories.memory(MemoryType {
                        minimum: memory.initial,
                        maximum: memory.maximum,
                        memory64: memory.memory64,
                        shared: true,
                        page_size_log2: memory.page_size_log2,
                    });
                }
                module.section(&memories);
            }
            other => {
                if let Some((id, range)) = other.as_section() {
                    let data = wasm.get(range).ok_or("a section leaves the module")?;
                    module.section(&RawSection { id, data });
                }
            }
        }
    }
    Ok(module.finish())
}

/// Whether anything in the module refers to a table: an element segment, an export or code.
fn uses_tables(wasm: &[u8]) -> Result<bool, wasmparser::BinaryReaderError> {
    for payload in Parser::new(0).parse_all(wasm) {
        match payload? {
            Payload::ElementSection(section) if section.count() > 0 => return Ok(true),
            Payload::ImportSection(section) => {
                for import in section.into_imports() {
                    if matches!(import?.ty, TypeRef::Table(_)) {
                        return Ok(true);
                    }
                }
            }
            Payload::ExportSection(section) => {
                for export in section {
                    if export?.kind == ExternalKind::Table {
                        return Ok(true);
                    }
                }
            }
            Payload::CodeSectionEntry(body) => {
                let mut operators = body.get_operators_reader()?;
                while !operators.eof() {
                    match operators.read()? {
                        Operator::CallIndirect { .. }
                        | Operator::ReturnCallIndirect { .. }
                        | Operator::TableGet { .. }
                        | Operator::TableSet { .. }
                        | Operator::TableSize { .. }
                        | Operator::TableGrow { .. }
                        | Operator::TableFill { .. }
                        | Operator::TableCopy { .. }
                        | Operator::TableInit { .. } => return Ok(true),
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    Ok(false)
}

fn kind(kind: ExternalKind) -> Result<wasm_encoder::ExportKind, String> {
    Ok(match kind {
        ExternalKind::Func => wasm_encoder::ExportKind::Func,
        ExternalKind::Table => wasm_encoder::ExportKind::Table,
        ExternalKind::Memory => wasm_encoder::ExportKind::Memory,
        ExternalKind::Global => wasm_encoder::ExportKind::Global,
        other => return Err(format!("an export of kind {other:?}; kernels have none")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const KERNEL: &str = r#"(module
        (memory (export "memory") 1 256)
        (global (export "__heap_base") i32 (i32.const 1024))
        (global (export "__data_end") i32 (i32.const 1024))
        (func $named (export "go") (param i32) (result i32) unreachable)
        (data (i32.const 16) "kept"))"#;

    #[test]
    fn the_normal_form_keeps_the_code_and_drops_names_and_stray_exports() {
        let wasm = wat::parse_str(KERNEL).unwrap();
        let normal = normalise(&wasm, "go", false).unwrap();
        let facts = ModuleFacts::read(&normal).unwrap();
        assert_eq!(facts.exports, ["memory", "__heap_base", "go"]);
        assert_eq!((facts.trap_sites, facts.functions), (1, 1));
        assert_eq!((facts.memory_pages, facts.max_memory_pages), (1, Some(256)));
        assert_eq!(ModuleFacts::read(&wasm).unwrap().custom_sections[0].0, "name");
        assert!(facts.custom_sections.is_empty());
        let find = |bytes: &[u8], text: &[u8]| bytes.windows(text.len()).any(|w| w == text);
        assert!(find(&wasm, b"named") && !find(&normal, b"named"));
        assert!(find(&normal, b"kept"));
        assert_eq!(normalise(&normal, "go", false).unwrap(), normal);
        let misnamed = ModuleFacts::read(&normalise(&wasm, "og", false).unwrap()).unwrap();
        assert_eq!(misnamed.exports, ["memory", "__heap_base", "go"]);
    }

    #[test]
    fn a_table_goes_where_nothing_uses_it_and_stays_where_something_does() {
        let tables = |body: &str| {
            let text = format!(
                "(module (table 1 1 funcref) (func (export \"go\") (param i32) (result i32) {body}))"
            );
            let normal = normalise(&wat::parse_str(text).unwrap(), "go", false).unwrap();
            let mut sections = Parser::new(0).parse_all(&normal).flatten();
            sections.any(|section| matches!(section, Payload::TableSection(_)))
        };
        assert!(!tables("i32.const 0"));
        assert!(tables("(call_indirect (result i32) (i32.const 0))"));
        assert!(tables("(table.size 0)"));
        let importing = r#"(module (import "a" "b" (func)) (table 1 1 funcref)
            (func (export "go") (param i32) (result i32) i32.const 0))"#;
        let normal = normalise(&wat::parse_str(importing).unwrap(), "go", false).unwrap();
        assert!(!uses_tables(&normal).unwrap());
        let mut sections = Parser::new(0).parse_all(&normal).flatten();
        assert!(!sections.any(|section| matches!(section, Payload::TableSection(_))));
    }

    #[test]
    fn threads_share_the_memory_and_have_a_stack_pointer_each() {
        let stack = r#"(global (export "__stack_pointer") (mut i32) (i32.const 512)) (func $named"#;
        let wasm = wat::parse_str(KERNEL.replace("(func $named", stack)).unwrap();
        let alone = normalise(&wasm, "go", false).unwrap();
        assert_eq!(ModuleFacts::read(&alone).unwrap().exports, ["memory", "__heap_base", "go"]);
        let together = normalise(&wasm, "go", true).unwrap();
        let facts = ModuleFacts::read(&together).unwrap();
        assert_eq!(facts.exports, ["memory", "__heap_base", "__stack_pointer", "go"]);
        assert_eq!((facts.memory_pages, facts.max_memory_pages), (1, Some(256)));
        assert_eq!(ruvllm_host::module_features(&together).unwrap(), ["threads"]);
        assert_eq!(normalise(&together, "go", true).unwrap(), together);
    }

    #[test]
    fn imports_are_listed_and_garbage_is_an_error() {
        let wasm = wat::parse_str(r#"(module (import "env" "f" (func)))"#).unwrap();
        assert_eq!(ModuleFacts::read(&wasm).unwrap().imports, ["env.f"]);
        assert!(ModuleFacts::read(b"not wasm").is_err());
        assert!(normalise(&wasm[..9], "go", false).is_err());
    }
}
