//! A disk that is full for a while, and what works again afterwards.
//!
//! No file may grow beyond a limit that the system keeps (`RLIMIT_FSIZE`), which makes writes fail where they
//! would on a full disk. The limit is of a process, so this is done in one of its own: this test binary, run
//! again by a shell that lets it ignore the signal which comes with the error.

use super::supervising::{Place, activate, active, events};
use super::*;
use crate::HistoryEvent;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::process::{Command, Stdio};

/// Lets files have so many bytes; any number where there is none.
fn limit(bytes: Option<u64>) {
    let hard = getrlimit(Resource::Fsize).maximum;
    setrlimit(Resource::Fsize, Rlimit { current: bytes.or(hard), maximum: hard }).unwrap();
}

#[test]
#[ignore = "run by the test of a full disk"]
fn with_a_full_disk() {
    let place = Place::new();
    let pack = place.pack(1, &Module::default());
    let supervisor = place.open(&pack);
    let staged = |operator: &str| supervisor.stage(pack.read().unwrap(), operator);
    // The history is then the largest file, and a limit of its size keeps it alone from growing.
    let first = staged(&"x".repeat(1 << 20)).unwrap();
    assert!(supervisor.discard(first.id, "").unwrap());
    let history = std::fs::metadata(place.dir().join("state/history")).unwrap().len();
    for (bytes, code) in [(history, "history_io"), (0, "io")] {
        limit(Some(bytes));
        // More often than packs may be staged.
        for _ in 0..20 {
            assert_eq!(staged("me").unwrap_err().code(), code);
        }
        assert!(supervisor.host().staged().is_empty());
        limit(None);
        let again = staged("me").unwrap();
        assert!(supervisor.discard(again.id, "me").unwrap());
    }
    activate(&supervisor, &pack).unwrap();
    drop(supervisor);
    let supervisor = place.open(&pack);
    let ended = [HistoryEvent::Staged, HistoryEvent::Activating, HistoryEvent::Activated];
    let seen = events(&supervisor);
    assert!(seen.windows(3).any(|events| *events == ended), "{seen:?}");
    // It was not found healthy, and nothing was before it.
    assert!(active(&supervisor).is_empty());
}

#[test]
fn staging_works_again_once_there_is_room_on_the_disk() {
    let ignoring = "trap '' XFSZ; exec \"$0\" --exact tests::full_disk::with_a_full_disk --ignored";
    let mut run = Command::new("sh");
    run.args(["-c", ignoring]).arg(std::env::current_exe().unwrap()).stdin(Stdio::null());
    let run = run.output().unwrap();
    let said = String::from_utf8_lossy(&run.stdout);
    assert!(run.status.success() && said.contains("1 passed"), "{said}");
}
