//! The log on standard error, and traces where the program is built with them.

use super::Failure;
use super::args::{Command, LogFormat, LogLevel};
use super::terminal::LogWriter;
use std::backtrace::{Backtrace, BacktraceStatus};
use std::{panic, thread};
use tracing_subscriber::Layer as _;
use tracing_subscriber::filter::{FilterFn, LevelFilter};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

/// What must live as long as something is logged: dropped, it sends the traces that are not sent yet.
#[derive(Default)]
pub(crate) struct Log {
    #[cfg(feature = "otel")]
    _traces: Option<ruvllm::server::TraceExport>,
}

/// Sends the log of a command to standard error; a server has one at `info` unless another level is
/// asked for.
///
/// # Errors
/// An address for traces that is none.
pub(crate) fn start(level: Option<LogLevel>, command: &Command) -> Result<Log, Failure> {
    let (level, format) = match command {
        Command::Serve(args) => (Some(level.unwrap_or(LogLevel::Info)), args.log_format),
        _ => (level, LogFormat::Text),
    };
    let Some(level) = level else { return Ok(Log::default()) };
    let level = match level {
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
    };
    // What the executor says of itself is no decision of ours, and spans are for traces.
    let ours = FilterFn::new(move |meta| {
        !meta.is_span() && *meta.level() <= level && meta.target().starts_with("ruvllm")
    });
    let lines = tracing_subscriber::fmt::layer().with_ansi(false);
    let lines = match format {
        LogFormat::Text => lines.with_writer(LogWriter::text).boxed(),
        LogFormat::Json => lines.json().flatten_event(true).with_writer(LogWriter::json).boxed(),
    };
    let log =
        tracing_subscriber::registry().with(lines.with_filter(ours.with_max_level_hint(level)));
    #[cfg(feature = "otel")]
    let (log, started) = {
        let traces = traces(command)?;
        (log.with(traces.as_ref().map(|traces| traces.layer())), Log { _traces: traces })
    };
    #[cfg(not(feature = "otel"))]
    let started = Log::default();
    log.init();
    if let Command::Serve(_) = command {
        log_panics();
    }
    Ok(started)
}

/// What sends traces, where a server is to.
#[cfg(feature = "otel")]
fn traces(command: &Command) -> Result<Option<ruvllm::server::TraceExport>, Failure> {
    let endpoint = match command {
        Command::Serve(args) => args.otlp_endpoint.as_deref().filter(|url| !url.is_empty()),
        _ => None,
    };
    Ok(endpoint.map(ruvllm::server::TraceExport::start).transpose()?)
}

/// Lets panics go where everything else is read.
fn log_panics() {
    panic::set_hook(Box::new(|panic| {
        let backtrace = Backtrace::capture();
        let captured = backtrace.status() == BacktraceStatus::Captured;
        let backtrace = captured.then(|| backtrace.to_string());
        let thread = thread::current();
        tracing::error!(target: "ruvllm::panic", thread = thread.name(), backtrace, "{panic}");
    }));
}
