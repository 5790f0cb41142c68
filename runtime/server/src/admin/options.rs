//! What an operator chooses for administration.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use ruvllm_host::HealthLimits;

use crate::error::ServerError;
use crate::keys::ApiKey;
use crate::options::seconds;

/// Who may change kernels while others are served, and what a change is allowed.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Admin")]
pub struct AdminOptions {
    /// Where administrators connect: what --listen answers is answered there too, and the API that
    /// changes kernels; not at all when absent. Needs --admin-key, and on any other than a loopback
    /// address --tls-cert.
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub admin_listen: Option<SocketAddr>,
    /// An administrator's key, as `ruvllm serve --new-key NAME` prints it; may be given several times.
    /// The name stands in the history of what was changed. Clients' keys open nothing there, and
    /// these nothing at --listen.
    #[arg(long, value_name = "NAME=sha256:HEX")]
    pub admin_key: Vec<ApiKey>,
    /// Begin a new history of what was done to kernels where the one in --state-dir is damaged, and keep
    /// that under another name; otherwise the server does not start then. Which packs were barred is
    /// forgotten with it. A history that is whole stays.
    #[arg(long)]
    pub reset_history: bool,
    /// Stage and activate kernel packs as they appear in this directory.
    #[arg(long, value_name = "DIR")]
    pub watch_packs: Option<PathBuf>,
    /// Try packs of --watch-packs on this share of the steps; they are activated outright when absent.
    #[arg(long, value_name = "SHARE", value_parser = share)]
    pub watch_share: Option<f64>,
    /// Seconds for which new kernels are watched, and taken back where they do harm, before they
    /// count as healthy.
    #[arg(long, value_name = "SECONDS", default_value = "300", value_parser = seconds)]
    pub health_window: Duration,
    /// Calls of each operation in use that new kernels must have been timed in before they count as
    /// healthy. Without them the window is extended to four times its length, and ends unproven:
    /// the kernels stay and are watched on, and a restart brings back what was healthy before.
    #[arg(long, value_name = "CALLS", default_value_t = 512)]
    pub health_calls: u64,
    /// How many times as long as before the median call of an operation may take with new kernels.
    #[arg(long, value_name = "RATIO", default_value_t = 1.5, value_parser = at_least::<1>)]
    pub latency_ratio: f64,
    /// By how much the loss on --probe-text may be higher with new kernels, in nats per token.
    #[arg(long, value_name = "NATS", default_value_t = 0.02, value_parser = at_least::<0>)]
    pub loss_margin: f64,
    /// A text whose loss is measured before and after new kernels become active; none when absent.
    /// Its first 256 tokens count, which are computed twice for an activation, beside what is served.
    #[arg(long, value_name = "FILE")]
    pub probe_text: Option<PathBuf>,
}

impl AdminOptions {
    /// Whether kernels can be changed while the server runs, so that a
    /// [`Supervisor`](ruvllm_host::Supervisor) is needed.
    pub fn supervised(&self) -> bool {
        self.admin_listen.is_some() || self.watch_packs.is_some()
    }

    /// What new kernels are allowed.
    pub fn health_limits(&self) -> HealthLimits {
        HealthLimits {
            window: self.health_window,
            evidence_calls: self.health_calls,
            latency_ratio: self.latency_ratio,
            loss_margin: self.loss_margin,
            ..HealthLimits::default()
        }
    }

    /// # Errors
    /// [`ServerError::AdminKeysRequired`], [`ServerError::AdminTlsRequired`],
    /// [`ServerError::Pointless`].
    pub(crate) fn check(&self, tls: bool) -> Result<(), ServerError> {
        if let Some(address) = self.admin_listen {
            if self.admin_key.is_empty() {
                return Err(ServerError::AdminKeysRequired);
            }
            if !address.ip().is_loopback() && !tls {
                return Err(ServerError::AdminTlsRequired { address });
            }
        }
        let listens = self.admin_listen.is_some();
        for (option, given, without, there) in [
            ("admin-key", !self.admin_key.is_empty(), "admin-listen", listens),
            ("watch-share", self.watch_share.is_some(), "watch-packs", self.watch_packs.is_some()),
            ("reset-history", self.reset_history, "admin-listen", self.supervised()),
            ("probe-text", self.probe_text.is_some(), "admin-listen", self.supervised()),
        ] {
            if given && !there {
                return Err(ServerError::Pointless { option, without });
            }
        }
        Ok(())
    }
}

fn share(text: &str) -> Result<f64, String> {
    let share = text.parse().ok().filter(|&share: &f64| share > 0.0 && share <= 1.0);
    share.ok_or_else(|| "give a number above 0 and at most 1".to_owned())
}

fn at_least<const LEAST: u8>(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|n: &f64| n.is_finite() && *n >= f64::from(LEAST));
    number.ok_or_else(|| format!("give a number of at least {LEAST}"))
}
