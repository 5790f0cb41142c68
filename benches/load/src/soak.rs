//! A mixed load for a long time, and whether what the server's process holds stays the same.

use crate::client::Client;
use crate::load::during;
use crate::report::{Report, Row};
use crate::stats::Trend;
use crate::{Failure, Load};
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

/// How often the process is looked at.
const EVERY: Duration = Duration::from_millis(500);

/// The part of the time that nothing is concluded from: caches fill.
const WARM_UP: f64 = 0.3;

/// Different prompts; a bounded number, so that what is kept for each is bounded too.
const PROMPTS: u64 = 64;

/// A process, as `/proc` shows it.
struct Process(PathBuf);

/// What is looked at, and its unit.
const KINDS: [(&str, &str); 3] = [("memory", "MiB"), ("handles", ""), ("threads", "")];

impl Process {
    /// Resident memory in MiB, open handles, threads.
    fn look(&self) -> Result<[f64; 3], Failure> {
        let status = std::fs::read_to_string(self.0.join("status"))?;
        let field = |name: &str| {
            let value = status.lines().find_map(|line| line.strip_prefix(name));
            let value =
                value.and_then(|value| value.split_whitespace().next()?.parse::<f64>().ok());
            value.ok_or_else(|| format!("{} has no {name}", self.0.display()))
        };
        let handles = std::fs::read_dir(self.0.join("fd"))?.count();
        Ok([field("VmRSS:")? / 1024.0, handles as f64, field("Threads:")?])
    }
}

/// Loads the server for some minutes: texts short and long, prompts that are known and new, clients
/// that leave in the middle.
///
/// # Errors
/// Where the process cannot be looked at, from this machine and by this user.
pub(crate) fn run(load: &Load, client: &Client, minutes: f64, pid: u32) -> Result<Report, Failure> {
    let prompts = load.prompts()?;
    let tokens = load.pace.tokens;
    let ask = |client: &Client, n: u64| {
        let tokens = tokens >> (n % 3);
        let patience = if n % 5 == 4 { 3 } else { usize::MAX };
        client.complete(&prompts.number(n * 7 % PROMPTS), tokens.max(1), patience)
    };
    let process = Process(format!("/proc/{pid}").into());
    let time = Duration::from_secs_f64(minutes * 60.0);
    let watch = || {
        let start = Instant::now();
        let mut seen = Vec::new();
        while start.elapsed() < time {
            thread::sleep(EVERY);
            if start.elapsed() > time.mul_f64(WARM_UP) {
                seen.push((start.elapsed().as_secs_f64() / 3600.0, process.look()?));
            }
        }
        Ok::<_, Failure>(seen)
    };
    let (seen, answers) = during(client, load.parallel, &ask, watch);
    let seen = seen?;
    let mut report = Report::default();
    report.rows.push(Row::of("soak", &answers));
    for (i, (name, unit)) in KINDS.into_iter().enumerate() {
        let points: Vec<(f64, f64)> =
            seen.iter().map(|(hours, values)| (*hours, values[i])).collect();
        let Some(trend) = Trend::of(&points) else {
            return Err("the time is too short to tell anything".into());
        };
        let verdict = if trend.is_flat() { "flat" } else { "growing" };
        report.find(format!("{name}, mean"), trend.mean, unit);
        report.find(format!("{name}, {verdict}: slope"), trend.per_hour, &format!("{unit}/hour"));
        report.find(
            format!("{name}: standard error of the slope"),
            trend.error,
            &format!("{unit}/hour"),
        );
    }
    Ok(report)
}
