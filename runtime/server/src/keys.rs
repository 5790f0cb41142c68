//! API keys: 256 random bits that clients send, of which the server keeps SHA-256 alone.
//!
//! A plain hash is enough because the keys are too random to be guessed. Whoever reads the
//! configuration learns no key.

use std::fmt;
use std::str::FromStr;

use axum::http::header::AUTHORIZATION;
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

use crate::error::{ApiError, ServerError};

/// Where clients of Anthropic's API send their key.
const API_KEY: HeaderName = HeaderName::from_static("x-api-key");

/// A client's name, the hash of its key and its priority; written `NAME=sha256:HEX`, and with a priority
/// `NAME=sha256:HEX,priority=N`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiKey {
    /// Who holds the key: shares of the machine are per name, and logs show it.
    pub name: String,
    hash: [u8; 32],
    /// How much its requests matter: those of higher ones go first, and the others rest for them where
    /// there is no room for all.
    pub priority: u8,
}

impl ApiKey {
    /// Makes a key for `name`; gives the secret for the client and the entry for the server.
    ///
    /// # Errors
    /// [`ServerError::KeyName`] for a name that cannot be written in an entry,
    /// [`ServerError::Entropy`].
    pub fn generate(name: &str) -> Result<(String, ApiKey), ServerError> {
        let name = checked_name(name)?;
        let secret = format!("sk-{}", random_hex::<32>()?);
        let hash = Sha256::digest(&secret).into();
        Ok((secret, ApiKey { name, hash, priority: 0 }))
    }

    /// Whether both have the same secret.
    pub(crate) fn opens_as(&self, other: &ApiKey) -> bool {
        self.hash == other.hash
    }
}

/// What stands before a priority in an entry.
const PRIORITY: &str = ",priority=";

fn checked_name(name: &str) -> Result<String, ServerError> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.@".contains(c);
    if name.is_empty() || !name.chars().all(plain) {
        return Err(ServerError::KeyName { name: name.to_owned() });
    }
    Ok(name.to_owned())
}

impl fmt::Display for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}=sha256:{}", self.name, hex(&self.hash))?;
        if self.priority == 0 { Ok(()) } else { write!(f, "{PRIORITY}{}", self.priority) }
    }
}

impl FromStr for ApiKey {
    type Err = ServerError;

    fn from_str(text: &str) -> Result<ApiKey, ServerError> {
        // The text itself stays out of the message: it may be a key that somebody put here.
        let (name, hash) = text.split_once("=sha256:").ok_or(ServerError::KeyEntry)?;
        let (hash, priority) = hash.split_once(PRIORITY).unwrap_or((hash, "0"));
        let hash = unhex(hash).ok_or(ServerError::KeyEntry)?;
        let priority = priority.parse().map_err(|_| ServerError::KeyEntry)?;
        Ok(ApiKey { name: checked_name(name)?, hash, priority })
    }
}

/// Who asks: the holder of the key that the request carries, nobody in particular where the server
/// has no keys.
pub(crate) fn client<'k>(
    keys: &'k [ApiKey],
    headers: &HeaderMap,
) -> Result<Option<&'k ApiKey>, ApiError> {
    if keys.is_empty() {
        return Ok(None);
    }
    let text = |name| headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
    let secret = text(AUTHORIZATION).and_then(|value| {
        let (scheme, secret) = value.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| secret.trim())
    });
    let Some(secret) = secret.or_else(|| text(API_KEY).map(str::trim)) else {
        return Err(ApiError::unauthorized(
            "this server needs an API key; send it as `Authorization: Bearer KEY`, or as `x-api-key: KEY`",
        ));
    };
    let hash = Sha256::digest(secret);
    // Every key is compared, in a time that does not depend on which one fits.
    let found = keys.iter().fold(None, |found, key| {
        if bool::from(key.hash[..].ct_eq(&hash[..])) { Some(key) } else { found }
    });
    found.map(Some).ok_or_else(|| ApiError::unauthorized("unknown API key"))
}

/// `N` random bytes in hexadecimal.
pub(crate) fn random_hex<const N: usize>() -> Result<String, ServerError> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|source| ServerError::Entropy { source })?;
    Ok(hex(&bytes))
}

/// Bytes in hexadecimal.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Option<[u8; 32]> {
    if text.len() != 64 || !text.is_ascii() {
        return None;
    }
    let mut bytes = [0; 32];
    for (i, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * i..2 * i + 2], 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_read_as_it_was_written_and_lets_its_secret_in() {
        let (secret, key) = ApiKey::generate("alice").unwrap();
        assert_eq!(key.to_string().parse::<ApiKey>().unwrap(), key);
        assert!(!key.to_string().contains(&secret[3..]));
        let urgent = ApiKey { priority: 7, ..key.clone() };
        assert_eq!(urgent.to_string(), format!("{key},priority=7"));
        assert_eq!(urgent.to_string().parse::<ApiKey>().unwrap(), urgent);
        assert!(format!("{key},priority=256").parse::<ApiKey>().is_err());
        let mut headers = HeaderMap::new();
        headers.insert(AUTHORIZATION, format!("Bearer {secret}").parse().unwrap());
        let (_, other) = ApiKey::generate("bob").unwrap();
        let keys = [other.clone(), key.clone()];
        assert_eq!(client(&keys, &headers).unwrap(), Some(&key));
        let keys = [key.clone(), other.clone()];
        assert_eq!(client(&keys, &headers).unwrap(), Some(&key));
        assert_eq!(client(&[], &headers).unwrap(), None);
        let headers = HeaderMap::from_iter([(API_KEY, secret.parse().unwrap())]);
        assert_eq!(client(&keys, &headers).unwrap(), Some(&key));
        assert!(client(&[other], &headers).is_err());
        assert!(client(&keys, &HeaderMap::new()).is_err());
    }

    #[test]
    fn a_key_in_place_of_its_entry_is_refused_and_not_repeated() {
        let (secret, _) = ApiKey::generate("alice").unwrap();
        for entry in
            [secret.clone(), format!("alice={secret}"), format!("a b=sha256:{}", "0".repeat(64))]
        {
            let error = entry.parse::<ApiKey>().unwrap_err().to_string();
            assert!(!error.contains(&secret), "{error}");
        }
        assert!(ApiKey::generate("a=b").is_err());
    }
}
