//! Golden files: what an author says that a kernel must give, as numbers anybody can read.
//!
//! `golden/<kernel>/*.json` in a pack crate, each one call: inputs by name, params, the output and
//! how far from it counts as right. For an operation of the catalogue they stand beside the oracle;
//! for a custom one they are all the truth there is.

use std::fs;
use std::path::{Path, PathBuf};

use indexmap::IndexMap;
use ruvllm_abi::contract::ParamType;
use ruvllm_host::{ParamValue, Tensor};
use ruvllm_manifest::{KernelEntry, TensorSpec, escape_untrusted, similar};
use ruvllm_native::judge;
use serde::Deserialize;

use crate::ToolError;
use crate::numbers::{Number, Numbers};

/// Where golden files lie in a pack crate.
const DIRECTORY: &str = "golden";

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    inputs: IndexMap<String, Numbers>,
    #[serde(default)]
    params: IndexMap<String, Number>,
    output: Numbers,
    tolerance: Tolerance,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Tolerance {
    rel: f64,
    abs: f64,
}

/// One call with its right answer.
#[derive(Debug)]
pub(crate) struct Golden {
    /// The file, for messages.
    pub(crate) name: String,
    pub(crate) inputs: Vec<Tensor>,
    pub(crate) params: Vec<(String, ParamValue)>,
    shape: Vec<usize>,
    want: Vec<f64>,
    tolerance: Tolerance,
}

/// Reads the golden files of a kernel in order of name; none where there is no directory.
///
/// # Errors
/// [`ToolError::Golden`] where a file does not fit the kernel, [`ToolError::Io`].
pub(crate) fn read(crate_dir: &Path, entry: &KernelEntry) -> Result<Vec<Golden>, ToolError> {
    let directory = crate_dir.join(DIRECTORY).join(&entry.id);
    let entries = fs::read_dir(&directory).into_iter().flatten().flatten();
    let mut files: Vec<PathBuf> = entries
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "json"))
        .collect();
    files.sort();
    let read = |path: PathBuf| {
        let text = fs::read_to_string(&path).map_err(ToolError::io("read", &path))?;
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
        Golden::parse(name.unwrap_or_default(), &text, entry)
            .map_err(|message| ToolError::Golden { path, message })
    };
    files.into_iter().map(read).collect()
}

impl Golden {
    fn parse(name: String, text: &str, entry: &KernelEntry) -> Result<Golden, String> {
        let file: File = serde_json::from_str(text).map_err(|e| e.to_string())?;
        let tensor = |spec: &TensorSpec| {
            let numbers = file.inputs.get(&spec.name);
            numbers.ok_or_else(|| format!("input `{}` is missing", spec.name))?.tensor(spec)
        };
        let inputs = entry.inputs.iter().map(tensor).collect::<Result<_, _>>()?;
        if let Some(name) =
            file.inputs.keys().find(|name| !entry.inputs.iter().any(|spec| spec.name == **name))
        {
            return Err(no_input(entry, name));
        }
        let params = file.params.iter().map(|(name, value)| param(entry, name, value.0));
        let params = params.collect::<Result<_, _>>()?;
        file.output.check("output")?;
        let Tolerance { rel, abs } = file.tolerance;
        if !(rel >= 0.0 && abs >= 0.0) {
            return Err("the tolerance is two numbers from 0 on".to_owned());
        }
        Ok(Golden {
            name,
            inputs,
            params,
            want: file.output.values().collect(),
            shape: file.output.shape,
            tolerance: file.tolerance,
        })
    }

    /// Holds what a kernel gave against what it should.
    ///
    /// # Errors
    /// The first element that is off, or the shape.
    pub(crate) fn check(&self, output: &Tensor) -> Result<(), String> {
        if output.shape() != self.shape {
            return Err(format!("the shape is {:?} instead of {:?}", output.shape(), self.shape));
        }
        let Tolerance { rel, abs } = self.tolerance;
        let tolerance = judge::Tolerance { rel, abs };
        let numbers = output.to_f32();
        let mut pairs = numbers.iter().zip(&self.want).enumerate();
        match pairs.find(|(_, (got, want))| !tolerance.holds(f64::from(**got), **want)) {
            None => Ok(()),
            Some((i, (got, want))) => Err(format!("element {i} is {got:e} instead of {want:e}")),
        }
    }
}

