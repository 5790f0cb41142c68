//! Where and with what the figures were taken: a table without this says nothing.

use ruvllm_native::{Isa, probe};
use serde::Serialize;

/// The lock file is what was built.
const LOCK: &str = include_str!("../Cargo.lock");

/// What llama.cpp was compiled for.
const MARCH: &str = env!("LLAMA_CPP_MARCH");

/// Sets of instructions and what compilers call a processor that has them.
const MARCHES: [(&str, Isa); 3] =
    [("x86-64-v3", Isa::Avx2), ("alderlake", Isa::Avx2Vnni), ("x86-64-v4", Isa::Avx512)];

/// Says whether llama.cpp was compiled for just the instructions that ruvllm is to use.
pub(crate) fn same_instructions(isa: Isa) -> Result<(), String> {
    let is_all = isa == Isa::detect();
    let known = MARCHES.iter().any(|&known| known == (MARCH, isa));
    if known || (MARCH == "native" && is_all) {
        return Ok(());
    }
    let march = MARCHES.iter().find(|(_, known)| *known == isa).map(|(march, _)| *march);
    let Some(march) = march.or(is_all.then_some("native")) else {
        return Err(format!("llama.cpp cannot be built for {isa} alone; choose another --isa"));
    };
    Err(format!(
        "llama.cpp was built with -march={MARCH}, and ruvllm would use {isa}; for those build with \
         CMAKE_C_FLAGS=-march={march} CMAKE_CXX_FLAGS=-march={march}, or limit ruvllm with --isa"
    ))
}

/// The machine as `ruvllm doctor` names it, and the engines.
#[derive(Serialize)]
pub(crate) struct Machine {
    processor: String,
    architecture: &'static str,
    logical_processors: usize,
    threads: usize,
    instructions: &'static str,
    llama_cpp_march: &'static str,
    features: Vec<&'static str>,
    llama_cpp_sys_2: &'static str,
    candle_transformers: &'static str,
    ruvllm: &'static str,
}

impl Machine {
    /// `isa` is what ruvllm keeps to.
    pub(crate) fn new(threads: usize, isa: Isa) -> Machine {
        let features = Isa::features().into_iter().filter(|(_, present)| *present);
        Machine {
            processor: probe::processor(),
            architecture: std::env::consts::ARCH,
            logical_processors: std::thread::available_parallelism().map_or(1, usize::from),
            threads,
            instructions: isa.name(),
            llama_cpp_march: MARCH,
            features: features.map(|(name, _)| name).collect(),
            llama_cpp_sys_2: locked("llama-cpp-sys-2"),
            candle_transformers: locked("candle-transformers"),
            ruvllm: locked("ruvllm"),
        }
    }
}

impl std::fmt::Display for Machine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} ({}), {} threads on {} logical processors, which have {}. ruvllm {} with {}, llama.cpp of \
             llama-cpp-sys-2 {} with -march={}, candle-transformers {}.",
            self.processor,
            self.architecture,
            self.threads,
            self.logical_processors,
            self.features.join(" "),
            self.ruvllm,
            self.instructions,
            self.llama_cpp_sys_2,
            self.llama_cpp_march,
            self.candle_transformers,
        )
    }
}

/// The version of a package in the lock file.
fn locked(package: &str) -> &'static str {
    let mut lines = LOCK.lines();
    let name = format!("name = \"{package}\"");
    lines.find(|line| *line == name);
    lines
        .next()
        .and_then(|line| line.strip_prefix("version = \"")?.strip_suffix('"'))
        .unwrap_or("of an unknown version")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_those_of_the_lock_file() {
        assert_eq!(locked("llama-cpp-2"), "0.1.160");
        assert_eq!(locked("no such package"), "of an unknown version");
    }
}
