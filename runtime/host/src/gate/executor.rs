//! Which executor runs a kernel, and why: decided for each kernel by the configuration, by what this host has, and
//! by the platforms that the manifest names.

use crate::HostConfig;
use ruvllm_manifest::{Compatibility, ExecutorKind, Violation};

/// The executor that runs a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Decision {
    pub(crate) executor: ExecutorKind,
    /// A sentence for who asks why.
    pub(crate) reason: String,
}

/// Decides for the `kernel`-th kernel of a pack, which was compared with each executor that is there; of one that
/// is not, it is said why. Gives the first in the order of the configuration that the kernel was made for, with
/// what else stands against the kernel there. Where there is none, what stands against the first.
pub(super) fn decide<'a>(
    config: &HostConfig,
    offered: &'a [(ExecutorKind, Result<Compatibility, String>)],
    kernel: usize,
) -> (Decision, &'a [Violation]) {
    let suits = |violations: &[Violation]| !violations.iter().any(|v| is_platform(v.code));
    let class = config.device_class;
    let mut passed_over = Vec::new();
    let mut first = None;
    for &executor in config.executors() {
        let found = offered.iter().find(|(offered, _)| *offered == executor);
        let violations = match found {
            None => continue,
            Some((_, Err(why))) => {
                passed_over.push(format!("{executor} {why}"));
                continue;
            }
            Some((_, Ok(compatibility))) => {
                compatibility.kernels.get(kernel).map_or(&[][..], Vec::as_slice)
            }
        };
        if suits(violations) {
            let reason = match (config.executor.is_some(), passed_over.join(", ")) {
                (true, _) => format!("runs on {executor}, which the configuration names"),
                (false, why) if why.is_empty() => {
                    format!("runs on {executor}, which the device class {class} prefers")
                }
                (false, why) => format!(
                    "runs on {executor}: the device class {class} has others before it, but {why}"
                ),
            };
            return (Decision { executor, reason }, violations);
        }
        let why = violations.iter().find(|v| is_platform(v.code));
        let why = why.map_or("", |violation| &violation.message);
        passed_over.push(format!("{executor} is out: {why}"));
        first.get_or_insert((executor, violations));
    }
    let (executor, violations) = first.unwrap_or((ExecutorKind::Wasmtime, &[]));
    (Decision { executor, reason: passed_over.join("; ") }, violations)
}

/// Whether a violation means another platform rather than something wrong.
pub(super) fn is_platform(code: &str) -> bool {
    matches!(
        code,
        "executor_unsupported"
            | "executor_too_old"
            | "feature_unsupported"
            | "aot_unavailable"
            | "threads_unsupported"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DeviceClass;

    /// What is offered: each executor with the codes of what stands against a kernel there, or that it is absent.
    fn offered(
        kinds: &[(ExecutorKind, Option<&'static str>, bool)],
    ) -> Vec<(ExecutorKind, Result<Compatibility, String>)> {
        let compatibility = |code: Option<&'static str>| Compatibility {
            pack: Vec::new(),
            kernels: vec![code.iter().map(|code| Violation::new(code, "", "no")).collect()],
        };
        let offer = |&(kind, code, is_there): &(ExecutorKind, Option<&'static str>, bool)| {
            (kind, if is_there { Ok(compatibility(code)) } else { Err("is absent".to_owned()) })
        };
        kinds.iter().map(offer).collect()
    }

    #[test]
    fn the_first_executor_of_the_class_that_is_there_and_that_the_manifest_names_runs_a_kernel() {
        use DeviceClass::{Embedded, Server};
        use ExecutorKind::{Wamr, Wasmtime};
        let [out, over] = [Some("executor_unsupported"), Some("limit_over_cap")];
        for (class, wasmtime, wamr, expected, reason) in [
            (
                Server,
                (None, true),
                (None, false),
                Wasmtime,
                "which the device class server prefers",
            ),
            (Embedded, (None, true), (None, false), Wasmtime, "before it, but wamr is absent"),
            (Embedded, (None, true), (None, true), Wamr, "which the device class embedded prefers"),
            (Embedded, (None, true), (out, true), Wasmtime, "but wamr is out: no"),
            (Server, (out, true), (None, true), Wamr, "but wasmtime is out: no"),
            // What is wrong whatever runs it is no reason to try another.
            (Server, (over, true), (None, true), Wasmtime, "prefers"),
        ] {
            let offered = offered(&[(Wasmtime, wasmtime.0, wasmtime.1), (Wamr, wamr.0, wamr.1)]);
            let (decision, _) = decide(&class.config(), &offered, 0);
            assert_eq!(decision.executor, expected, "{}", decision.reason);
            assert!(decision.reason.contains(reason), "{}", decision.reason);
        }
        let named = HostConfig { executor: Some(Wamr), ..Server.config() };
        let (decision, _) = decide(&named, &offered(&[(Wamr, None, true)]), 0);
        assert_eq!(decision.reason, "runs on wamr, which the configuration names");
        let neither = offered(&[(Wasmtime, out, true), (Wamr, None, false)]);
        let (_, violations) = decide(&Server.config(), &neither, 0);
        assert_eq!(violations[0].code, "executor_unsupported");
    }
}
