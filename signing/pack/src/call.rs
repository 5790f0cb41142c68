//! `call`: one kernel of a pack, with inputs of the author's own.
//!
//! The pack goes through admission as with `test`, and the kernel answers alone, in the sandbox. It is
//! how a kernel of a custom operation is tried, and how one of the catalogue is looked into.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use indexmap::IndexMap;
use ruvllm_host::{ParamValue, Tensor};
use ruvllm_manifest::{KernelEntry, nearest};
use ruvllm_signing::escape_untrusted;
use serde::{Deserialize, Serialize};

use crate::golden::{no_input, param};
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
    /// The gradient of the output, in a file as the inputs are: asks for the gradients of the inputs instead.
    pub backward: Option<PathBuf>,
    /// A file for the output, `.json` or `.npy`; gradients go beside it, under the names of their inputs.
    pub out: Option<PathBuf>,
}

/// What a kernel gave.
#[derive(Clone, Debug, Serialize)]
pub struct CallReport {
    /// The kernel.
    pub kernel: String,
    /// Its output, where that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output: Option<Given>,
    /// The gradients by its inputs, by their names.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gradients: Vec<Given>,
}

/// A tensor that a kernel gave.
#[derive(Clone, Debug, Serialize)]
pub struct Given {
    /// What it holds.
    #[serde(flatten)]
    pub tensor: Numbers,
    /// The file that it was written to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub written: Option<PathBuf>,
}

impl Report for CallReport {}

impl fmt::Display for CallReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Given { tensor, written } in self.output.iter().chain(&self.gradients) {
            let Some(file) = written else {
                writeln!(f, "{}", json(tensor))?;
                continue;
            };
            let Numbers { name, dtype, shape, .. } = tensor;
            let [name, dtype] = [name, dtype].map(|text| text.as_deref().unwrap_or_default());
            let file = escape_untrusted(&file.to_string_lossy());
            writeln!(f, "wrote {file}: {} {dtype} {shape:?}", escape_untrusted(name))?;
        }
        Ok(())
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

/// The tensors and params of a call so far.
struct Taken<'e> {
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
    let mut given = Taken { entry, tensors: vec![None; entry.inputs.len()], params: Vec::new() };
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
    let mut target = Target::of(&trial, &mut worker, &snapshot, entry);
    let give = |name: &str, tensor: &Tensor, file: Option<PathBuf>| {
        let numbers = Numbers::of(name, tensor);
        if let (Some(file), Some(format)) = (&file, format) {
            let bytes = match format {
                Format::Json => format!("{}\n", json(&numbers)).into_bytes(),
                Format::Npy => npy::write(
                    tensor.dtype(),
                    tensor.shape(),
                    tensor.bytes(),
                    &numbers::values(tensor),
                ),
            };
            atomic::write(file, &bytes)?;
        }
        Ok::<Given, ToolError>(Given { tensor: numbers, written: file })
    };
    let kernel = entry.id.clone();
    // Every kernel has one output: the manifest's rules see to that.
    let Some(spec) = entry.outputs.first() else {
        return Err(refused("the kernel has no output".to_owned()));
    };
    let Some(file) = &options.backward else {
        let output = give(&spec.name, &target.call(&inputs, &params)?, options.out.clone())?;
        return Ok(CallReport { kernel, output: Some(output), gradients: Vec::new() });
    };
    if !entry.backward {
        let id = escape_untrusted(&entry.id);
        return Err(refused(format!("{id} has no kernel_backward, so it gives no gradients")));
    }
    let numbers = tensor_file(file)?;
    let gradient = numbers.tensor(spec).map_err(|message| at(file, message))?;
    let gradients = target.backward(&inputs, &params, &gradient)?;
    let of = entry.inputs.iter().zip(&gradients);
    let gradients = of.map(|(spec, gradient)| {
        let beside = options.out.as_deref().map(|file| beside(file, &spec.name));
        give(&spec.name, gradient, beside)
    });
    Ok(CallReport { kernel, output: None, gradients: gradients.collect::<Result<_, _>>()? })
}

/// `out.npy` with a name: `out.x.npy`.
fn beside(file: &Path, name: &str) -> PathBuf {
    let extension = file.extension().unwrap_or_default().to_string_lossy();
    file.with_extension(format!("{name}.{extension}"))
}

/// A tensor that a file holds alone.
fn tensor_file(file: &Path) -> Result<Numbers, ToolError> {
    let bytes = fs::read(file).map_err(ToolError::io("read", file))?;
    match Format::of(file)? {
        Format::Npy => npy_numbers(&bytes).map_err(|message| at(file, message)),
        Format::Json => serde_json::from_slice(&bytes).map_err(|e| at(file, e.to_string())),
    }
}

fn npy_numbers(bytes: &[u8]) -> Result<Numbers, String> {
    let (shape, values) = npy::read(bytes)?;
    let values = values.into_iter().map(Number).collect();
    Ok(Numbers { name: None, dtype: None, shape, values })
}

fn at(file: &Path, message: String) -> ToolError {
    refused(format!("{}: {message}", escape_untrusted(&file.to_string_lossy())))
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

impl Taken<'_> {
    /// Takes a file for what it is named for, or for what it can only be.
    fn take(&mut self, input: &str) -> Result<(), ToolError> {
        let parts = input.split_once('=');
        let named = parts.and_then(|(name, file)| {
            Some((self.entry.inputs.iter().position(|spec| spec.name == name)?, Path::new(file)))
        });
        let file = named.map_or(Path::new(input), |(_, file)| file);
        if let (Some((name, _)), None) = (parts, named)
            && !file.exists()
        {
            return Err(refused(no_input(self.entry, name)));
        }
        let at = |message: String| at(file, message);
        let bytes = match Format::of(file)? {
            Format::Npy => {
                let bytes = fs::read(file).map_err(ToolError::io("read", file))?;
                let numbers = npy_numbers(&bytes).map_err(at)?;
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
            let of = of.ok_or_else(|| at(no_input(self.entry, &name)))?;
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
