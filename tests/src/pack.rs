//! Packs for tests.

use crate::wamr;
use indexmap::IndexMap;
use ruvllm_abi::contract::{Dim as ContractDim, TensorContract};
use ruvllm_abi::{ABI_VERSION, DType, Op, export};
use ruvllm_manifest::{
    Author, Dim, GraphEntry, KernelEntry, MANIFEST_FILE, Manifest, ParamSpec, Platforms,
    ResourceLimits, SIGNATURE_FILE, Sha256Hex, TensorSpec, WamrPlatform, WasmtimePlatform,
};
use ruvllm_signing::{
    PackError, PackLimits, Publisher, SecretKey, TrustPolicy, UnverifiedPack, VerifiedPack,
    sign_manifest,
};
use semver::Version;
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// Assembles a pack of any modules and signs it.
///
/// ```
/// use ruvllm_tests::{PackBuilder, wat};
///
/// let module = wat::rmsnorm_f32(&wat::Module::default());
/// let pack = PackBuilder::new().kernel("rmsnorm_f32", module).build();
/// assert!(pack.verify().is_ok());
/// // A malicious one: change what lies in `pack.path()`, or the manifest before it is signed.
/// pack.write("extra.txt", b"hello");
/// assert_eq!(ruvllm_tests::codes(&pack.verify().unwrap_err()), ["file_unlisted"]);
/// ```
pub struct PackBuilder {
    manifest: Manifest,
    modules: Vec<(String, Vec<u8>)>,
    key: SecretKey,
}

/// A signed pack in a temporary directory, which goes away with it.
pub struct TestPack {
    directory: TempDir,
    key: SecretKey,
    /// The manifest that was signed.
    pub manifest: Manifest,
}

/// The codes of a refused pack's violations, in order.
///
/// # Panics
/// Where the error is another than [`PackError::Rejected`].
pub fn codes(error: &PackError) -> Vec<&'static str> {
    assert_eq!(error.code(), "pack_rejected", "{error}");
    error.violations().iter().map(|violation| violation.code).collect()
}

impl Default for PackBuilder {
    fn default() -> Self {
        Self::new()
    }
}

impl PackBuilder {
    /// An empty pack `test-kernels` 1.0.0 with a fresh key.
    pub fn new() -> Self {
        let key = SecretKey::generate().expect("the system has randomness");
        let manifest = Manifest {
            schema: None,
            version: Version::new(1, 0, 0),
            name: "test-kernels".parse().expect("a pack name"),
            description: "Kernels of a test".to_owned(),
            abi_version: ABI_VERSION,
            min_runtime_version: Version::new(0, 1, 0),
            max_runtime_version: None,
            created_at: "2026-01-01T00:00:00Z".parse().expect("a time"),
            author: Author {
                name: "test".to_owned(),
                email: None,
                signing_key: key.public_key().to_string(),
            },
            kernels: Vec::new(),
            graphs: Vec::new(),
            fallbacks: IndexMap::new(),
        };
        Self { manifest, modules: Vec::new(), key }
    }

    /// Adds a kernel of the catalogue by its id, such as `rmsnorm_f32`: tensors and parameters
    /// follow from the contract, the entry point is `<op>_forward`, the limits are 256 pages and
    /// 1000 ticks.
    ///
    /// # Panics
    /// Where the catalogue has no such kernel.
    pub fn kernel(self, id: &str, module: impl Into<Vec<u8>>) -> Self {
        let entry = catalogue_entry(id).unwrap_or_else(|| panic!("no kernel `{id}`"));
        self.entry(entry, module)
    }

    /// Takes over name, version and the kernels of the pack in a directory that `change` gives a module
    /// for: their own, which it is shown with their entry, or another in its place.
    ///
    /// # Panics
    /// Where the directory holds no pack.
    pub fn like(
        mut self,
        directory: &Path,
        mut change: impl FnMut(&KernelEntry, Vec<u8>) -> Option<Vec<u8>>,
    ) -> Self {
        let read = |path: &str| fs::read(directory.join(path)).expect("a file of the pack");
        let model = Manifest::parse(&read(MANIFEST_FILE)).expect("the pack's manifest");
        (self.manifest.name, self.manifest.version) = (model.name, model.version);
        for entry in model.kernels {
            if let Some(module) = change(&entry, read(entry.path.as_str())) {
                self = self.entry(entry, module);
            }
        }
        self
    }

