//! `ruvllm perplexity`: how well a model predicts a text, with keys and values stored in one way or
//! in several, side by side.

use super::args::PerplexityArgs;
use super::plot::{PlotFile, Point, draw};
use super::stop::StopFlag;
use super::terminal::{self, ProgressBar, note, say};
use super::{Ended, Failure, setup};
use ruvllm::engine::{Engine, Perplexity, PerplexityChange, perplexity};
use ruvllm::{KvPolicy, Runtime};
use serde::Serialize;

/// Context where neither the options nor the model ask for less; the reference tool's default.
const DEFAULT_CONTEXT: usize = 512;

/// What was measured with one policy.
#[derive(Serialize)]
struct Row {
    kv: String,
    /// Bits that a number takes in memory, on average over the context in whole blocks.
    bits_per_value: f64,
    tokens_per_second: f64,
    /// Against the first policy.
    #[serde(skip_serializing_if = "Option::is_none")]
    change: Option<PerplexityChange>,
    #[serde(flatten)]
    measured: Perplexity,
}

pub(crate) fn main(args: &PerplexityArgs) -> Result<Ended, Failure> {
    let text = setup::read_named_text(&args.file)?;
    let plot = args.plot.as_deref().map(PlotFile::open).transpose()?;
    let policies = &args.model.kv.policies;
    let stop = StopFlag::install()?;
    let loaded = stop.loaded(engines(args, policies))?;
    let Some((runtime, engines)) = loaded else { return Ok(Ended::Interrupted) };
    let adapter = runtime.adapter();
    let context = args.model.ctx.unwrap_or_else(|| DEFAULT_CONTEXT.min(runtime.engine().context()));
    let mut rows: Vec<Row> = Vec::new();
    for (i, engine) in engines.iter().enumerate() {
        let bar = ProgressBar::new(policies[i].to_string());
        let measured = perplexity(engine, adapter, &text, context, &mut |so_far| {
            bar.set(so_far.chunks_done, so_far.chunks, &format!("{:.4}", so_far.perplexity));
            stop.flow()
        })?;
        drop(bar);
        if engines.len() > 1 {
            note!("{}: {:.4}, {:.1} s", policies[i], measured.perplexity, measured.seconds);
        }
        // One that was broken off compares with nothing, but alone it is worth showing.
        if stop.is_set() && engines.len() > 1 {
            break;
        }
        let base = rows.first().map(|row| &row.measured);
        rows.push(Row {
            kv: policies[i].to_string(),
            bits_per_value: bits_per_value(engine, &measured),
            tokens_per_second: measured.tokens_per_second(),
            change: base.and_then(|base| measured.change_from(base)),
            measured,
        });
    }
    setup::report_incidents(&runtime);
    print(args, &rows, engines.len() > 1)?;
    if let Some(plot) = plot {
        let title = format!("Perplexity of {} by KV cache policy", runtime.model().name());
        plot.write(&draw(&title, &points(&rows), &caption(&rows))?)?;
    }
    Ok(if stop.is_set() { Ended::Interrupted } else { Ended::Done })
}

/// Bits that a number of the cache takes in memory at the end of a chunk.
fn bits_per_value(engine: &Engine, measured: &Perplexity) -> f64 {
    let config = engine.model().config();
    // The last token of a chunk is not computed.
    let tokens = (measured.context - 1).next_multiple_of(engine.config().kv_block);
    let values = 2 * config.layers.len() * config.kv_dim() * tokens;
    8.0 * measured.kv_bytes as f64 / values as f64
}

/// The model, and an engine for each policy. All are made before anything is computed, so that what
/// is wrong with one of them is said at once.
fn engines(
    args: &PerplexityArgs,
    policies: &[KvPolicy],
) -> Result<(Runtime, Vec<Engine>), Failure> {
    let first = policies.first().cloned().unwrap_or_default();
    let runtime = setup::runtime_storing(&args.model, &first)?;
    let mut engines = vec![runtime.engine().clone()];
    for policy in policies.iter().skip(1) {
        engines.push(runtime.engine().with_kv(policy.clone())?);
    }
    Ok((runtime, engines))
}

fn print(args: &PerplexityArgs, rows: &[Row], several: bool) -> Result<(), Failure> {
    match rows {
        [] => {}
        _ if several && args.json => terminal::json(&rows, true)?,
        _ if several => print_table(rows),
        [row, ..] if args.json => terminal::json(&row.measured, false)?,
        [Row { measured, .. }, ..] => say!(
            "perplexity {:.4} +/- {:.5} over {} tokens in {} chunks of {}, {:.1} s",
            measured.perplexity,
            measured.standard_error,
            measured.scored,
            measured.chunks_done,
            measured.context,
            measured.seconds
        ),
    }
    Ok(())
}

fn print_table(rows: &[Row]) {
    say!("| KV | bits/value | MiB of KV | perplexity | change, % | s | t/s |");
    say!("|---|---:|---:|---:|---:|---:|---:|");
    for row in rows {
        let m = &row.measured;
        let change = row.change.map_or_else(String::new, |change| {
            format!("{:+.3} ± {:.3}", change.percent, change.standard_error)
        });
        say!(
            "| {} | {:.2} | {:.2} | {:.4} ± {:.4} | {change} | {:.1} | {:.0} |",
            row.kv,
            row.bits_per_value,
            m.kv_bytes as f64 / f64::from(1 << 20),
            m.perplexity,
            m.standard_error,
            m.seconds,
            row.tokens_per_second
        );
    }
    say!("\n{}", caption(rows));
}

/// What the figures were measured on.
fn caption(rows: &[Row]) -> String {
    let Some(Row { kv, measured, .. }) = rows.first() else { return String::new() };
    let what = format!(
        "{} predictions in {} chunks of {} tokens",
        measured.scored, measured.chunks_done, measured.context
    );
    if rows.len() > 1 {
        format!("{what}; ± is one standard error, for changes that of the difference to {kv}")
    } else {
        what
    }
}

/// The rows as they are drawn: a bar is the error of the difference to the first.
fn points(rows: &[Row]) -> Vec<Point<'_>> {
    rows.iter()
        .map(|row| {
            let y = row.measured.perplexity;
            let error = row.change.map_or(0.0, |change| change.standard_error / 100.0 * y);
            Point { label: &row.kv, x: row.bits_per_value, y, error }
        })
        .collect()
}
