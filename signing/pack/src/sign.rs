//! `keygen`, `pubkey`, `sign`, `verify`.

use std::fmt;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use ruvllm_manifest::{MANIFEST_FILE, Manifest, SIGNATURE_FILE, Timestamp};
use ruvllm_signing::{
    Clock, Envelope, PUBLIC_KEY_EXTENSION, PackError, PackLimits, PackLock, PublicKey, SecretKey,
    TrustPolicy, UnverifiedPack, VerifiedPack, VersionFloor, escape_untrusted, pack_directory,
    sign_manifest,
};
use serde::Serialize;

use crate::{Report, ToolError, atomic, trial};

/// A key that was made.
#[derive(Clone, Debug, Serialize)]
pub struct KeygenReport {
    /// The file of the secret key, readable by its owner only.
    pub secret_key_file: PathBuf,
    /// The file of the public key, for whoever is to trust it.
    pub public_key_file: PathBuf,
    /// The public key, as `pack.toml` and trust policies name it.
    pub public_key: String,
    /// The id by which signatures name it.
    pub key_id: String,
}

impl Report for KeygenReport {}

impl fmt::Display for KeygenReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let file = self.secret_key_file.display();
        writeln!(f, "secret key  {file} (keep it to yourself)")?;
        writeln!(
            f,
            "public key  {} (for those who run your packs)",
            self.public_key_file.display()
        )?;
        writeln!(f, "key id      {}", self.key_id)?;
        writeln!(f, "for pack.toml: signing_key = \"{}\"", self.public_key)
    }
}

/// Makes a key pair and writes both halves to new files: the secret key to `file`, the public key beside
/// it, `my.pub` for `my.pem`.
///
/// # Errors
/// [`ToolError::Pack`], also where a file exists: keys are never overwritten.
pub fn keygen(file: &Path) -> Result<KeygenReport, ToolError> {
    let public_file = file.with_extension(PUBLIC_KEY_EXTENSION);
    if public_file == file {
        let message = format!(
            "{} is where the public key goes: give the secret key another name, such as {}",
            escape_untrusted(&file.to_string_lossy()),
            escape_untrusted(&file.with_extension("pem").to_string_lossy())
        );
        return Err(ToolError::Pack(PackError::Key { message }));
    }
    if public_file.exists() {
        let what = "it exists, and no key is ever overwritten; name another file with --out";
        let exists = std::io::Error::new(std::io::ErrorKind::AlreadyExists, what);
        return Err(ToolError::io("create", &public_file)(exists));
    }
    let key = SecretKey::generate()?;
    key.write_new_file(file)?;
    let public = key.public_key();
    let written = fs::File::create_new(&public_file)
        .and_then(|mut file| file.write_all(format!("{public}\n").as_bytes()));
    if let Err(error) = written {
        // Made a moment ago, and nobody has seen its public half. The error to report is the first.
        let _ = fs::remove_file(file);
        return Err(ToolError::io("create", &public_file)(error));
    }
    Ok(KeygenReport {
        secret_key_file: file.to_owned(),
        public_key_file: public_file,
        public_key: public.to_string(),
        key_id: public.key_id().to_string(),
    })
}

/// The public half of a key.
#[derive(Clone, Debug, Serialize)]
pub struct PubkeyReport {
    /// The public key, as `pack.toml` and trust policies name it.
    pub public_key: String,
    /// The id by which signatures name it.
    pub key_id: String,
}

impl Report for PubkeyReport {}

impl fmt::Display for PubkeyReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.public_key)
    }
}

/// Gives the public key of a file that holds a secret or a public key, in any form that is read.
///
/// # Errors
/// [`ToolError::Pack`], also where others may read the file of a secret key; [`ToolError::Io`].
pub fn pubkey(file: &Path) -> Result<PubkeyReport, ToolError> {
    let public = fs::read_to_string(file).ok().and_then(|text| PublicKey::from_text(&text).ok());
    let public = match public {
        Some(public) => public,
        None => SecretKey::read_file(file)?.public_key(),
    };
    let key_id = public.key_id().to_string();
    Ok(PubkeyReport { public_key: public.to_string(), key_id })
}