    /// Adds a kernel with any manifest entry; path, size and hash are filled in where the path is
    /// that of [`custom_entry`] or [`PackBuilder::kernel`].
    pub fn entry(mut self, mut entry: KernelEntry, module: impl Into<Vec<u8>>) -> Self {
        let module = module.into();
        entry.size = module.len() as u64;
        // A module of the caller's stands in for one of a pack, and may not give gradients.
        entry.backward &=
            module.windows(export::BACKWARD.len()).any(|w| w == export::BACKWARD.as_bytes());
        entry.hash = Sha256Hex::from_bytes(Sha256::digest(&module).into());
        self.modules.push((entry.path.to_string(), module));
        self.manifest.kernels.push(entry);
        self
    }

    /// Adds a graph with its file, and its tokenizer where the entry names one; sizes and hashes are filled in.
    pub fn graph(mut self, mut entry: GraphEntry, file: Vec<u8>, tokenizer: Vec<u8>) -> Self {
        let hash = |bytes: &[u8]| Sha256Hex::from_bytes(Sha256::digest(bytes).into());
        (entry.size, entry.hash) = (file.len() as u64, hash(&file));
        self.modules.push((entry.path.to_string(), file));
        if let Some(embedding) = &mut entry.embedding {
            let own = &mut embedding.tokenizer;
            (own.size, own.hash) = (tokenizer.len() as u64, hash(&tokenizer));
            self.modules.push((own.path.to_string(), tokenizer));
        }
        self.manifest.graphs.push(entry);
        self
    }

    /// Has the kernels so far ask for so many threads, and declare the feature that this takes.
    pub fn threads(self, threads: u32) -> Self {
        self.manifest(|m| {
            for kernel in &mut m.kernels {
                kernel.threads = threads;
                let wasmtime = kernel.platforms.wasmtime.iter_mut();
                wasmtime.for_each(|platform| platform.features.push("threads".to_owned()));
            }
        })
    }

    /// Changes the manifest before it is signed. For what the types cannot say, see
    /// [`TestPack::sign_edited`].
    pub fn manifest(mut self, edit: impl FnOnce(&mut Manifest)) -> Self {
        edit(&mut self.manifest);
        self
    }

    /// Signs with this key instead of a fresh one.
    pub fn key(mut self, key: SecretKey) -> Self {
        self.manifest.author.signing_key = key.public_key().to_string();
        self.key = key;
        self
    }

    /// Writes and signs the pack.
    ///
    /// # Panics
    /// Where the file system fails.
    pub fn build(self) -> TestPack {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let pack = TestPack { directory, key: self.key, manifest: self.manifest };
        fs::create_dir(pack.path()).expect("a new directory");
        for (path, module) in &self.modules {
            pack.write(path, module);
        }
        // Not through to_json, which would refuse what a test wants to be refused later.
        let json = serde_json::to_vec_pretty(&pack.manifest).expect("manifests serialise");
        pack.sign(&json);
        pack
    }
}

impl TestPack {
    /// The pack's directory.
    pub fn path(&self) -> PathBuf {
        self.directory.path().join("pack")
    }

    /// The manifest, as the pack was built with it.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// A place next to the pack, for what lies outside of it.
    pub fn outside(&self) -> &Path {
        self.directory.path()
    }

    /// The key that signed the pack.
    pub fn key(&self) -> &SecretKey {
        &self.key
    }

    /// A policy that trusts the pack's key for packs of every name, and grants it threads.
    pub fn policy(&self) -> TrustPolicy {
        TrustPolicy::new(vec![self.publisher("test")], 1).expect("a valid policy")
    }

    /// The publisher of [`TestPack::policy`] under another name.
    pub fn publisher(&self, name: &str) -> Publisher {
        Publisher {
            name: name.to_owned(),
            key: self.key.public_key(),
            packs: vec!["*".parse().expect("a pattern")],
            native: false,
            threads: true,
            wasi_nn: false,
            not_before: None,
            not_after: None,
        }
    }

    /// [`TestPack::policy`] as a TOML file next to the pack, for `--trust`.
    ///
    /// # Panics
    /// Where the file system fails.
    pub fn policy_file(&self) -> PathBuf {
        let path = self.outside().join("trust.toml");
        let key = self.key.public_key();
        let text = format!(
            "version = 1\n\n[[publishers]]\nname = \"test\"\nkey = \"{key}\"\npacks = [\"*\"]\n"
        );
        fs::write(&path, text).expect("the temporary directory is writable");
        path
    }

    /// Writes a file of the pack, and the directories above it.
    ///
    /// # Panics
    /// Where the file system fails.
    pub fn write(&self, name: &str, bytes: &[u8]) {
        let path = self.path().join(name);
        fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
        fs::write(path, bytes).expect("the temporary directory is writable");
    }

    /// The bytes of a file of the pack.
    ///
    /// # Panics
    /// Where there is no such file.
    pub fn bytes(&self, name: &str) -> Vec<u8> {
        fs::read(self.path().join(name)).expect("the file is there")
    }

