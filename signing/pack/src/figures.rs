//! What `bench --write` measured, kept beside `pack.toml` in `benchmarks.toml`.
//!
//! A build takes the figures from there into the manifest, so that they outlive it and the manifest
//! stays a function of the files in the crate.

use std::fs;
use std::io;
use std::path::Path;

use indexmap::IndexMap;
use ruvllm_manifest::Benchmark;
use serde::{Deserialize, Serialize};

use crate::ToolError;

/// The file's name in the directory of a pack crate.
pub(crate) const FIGURES_FILE: &str = "benchmarks.toml";

const HEAD: &str = "# Written by `ruvllm-pack bench --write`: microseconds of a call, by kernel and \
                    shape.\n# `ruvllm-pack build` takes these figures into the manifest.\n\n";

/// Microseconds of a call, by kernel id and name of the shape.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Figures(IndexMap<String, IndexMap<String, Figure>>);

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Figure {
    latency_us: f64,
}

impl Figures {
    /// Reads the figures of a pack crate; there are none where there is no file.
    ///
    /// # Errors
    /// [`ToolError::Io`] and [`ToolError::Spec`].
    pub(crate) fn read(directory: &Path) -> Result<Figures, ToolError> {
        let path = directory.join(FIGURES_FILE);
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Figures::default()),
            Err(error) => return Err(ToolError::io("read", &path)(error)),
        };
        let parsed = toml::from_str(&text);
        parsed.map_err(|e| ToolError::Spec { path, message: e.to_string() })
    }

    /// Writes the figures of a pack crate.
    ///
    /// # Errors
    /// [`ToolError::Io`].
    pub(crate) fn write(&self, directory: &Path) -> Result<(), ToolError> {
        let path = directory.join(FIGURES_FILE);
        // Tables of numbers under names always have a TOML form.
        let text = format!("{HEAD}{}", toml::to_string(self).unwrap_or_default());
        fs::write(&path, text).map_err(ToolError::io("write", &path))
    }

    /// Sets a figure; nanoseconds are as fine as a clock is honest.
    pub(crate) fn set(&mut self, kernel: &str, shape: &str, latency_us: f64) {
        let latency_us = (latency_us * 1e3).round() / 1e3;
        let shapes = self.0.entry(kernel.to_owned()).or_default();
        shapes.insert(shape.to_owned(), Figure { latency_us });
    }

    /// The figures of a kernel as the manifest has them.
    pub(crate) fn of(&self, kernel: &str) -> IndexMap<String, Benchmark> {
        let shapes = self.0.get(kernel).into_iter().flatten();
        let benchmark =
            |figure: &Figure| Benchmark { latency_us: figure.latency_us, throughput_gflops: None };
        shapes.map(|(shape, figure)| (shape.clone(), benchmark(figure))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_survive_the_file_and_a_crate_without_one_has_none() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(Figures::read(dir.path()).unwrap(), Figures::default());
        let mut figures = Figures::default();
        figures.set("k", "rows_1", 1.23456);
        figures.set("k", "rows_2", 0.0009);
        figures.write(dir.path()).unwrap();
        let back = Figures::read(dir.path()).unwrap();
        assert_eq!(back, figures);
        assert_eq!(back.of("k")["rows_1"].latency_us, 1.235);
        assert!(back.of("other").is_empty());
        fs::write(dir.path().join(FIGURES_FILE), "[k]\nx = 1\n").unwrap();
        assert_eq!(Figures::read(dir.path()).unwrap_err().code(), "spec_invalid");
    }
}
