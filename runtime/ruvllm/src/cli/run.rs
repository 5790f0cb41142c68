//! `ruvllm run`: one prompt, one text.

use super::args::{Cli, RunArgs, StatsFormat};
use super::stop::StopFlag;
use super::terminal::{self, note};
use super::{Ended, Failure, setup};
use clap::CommandFactory as _;
use clap::error::ErrorKind;
use ruvllm::engine::{KvCodec, MemoryReport};
use ruvllm::signing::escape_untrusted;
use ruvllm::{GenerateOptions, Message, Prompt, RunReport, Runtime, Session, SessionKey};
use std::io::{self, IsTerminal as _};
use std::path::Path;

const MIB: f64 = 1024.0 * 1024.0;

const DEFAULT_PROMPT: &str = "Once upon a time";

pub(crate) fn main(args: &RunArgs) -> Result<Ended, Failure> {
    let prompt = prompt(args)?;
    let stop = StopFlag::install()?;
    // A key that cannot be read is refused before anything is loaded.
    let key = args.session_key.as_deref().map(SessionKey::from_file).transpose()?;
    let loaded = setup::endless(&args.model, args.endless.sinks);
    let Some(runtime) = stop.loaded(loaded)? else { return Ok(Ended::Interrupted) };
    let sampling = setup::sampling(&args.sampling);
    if let (None, Some(seed)) = (args.sampling.seed, sampling.seed)
        && sampling.temperature > 0.0
        && args.stats.is_none()
    {
        note!("seed {seed}");
    }
    let options = GenerateOptions {
        max_tokens: args.tokens.unwrap_or(usize::MAX),
        sampling,
        stop: args.sampling.stop.clone(),
        ignore_eos: args.ignore_eos,
    };
    let text = &prompt;
    let prompt = if args.raw { Prompt::Raw(text) } else { Prompt::User(text) };
    // At a terminal, a text that is continued is shown with its beginning, so that it reads as one.
    if io::stderr().is_terminal() && io::stdout().is_terminal() && continues(&runtime, prompt)? {
        terminal::beginning(text);
    }
    let file = args.session.as_deref().zip(key.as_ref());
    let mut session =
        file.map_or_else(|| runtime.session(), |(path, key)| open(&runtime, path, key));
    let emit = |piece: &str| match setup::emit(piece) {
        std::ops::ControlFlow::Continue(()) => stop.flow(),
        gone => gone,
    };
    let completion = runtime.generate_in(&mut session, prompt, &options, emit);
    // The newline ends the text also where the generation failed half-way.
    let _ = setup::emit("\n");
    setup::report_incidents(&runtime);
    let report = runtime.report(&completion?);
    if let Some((path, key)) = file {
        session.save(path, key)?;
    }
    match args.stats {
        Some(StatsFormat::Json) => terminal::json_note(&report)?,
        Some(StatsFormat::Text) => print_report(&report),
        None => {}
    }
    Ok(if stop.is_set() { Ended::Interrupted } else { Ended::Done })
}

/// What to begin with: the argument, a file, standard input, or else the default.
fn prompt(args: &RunArgs) -> Result<String, Failure> {
    if let Some(model) = models_place(args) {
        refuse(&format!(
            "{model:?} stands where the prompt does; the model is an option: `ruvllm run -m {model} \"Once upon a time\"`"
        ));
    }
    if let (Some(first), false) = (&args.prompt, args.beyond.is_empty()) {
        let words = [&[first.clone()][..], &args.beyond].concat().join(" ");
        refuse(&format!("a prompt of several words stands in quotes: `ruvllm run {words:?}`"));
    }
    let mut text = match (&args.prompt, &args.file) {
        (Some(prompt), _) if prompt != "-" => return Ok(prompt.clone()),
        (_, Some(path)) => setup::read_named_text(path)?,
        (None, _) if io::stdin().is_terminal() => return Ok(DEFAULT_PROMPT.to_owned()),
        _ => setup::read_text("standard input", io::stdin().lock())?,
    };
    if text.ends_with('\n') {
        text.pop();
        if text.ends_with('\r') {
            text.pop();
        }
    }
    if text.is_empty() && args.prompt.is_none() && args.file.is_none() {
        return Ok(DEFAULT_PROMPT.to_owned());
    }
    Ok(text)
}

fn refuse(usage: &str) -> ! {
    Cli::command().error(ErrorKind::UnknownArgument, escape_untrusted(usage)).exit()
}

