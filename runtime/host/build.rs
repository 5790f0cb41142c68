//! Links the WAMR that `wamr-sys` builds, where the feature `wamr-bundled` asks for it.
//!
//! That crate has its dependents linked with a shared library that stays in its build directory. So nothing
//! of it is used but the static library that it builds beside: the program then needs no file to be there
//! when it runs.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if std::env::var_os("CARGO_FEATURE_WAMR_BUNDLED").is_none() {
        return;
    }
    match std::env::var("DEP_IWASM_ROOT") {
        Ok(root) => {
            println!("cargo::rustc-link-search=native={root}/build");
            println!("cargo::rustc-link-lib=static=vmlib");
            println!("cargo::rustc-link-lib=m");
        }
        Err(_) => println!("cargo::error=wamr-sys does not say where it has built WAMR"),
    }
}