/// A pack that was signed.
#[derive(Clone, Debug, Serialize)]
pub struct SignReport {
    /// Name and version of the pack.
    pub pack: String,
    /// The signature file.
    pub signature_file: PathBuf,
    /// The ids of the keys that signed.
    pub key_ids: Vec<String>,
    /// How many signatures the pack has now.
    pub signatures: usize,
    /// Whether the manifest names one of these keys as its author's.
    pub is_author_key: bool,
}

impl Report for SignReport {}

impl fmt::Display for SignReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for key_id in &self.key_ids {
            writeln!(f, "signed {} with key {key_id}", self.pack)?;
        }
        writeln!(
            f,
            "{} now holds {} signature(s)",
            self.signature_file.display(),
            self.signatures
        )?;
        if !self.is_author_key {
            writeln!(f, "note: the manifest names another key as its author's signing_key")?;
        }
        Ok(())
    }
}

/// Reads secret keys; one that is named twice is one key.
///
/// # Errors
/// [`ToolError::Pack`].
pub(crate) fn secret_keys(files: &[PathBuf]) -> Result<Vec<SecretKey>, ToolError> {
    let mut keys: Vec<SecretKey> = Vec::with_capacity(files.len());
    for file in files {
        let key = SecretKey::read_file(file)?;
        if keys.iter().all(|other| other.public_key() != key.public_key()) {
            keys.push(key);
        }
    }
    Ok(keys)
}

/// Reads a public key: its text in any form, or the name of a file that holds such a text.
///
/// # Errors
/// [`ToolError::Pack`], also where the file holds a secret key, of which nothing is told; or
/// [`ToolError::Io`].
pub(crate) fn public_key(text_or_file: &str) -> Result<PublicKey, ToolError> {
    let path = Path::new(text_or_file);
    if path.is_file() {
        return Ok(PublicKey::read_file(path)?);
    }
    PublicKey::from_text(text_or_file).map_err(|error| match error {
        // It may be a secret key, so it is not quoted.
        PackError::Key { message } => {
            PackError::Key { message: format!("there is no file of that name, and {message}") }
                .into()
        }
        other => other.into(),
    })
}

/// Signs the manifest of a pack with each key, beside any signatures of other keys over the same
/// manifest. The files must be those that the manifest lists: every host would refuse others.
///
/// # Errors
/// [`ToolError::Pack`] for keys and pack, also where a pack crate has been changed since it was built,
/// [`ToolError::Manifest`] where the manifest is not valid, [`ToolError::Io`].
pub fn sign(key_files: &[PathBuf], directory: &Path) -> Result<SignReport, ToolError> {
    let keys = secret_keys(key_files)?;
    let pack = UnverifiedPack::read(directory, &PackLimits::with_graphs())?;
    let directory = pack_directory(directory);
    if !directory.is_dir() {
        let message = "is an archive, which is not changed: sign the directory, then run `ruvllm-pack archive`";
        return Err(PackError::NotAPack { path: directory.into_owned(), message }.into());
    }
    let bytes = pack.file(MANIFEST_FILE).unwrap_or_default();
    let manifest = Manifest::parse(bytes)?;
    pack.check_files(&manifest)?;
    let signature_file = directory.join(SIGNATURE_FILE);
    let envelope = add_signatures(&signature_file, bytes, &keys)?;
    Ok(SignReport {
        pack: format!("{} {}", manifest.name, manifest.version),
        signature_file,
        key_ids: keys.iter().map(|key| key.public_key().key_id().to_string()).collect(),
        signatures: envelope.signatures().len(),
        is_author_key: keys
            .iter()
            .any(|key| key.public_key().to_string() == manifest.author.signing_key),
    })
}

