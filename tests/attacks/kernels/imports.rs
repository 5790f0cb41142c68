//! The module imports something.

use super::{pack, refused};
use ruvllm_tests::wat::Module;

#[test]
fn every_kind_of_import_is_refused() {
    let imports = [
        r#"(import "env" "now" (func (result i64)))"#,
        r#"(import "wasi_snapshot_preview1" "fd_write" (func (param i32 i32 i32 i32) (result i32)))"#,
        r#"(import "env" "table" (table 1 funcref))"#,
        r#"(import "env" "flag" (global i32))"#,
    ];
    for import in imports {
        let module = Module { imports: import.to_owned(), ..Module::default() };
        assert_eq!(refused(&pack(&module)), ["module_import"], "{import}");
    }
}

#[test]
fn an_imported_memory_is_refused() {
    let module = Module {
        imports: r#"(import "env" "memory" (memory 1 4))"#.to_owned(),
        memory: String::new(),
        ..Module::default()
    };
    assert_eq!(refused(&pack(&module)), ["module_import"]);
}
