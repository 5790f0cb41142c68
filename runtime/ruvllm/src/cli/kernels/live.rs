//! Asking a live server, and changing its kernels.

use super::args::Live;
use super::client::Client;
use super::tables::{self, pack, packs, say, table};
use crate::cli::terminal::note;
use crate::cli::{Failure, setup};
use ruvllm::host::{
    Explanation, GenerationReport, GenerationState, HealthCounts, IgnoredLatency, InstallReport,
    KernelSummary, PackId, StageReport,
};
use ruvllm::signing::{PackLimits, UnverifiedPack, escape_untrusted};
use ruvllm_manifest::{MANIFEST_FILE, Manifest};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

/// What is printed of the answer to `GET kernels`.
#[derive(Deserialize)]
struct Report {
    generation: u64,
    generations: Vec<GenerationReport>,
    staged: Vec<StageReport>,
    health: Vec<Window>,
    barred: Vec<Barred>,
    kernels: Vec<KernelSummary>,
}

/// Packs that are being watched.
#[derive(Deserialize)]
pub(super) struct Window {
    pub(super) generation: u64,
    pub(super) packs: Vec<PackId>,
    pub(super) canary: bool,
    /// What the window says of them; more than is printed.
    health: Value,
    pub(super) vitals: HealthCounts,
    latency_ratio: f64,
    loss_margin: f64,
    excused: Vec<IgnoredLatency>,
}

#[derive(Deserialize)]
struct Barred {
    digest: String,
    reason: String,
}

#[derive(Deserialize)]
struct History {
    entries: Vec<Entry>,
}

/// Something that was done, as far as it is printed.
#[derive(Deserialize)]
pub(super) struct Entry {
    pub(super) number: u64,
    time: u64,
    event: String,
    operator: String,
    pack: Option<PackId>,
    generation: Option<u64>,
    reason: String,
}

/// The answer where a generation alone is said.
#[derive(Deserialize)]
struct Numbered {
    generation: u64,
}

pub(super) fn list(client: &Client, json: bool) -> Result<(), Failure> {
    show(client, json, client.get("kernels", &[])?, |report: Report| {
        say(&format!("generation {} is active", report.generation));
        say("");
        table(["generation", "state", "packs"], report.generations.iter().map(generation_row));
        if !report.staged.is_empty() {
            say("");
            let row = |staged: &StageReport| {
                [staged.id.to_string(), pack(&staged.pack), staged.pack.digest.clone()]
            };
            table(["staged", "pack", "digest"], report.staged.iter().map(row));
        }
        if !report.health.is_empty() {
            say("");
            report.health.iter().for_each(|window| say(&window.status()));
        }
        if !report.barred.is_empty() {
            say("");
            let row = |barred: &Barred| [barred.digest.clone(), barred.reason.clone()];
            table(["barred", "because"], report.barred.iter().map(row));
        }
        say("");
        tables::kernels(&report.kernels);
    })
}

pub(super) fn explain(client: &Client, op: &str, json: bool) -> Result<(), Failure> {
    let answer = client.get("kernels/explain", &[("op", op)])?;
    show(client, json, answer, |answer: Vec<Explanation>| tables::explanations(&answer))
}

pub(super) fn stage(live: &Live, path: &Path) -> Result<(), Failure> {
    let mut archive = Vec::new();
    let read = UnverifiedPack::read(path, &PackLimits::with_graphs())?;
    if let Some(Ok(manifest)) = read.file(MANIFEST_FILE).map(Manifest::parse)
        && manifest.kernels.is_empty()
    {
        let graphs: Vec<&str> = manifest.graphs.iter().map(|graph| graph.id.as_str()).collect();
        let what = setup::use_of_graphs(&graphs.join(", "));
        return Err(format!("{} holds no kernels to stage. {what}", manifest.name).into());
    }
    read.write_archive(&mut archive)?;
    let client = Client::of(live)?;
    show(&client, live.json, client.post_archive("packs", &archive)?, |report: StageReport| {
        let StageReport { id, pack: staged, kernels, skipped, cache, rehearsed, changed, .. } =
            &report;
        say(&format!(
            "{} is staged as {id}: {} kernels, {} of them compiled just now, right on {rehearsed} \
             calls of the server's own shapes",
            pack(staged),
            kernels.len(),
            cache.misses
        ));
        let mut left_out: BTreeMap<String, Vec<&str>> = BTreeMap::new();
        for (kernel, reasons) in skipped {
            left_out.entry(reasons.join("; ")).or_default().push(kernel);
        }
        for (reasons, kernels) in left_out {
            say(&format!("left out there: {} ({reasons})", kernels.join(", ")));
        }
        if let Some(before) = changed {
            warn_of_changed(&staged.name, &staged.version, &staged.digest, before);
        }
        say(&format!("to activate it: ruvllm kernels activate {id}"));
    })
}