/// Signs bytes and writes the envelope, which keeps the signatures of other keys.
pub(crate) fn add_signatures(
    signature_file: &Path,
    bytes: &[u8],
    keys: &[SecretKey],
) -> Result<Envelope, ToolError> {
    let new = sign_manifest(bytes, &keys.iter().collect::<Vec<_>>())?;
    let envelope = match fs::read(signature_file) {
        Ok(old) => Envelope::parse(&old)?.merged(new)?,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => new,
        Err(e) => return Err(ToolError::io("read", signature_file)(e)),
    };
    atomic::write(signature_file, envelope.to_json().as_bytes())?;
    Ok(envelope)
}

/// A pack that was verified.
#[derive(Clone, Debug, Serialize)]
pub struct VerifyReport {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// SHA-256 of its manifest, which ties down every file.
    pub digest: String,
    /// Whose signatures count, and the ids of their keys.
    pub publishers: Vec<(String, String)>,
    /// How many kernels it holds.
    pub kernels: usize,
}

impl Report for VerifyReport {}

impl fmt::Display for VerifyReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "verified {} {}, {} kernel(s)", self.name, self.version, self.kernels)?;
        writeln!(f, "digest {}", self.digest)?;
        for (publisher, key_id) in &self.publishers {
            writeln!(f, "signed by {} (key {key_id})", escape_untrusted(publisher))?;
        }
        Ok(())
    }
}

/// What a pack is verified against.
#[derive(Clone, Debug, Default)]
pub struct VerifyOptions {
    /// A trust policy; without one, the policy that is built in.
    pub policy: Option<PathBuf>,
    /// A directory of version floors and of the newest keyrings seen.
    pub floors: Option<PathBuf>,
    /// A lock file that must pin the pack.
    pub lock: Option<PathBuf>,
    /// The time to verify for, instead of now.
    pub at: Option<Timestamp>,
}

impl VerifyOptions {
    pub(crate) fn clock(&self) -> Clock {
        self.at.map_or(Clock::System, Clock::Fixed)
    }

    /// Opens the version floors, where a directory was named.
    pub(crate) fn floors(&self) -> Result<Option<VersionFloor>, ToolError> {
        self.floors.as_deref().map(crate::floor::open).transpose()
    }

    /// Reads the trust policy and the keyring that it may name.
    pub(crate) fn read_policy(&self) -> Result<TrustPolicy, ToolError> {
        let Some(file) = &self.policy else { return Ok(TrustPolicy::builtin()) };
        Ok(TrustPolicy::read_file(file, self.floors()?.as_ref(), self.clock())?)
    }

    /// Reads and verifies a pack: a directory, an archive, or the build of a pack crate.
    pub(crate) fn verify(
        &self,
        policy: &TrustPolicy,
        pack: &Path,
    ) -> Result<VerifiedPack, ToolError> {
        let pack = trial::read(pack)?;
        let pack = pack.verify_with(policy, self.floors()?.as_ref(), self.clock())?;
        if let Some(lock) = &self.lock {
            PackLock::read(lock)?.check(&pack)?;
        }
        Ok(pack)
    }
}

/// Reads a trust policy; without a file, the one that is built in.
pub(crate) fn policy(file: Option<&Path>) -> Result<TrustPolicy, ToolError> {
    VerifyOptions { policy: file.map(Path::to_owned), ..VerifyOptions::default() }.read_policy()
}

/// Verifies signatures, trust and every file of a pack; runs nothing.
///
/// # Errors
/// [`ToolError::Pack`] with everything that is wrong, [`ToolError::Io`].
pub fn verify(options: &VerifyOptions, pack: &Path) -> Result<VerifyReport, ToolError> {
    let pack = options.verify(&options.read_policy()?, pack)?;
    let manifest = pack.manifest();
    Ok(VerifyReport {
        name: manifest.name.to_string(),
        version: manifest.version.to_string(),
        digest: pack.digest().to_string(),
        publishers: pack
            .publishers()
            .iter()
            .map(|signer| (signer.publisher.clone(), signer.key_id.to_string()))
            .collect(),
        kernels: manifest.kernels.len(),
    })
}
