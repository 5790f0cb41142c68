//! Certificate and key from PEM files.

use std::path::Path;
use std::sync::Arc;

use axum_server::tls_rustls::RustlsConfig;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::error::ServerError;

/// TLS 1.2 and 1.3 with the certificate chain and key of these files.
///
/// # Errors
/// [`ServerError::Tls`].
pub(crate) fn load(cert: &Path, key: &Path) -> Result<RustlsConfig, ServerError> {
    let fail =
        |reason: String| ServerError::Tls { cert: cert.to_owned(), key: key.to_owned(), reason };
    let chain = CertificateDer::pem_file_iter(cert)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| fail(format!("the certificate cannot be read: {error}")))?;
    let secret = PrivateKeyDer::from_pem_file(key)
        .map_err(|error| fail(format!("the key cannot be read: {error}")))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .and_then(|config| config.with_no_client_auth().with_single_cert(chain, secret))
        .map_err(|error| fail(error.to_string()))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(RustlsConfig::from_config(Arc::new(config)))
}
