//! `diff`: what changes for somebody who takes one pack for another.
//!
//! Both packs are data here and nothing is verified: what is compared is what the manifests claim
//! and what the modules are.

use std::fmt;
use std::path::Path;

use indexmap::IndexMap;
use ruvllm_manifest::{
    GraphEntry, KernelEntry, MANIFEST_FILE, Manifest, SIGNATURE_FILE, Sha256Hex, Tolerance,
};
use ruvllm_signing::{Envelope, UnverifiedPack, escape_untrusted};
use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::inspect::signature;
use crate::{ModuleFacts, Report, ToolError, trial};

/// The differences between two packs.
#[derive(Clone, Debug, Serialize)]
pub struct DiffReport {
    /// Name and version of the first.
    pub from: String,
    /// Name and version of the second.
    pub to: String,
    /// What differs, in the order of the manifest.
    pub changes: Vec<Change>,
    /// Whether differences make the command fail, as `--exit-code` asks for.
    #[serde(skip)]
    pub fails: bool,
}

/// One difference.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Change {
    /// Of what, such as `version` or `rmsnorm_f32: hash`.
    pub what: String,
    /// In the first pack; absent where it has no such thing.
    pub from: Option<String>,
    /// In the second pack.
    pub to: Option<String>,
}

impl Report for DiffReport {
    fn passed(&self) -> bool {
        !self.fails || self.changes.is_empty()
    }
}

impl fmt::Display for DiffReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let safe = escape_untrusted;
        writeln!(f, "from {} to {}", safe(&self.from), safe(&self.to))?;
        for Change { what, from, to } in &self.changes {
            let what = safe(what);
            match (from, to) {
                (Some(from), Some(to)) => {
                    writeln!(f, "  {what}\n    - {}\n    + {}", safe(from), safe(to))?;
                }
                (Some(from), None) => writeln!(f, "- {what}: {}", safe(from))?,
                (None, Some(to)) => writeln!(f, "+ {what}: {}", safe(to))?,
                (None, None) => {}
            }
        }
        if self.changes.is_empty() {
            writeln!(f, "no difference")?;
        }
        Ok(())
    }
}

/// Compares two packs.
///
/// # Errors
/// [`ToolError::Pack`] and [`ToolError::Manifest`] where one of them cannot be read.
pub fn diff(from: &Path, to: &Path, exit_code: bool) -> Result<DiffReport, ToolError> {
    let (from, to) = (Side::read(from)?, Side::read(to)?);
    let mut changes = compare("", &from.facts, &to.facts);
    for (kind, from, to) in
        [("kernel", &from.kernels, &to.kernels), ("graph", &from.graphs, &to.graphs)]
    {
        let new = to.keys().filter(|id| !from.contains_key(*id));
        for id in from.keys().chain(new) {
            match (from.get(id), to.get(id)) {
                (Some(old), Some(new)) => changes.extend(compare(&format!("{id}: "), old, new)),
                (old, new) => {
                    let what = format!("{kind} {id}");
                    let shown = |facts: &Facts| facts.get("signature").cloned().unwrap_or_default();
                    changes.push(Change { what, from: old.map(shown), to: new.map(shown) });
                }
            }
        }
    }
    Ok(DiffReport { from: from.title, to: to.title, changes, fails: exit_code })
}

/// What there is to say, by the name of it.
type Facts = IndexMap<&'static str, String>;

struct Side {
    title: String,
    facts: Facts,
    kernels: IndexMap<String, Facts>,
    graphs: IndexMap<String, Facts>,
}

impl Side {
    fn read(path: &Path) -> Result<Side, ToolError> {
        let pack = trial::read(path)?;
        let bytes = pack.file(MANIFEST_FILE).unwrap_or_default();
        let manifest = Manifest::parse(bytes)?;
        let kernels =
            manifest.kernels.iter().map(|entry| (entry.id.clone(), kernel_facts(&pack, entry)));
        Ok(Side {
            title: format!("{} {}", manifest.name, manifest.version),
            kernels: kernels.collect(),
            graphs: manifest
                .graphs
                .iter()
                .map(|graph| (graph.id.clone(), graph_facts(graph)))
                .collect(),
            facts: pack_facts(&pack, &manifest, bytes),
        })
    }
}

fn pack_facts(pack: &UnverifiedPack, manifest: &Manifest, bytes: &[u8]) -> Facts {
    let signers = match pack.file(SIGNATURE_FILE).map(Envelope::parse) {
        Some(Ok(envelope)) => {
            let ids: Vec<_> = envelope.signatures().iter().map(|(id, _)| id.to_string()).collect();
            ids.join(", ")
        }
        Some(Err(error)) => error.to_string(),
        None => "none".to_owned(),
    };
    let until = manifest.max_runtime_version.as_ref();
    let email = manifest.author.email.as_deref().unwrap_or_default();
    let size: u64 = manifest.kernels.iter().map(|kernel| kernel.size).sum();
    let fallbacks: Vec<String> =
        manifest.fallbacks.iter().map(|(from, to)| format!("{from} -> {to}")).collect();
    Facts::from([
        ("name", manifest.name.to_string()),
        ("version", manifest.version.to_string()),
        ("description", manifest.description.clone()),
        ("author", format!("{} {email}", manifest.author.name).trim_end().to_owned()),
        ("signing key", manifest.author.signing_key.clone()),
        ("signatures", signers),
        ("digest", Sha256Hex::from_bytes(Sha256::digest(bytes).into()).to_string()),
        ("created", manifest.created_at.to_string()),
        ("ABI", manifest.abi_version.to_string()),
        (
            "runtime",
            match until {
                Some(until) => format!(">= {}, < {until}", manifest.min_runtime_version),
                None => format!(">= {}", manifest.min_runtime_version),
            },
        ),
        ("bytes of all modules", size.to_string()),
        ("fallbacks", fallbacks.join(", ")),
    ])
}

