//! What an operator may change while the server runs: keys, certificate and key of TLS, and whose packs are
//! taken.
//!
//! The program that embeds the server reads its own sources again ([`Reloader`]); all of it is checked before
//! anything takes effect, so an error leaves everything as it was. A request is judged by the keys of the moment
//! at which it came in, a connection has the certificate of the moment at which it was made.

use std::sync::Arc;

use ruvllm_host::Acceptance;
use serde::Serialize;

use crate::app::App;
use crate::error::ServerError;
use crate::keys::ApiKey;
use crate::options::ServerOptions;

/// What a [`Reloader`] has read.
#[derive(Clone, Debug)]
pub struct Configuration {
    /// The options as they are now, of which keys and the files of TLS are taken.
    pub options: ServerOptions,
    /// Whose packs are taken from now on, where there is a supervisor.
    pub acceptance: Acceptance,
    /// Names of options that are different and take effect when the program starts again.
    pub restart: Vec<String>,
}

/// Reads the configuration anew; gives what is wrong with it where it cannot be read.
pub type Reloader = Arc<dyn Fn() -> Result<Configuration, String> + Send + Sync>;

/// What came of reading the configuration anew.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Reloaded {
    /// What is different from now on, in words.
    pub changed: Vec<String>,
    /// Names of options that are different and take effect when the program starts again.
    pub restart: Vec<String>,
}

/// The keys of clients and of administrators.
#[derive(Debug)]
pub(crate) struct Access {
    pub(crate) clients: Vec<ApiKey>,
    pub(crate) admins: Vec<ApiKey>,
}

impl Access {
    pub(crate) fn of(options: &ServerOptions) -> Access {
        Access { clients: options.api_key.clone(), admins: options.admin.admin_key.clone() }
    }

    /// What is different in `new`, in words.
    fn changes(&self, new: &Access) -> Vec<String> {
        let kinds =
            [("API keys", &self.clients, &new.clients), ("admin keys", &self.admins, &new.admins)];
        let change = |(what, old, new): (&str, &Vec<ApiKey>, &Vec<ApiKey>)| {
            (old != new).then(|| format!("{what}{}", names(old, new)))
        };
        kinds.into_iter().filter_map(change).collect()
    }
}

/// Which names are new, gone, or stand for something else.
fn names(old: &[ApiKey], new: &[ApiKey]) -> String {
    let names = |of: &[ApiKey], differs: &dyn Fn(&ApiKey) -> bool| -> Vec<String> {
        of.iter().filter(|key| differs(key)).map(|key| key.name.clone()).collect()
    };
    let known = |keys: &[ApiKey], key: &ApiKey| keys.iter().any(|other| other.name == key.name);
    let parts = [
        ("new", names(new, &|key| !known(old, key))),
        ("gone", names(old, &|key| !known(new, key))),
        ("different", names(new, &|key| known(old, key) && !old.contains(key))),
    ];
    let parts: Vec<String> = parts
        .into_iter()
        .filter(|(_, names)| !names.is_empty())
        .map(|(what, names)| format!("{what}: {}", names.join(", ")))
        .collect();
    if parts.is_empty() { String::new() } else { format!(" ({})", parts.join("; ")) }
}

impl App {
    /// Reads the configuration anew for an operator: all of it takes effect, or nothing.
    ///
    /// # Errors
    /// [`ServerError::Reload`], [`ServerError::ReloadTls`], [`ServerError::ReloadKeys`], what is wrong with keys
    /// or certificate, and [`ServerError::Supervisor`] where the history cannot be written.
    pub(crate) fn reload(&self, operator: &str) -> Result<Reloaded, ServerError> {
        let done = self.read_anew(operator);
        match &done {
            Ok(Reloaded { changed, restart }) => {
                let changed = match changed.as_slice() {
                    [] => "nothing".to_owned(),
                    changed => changed.join("; "),
                };
                tracing::info!(operator, changed, "the configuration was read anew");
                if !restart.is_empty() {
                    let options = restart.join(", ");
                    tracing::warn!(options, "these take effect when the server starts again");
                }
            }
            Err(error) => tracing::error!(operator, "nothing was changed: {error}"),
        }
        done
    }

    fn read_anew(&self, operator: &str) -> Result<Reloaded, ServerError> {
        // One at a time, so that what was read last is what counts.
        let _turn = self.reloading.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let reloader = self.reloader.as_ref().ok_or_else(|| ServerError::Reload {
            reason: "this program does not read its configuration again".to_owned(),
        })?;
        let Configuration { options: read, acceptance, restart } =
            reloader().map_err(|reason| ServerError::Reload { reason })?;
        let mut options = self.options.clone();
        options.api_key = read.api_key;
        options.admin.admin_key = read.admin.admin_key;
        (options.tls_cert, options.tls_key) = (read.tls_cert, read.tls_key);
        options.check_keys()?;
        let (old, new) = (self.access(), Access::of(&options));
        // A file that was cut off while it is written would open the server to everybody on this machine.
        if new.clients.is_empty() && !old.clients.is_empty() {
            return Err(ServerError::ReloadKeys);
        }
        let certificate = options.tls()?;
        let mut changed = old.changes(&new);
        let tls = match (&self.tls, certificate) {
            (None, None) => None,
            (Some(serving), Some(certificate)) => Some((serving, certificate)),
            _ => return Err(ServerError::ReloadTls),
        };
        let tls = tls.filter(|(serving, certificate)| !serving.is(certificate));
        if tls.is_some() {
            changed.push("certificate of TLS".to_owned());
        }
        // What may fail comes first.
        if let Some(supervised) = &self.supervised {
            let trust = supervised.accept(acceptance, &changed, operator)?;
            changed.splice(0..0, trust);
        }
        if let Some((serving, certificate)) = tls {
            serving.replace(certificate);
        }
        self.set_access(new);
        Ok(Reloaded { changed, restart })
    }
}
