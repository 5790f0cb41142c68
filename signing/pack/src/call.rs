//! `call`: one kernel of a pack, with inputs of the author's own.
//!
//! The pack goes through admission as with `test`, and the kernel answers alone, in the sandbox. It is
//! how a kernel of a custom operation is tried, and how one of the catalogue is looked into.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use indexmap::IndexMap;
use ruvllm_host::ParamValue;
use ruvllm_manifest::{KernelEntry, nearest};
use ruvllm_signing::escape_untrusted;
use serde::{Deserialize, Serialize};

use crate::golden::param;
use crate::numbers::{self, Number, Numbers};
use crate::oracle_test::Trial;
use crate::stress::Target;
use crate::{Report, ToolError, atomic, npy};

/// What to call.
#[derive(Clone, Debug)]
pub struct Options {
    /// The pack: a directory, a pack crate or an archive.
    pub pack: PathBuf,
    /// The kernel's id.
    pub kernel: String,
    /// Where its inputs are: `FILE.json` with a whole call as golden files have it, or `NAME=FILE` or
    /// `FILE` with one tensor, as JSON or `.npy`.
    pub inputs: Vec<String>,
    /// Params, and extents that no input has.
    pub params: Vec<(String, f64)>,
    /// A file for the output, `.json` or `.npy`.
    pub out: Option<PathBuf>,
}

/// What a kernel gave.
#[derive(Clone, Debug, Serialize)]
pub struct CallReport {
    /// The kernel.
    pub kernel: String,
    /// Its output.
    pub output: Numbers,
    /// The file that it was written to.
    pub written: Option<PathBuf>,
}

impl Report for CallReport {}

impl fmt::Display for CallReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.written {
            None => writeln!(f, "{}", json(&self.output)),
            Some(file) => {
                let Numbers { name, dtype, shape, .. } = &self.output;
                let [name, dtype] = [name, dtype].map(|text| text.as_deref().unwrap_or_default());
                let file = escape_untrusted(&file.to_string_lossy());
                writeln!(f, "wrote {file}: {} {dtype} {shape:?}", escape_untrusted(name))
            }
        }
    }
}

/// A tensor on one line.
fn json(numbers: &Numbers) -> String {
    // A plain struct, which serialises.
    serde_json::to_string(numbers).unwrap_or_default()
}

/// A whole call, as in a golden file: what is said of its answer is not looked at.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Whole {
    inputs: IndexMap<String, Numbers>,
    #[serde(default)]
    params: IndexMap<String, Number>,
    #[serde(default, rename = "output")]
    _output: serde_json::Value,
    #[serde(default, rename = "tolerance")]
    _tolerance: serde_json::Value,
}

/// The tensors and params that were given so far.
struct Given<'e> {
    entry: &'e KernelEntry,
    tensors: Vec<Option<Numbers>>,
    params: Vec<(String, ParamValue)>,
}

/// Calls a kernel of a pack.
///
/// # Errors
/// [`ToolError::Call`] where the inputs are not those of the kernel, [`ToolError::Kernel`] where it fails;
/// those of [`crate::oracle_test::test`] where the pack is not admitted; [`ToolError::Io`].
pub fn call(options: &Options) -> Result<CallReport, ToolError> {
    let format = options.out.as_deref().map(Format::of).transpose()?;
    let trial = Trial::open(&options.pack, None)?;
    let kernels = &trial.manifest.kernels;
    let Some(entry) = kernels.iter().find(|entry| entry.id == options.kernel) else {
        let ids = kernels.iter().map(|entry| entry.id.as_str());
        let nearest = nearest(&options.kernel, ids).unwrap_or_default();
        let (pack, asked) = (&trial.manifest.name, escape_untrusted(&options.kernel));
        return Err(refused(format!(
            "{pack} has no kernel `{asked}`: did you mean `{}`?",
            escape_untrusted(nearest)
        )));
    };
    let mut given = Given { entry, tensors: vec![None; entry.inputs.len()], params: Vec::new() };
    for input in &options.inputs {
        given.take(input)?;
    }
    for (name, value) in &options.params {
        given.param(name, *value).map_err(refused)?;
    }
    let inputs = given.tensors.iter().zip(&entry.inputs).map(|(tensor, spec)| match tensor {
        Some(numbers) => numbers.tensor(spec),
        None => Err(format!("`{0}` is missing: give --input {0}=FILE", spec.name)),
    });
    let inputs = inputs.collect::<Result<Vec<_>, String>>().map_err(refused)?;
    let params: Vec<_> = given.params.iter().map(|(name, value)| (name.as_str(), *value)).collect();
    let mut worker = trial.host.worker()?;
    let snapshot = trial.host.snapshot();
    let name = format!("{}/{}", trial.manifest.name, entry.id);
    let mut target = Target { worker: &mut worker, snapshot: &snapshot, entry, name };
    let output = target.call(&inputs, &params)?;
    let name = entry.outputs.first().map_or("", |spec| spec.name.as_str());
    let numbers = Numbers::of(name, &output);
    if let (Some(file), Some(format)) = (&options.out, format) {
        let bytes = match format {
            Format::Json => format!("{}\n", json(&numbers)).into_bytes(),
            Format::Npy => npy::write(
                output.dtype(),
                output.shape(),
                output.bytes(),
                &numbers::values(&output),
            ),
        };
        atomic::write(file, &bytes)?;
    }
    Ok(CallReport { kernel: entry.id.clone(), output: numbers, written: options.out.clone() })
}

