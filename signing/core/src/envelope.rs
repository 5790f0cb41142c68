//! `kernels.json.sig`: detached signatures over the bytes of `kernels.json`.
//!
//! The format is JSON, `{"version":1,"signatures":[{"key_id":HEX,"signature":BASE64}]}`. Each
//! decoded signature is plain Ed25519 over the manifest's bytes, so that
//! `openssl pkeyutl -verify -rawin` takes it.

use crate::{KeyId, PackError, SIGNATURE_FILE, SecretKey, Signature, Violation};
use serde::{Deserialize, Serialize};

/// The longest envelope that is read, in bytes.
pub const MAX_ENVELOPE_BYTES: usize = 16 * 1024;
/// The most signatures in an envelope.
pub const MAX_SIGNATURES: usize = 16;

/// The signatures of a pack, at most one for each key id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Envelope {
    signatures: Vec<(KeyId, Signature)>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    version: u32,
    signatures: Vec<Entry>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    key_id: String,
    signature: String,
}

/// Signs the exact bytes of a manifest with each key.
///
/// # Errors
/// [`PackError::Rejected`] where there is no key, the same key twice, or more than
/// [`MAX_SIGNATURES`].
pub fn sign_manifest(manifest: &[u8], keys: &[&SecretKey]) -> Result<Envelope, PackError> {
    Envelope::from_signatures(
        keys.iter().map(|key| (key.public_key().key_id(), key.sign(manifest))).collect(),
    )
}

impl Envelope {
    /// Makes an envelope of signatures made elsewhere.
    ///
    /// # Errors
    /// [`PackError::Rejected`] as for [`sign_manifest`].
    pub fn from_signatures(signatures: Vec<(KeyId, Signature)>) -> Result<Envelope, PackError> {
        if !(1..=MAX_SIGNATURES).contains(&signatures.len()) {
            let what = format!("{} signatures; use 1 to {MAX_SIGNATURES}", signatures.len());
            return Err(refused("envelope_signature_count", &what));
        }
        for (i, (id, _)) in signatures.iter().enumerate() {
            if signatures[..i].iter().any(|(earlier, _)| earlier == id) {
                let what = format!("the key {id} appears twice; one signature of each key counts");
                return Err(refused("envelope_duplicate_key", &what));
            }
        }
        Ok(Envelope { signatures })
    }

    /// Adds signatures to those that are there; a key that has signed before gets its new
    /// signature.
    ///
    /// # Errors
    /// [`PackError::Rejected`] where there would be more than [`MAX_SIGNATURES`].
    pub fn merged(mut self, other: Envelope) -> Result<Envelope, PackError> {
        self.signatures.retain(|(id, _)| other.signatures.iter().all(|(new, _)| new != id));
        self.signatures.extend(other.signatures);
        Envelope::from_signatures(self.signatures)
    }

    /// Parses the bytes of a `kernels.json.sig`: one strict JSON document.
    ///
    /// # Errors
    /// [`PackError::Rejected`] with the one thing that is wrong.
    pub fn parse(bytes: &[u8]) -> Result<Envelope, PackError> {
        if bytes.len() > MAX_ENVELOPE_BYTES {
            let what = format!("{} bytes; at most {MAX_ENVELOPE_BYTES} are read", bytes.len());
            return Err(refused("envelope_too_large", &what));
        }
        // Unknown and duplicate fields as well as trailing bytes are errors of this parser.
        let document: Document = serde_json::from_slice(bytes)
            .map_err(|e| refused("envelope_syntax", &format!("{e}; sign the pack again")))?;
        if document.version != 1 {
            let what = format!("format {}; this runtime reads 1", document.version);
            return Err(refused("envelope_version", &what));
        }
        let signatures: Result<_, _> = document
            .signatures
            .iter()
            .enumerate()
            .map(|(i, entry)| {
                let bad = |field: &str| {
                    let what = format!("signatures[{i}].{field} is malformed; sign the pack again");
                    refused("envelope_syntax", &what)
                };
                let id = entry.key_id.parse().map_err(|_| bad("key_id"))?;
                let signature =
                    Signature::from_base64(&entry.signature).ok_or_else(|| bad("signature"))?;
                Ok((id, signature))
            })
            .collect();
        Envelope::from_signatures(signatures?)
    }

