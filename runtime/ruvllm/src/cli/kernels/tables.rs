//! What the commands print for people. Text that a pack or a server chose is escaped.

use crate::cli::terminal::escape_json;
use crate::cli::{Failure, setup};
use ruvllm::host::{Explanation, KernelSummary, PackId};
use ruvllm::signing::{Timestamp, escape_untrusted};
use serde::Serialize;

/// One line.
pub(crate) fn say(line: &str) {
    put(&escape_untrusted(line));
}

/// An answer as JSON.
pub(crate) fn json(answer: &impl Serialize) -> Result<(), Failure> {
    put(&escape_json(&serde_json::to_string_pretty(answer)?));
    Ok(())
}

/// Lines. A reader who went away wants no more of them, which is no failure.
fn put(lines: &str) {
    let _ = setup::emit(&format!("{lines}\n"));
}

/// Rows under a head, in columns as wide as they have to be.
pub(crate) fn table<const N: usize>(head: [&str; N], rows: impl IntoIterator<Item = [String; N]>) {
    let mut lines = vec![head.map(str::to_owned)];
    lines.extend(rows.into_iter().map(|row| row.map(|cell| escape_untrusted(&cell))));
    let width = |i: usize| lines.iter().map(|line| line[i].chars().count()).max().unwrap_or(0);
    let widths: [usize; N] = std::array::from_fn(width);
    for line in &lines {
        let cells = line.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}"));
        put(cells.collect::<Vec<_>>().join("  ").trim_end());
    }
}

pub(crate) fn kernels(kernels: &[KernelSummary]) {
    let row = |kernel: &KernelSummary| {
        let state = match (kernel.quarantined, kernel.selected) {
            (true, _) => "quarantined",
            (false, true) => "selected",
            (false, false) => "fallback",
        };
        let pack = format!("{} {}", kernel.pack, kernel.pack_version);
        [kernel.op.to_string(), kernel.id.clone(), pack, state.to_owned()]
    };
    table(["op", "kernel", "pack", "state"], kernels.iter().map(row));
}

pub(crate) fn explanations(explanations: &[Explanation]) {
    for explanation in explanations {
        explanation.to_string().lines().for_each(say);
        say("");
    }
}

/// Names and versions.
pub(crate) fn packs(packs: &[PackId]) -> String {
    match packs {
        [] => "no packs".to_owned(),
        packs => packs.iter().map(pack).collect::<Vec<_>>().join(", "),
    }
}

/// Name and version.
pub(crate) fn pack(pack: &PackId) -> String {
    format!("{} {}", pack.name, pack.version)
}

/// A time in milliseconds since 1970, to the second, in UTC.
pub(crate) fn time(millis: u64) -> String {
    let seconds = i64::try_from(millis / 1000).ok();
    seconds.and_then(Timestamp::from_unix).map(|time| time.to_string()).unwrap_or_default()
}