/// How a tensor lies in a file.
#[derive(Clone, Copy)]
enum Format {
    Json,
    Npy,
}

impl Format {
    fn of(file: &Path) -> Result<Format, ToolError> {
        match file.extension().and_then(|extension| extension.to_str()) {
            Some("json") => Ok(Format::Json),
            Some("npy") => Ok(Format::Npy),
            _ => {
                let file = escape_untrusted(&file.to_string_lossy());
                Err(refused(format!("{file}: tensors are read and written as .json and .npy")))
            }
        }
    }
}

impl Given<'_> {
    /// Takes a file for what it is named for, or for what it can only be.
    fn take(&mut self, input: &str) -> Result<(), ToolError> {
        let named = input.split_once('=').and_then(|(name, file)| {
            Some((self.entry.inputs.iter().position(|spec| spec.name == name)?, Path::new(file)))
        });
        let file = named.map_or(Path::new(input), |(_, file)| file);
        let at = |message: String| {
            refused(format!("{}: {message}", escape_untrusted(&file.to_string_lossy())))
        };
        let bytes = match Format::of(file)? {
            Format::Npy => {
                let bytes = fs::read(file).map_err(ToolError::io("read", file))?;
                let (shape, values) = npy::read(&bytes).map_err(at)?;
                let values = values.into_iter().map(Number).collect();
                let numbers = Numbers { name: None, dtype: None, shape, values };
                return self.put(named.map(|(of, _)| of), numbers).map_err(at);
            }
            Format::Json => fs::read(file).map_err(ToolError::io("read", file))?,
        };
        let wrong = |error: serde_json::Error| at(error.to_string());
        if let Some((of, _)) = named {
            return self.put(Some(of), serde_json::from_slice(&bytes).map_err(wrong)?).map_err(at);
        }
        // A tensor alone has a shape; a whole call has its tensors by name.
        if let Ok(numbers) = serde_json::from_slice::<Numbers>(&bytes) {
            return self.put(None, numbers).map_err(at);
        }
        let Whole { inputs, params, .. } = serde_json::from_slice(&bytes).map_err(wrong)?;
        for (name, numbers) in inputs {
            let of = self.entry.inputs.iter().position(|spec| spec.name == name);
            let of = of.ok_or_else(|| at(format!("the kernel has no input `{name}`")))?;
            self.put(Some(of), numbers).map_err(at)?;
        }
        params.iter().try_for_each(|(name, value)| self.param(name, value.0)).map_err(at)
    }

    /// Puts a tensor in its place: the one that was named, or the first that is free.
    fn put(&mut self, of: Option<usize>, numbers: Numbers) -> Result<(), String> {
        let free = || self.tensors.iter().position(Option::is_none);
        let of = of.or_else(free).ok_or("the kernel has no more inputs")?;
        if self.tensors[of].is_some() {
            return Err(format!("`{}` is given twice", self.entry.inputs[of].name));
        }
        self.tensors[of] = Some(numbers);
        Ok(())
    }

    /// Takes a param; a later one counts instead of an earlier one.
    fn param(&mut self, name: &str, value: f64) -> Result<(), String> {
        self.params.retain(|(known, _)| known != name);
        self.params.push(param(self.entry, name, value)?);
        Ok(())
    }
}

fn refused(message: String) -> ToolError {
    ToolError::Call { message }
}