/// The first argument, where it must be a model that other programs take there: it is the name of one, or a
/// prompt in quotes comes behind it.
fn models_place(args: &RunArgs) -> Option<&str> {
    let first = args.prompt.as_deref()?;
    let is_model = match &args.beyond[..] {
        [] => first.ends_with(".gguf") && Path::new(first).is_file(),
        beyond => {
            let is_file = first.ends_with(".gguf") || Path::new(first).exists();
            is_file || beyond.iter().any(|text| text.contains(char::is_whitespace))
        }
    };
    is_model.then_some(first)
}

/// The session of an earlier run, or a new one where there is none that can be used.
fn open(runtime: &Runtime, path: &Path, key: &SessionKey) -> Session {
    if !path.exists() {
        return runtime.session();
    }
    runtime.restore_session(path, key).unwrap_or_else(|error| {
        note!("warning: the session is begun anew: {error}");
        runtime.session()
    })
}

/// Whether the model's text follows the prompt's directly, with no markers of turns in between.
fn continues(runtime: &Runtime, prompt: Prompt<'_>) -> Result<bool, Failure> {
    Ok(match prompt {
        Prompt::User(text) if runtime.has_chat_template() => {
            runtime.render(&[Message::new("user", text)])?.ends_with(text)
        }
        _ => true,
    })
}

fn print_report(report: &RunReport) {
    note!(
        "{}: {} prompt and {} generated tokens, {} threads, KV {}, ended by {}",
        report.model,
        report.prompt_tokens,
        report.generated_tokens,
        report.threads,
        report.kv,
        report.finish
    );
    if let Some(adapter) = &report.adapter {
        note!(
            "adapter {}, generation {}: rank {}, alpha {}, scale {}, {:.2} MiB",
            adapter.name,
            adapter.generation,
            adapter.rank,
            adapter.alpha,
            adapter.scale,
            adapter.bytes as f64 / MIB
        );
    }
    note!(
        "load {:.0} ms, first token {:.0} ms, prefill {:.1} tokens/s, decode {:.1} tokens/s",
        report.load_ms,
        report.time_to_first_token_ms,
        report.prefill_tokens_per_second,
        report.decode_tokens_per_second
    );
    print_memory(&report.memory);
    for op in &report.ops {
        note!(
            "{:<28} {:<24} {:>9} calls {:>9.2} ms {:>4} fallbacks",
            op.op.to_string(),
            op.kernel,
            op.calls,
            op.nanos as f64 * 1e-6,
            op.fallbacks
        );
    }
    if !report.ops.is_empty() {
        note!("of calls that move less than 4 KiB one in 64 is timed and stands for the others");
    }
}

fn print_memory(memory: &MemoryReport) {
    let MemoryReport { pool, kv, kernels } = memory;
    note!(
        "memory {:.1} of {:.0} MiB: {:.1} MiB of pages for KV, of which {:.1} empty{}",
        pool.used as f64 / MIB,
        pool.budget as f64 / MIB,
        pool.kv_pages as f64 / MIB,
        pool.kv_lost as f64 / MIB,
        pool.holders.iter().fold(String::new(), |list, holder| {
            let bytes = holder.bytes as f64 / MIB;
            format!("{list}, {bytes:.1} MiB {} by {}", holder.kind.name(), holder.owner)
        })
    );
    note!(
        "kernels {:.1} MiB of instances, of {:.1} that they may take",
        kernels.used as f64 / MIB,
        kernels.limit as f64 / MIB
    );
    let tiers = KvCodec::ALL.into_iter().zip(kv.bytes).filter(|&(_, bytes)| bytes > 0);
    note!(
        "KV {} blocks of {} tokens, {} free, {} shared, {} cached, {} on disk:{}",
        kv.blocks,
        kv.block_tokens,
        kv.free_blocks,
        kv.shared_blocks,
        kv.cached_blocks,
        kv.spilled_blocks,
        tiers.fold(String::new(), |list, (codec, bytes)| {
            format!("{list} {:.2} MiB {codec}", bytes as f64 / MIB)
        })
    );
    let each = if kv.migrations == 0 { 0.0 } else { kv.migration_ns as f64 / kv.migrations as f64 };
    note!(
        "KV {} migrations of {:.0} us, {} of them ahead of time, {} spills and {} that failed, {} restores, {} evictions, {} prefix tokens found and {} not",
        kv.migrations,
        each * 1e-3,
        kv.migrations_ahead,
        kv.spills,
        kv.spill_failures,
        kv.restores,
        kv.evictions,
        kv.prefix_hit_tokens,
        kv.prefix_miss_tokens
    );
}