/// Whoever compares versions takes the two for one pack.
fn warn_of_changed(pack: &str, version: &str, now: &str, before: &str) {
    let [pack, version] = [pack, version].map(escape_untrusted);
    note!(
        "warning: {pack} {version} has other bytes than the {pack} {version} that was active \
         ({now}, before {before}): whoever changes a pack gives it another version"
    );
}

pub(super) fn activate(live: &Live, id: u64, share: Option<f64>) -> Result<(), Failure> {
    let body = share.map_or_else(|| json!({}), |share| json!({ "share": share }));
    let client = Client::of(live)?;
    let answer = client.post(&format!("packs/{id}/activate"), &body)?;
    show(&client, live.json, answer, |report: InstallReport| {
        let InstallReport { pack, version, digest, generation, replaced, changed, .. } = report;
        if let Some(before) = &changed {
            warn_of_changed(&pack, &version, &digest, before);
        }
        match (share, replaced) {
            (Some(share), _) => {
                let percent = 100.0 * share;
                say(&format!(
                    "{pack} {version} is on trial: {percent} % of the steps run on generation {generation}"
                ));
            }
            (None, Some(old)) => {
                say(&format!(
                    "{pack} {version} is active in place of {old}, as generation {generation}"
                ));
            }
            (None, None) => say(&format!("{pack} {version} is active, as generation {generation}")),
        }
        say("to follow how it does: ruvllm kernels watch");
    })
}

pub(super) fn promote(live: &Live) -> Result<(), Failure> {
    let client = Client::of(live)?;
    show(&client, live.json, client.post("trial/promote", &json!({}))?, |answer: Numbered| {
        say(&format!("generation {} is active", answer.generation));
    })
}

pub(super) fn end_trial(live: &Live) -> Result<(), Failure> {
    let client = Client::of(live)?;
    show(&client, live.json, client.delete("trial")?, |answer: Numbered| {
        say(&format!("the trial of generation {} has ended", answer.generation));
    })
}

pub(super) fn roll_back(live: &Live, generation: Option<u64>) -> Result<(), Failure> {
    let body = generation.map_or_else(|| json!({}), |to| json!({ "to": to }));
    let client = Client::of(live)?;
    show(&client, live.json, client.post("rollback", &body)?, |report: GenerationReport| {
        let GenerationReport { generation, packs: restored, restores, .. } = report;
        let of = restores.map(|old| format!(", with the packs of generation {old}"));
        let of = of.unwrap_or_default();
        say(&format!("generation {generation} is active{of}: {}", packs(&restored)));
    })
}

pub(super) fn discard(live: &Live, id: u64) -> Result<(), Failure> {
    let client = Client::of(live)?;
    let answer = client.delete(&format!("packs/{id}"))?;
    show(&client, live.json, answer, |_: Value| say(&format!("{id} is staged no longer")))
}

pub(super) fn clear(live: &Live, digest: &str) -> Result<(), Failure> {
    let client = Client::of(live)?;
    let answer = client.delete(&format!("barred/{digest}"))?;
    show(&client, live.json, answer, |_: Value| say(&format!("{digest} may be staged again")))
}

