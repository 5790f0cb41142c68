//! Certificate and key from PEM files.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use axum_server::tls_rustls::RustlsConfig;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use sha2::{Digest as _, Sha256};

use crate::error::ServerError;

/// A certificate with its key, ready to be served with.
pub(crate) struct Loaded {
    config: Arc<ServerConfig>,
    digest: [u8; 32],
}

/// The certificate that is served with, which can be replaced.
pub(crate) struct Tls {
    config: RustlsConfig,
    digest: Mutex<[u8; 32]>,
}

impl Tls {
    pub(crate) fn new(loaded: Loaded) -> Tls {
        let Loaded { config, digest } = loaded;
        Tls { config: RustlsConfig::from_config(config), digest: Mutex::new(digest) }
    }

    /// What a listener takes: it follows what this is replaced with.
    pub(crate) fn config(&self) -> RustlsConfig {
        self.config.clone()
    }

    /// Whether it is served with this one.
    pub(crate) fn is(&self, loaded: &Loaded) -> bool {
        *self.digest.lock().unwrap_or_else(PoisonError::into_inner) == loaded.digest
    }

    /// Serves with another one from the next connection on.
    pub(crate) fn replace(&self, loaded: Loaded) {
        *self.digest.lock().unwrap_or_else(PoisonError::into_inner) = loaded.digest;
        self.config.reload_from_config(loaded.config);
    }
}

/// TLS 1.2 and 1.3 with the certificate chain and key of these files.
///
/// # Errors
/// [`ServerError::Tls`].
pub(crate) fn load(cert: &Path, key: &Path) -> Result<Loaded, ServerError> {
    let fail =
        |reason: String| ServerError::Tls { cert: cert.to_owned(), key: key.to_owned(), reason };
    let chain = CertificateDer::pem_file_iter(cert)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| fail(format!("the certificate cannot be read: {error}")))?;
    let secret = PrivateKeyDer::from_pem_file(key)
        .map_err(|error| fail(format!("the key cannot be read: {error}")))?;
    let mut hasher = Sha256::new();
    // Each with its length, so that no two chains have the same bytes.
    for part in chain.iter().map(|cert| cert.as_ref()).chain([secret.secret_der()]) {
        hasher.update((part.len() as u64).to_le_bytes());
        hasher.update(part);
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .and_then(|config| config.with_no_client_auth().with_single_cert(chain, secret))
        .map_err(|error| fail(error.to_string()))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Loaded { config: Arc::new(config), digest: hasher.finalize().into() })
}