/// What is said of the name of an input that a kernel has not got.
pub(crate) fn no_input(entry: &KernelEntry, name: &str) -> String {
    let inputs = || entry.inputs.iter().map(|input| input.name.as_str());
    let name = escape_untrusted(name);
    match similar(&name, inputs()) {
        Some(meant) => format!("the kernel has no input `{name}`: did you mean `{meant}`?"),
        None => {
            let inputs = inputs().collect::<Vec<_>>().join(", ");
            format!("the kernel has no input `{name}`; it has {inputs}")
        }
    }
}

/// A param by the type that the manifest has for it; other names are extents of the output.
pub(crate) fn param(
    entry: &KernelEntry,
    name: &str,
    value: f64,
) -> Result<(String, ParamValue), String> {
    let whole = |low: f64, high: f64| {
        let fits = value.fract() == 0.0 && (low..=high).contains(&value);
        if fits { Ok(value) } else { Err(format!("param `{name}`: {value} is out of range")) }
    };
    let unsigned = || whole(0.0, f64::from(u32::MAX)).map(|x| ParamValue::U32(x as u32));
    let value = match entry.params.get(name).map(|spec| spec.ty) {
        Some(ParamType::F32) => ParamValue::F32(value as f32),
        Some(ParamType::I32) => {
            ParamValue::I32(whole(f64::from(i32::MIN), f64::from(i32::MAX))? as i32)
        }
        Some(ParamType::U32) => unsigned()?,
        None if entry.symbols().contains(&name) => unsigned()?,
        None => return Err(format!("the kernel has neither a param nor an extent `{name}`")),
    };
    Ok((name.to_owned(), value))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry() -> KernelEntry {
        let core = include_str!("../../../kernel-packs/core/dist/kernels.json");
        let manifest = ruvllm_manifest::Manifest::parse(core.as_bytes()).unwrap();
        manifest.kernel("rmsnorm_f32").unwrap().clone()
    }

    const GOOD: &str = r#"{
        "inputs": { "x": { "shape": [1, 2], "values": [3, 4] },
                    "weight": { "shape": [2], "values": [1, 2] } },
        "params": { "eps": 0.5 },
        "output": { "shape": [1, 2], "values": [0.832, 2.2188] },
        "tolerance": { "rel": 1e-3, "abs": 0 }
    }"#;

    #[test]
    fn a_file_is_a_call_and_its_answer() {
        let golden = Golden::parse("good".to_owned(), GOOD, &entry()).unwrap();
        let out = |values: &[f32]| Tensor::from_f32([1, 2], values).unwrap();
        assert!(golden.check(&out(&[0.832, 2.2189])).is_ok());
        assert!(golden.check(&out(&[0.832, f32::NAN])).unwrap_err().contains("element 1"));
        assert!(golden.check(&out(&[0.84, 2.2188])).unwrap_err().contains("element 0"));
        let flat = Tensor::from_f32([2], &[0.832, 2.2188]).unwrap();
        assert!(golden.check(&flat).unwrap_err().contains("shape"));
    }

    #[test]
    fn what_is_not_finite_is_expected_by_name() {
        let text = GOOD.replace("[0.832, 2.2188]", r#"["NaN", "-Infinity"]"#);
        let golden = Golden::parse("odd".to_owned(), &text, &entry()).unwrap();
        let check = |values: [f32; 2]| golden.check(&Tensor::from_f32([1, 2], &values).unwrap());
        assert_eq!(check([f32::NAN, f32::NEG_INFINITY]), Ok(()));
        for wrong in [[0.0, f32::NEG_INFINITY], [f32::NAN, f32::INFINITY], [f32::NAN, -3e38]] {
            assert!(check(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn what_does_not_fit_the_kernel_is_named() {
        let with = |from: &str, to: &str| {
            Golden::parse("bad".to_owned(), &GOOD.replace(from, to), &entry()).unwrap_err()
        };
        assert!(with("\"weight\"", "\"w\"").contains("`weight` is missing"));
        assert!(with("[3, 4]", "[3]").contains("do not fill"));
        assert!(with("\"eps\"", "\"epsilon\"").contains("`epsilon`"));
        assert!(with("\"rel\": 1e-3", "\"rel\": -1").contains("tolerance"));
        assert!(with("\"params\"", "\"parms\"").contains("parms"));
    }
}
