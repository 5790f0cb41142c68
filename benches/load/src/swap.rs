//! Packs that are staged and activated while streams run, and what the streams notice.
//!
//! A step that runs while an activation is published ends on the old generation, and the next is the
//! first on the new one, which has to make instances of its kernels. So of each stream the time
//! between tokens during which the activation was asked for crosses it, and so does the one after.
//! Times during which a prompt was computed for somebody, or a pack was staged, count for neither side.

use crate::client::{Answer, Client};
use crate::load::during;
use crate::report::{Report, Row};
use crate::stats::Percentiles;
use crate::{Failure, Load, read_key};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

/// Which packs, and how often.
#[derive(clap::Args)]
pub(crate) struct Swap {
    /// Archives of packs that the server trusts (`ruvllm-pack archive`), activated in turn.
    #[arg(required = true, num_args = 2..)]
    packs: Vec<PathBuf>,
    /// The server's admin listener; plain HTTP.
    #[arg(long, default_value = "http://127.0.0.1:8081")]
    admin_url: String,
    /// A file with the admin key.
    #[arg(long, value_name = "FILE")]
    admin_key_file: PathBuf,
    /// How many activations.
    #[arg(long, default_value_t = 20)]
    activations: usize,
    /// How often, after those, to go back to the generation before: activations without a staging.
    #[arg(long, value_name = "N", default_value_t = 0)]
    roll_backs: usize,
    /// Milliseconds before and after each.
    #[arg(long, value_name = "MS", default_value_t = 1000)]
    pause: u64,
}

/// From when to when.
type Span = (Instant, Instant);

/// What was done, and when.
#[derive(Default)]
struct Done {
    staging: Vec<Span>,
    activating: Vec<Span>,
    pauses: Vec<Span>,
}

/// Stages and activates packs in turn while streams run.
///
/// # Errors
/// Where a pack cannot be read, staged or activated.
pub(crate) fn run(load: &Load, client: &Client, swap: &Swap) -> Result<Report, Failure> {
    let read = |path: &PathBuf| std::fs::read(path).map_err(|e| format!("{}: {e}", path.display()));
    let packs: Vec<Vec<u8>> = swap.packs.iter().map(read).collect::<Result<_, _>>()?;
    let admin = Client::new(&swap.admin_url, Some(read_key(Path::new(&swap.admin_key_file))?))?;
    let prompts = load.prompts()?;
    let ask = |client: &Client, n: u64| {
        client.complete(&prompts.number(n % load.parallel as u64), load.pace.tokens, usize::MAX)
    };
    let (done, answers) = during(client, load.parallel, &ask, || alternate(&admin, &packs, swap));
    Ok(report(&done?, &answers))
}

/// Does all of it.
fn alternate(admin: &Client, packs: &[Vec<u8>], swap: &Swap) -> Result<Done, Failure> {
    let mut done = Done::default();
    let mut newest = 0;
    for pack in packs.iter().cycle().take(swap.activations) {
        let pause = || timed(|| thread::sleep(Duration::from_millis(swap.pause))).0;
        done.pauses.push(pause());
        let staged = || admin.ask("/admin/v1/packs", "application/octet-stream", pack);
        let (span, staged) = timed(staged);
        done.staging.push(span);
        let path = format!("/admin/v1/packs/{}/activate", staged?["id"]);
        done.pauses.push(pause());
        let (span, activated) = timed(|| admin.ask(&path, "application/json", b"{}"));
        done.activating.push(span);
        newest = activated?["generation"].as_u64().unwrap_or_default();
    }
    for _ in 0..swap.roll_backs {
        thread::sleep(Duration::from_millis(swap.pause));
        // It is published under a new number, so the one before it is that which was active till now.
        let body = format!("{{\"to\": {}}}", newest.saturating_sub(1));
        let ask = || admin.ask("/admin/v1/rollback", "application/json", body.as_bytes());
        let (span, published) = timed(ask);
        done.activating.push(span);
        newest = published?["generation"].as_u64().unwrap_or_default();
    }
    thread::sleep(Duration::from_millis(swap.pause));
    Ok(done)
}

fn timed<T>(work: impl FnOnce() -> T) -> (Span, T) {
    let start = Instant::now();
    let value = work();
    ((start, Instant::now()), value)
}

fn report(done: &Done, answers: &[Answer]) -> Report {
    let mut report = Report::default();
    report.rows.push(Row::of(format!("{} activations", done.activating.len()), answers));
    let prompts: Vec<Span> =
        answers.iter().filter_map(|a| Some((a.asked, *a.events.first()?))).collect();
    let (mut crossing, mut others) = (Vec::new(), Vec::new());
    for answer in answers {
        let mut before = false;
        for gap in answer.gaps() {
            let now = meets(gap, &done.activating);
            if !meets(gap, &prompts) && !meets(gap, &done.staging) {
                let side = if now || before { &mut crossing } else { &mut others };
                side.push(gap.1 - gap.0);
            }
            before = now;
        }
    }
    let sides = [crossing, others];
    let [crossing, others] = sides.each_ref().map(|side| Percentiles::of(side.iter().copied()));
    for (name, times) in [("crossing an activation", crossing), ("otherwise", others)] {
        for (part, value) in
            [("p50", times.p50), ("p95", times.p95), ("p99", times.p99), ("most", times.max)]
        {
            report.find(format!("between tokens, {name}, {part}"), value, "ms");
        }
    }
    let extra = (crossing.p50 - others.p50) / others.p50;
    report.find("what an activation adds to a step, at the median", extra, "of a token's time");
    let extra = (crossing.max - others.p50) / others.p50;
    report.find("what an activation adds to a step, at the most", extra, "of a token's time");
    // The machine disturbs steps of both sides; the shares tell whether activations add to that.
    for (name, side) in ["crossing an activation", "otherwise"].into_iter().zip(&sides) {
        let slow = side.iter().filter(|time| time.as_secs_f64() * 1e3 > 2.0 * others.p50).count();
        let what = format!("of {} steps {name}, beyond two tokens' time", side.len());
        report.find(what, 100.0 * slow as f64 / side.len().max(1) as f64, "%");
    }
    let rates = [&done.staging, &done.pauses].map(|spans| rate(answers, spans));
    report.find("while a pack is staged", rates[0], "tokens/s");
    report.find("while none is", rates[1], "tokens/s");
    report.find("what staging costs", 1.0 - rates[0] / rates[1], "of the speed");
    let staging: Duration = done.staging.iter().map(|(start, end)| *end - *start).sum();
    report.find("staging", staging.as_secs_f64() / done.staging.len() as f64, "s each");
    report
}

/// Whether some time overlaps one of others.
fn meets((from, to): Span, spans: &[Span]) -> bool {
    spans.iter().any(|(start, end)| from <= *end && *start <= to)
}

/// Tokens that came in those times, of all streams, in a second.
fn rate(answers: &[Answer], spans: &[Span]) -> f64 {
    let within = |at: &&Instant| spans.iter().any(|(start, end)| (start..end).contains(at));
    let tokens: usize = answers.iter().map(|a| a.events.iter().filter(within).count()).sum();
    let seconds: f64 = spans.iter().map(|(start, end)| (*end - *start).as_secs_f64()).sum();
    tokens as f64 / seconds
}