pub(super) fn history(live: &Live, limit: usize) -> Result<(), Failure> {
    let client = Client::of(live)?;
    let answer = client.get("history", &[("limit", &limit.to_string())])?;
    show(&client, live.json, answer, |history: History| {
        let head = ["number", "time", "what", "who", "generation", "pack", "why"];
        table(head, history.entries.iter().map(Entry::row));
    })
}

impl Entry {
    fn row(&self) -> [String; 7] {
        [
            self.number.to_string(),
            tables::time(self.time),
            self.what(),
            self.operator.clone(),
            self.generation.map(|number| number.to_string()).unwrap_or_default(),
            self.pack.as_ref().map(pack).unwrap_or_default(),
            // A refusal may give a reason for every rule that is broken.
            self.reason.split_whitespace().collect::<Vec<_>>().join(" "),
        ]
    }

    fn what(&self) -> String {
        self.event.replace('_', " ")
    }

    /// One line, without what is empty.
    pub(super) fn line(&self) -> String {
        let [_, time, what, who, generation, pack, why] = self.row();
        let mut line = format!("{time}  {what}");
        for (before, text) in [("by ", who), ("generation ", generation), ("", pack), ("", why)] {
            if !text.is_empty() {
                line += &format!(", {before}{text}");
            }
        }
        line
    }
}

impl Window {
    /// What is left of it, where it goes on.
    fn left(&self) -> Option<Duration> {
        serde_json::from_value(self.health["watching"]["left"].clone()).ok()
    }

    /// One line: which generation, what is left, and how it does.
    pub(super) fn status(&self) -> String {
        let trial = if self.canary { " on trial" } else { "" };
        let left = match self.left() {
            Some(left) => format!(", {:.0} s left", left.as_secs_f64()),
            None => ", not proven and watched on".to_owned(),
        };
        let HealthCounts {
            traps,
            deadlines,
            wrong_numbers,
            quarantines,
            latencies,
            losses,
            lacking,
            // One that is slower is taken back at once.
            slower: _,
        } = &self.vitals;
        let slowest = latencies
            .iter()
            .filter(|latency| latency.old_nanos > 0.0)
            .map(|latency| (latency.new_nanos / latency.old_nanos, latency))
            .max_by(|a, b| a.0.total_cmp(&b.0));
        let slowest = slowest.map(|(ratio, latency)| {
            let excused = self.excused.iter().find(|excused| excused.op == latency.op);
            let excused =
                excused.map(|excused| format!(": {}", excused.reason)).unwrap_or_default();
            let limit = self.latency_ratio;
            format!(
                "; at worst {ratio:.2} times as long ({}, {} calls; limit {limit}{excused})",
                latency.op, latency.calls
            )
        });
        let lacking = match lacking.as_slice() {
            [] => String::new(),
            lacking => format!("; still to be seen: {}", lacking.join("; ")),
        };
        let loss = losses.map(|l| {
            format!("; loss {:.4}, before {:.4} (limit +{})", l.new, l.old, self.loss_margin)
        });
        format!(
            "watching generation {}{trial} ({}){}: {traps} traps, {deadlines} deadlines, \
             {wrong_numbers} wrong numbers, {quarantines} quarantines{}{}{lacking}",
            self.generation,
            packs(&self.packs),
            left,
            slowest.unwrap_or_default(),
            loss.unwrap_or_default()
        )
    }
}

fn generation_row(report: &GenerationReport) -> [String; 3] {
    let state = match report.state {
        GenerationState::Active => "active".to_owned(),
        GenerationState::Canary { share } => format!("trial, {} %", 100.0 * share),
        GenerationState::Draining => format!("draining, {} steps", report.holders),
        GenerationState::Drained => "kept".to_owned(),
    };
    [report.generation.to_string(), state, packs(&report.packs)]
}

/// Prints an answer, as it came or for people.
fn show<T: DeserializeOwned>(
    client: &Client,
    json: bool,
    answer: Value,
    print: impl FnOnce(T),
) -> Result<(), Failure> {
    if json {
        return tables::json(&answer);
    }
    print(client.read(answer)?);
    Ok(())
}
