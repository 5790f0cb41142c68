//! `keygen`, `sign`, `verify`.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use ruvllm_manifest::{MANIFEST_FILE, Manifest, SIGNATURE_FILE};
use ruvllm_signing::{
    Envelope, PackLimits, SecretKey, TrustPolicy, UnverifiedPack, escape_untrusted, sign_manifest,
};
use serde::Serialize;

use crate::build::DIST;
use crate::{Report, ToolError};

/// A key that was made.
#[derive(Clone, Debug, Serialize)]
pub struct KeygenReport {
    /// The file of the secret key, readable by its owner only.
    pub secret_key_file: PathBuf,
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
        writeln!(f, "public key  {}", self.public_key)?;
        writeln!(f, "key id      {}", self.key_id)?;
        writeln!(f, "for pack.toml: signing_key = \"{}\"", self.public_key)
    }
}

/// Makes a key pair and writes the secret key to a new file.
///
/// # Errors
/// [`ToolError::Pack`], also where the file exists.
pub fn keygen(file: &Path) -> Result<KeygenReport, ToolError> {
    let key = SecretKey::generate()?;
    key.write_new_file(file)?;
    let public = key.public_key();
    Ok(KeygenReport {
        secret_key_file: file.to_owned(),
        public_key: public.to_string(),
        key_id: public.key_id().to_string(),
    })
}

/// The directory of the pack: the one given, or the build of the pack crate there.
pub(crate) fn pack_directory(given: &Path) -> PathBuf {
    let dist = given.join(DIST);
    if !given.join(MANIFEST_FILE).is_file() && dist.join(MANIFEST_FILE).is_file() {
        dist
    } else {
        given.to_owned()
    }
}

/// A pack that was signed.
#[derive(Clone, Debug, Serialize)]
pub struct SignReport {
    /// Name and version of the pack.
    pub pack: String,
    /// The signature file.
    pub signature_file: PathBuf,
    /// The id of the key that signed.
    pub key_id: String,
    /// How many signatures the pack has now.
    pub signatures: usize,
    /// Whether the manifest names this key as its author's.
    pub is_author_key: bool,
}

impl Report for SignReport {}

impl fmt::Display for SignReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "signed {} with key {}", self.pack, self.key_id)?;
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

/// Signs the manifest of a pack, beside any signatures of other keys over the same manifest.
///
/// # Errors
/// [`ToolError::Pack`] for key and pack, [`ToolError::Manifest`] where the manifest is not valid,
/// [`ToolError::Io`].
pub fn sign(key_file: &Path, directory: &Path) -> Result<SignReport, ToolError> {
    let key = SecretKey::read_file(key_file)?;
    let directory = pack_directory(directory);
    let manifest_file = directory.join(MANIFEST_FILE);
    let bytes = fs::read(&manifest_file).map_err(ToolError::io("read", &manifest_file))?;
    let manifest = Manifest::parse(&bytes)?;
    let new = sign_manifest(&bytes, &[&key])?;
    let signature_file = directory.join(SIGNATURE_FILE);
    let envelope = match fs::read(&signature_file) {
        Ok(old) => Envelope::parse(&old)?.merged(new)?,
        Err(_) => new,
    };
    fs::write(&signature_file, envelope.to_json())
        .map_err(ToolError::io("write", &signature_file))?;
    let public = key.public_key();
    Ok(SignReport {
        pack: format!("{} {}", manifest.name, manifest.version),
        signature_file,
        key_id: public.key_id().to_string(),
        signatures: envelope.signatures().len(),
        is_author_key: public.to_string() == manifest.author.signing_key,
    })
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

/// Reads a trust policy; without a file, the one that is built in.
pub(crate) fn policy(file: Option<&Path>) -> Result<TrustPolicy, ToolError> {
    let Some(file) = file else { return Ok(TrustPolicy::builtin()) };
    let text = fs::read_to_string(file).map_err(ToolError::io("read", file))?;
    Ok(TrustPolicy::from_toml(&text)?)
}

/// Verifies signatures, trust and every file of a pack; runs nothing.
///
/// # Errors
/// [`ToolError::Pack`] with everything that is wrong, [`ToolError::Io`] for the policy file.
pub fn verify(trust: Option<&Path>, directory: &Path) -> Result<VerifyReport, ToolError> {
    let policy = policy(trust)?;
    let directory = pack_directory(directory);
    let pack = UnverifiedPack::read_dir(&directory, &PackLimits::default())?;
    let pack = pack.verify(&policy, None)?;
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
