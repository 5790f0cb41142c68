//! Which executor runs a kernel, and why: decided for each kernel by the device class, by what this program was
//! built with, and by the platforms that the manifest names.

use super::is_platform;
use crate::DeviceClass;
use ruvllm_manifest::{Compatibility, ExecutorKind, Violation};

/// The executor that runs a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Decision {
    pub(crate) executor: ExecutorKind,
    /// A sentence for who asks why.
    pub(crate) reason: String,
}

/// Decides for the `kernel`-th kernel of a pack, which was compared with each executor of this build: the first
/// in the order of the class that it was made for, with what else stands against the kernel there. Where there is
/// none, what stands against the first.
pub(super) fn decide(
    class: DeviceClass,
    built: &[(ExecutorKind, Compatibility)],
    kernel: usize,
) -> (Decision, &[Violation]) {
    let found = |kind: ExecutorKind| {
        let (_, compatibility) = built.iter().find(|(built, _)| *built == kind)?;
        compatibility.kernels.get(kernel).map(Vec::as_slice)
    };
    let suits = |violations: &[Violation]| !violations.iter().any(|v| is_platform(v.code));
    let mut passed_over = Vec::new();
    let mut first = None;
    for &executor in class.executors() {
        match found(executor) {
            None => passed_over.push(format!("{executor} is not in this build")),
            Some(violations) if suits(violations) => {
                let mut reason = format!("runs on {executor}");
                match passed_over.is_empty() {
                    true => reason += &format!(", which the device class {class} prefers"),
                    false => {
                        let why = passed_over.join(", ");
                        reason +=
                            &format!(": the device class {class} has others before it, but {why}");
                    }
                }
                return (Decision { executor, reason }, violations);
            }
            Some(violations) => {
                let why = violations.iter().find(|v| is_platform(v.code));
                let why = why.map_or("", |violation| &violation.message);
                passed_over.push(format!("{executor} is out: {why}"));
                first.get_or_insert((executor, violations));
            }
        }
    }
    let (executor, violations) = first.unwrap_or((ExecutorKind::Wasmtime, &[]));
    (Decision { executor, reason: passed_over.join("; ") }, violations)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn built(kinds: &[(ExecutorKind, &[&'static str])]) -> Vec<(ExecutorKind, Compatibility)> {
        let compatibility = |codes: &[&'static str]| Compatibility {
            pack: Vec::new(),
            kernels: vec![codes.iter().map(|code| Violation::new(code, "", "no")).collect()],
        };
        kinds.iter().map(|(kind, codes)| (*kind, compatibility(codes))).collect()
    }

    #[test]
    fn the_first_executor_of_the_class_that_is_built_in_and_that_the_manifest_names_runs_a_kernel()
    {
        use DeviceClass::{Embedded, Server};
        use ExecutorKind::{Wamr, Wasmtime};
        let unsupported: &[&'static str] = &["executor_unsupported"];
        let over: &[&'static str] = &["limit_over_cap"];
        for (class, executors, expected, reason) in [
            (Server, &[(Wasmtime, &[][..])][..], Wasmtime, "which the device class server prefers"),
            (Embedded, &[(Wasmtime, &[][..])], Wasmtime, "but wamr is not in this build"),
            (Embedded, &[(Wasmtime, &[][..]), (Wamr, &[][..])], Wamr, "class embedded prefers"),
            (Embedded, &[(Wasmtime, &[][..]), (Wamr, unsupported)], Wasmtime, "wamr is out: no"),
            (Server, &[(Wasmtime, unsupported), (Wamr, &[][..])], Wamr, "wasmtime is out: no"),
            // What is wrong whatever runs it is no reason to try another.
            (Server, &[(Wasmtime, over), (Wamr, &[][..])], Wasmtime, "prefers"),
        ] {
            let built = built(executors);
            let (decision, _) = decide(class, &built, 0);
            assert_eq!(decision.executor, expected, "{}", decision.reason);
            assert!(decision.reason.contains(reason), "{}", decision.reason);
        }
        let neither = built(&[(Wasmtime, unsupported)]);
        let (_, violations) = decide(Server, &neither, 0);
        assert_eq!(violations[0].code, "executor_unsupported");
    }
}