    /// The envelope as `kernels.json.sig` holds it.
    pub fn to_json(&self) -> String {
        let entries: Vec<String> = self
            .signatures
            .iter()
            .map(|(id, signature)| {
                // Hex and base64 need no escaping.
                format!("    {{ \"key_id\": \"{id}\", \"signature\": \"{signature}\" }}")
            })
            .collect();
        format!("{{\n  \"version\": 1,\n  \"signatures\": [\n{}\n  ]\n}}\n", entries.join(",\n"))
    }

    /// The signatures, each with the id of the key that is said to have made it.
    pub fn signatures(&self) -> &[(KeyId, Signature)] {
        &self.signatures
    }
}

fn refused(code: &'static str, what: &str) -> PackError {
    PackError::Rejected(vec![Violation::new(code, SIGNATURE_FILE, what)])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(bytes: &[u8]) -> &'static str {
        Envelope::parse(bytes).unwrap_err().violations()[0].code
    }

    #[test]
    fn an_envelope_reads_back() {
        let (a, b) = (SecretKey::generate().unwrap(), SecretKey::generate().unwrap());
        let envelope = sign_manifest(b"m", &[&a, &b]).unwrap();
        assert_eq!(Envelope::parse(envelope.to_json().as_bytes()).unwrap(), envelope);
        assert!(a.public_key().verify(b"m", &envelope.signatures()[0].1));
    }

    #[test]
    fn merging_adds_new_keys_and_replaces_old_signatures() {
        let (a, b) = (SecretKey::generate().unwrap(), SecretKey::generate().unwrap());
        let old = sign_manifest(b"old", &[&a]).unwrap();
        let merged = old.merged(sign_manifest(b"new", &[&a, &b]).unwrap()).unwrap();
        assert_eq!(merged, sign_manifest(b"new", &[&a, &b]).unwrap());
    }

    #[test]
    fn anything_but_one_strict_document_is_refused() {
        let key = SecretKey::generate().unwrap();
        let good = sign_manifest(b"m", &[&key]).unwrap().to_json();
        assert_eq!(code(format!("{good}x").as_bytes()), "envelope_syntax");
        assert_eq!(code(good.replace("\"version\"", "\"versions\"").as_bytes()), "envelope_syntax");
        assert_eq!(code(good.replace(": 1", ": 2").as_bytes()), "envelope_version");
        let twice = good.replace("\"version\": 1,", "\"version\": 1, \"version\": 1,");
        assert_eq!(code(twice.as_bytes()), "envelope_syntax");
        let extra = good.replace("\"version\": 1,", "\"version\": 1, \"extra\": 1,");
        assert_eq!(code(extra.as_bytes()), "envelope_syntax");
        assert_eq!(code(br#"{"version":1,"signatures":[]}"#), "envelope_signature_count");
        assert_eq!(code(&vec![b' '; MAX_ENVELOPE_BYTES + 1]), "envelope_too_large");
        let id = key.public_key().key_id();
        let signature = key.sign(b"m");
        let entry = format!(r#"{{"key_id":"{id}","signature":"{signature}"}}"#);
        let doubled = format!(r#"{{"version":1,"signatures":[{entry},{entry}]}}"#);
        assert_eq!(code(doubled.as_bytes()), "envelope_duplicate_key");
        assert_eq!(code(good.replace("==", "=").as_bytes()), "envelope_syntax");
        assert_eq!(code(good.to_uppercase().as_bytes()), "envelope_syntax");
        assert_eq!(code(good.replace(&id.to_string(), "00").as_bytes()), "envelope_syntax");
    }
}
