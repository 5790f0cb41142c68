//! Compiling C kernels with clang, one file and one module each.
//!
//! The compiler runs in the pack's directory on relative paths and knows no header but the pack's
//! and its own, so that the bytes depend on the sources and the toolchain alone.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use ruvllm_abi::export;

use crate::ToolError;
use crate::build::{Job, STACK_BYTES};
use crate::lines::CRATE_ROOT;
use crate::spec::{Source, Vectors};
use crate::toolchain::Compiler;

/// Where the sources of the kernels lie in a pack.
const SOURCES: &str = "kernels";

/// What every kernel is compiled with.
const FLAGS: [&str; 17] = [
    "--target=wasm32",
    "-std=c11",
    "-O3",
    // What `generic` means changes with the compiler, and brings a function table that no kernel
    // uses: from the first version of WebAssembly on, each feature by name.
    "-mcpu=mvp",
    "-mmutable-globals",
    "-msign-ext",
    // Conversions of numbers that do not fit saturate instead of trapping.
    "-mnontrapping-fptoint",
    // Copies become an instruction instead of a call of a library that is not there.
    "-mbulk-memory",
    "-ffreestanding",
    "-nostdlibinc",
    "-fno-math-errno",
    "-ffp-contract=off",
    "-fno-ident",
    // For source lines of traps. Nothing of it goes into the pack, and no code depends on it.
    "-gline-tables-only",
    "-Wall",
    "-Wextra",
    "-Iinclude",
];

/// What lets a kernel use vectors; relaxed SIMD only where it asks for it.
const fn vector_flags(vectors: Vectors) -> &'static [&'static str] {
    match vectors {
        Vectors::Relaxed => &["-msimd128", "-mrelaxed-simd"],
        Vectors::Plain => &["-msimd128"],
        Vectors::Scalar => &[],
    }
}

/// Compiles and links every kernel.
///
/// # Errors
/// [`ToolError::Compile`], [`ToolError::Io`].
pub(crate) fn compile(job: &Job<'_>) -> Result<(), ToolError> {
    let Compiler::Clang(clang) = &job.toolchain.compiler else {
        return Err(ToolError::Toolchain { message: "the pack is in C".to_owned() });
    };
    let out = out_dir(job.target_dir);
    fs::create_dir_all(&out).map_err(ToolError::io("create", &out))?;
    for Source { id, name, vectors, threads } in job.spec.sources() {
        let source = Path::new(SOURCES).join(format!("{name}.c"));
        if !job.directory.join(&source).is_file() {
            let message = format!("there is no {}; each kernel has its own file", source.display());
            return Err(ToolError::Module { kernel: id.to_owned(), message });
        }
        let object = out.join(format!("{id}.o"));
        let mut command = Command::new(clang);
        command.args(FLAGS).args(vector_flags(vectors));
        if threads {
            command.arg("-matomics");
        }
        command.args(job.spec.c_flags());
        let mut remap = OsString::from("-ffile-prefix-map=");
        remap.push(job.directory);
        remap.push("=");
        remap.push(CRATE_ROOT.trim_end_matches('/'));
        command.arg(remap).arg("-c").arg(&source).arg("-o").arg(&object);
        // What it reads besides the compiler's own headers.
        command.arg("-MMD").arg("-MF").arg(object.with_extension("d"));
        run(command, clang, "clang", job.directory)?;

        let mut command = Command::new(&job.toolchain.linker);
        command.args(["-flavor", "wasm", "--no-entry", "--export=__heap_base", "--stack-first"]);
        command.args(["-z", &format!("stack-size={STACK_BYTES}")]);
        command.arg(format!("--max-memory={}", job.max_memory()));
        command.arg("--gc-sections");
        if threads {
            command.arg(format!("--export={}", export::STACK_POINTER));
        }
        command.arg(&object).arg("-o").arg(module_file(job.target_dir, id));
        run(command, &job.toolchain.linker, "the linker", job.directory)?;
    }
    Ok(())
}

/// Where the module of a kernel is linked to.
pub(crate) fn module_file(target_dir: &Path, id: &str) -> PathBuf {
    out_dir(target_dir).join(format!("{id}.wasm"))
}

fn out_dir(target_dir: &Path) -> PathBuf {
    target_dir.join("c")
}

fn run(
    mut command: Command,
    program: &Path,
    what: &'static str,
    directory: &Path,
) -> Result<(), ToolError> {
    // Variables that would change what clang includes or makes.
    for name in ["CPATH", "C_INCLUDE_PATH", "CCC_OVERRIDE_OPTIONS", "SOURCE_DATE_EPOCH"] {
        command.env_remove(name);
    }
    command.current_dir(directory).stdin(Stdio::null()).stdout(Stdio::null());
    let status = command.status().map_err(ToolError::io("run", program))?;
    if status.success() {
        return Ok(());
    }
    Err(ToolError::Compile { what, status: status.to_string() })
}
