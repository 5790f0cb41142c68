//! Where and with what the figures were taken: a table without this says nothing.

use ruvllm_native::{Isa, probe};
use serde::Serialize;

/// The lock file is what was built.
const LOCK: &str = include_str!("../Cargo.lock");

/// The machine as `ruvllm doctor` names it, and the engines.
#[derive(Serialize)]
pub(crate) struct Machine {
    processor: String,
    architecture: &'static str,
    logical_processors: usize,
    threads: usize,
    instructions: &'static str,
    features: Vec<&'static str>,
    llama_cpp_sys_2: &'static str,
    candle_transformers: &'static str,
    ruvllm: &'static str,
}

impl Machine {
    pub(crate) fn new(threads: usize) -> Machine {
        let features = Isa::features().into_iter().filter(|(_, present)| *present);
        Machine {
            processor: probe::processor(),
            architecture: std::env::consts::ARCH,
            logical_processors: std::thread::available_parallelism().map_or(1, usize::from),
            threads,
            instructions: Isa::detect().name(),
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
            "{} ({}), {} threads on {} logical processors, {}: {}. llama.cpp of llama-cpp-sys-2 {}, \
             candle-transformers {}, ruvllm {}.",
            self.processor,
            self.architecture,
            self.threads,
            self.logical_processors,
            self.instructions,
            self.features.join(" "),
            self.llama_cpp_sys_2,
            self.candle_transformers,
            self.ruvllm,
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