    /// Takes a file out of the pack.
    ///
    /// # Panics
    /// Where there is no such file.
    pub fn remove(&self, name: &str) {
        fs::remove_file(self.path().join(name)).expect("the file is there");
    }

    /// Flips the lowest bit of one byte of a file.
    ///
    /// # Panics
    /// Where there is no such byte.
    pub fn flip(&self, name: &str, at: usize) {
        let mut bytes = self.bytes(name);
        bytes[at] ^= 1;
        self.write(name, &bytes);
    }

    /// Makes these bytes the manifest and signs them.
    ///
    /// # Panics
    /// Where the file system fails.
    pub fn sign(&self, manifest: &[u8]) {
        let envelope = sign_manifest(manifest, &[&self.key]).expect("one key");
        self.write(MANIFEST_FILE, manifest);
        self.write(SIGNATURE_FILE, envelope.to_json().as_bytes());
    }

    /// Changes the manifest as JSON and signs it again.
    ///
    /// # Panics
    /// Where the manifest is no JSON any more.
    pub fn sign_edited(&self, edit: impl FnOnce(&mut Value)) {
        let mut json = serde_json::from_slice(&self.bytes(MANIFEST_FILE)).expect("JSON");
        edit(&mut json);
        self.sign(&serde_json::to_vec_pretty(&json).expect("JSON"));
    }

    /// Reads the pack under the default limits.
    ///
    /// # Errors
    /// What the pack deserves.
    pub fn read(&self) -> Result<UnverifiedPack, PackError> {
        UnverifiedPack::read_dir(&self.path(), &PackLimits::default())
    }

    /// Reads the pack and verifies it under [`TestPack::policy`].
    ///
    /// # Errors
    /// What the pack deserves.
    pub fn verify(&self) -> Result<VerifiedPack, PackError> {
        self.read()?.verify(&self.policy(), None)
    }
}

/// The manifest entry of a catalogue kernel, with no size or hash yet.
fn catalogue_entry(id: &str) -> Option<KernelEntry> {
    let (contract, variant) = Op::ALL.into_iter().find_map(|op| {
        let contract = op.contract();
        contract.variants.iter().find(|v| v.kernel == id).map(|variant| (contract, variant))
    })?;
    let tensor = |contract: &TensorContract, dtype: DType| TensorSpec {
        name: contract.name.to_owned(),
        dtype,
        shape: contract
            .shape
            .iter()
            .map(|dim| match dim {
                ContractDim::Sym(name) => Dim::Symbol((*name).to_owned()),
                ContractDim::Fixed(n) => Dim::Fixed(*n),
            })
            .collect(),
    };
    let inputs = contract.inputs.iter().zip(variant.inputs).map(|(t, d)| tensor(t, *d)).collect();
    let params = contract
        .params
        .iter()
        .map(|param| (param.name.to_owned(), ParamSpec { ty: param.ty, default: None }))
        .collect();
    let op = contract.name;
    let mut entry = custom_entry(id, op, &format!("{op}_forward"));
    entry.inputs = inputs;
    entry.outputs = vec![tensor(&contract.output, variant.output)];
    entry.params = params;
    Some(entry)
}

/// The manifest entry of a kernel `x[n] -> y[n]` in f32 without parameters, for ops of your own.
///
/// # Panics
/// Where the names give no path.
pub fn custom_entry(id: &str, op: &str, entry_point: &str) -> KernelEntry {
    let tensor = |name: &str| TensorSpec {
        name: name.to_owned(),
        dtype: DType::F32,
        shape: vec![Dim::Symbol("n".to_owned())],
    };
    KernelEntry {
        id: id.to_owned(),
        name: format!("{op} of a test"),
        op: op.to_owned(),
        category: "test".to_owned(),
        path: format!("test/{id}.wasm").parse().expect("a path"),
        size: 0,
        hash: Sha256Hex::from_bytes([0; 32]),
        entry_point: entry_point.to_owned(),
        backward: false,
        threads: 1,
        inputs: vec![tensor("x")],
        outputs: vec![tensor("y")],
        params: IndexMap::new(),
        resource_limits: ResourceLimits {
            max_memory_pages: 256,
            max_epoch_ticks: 1000,
            max_table_elements: 0,
        },
        platforms: Platforms {
            wasmtime: Some(WasmtimePlatform {
                min_version: Version::new(1, 0, 0),
                features: Vec::new(),
            }),
            wamr: wamr::is_taken()
                .then(|| WamrPlatform { min_version: Version::new(0, 0, 0), aot_available: true }),
            native: None,
        },
        tolerance: None,
        benchmarks: IndexMap::new(),
    }
}