fn kernel_facts(pack: &UnverifiedPack, entry: &KernelEntry) -> Facts {
    let limits = entry.resource_limits;
    let mut facts = Facts::from([
        ("name", entry.name.clone()),
        ("op", entry.op.clone()),
        ("signature", signature(entry)),
        ("gradients", if entry.backward { "yes" } else { "no" }.to_owned()),
        ("path", entry.path.to_string()),
        ("size", entry.size.to_string()),
        ("hash", entry.hash.to_string()),
        ("memory pages", limits.max_memory_pages.to_string()),
        ("epoch ticks", limits.max_epoch_ticks.to_string()),
        ("table elements", limits.max_table_elements.to_string()),
        ("defaults", defaults(entry)),
    ]);
    if let Some(platform) = &entry.platforms.wasmtime {
        facts.insert("wasmtime", format!(">= {}", platform.min_version));
        facts.insert("features", platform.features.join(", "));
    }
    if let Some(platform) = &entry.platforms.wamr {
        let how = if platform.aot_available { "" } else { ", interpreted only" };
        facts.insert("wamr", format!(">= {}{how}", platform.min_version));
    }
    if let Some(tolerance) = entry.tolerance {
        facts.insert("tolerance", format!("rel {:e}, abs {:e}", tolerance.rel, tolerance.abs));
    }
    for (shape, figure) in &entry.benchmarks {
        let all = facts.entry("benchmarks").or_default();
        if !all.is_empty() {
            all.push_str(", ");
        }
        all.push_str(&format!("{shape} {} us", figure.latency_us));
    }
    let module = pack.file(entry.path.as_str()).map(ModuleFacts::read);
    if let Some(Ok(module)) = module {
        facts.insert("imports", module.imports.join(", "));
        facts.insert("exports", module.exports.join(", "));
        facts.insert("trap sites", module.trap_sites.to_string());
    }
    facts
}

fn graph_facts(entry: &GraphEntry) -> Facts {
    let limits = entry.resource_limits;
    let Tolerance { rel, abs } = entry.tolerance;
    let mut facts = Facts::from([
        ("name", entry.name.clone()),
        ("format", entry.format.to_string()),
        ("signature", entry.signature()),
        ("path", entry.path.to_string()),
        ("size", entry.size.to_string()),
        ("hash", entry.hash.to_string()),
        ("memory bytes", limits.max_memory_bytes.to_string()),
        ("milliseconds", limits.max_millis.to_string()),
        ("tolerance", format!("rel {rel:e}, abs {abs:e}")),
        ("checks", entry.checks.len().to_string()),
    ]);
    if let Some(embedding) = &entry.embedding {
        let unit = if embedding.normalize { ", unit length" } else { "" };
        let (pooling, tokens) = (embedding.pooling, embedding.max_tokens);
        facts.insert("texts", format!("pooling {pooling}, up to {tokens} tokens{unit}"));
        facts.insert("tokenizer", embedding.tokenizer.hash.to_string());
    }
    facts
}

fn defaults(entry: &KernelEntry) -> String {
    use ruvllm_manifest::ParamValue::{F32, I32, U32};
    let defaults = entry.params.iter().filter_map(|(name, spec)| {
        Some(match spec.default? {
            F32(x) => format!("{name} = {x}"),
            U32(x) => format!("{name} = {x}"),
            I32(x) => format!("{name} = {x}"),
        })
    });
    defaults.collect::<Vec<_>>().join(", ")
}

fn compare(prefix: &str, from: &Facts, to: &Facts) -> Vec<Change> {
    let names = from.keys().chain(to.keys().filter(|name| !from.contains_key(*name)));
    let differs = names.filter(|name| from.get(*name) != to.get(*name));
    let change = |name: &&'static str| Change {
        what: format!("{prefix}{name}"),
        from: from.get(*name).cloned(),
        to: to.get(*name).cloned(),
    };
    differs.map(change).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_that_differ_come_and_go_are_changes_and_others_are_not() {
        let from = Facts::from([("same", "1".into()), ("other", "1".into()), ("gone", "1".into())]);
        let to = Facts::from([("same", "1".into()), ("other", "2".into()), ("new", "1".into())]);
        let changes = compare("k: ", &from, &to);
        let what: Vec<_> = changes.iter().map(|c| c.what.as_str()).collect();
        assert_eq!(what, ["k: other", "k: gone", "k: new"]);
        assert_eq!(changes[0].from.as_deref(), Some("1"));
        assert_eq!((&changes[1].to, &changes[2].from), (&None, &None));
    }
}
