//! Hugging Face model directories: `config.json` and safetensors, one file or shards.
//!
//! Weights stay in the mapped files. Shard names come from a file that may be hostile: only plain
//! names inside the directory are followed.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ruvllm_abi::DType;
use safetensors::{Dtype, SafeTensorError, SafeTensors};
use serde::Deserialize;

use crate::error::EngineError;
use crate::files::{self, MAX_CONFIG_BYTES};
use crate::storage::{Storage, Tensor, TensorBytes, TensorSource};
use crate::tensors::Naming;

/// A tensor of a safetensors file.
pub(crate) struct Entry {
    storage: Arc<Storage>,
    start: usize,
    end: usize,
    dtype: Dtype,
    shape: Vec<usize>,
}

impl Entry {
    /// The tensor, if it is of a type that the engine reads; `name` and `origin` are for messages.
    ///
    /// # Errors
    /// [`EngineError::TensorType`].
    pub(crate) fn tensor(&self, origin: &str, name: &str) -> Result<Tensor, EngineError> {
        let dtype = match self.dtype {
            Dtype::F32 => DType::F32,
            Dtype::F16 => DType::F16,
            Dtype::BF16 => DType::BF16,
            other => {
                return Err(EngineError::TensorType {
                    path: origin.to_owned(),
                    tensor: name.to_owned(),
                    found: format!("{other:?}"),
                });
            }
        };
        let bytes = TensorBytes::new(&self.storage, self.start..self.end, dtype);
        Ok(Tensor { dtype, shape: self.shape.clone(), bytes })
    }
}

/// An open model directory.
pub struct HfDir {
    path: PathBuf,
    origin: String,
    config: String,
    tensors: HashMap<String, Entry>,
}

#[derive(Deserialize)]
struct Index {
    weight_map: HashMap<String, String>,
}

impl HfDir {
    /// Opens a directory with `config.json` and `model.safetensors` or its sharded form.
    ///
    /// # Errors
    /// A missing file, [`EngineError::NotAModel`] and [`EngineError::Safetensors`].
    pub fn open(path: &Path) -> Result<HfDir, EngineError> {
        let not_a_model = |reason: &str| EngineError::NotAModel {
            path: path.display().to_string(),
            reason: reason.to_owned(),
        };
        let read =
            |path: &Path| files::read(path, MAX_CONFIG_BYTES).map_err(|e| EngineError::io(path, e));
        let config = match read(&path.join("config.json")) {
            Err(EngineError::FileNotFound { .. }) => {
                return Err(not_a_model("the directory has no config.json"));
            }
            config => String::from_utf8(config?),
        };
        let config = config.map_err(|_| not_a_model("its config.json is not UTF-8"))?;
        let single = path.join("model.safetensors");
        let index_path = path.join("model.safetensors.index.json");
        let mut tensors = HashMap::new();
        if single.exists() {
            read_shard(&single, &mut tensors)?;
        } else if index_path.exists() {
            let text = read(&index_path)?;
            let broken = |reason: String| EngineError::Safetensors {
                path: index_path.display().to_string(),
                reason,
            };
            let index: Index = serde_json::from_slice(&text).map_err(|e| broken(e.to_string()))?;
            for name in index.weight_map.values().collect::<BTreeSet<_>>() {
                let mut parts = Path::new(name).components();
                let plain = matches!(parts.next(), Some(std::path::Component::Normal(_)))
                    && parts.next().is_none();
                if !plain {
                    return Err(broken(format!(
                        "the shard name `{name}` is not a plain file name"
                    )));
                }
                read_shard(&path.join(name), &mut tensors)?;
            }
        } else {
            return Err(not_a_model("the directory has no model.safetensors"));
        }
        Ok(HfDir { path: path.to_owned(), origin: path.display().to_string(), config, tensors })
    }

    /// The text of `config.json`.
    pub fn config(&self) -> &str {
        &self.config
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl TensorSource for HfDir {
    fn origin(&self) -> &str {
        &self.origin
    }

    fn naming(&self) -> Naming {
        Naming::HuggingFace
    }

    fn find(&self, name: &str) -> Result<Option<Tensor>, EngineError> {
        self.tensors.get(name).map(|entry| entry.tensor(&self.origin, name)).transpose()
    }

    fn names(&self) -> Vec<&str> {
        self.tensors.keys().map(String::as_str).collect()
    }
}

/// Maps a safetensors file and adds its tensors by name. A shard has tensors, and ones that no other has, so
/// that an index which names one file many times is refused at the second.
///
/// # Errors
/// [`EngineError::Safetensors`], and where the file cannot be read.
pub(crate) fn read_shard(
    path: &Path,
    tensors: &mut HashMap<String, Entry>,
) -> Result<(), EngineError> {
    let storage = Arc::new(Storage::map(path)?);
    let broken =
        |reason: String| EngineError::Safetensors { path: path.display().to_string(), reason };
    let (header, metadata) = SafeTensors::read_metadata(storage.bytes()).map_err(|e| {
        let reason = match e {
            SafeTensorError::HeaderTooSmall
            | SafeTensorError::InvalidHeaderLength
            | SafeTensorError::MetadataIncompleteBuffer => {
                format!("its size does not match its header, it may be truncated ({e})")
            }
            other => other.to_string(),
        };
        broken(reason)
    })?;
    if metadata.tensors().is_empty() {
        return Err(broken("it has no tensors".to_owned()));
    }
    // The header's length stands before it in eight bytes.
    let data = 8 + header;
    for (name, info) in metadata.tensors() {
        let (start, end) = info.data_offsets;
        let entry = Entry {
            storage: Arc::clone(&storage),
            start: data + start,
            end: data + end,
            dtype: info.dtype,
            shape: info.shape.clone(),
        };
        if tensors.insert(name.clone(), entry).is_some() {
            return Err(broken(format!("another file has the tensor `{name}` too")));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shard_outside_the_directory_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("config.json"), "{}").unwrap();
        let index = r#"{"weight_map":{"a":"../model.safetensors"}}"#;
        std::fs::write(dir.path().join("model.safetensors.index.json"), index).unwrap();
        let Err(error) = HfDir::open(dir.path()) else { panic!("opened") };
        assert_eq!(error.code(), "safetensors");
        assert!(error.to_string().contains("plain file name"), "{error}");
    }

    #[test]
    fn a_truncated_file_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("config.json"), "{}").unwrap();
        std::fs::write(dir.path().join("model.safetensors"), [9, 0, 0]).unwrap();
        let Err(error) = HfDir::open(dir.path()) else { panic!("opened") };
        assert!(error.to_string().contains("truncated"), "{error}");
    }
}
