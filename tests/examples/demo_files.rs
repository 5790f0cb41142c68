//! Writes the demo model in every weight type: `demo_files DIR`.
#![forbid(unsafe_code)]

#[path = "../cli/demo_files.rs"]
mod demo_files;

use std::path::PathBuf;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let Some(dir) = std::env::args_os().nth(1).map(PathBuf::from) else {
        return Err("give the directory to write to".into());
    };
    let demo = PathBuf::from(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../runtime/ruvllm/demo/tales-q8_0.gguf"
    ));
    std::fs::create_dir_all(&dir)?;
    for (name, dtype) in demo_files::TYPES {
        demo_files::convert(&demo, &dir.join(format!("{name}.gguf")), dtype)?;
    }
    Ok(())
}
