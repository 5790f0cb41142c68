//! Packs that are delivered through a directory.

use super::supervising::{Place, activate, active, digest, events};
use super::*;
use crate::{Delivery, HistoryEvent, Supervisor};
use std::fs::{self, File};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// A supervised host, and a directory that it takes packs from.
struct Post {
    place: Place,
    supervisor: Arc<Supervisor>,
    delivery: Delivery,
}

impl Post {
    fn new(share: Option<f64>) -> Self {
        let place = Place::new();
        fs::create_dir(place.dir().join("packs")).unwrap();
        Self::open(place, share)
    }

    fn open(place: Place, share: Option<f64>) -> Self {
        let trusted = place.pack(1, &Module::default());
        let supervisor = Arc::new(place.open(&trusted));
        let delivery = Delivery::new(supervisor.clone(), place.dir().join("packs"), share);
        Self { place, supervisor, delivery }
    }

    /// The process ends and another one begins.
    fn restart(self, share: Option<f64>) -> Self {
        let Self { place, supervisor, delivery } = self;
        drop((supervisor, delivery));
        Self::open(place, share)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.place.dir().join("packs").join(name)
    }

    /// Puts an archive of a pack into the directory.
    fn put(&self, name: &str, pack: &TestPack) {
        let file = File::create(self.path(name)).unwrap();
        pack.read().unwrap().write_archive(file).unwrap();
    }

    fn good(&self, n: u64) -> TestPack {
        self.place.pack(n, &Module::default())
    }

    /// A pack that traps at calls of 100 columns.
    fn trapping(&self, n: u64) -> TestPack {
        self.place.pack(n, &but_for(100, "(unreachable)"))
    }

    /// A call that [`Post::trapping`] traps at, and the supervisor's look at what came of it.
    fn call(&self) {
        let host = self.supervisor.host();
        rmsnorm(&mut host.worker().unwrap(), &host.pin(), 1, 100).unwrap();
        self.supervisor.tick();
    }

    /// Looks until what came to rest is delivered; gives the versions that are active.
    fn look(&mut self) -> Vec<String> {
        for _ in 0..3 {
            self.delivery.look();
        }
        active(&self.supervisor)
    }

    fn count(&self, event: HistoryEvent) -> usize {
        events(&self.supervisor).into_iter().filter(|other| *other == event).count()
    }
}

#[test]
fn a_pack_crate_is_delivered_once_it_is_built_and_by_its_build_alone() {
    let mut post = Post::new(None);
    let named = post.path("my-kernels");
    fs::create_dir(&named).unwrap();
    fs::write(named.join("pack.toml"), "").unwrap();
    fs::write(named.join("any thing"), "").unwrap();
    assert!(post.look().is_empty());
    post.good(1).read().unwrap().write_dir(&named.join("dist")).unwrap();
    post.delivery.look();
    // Whoever works on it does not hold it up.
    fs::write(named.join("any thing"), "else").unwrap();
    post.delivery.look();
    assert_eq!(active(&post.supervisor), ["1.0.0"]);
}

#[test]
fn archives_and_directories_are_activated_when_two_looks_saw_the_same() {
    let mut post = Post::new(None);
    post.put("one.rkp", &post.good(1));
    post.delivery.look();
    assert!(active(&post.supervisor).is_empty(), "somebody may still be copying");
    post.delivery.look();
    assert_eq!(active(&post.supervisor), ["1.0.0"]);
    let entry = &post.supervisor.history(1)[0];
    assert_eq!((entry.event, entry.operator.as_str()), (HistoryEvent::Activated, "directory"));
    post.good(2).read().unwrap().write_dir(&post.path("two")).unwrap();
    assert_eq!(post.look(), ["2.0.0"]);
    let before = events(&post.supervisor);
    fs::remove_dir_all(post.path("two")).unwrap();
    assert_eq!(post.look(), ["2.0.0"], "taking it away changes nothing");
    assert_eq!(events(&post.supervisor), before);
}

#[test]
fn what_is_still_being_copied_is_not_read() {
    let mut post = Post::new(None);
    let pack = post.good(1);
    let mut bytes = Vec::new();
    pack.read().unwrap().write_archive(&mut bytes).unwrap();
    for end in [100, 1000, 2000, bytes.len()] {
        fs::write(post.path("one.rkp"), &bytes[..end]).unwrap();
        post.delivery.look();
    }
    assert_eq!((active(&post.supervisor).len(), post.count(HistoryEvent::Refused)), (0, 0));
    post.delivery.look();
    assert_eq!(active(&post.supervisor), ["1.0.0"]);
    // A file deep in a directory counts as well.
    let two = post.good(2);
    two.read().unwrap().write_dir(&post.path("two")).unwrap();
    let kernel = post.path("two/test/rmsnorm_f32.wasm");
    for end in [1, 2, 3] {
        fs::write(&kernel, &two.bytes("test/rmsnorm_f32.wasm")[..end]).unwrap();
        post.delivery.look();
    }
    fs::write(&kernel, two.bytes("test/rmsnorm_f32.wasm")).unwrap();
    assert_eq!(post.look(), ["2.0.0"]);
    assert_eq!(post.count(HistoryEvent::Refused), 0);
}

#[test]
fn hidden_and_temporary_names_and_other_files_are_not_looked_at() {
    let mut post = Post::new(None);
    let pack = post.good(1);
    for name in [".one.rkp", "..data", "one.rkp.part", "one.rkp~", "one.tmp", "notes.txt"] {
        post.put(name, &pack);
    }
    pack.read().unwrap().write_dir(&post.path("one.partial")).unwrap();
    fs::create_dir(post.path("lost+found")).unwrap();
    assert!(post.look().is_empty());
    assert_eq!(events(&post.supervisor), [HistoryEvent::Started]);
    fs::rename(post.path("one.rkp.part"), post.path("one.rkp")).unwrap();
    assert_eq!(post.look(), ["1.0.0"]);
}

#[test]
fn of_one_name_the_highest_version_counts_and_no_other_whatever_becomes_of_it() {
    let mut post = Post::new(None);
    for n in [2, 10, 9] {
        post.put(&format!("{n}.rkp"), &post.good(n));
    }
    assert_eq!(post.look(), ["10.0.0"]);
    assert_eq!(post.count(HistoryEvent::Staged), 1);
    post.put("11.rkp", &post.trapping(11));
    assert_eq!(post.look(), ["11.0.0"]);
    post.call();
    assert!(post.look().is_empty(), "10.0.0 was not found healthy before it was replaced");
    let mut post = post.restart(None);
    assert!(post.look().is_empty());
    // Nor does what no publisher vouches for stand in anybody's way.
    let stranger = PackBuilder::new()
        .kernel("rmsnorm_f32", rmsnorm_f32(&Module::default()))
        .manifest(|m| m.version = semver::Version::new(99, 0, 0))
        .build();
    post.put("99.rkp", &stranger);
    post.put("12.rkp", &post.good(12));
    assert_eq!(post.look(), ["12.0.0"]);
}

#[test]
fn an_older_version_than_the_active_one_is_not_delivered() {
    let mut post = Post::new(None);
    activate(&post.supervisor, &post.good(3)).unwrap();
    post.put("two.rkp", &post.good(2));
    assert_eq!(post.look(), ["3.0.0"]);
    assert_eq!(post.count(HistoryEvent::Refused), 0);
}

#[test]
fn a_refused_pack_is_tried_again_when_its_bytes_change_and_after_a_restart() {
    let mut post = Post::new(None);
    let wrong = Module { epilogue: "(unreachable)".into(), ..Module::default() };
    post.put("wrong.rkp", &post.place.pack(1, &wrong));
    let stranger = pack(&Module::default());
    post.put("stranger.rkp", &stranger);
    fs::write(post.path("broken.rkp"), "no archive").unwrap();
    assert!(post.look().is_empty());
    let refused = |post: &Post| post.count(HistoryEvent::Refused);
    assert_eq!(refused(&post), 3);
    // Written again, with the same bytes.
    post.put("stranger.rkp", &stranger);
    fs::write(post.path("broken.rkp"), "no archive").unwrap();
    let wrong = fs::read(post.path("wrong.rkp")).unwrap();
    fs::write(post.path("wrong.rkp"), wrong).unwrap();
    assert!(post.look().is_empty());
    assert_eq!(refused(&post), 3);
    let mut post = post.restart(None);
    assert!(post.look().is_empty());
    assert_eq!(refused(&post), 6);
    post.put("wrong.rkp", &post.good(1));
    assert_eq!(post.look(), ["1.0.0"]);
    assert_eq!(refused(&post), 6);
}

#[test]
fn a_pack_that_was_taken_back_is_not_delivered_again_even_when_it_is_cleared() {
    let mut post = Post::new(None);
    let bad = post.trapping(1);
    post.put("bad.rkp", &bad);
    assert_eq!(post.look(), ["1.0.0"]);
    post.call();
    assert!(post.look().is_empty());
    let mut post = post.restart(None);
    assert!(post.look().is_empty());
    let before = events(&post.supervisor);
    post.put("bad.rkp", &bad);
    assert!(post.look().is_empty(), "barred");
    assert_eq!(events(&post.supervisor), before, "not even tried");
    post.supervisor.clear(&digest(&bad), "me").unwrap();
    assert!(post.look().is_empty());
    assert_eq!(post.count(HistoryEvent::Activated), 1);
    activate(&post.supervisor, &bad).unwrap();
    assert_eq!(post.look(), ["1.0.0"], "an operator may");
}

#[test]
fn an_operators_way_back_stands() {
    let mut post = Post::new(None);
    for n in [1, 2] {
        post.put("pack.rkp", &post.good(n));
        assert_eq!(post.look(), [format!("{n}.0.0")]);
        post.place.end_window(&post.supervisor);
    }
    post.supervisor.roll_back(None, "me").unwrap();
    assert_eq!(post.look(), ["1.0.0"]);
    let mut post = post.restart(None);
    assert_eq!(post.look(), ["1.0.0"]);
    assert_eq!(post.count(HistoryEvent::Activated), 2);
    post.put("pack.rkp", &post.good(3));
    assert_eq!(post.look(), ["3.0.0"]);
}

#[test]
fn a_pack_whose_process_ended_in_its_window_is_delivered_again_three_times_in_all() {
    let mut post = Post::new(None);
    post.put("one.rkp", &post.good(1));
    for attempt in 1..=3 {
        assert_eq!(post.look(), ["1.0.0"]);
        assert_eq!(post.count(HistoryEvent::Activated), attempt);
        post = post.restart(None);
        assert!(active(&post.supervisor).is_empty(), "it was not found healthy");
    }
    assert!(post.look().is_empty(), "it may be what ends the process");
    post.put("two.rkp", &post.good(2));
    assert_eq!(post.look(), ["2.0.0"]);
}

#[test]
fn a_process_that_was_asked_to_end_does_not_count_against_its_packs() {
    for share in [None, Some(0.5)] {
        let mut post = Post::new(share);
        post.put("one.rkp", &post.good(1));
        for attempt in 1..=5 {
            post.look();
            let event =
                if share.is_some() { HistoryEvent::OnTrial } else { HistoryEvent::Activated };
            assert_eq!(post.count(event), attempt);
            post.supervisor.stopping();
            post = post.restart(share);
        }
        // Two that ended by themselves and one that was asked to are not three.
        for _ in 0..2 {
            post.look();
            post = post.restart(share);
        }
        post.look();
        post.supervisor.stopping();
        post = post.restart(share);
        post.look();
        post = post.restart(share);
        let before = events(&post.supervisor);
        post.look();
        assert_eq!(events(&post.supervisor), before, "the third that ended by itself");
    }
    // Where nothing is watched there is nothing to say.
    let post = Post::new(None);
    post.supervisor.stopping();
    assert_eq!(post.count(HistoryEvent::Stopped), 0);
}

#[test]
fn a_pack_that_is_left_to_an_operator_is_tried_once_more_when_it_is_touched_or_copied_anew() {
    let mut post = Post::new(None);
    post.put("one.rkp", &post.good(1));
    for _ in 1..=3 {
        post.look();
        post = post.restart(None);
    }
    assert!(post.look().is_empty());
    let file = File::options().append(true).open(post.path("one.rkp")).unwrap();
    file.set_modified(std::time::SystemTime::now() + Duration::from_secs(9)).unwrap();
    assert_eq!(post.look(), ["1.0.0"]);
    let mut post = post.restart(None);
    assert!(post.look().is_empty(), "that was one attempt");
    fs::remove_file(post.path("one.rkp")).unwrap();
    assert!(post.look().is_empty());
    post.put("other.rkp", &post.good(1));
    assert_eq!(post.look(), ["1.0.0"]);
}

#[test]
fn a_trial_whose_process_ended_begins_again() {
    let mut post = Post::new(Some(0.5));
    post.put("one.rkp", &post.good(1));
    post.look();
    let mut post = post.restart(Some(0.5));
    post.look();
    assert_eq!(post.count(HistoryEvent::OnTrial), 2);
    post.place.end_window(&post.supervisor);
    assert_eq!(post.look(), ["1.0.0"]);
}

#[test]
fn going_back_from_what_a_restart_brought_back_stands() {
    let mut post = Post::new(None);
    for n in [1, 2] {
        post.put("pack.rkp", &post.good(n));
        assert_eq!(post.look(), [format!("{n}.0.0")]);
        post.place.end_window(&post.supervisor);
    }
    let mut post = post.restart(None);
    assert_eq!(post.look(), ["2.0.0"]);
    activate(&post.supervisor, &post.good(1)).unwrap();
    assert_eq!(post.look(), ["1.0.0"]);
    let mut post = post.restart(None);
    // The one that was found healthy last.
    assert_eq!(post.look(), ["2.0.0"]);
    assert_eq!(post.count(HistoryEvent::Activated), 3);
}

#[test]
fn a_pack_is_delivered_once_its_publisher_is_trusted() {
    let mut post = Post::new(None);
    let stranger = pack(&Module::default());
    post.put("stranger.rkp", &stranger);
    assert!(post.look().is_empty());
    let wide = crate::Acceptance { trust: stranger.policy(), lock: None };
    let changes = post.supervisor.accept(wide.clone(), &[], "me").unwrap();
    assert_eq!(changes.len(), 1, "{changes:?}");
    assert_eq!(post.look(), ["1.0.0"]);
    assert_eq!(post.count(HistoryEvent::Refused), 1);
    let entries = post.supervisor.history(9);
    let entry = entries.iter().find(|entry| entry.event == HistoryEvent::Reloaded).unwrap();
    assert_eq!((&entry.reason, &*entry.operator), (&changes[0], "me"));
    assert!(post.supervisor.accept(wide, &[], "me").unwrap().is_empty());
    assert_eq!(post.count(HistoryEvent::Reloaded), 1, "nothing is different");
}

#[test]
fn what_is_staged_and_not_accepted_any_more_is_let_go() {
    let post = Post::new(None);
    let staged = post.supervisor.stage(post.good(1).read().unwrap(), "me").unwrap();
    let narrow = crate::Acceptance { trust: pack(&Module::default()).policy(), lock: None };
    post.supervisor.accept(narrow, &["API keys".to_owned()], "me").unwrap();
    let reason = &post.supervisor.history(2)[1].reason;
    assert!(reason.starts_with("trust policy") && reason.ends_with("; API keys"), "{reason}");
    let error = post.supervisor.activate(staged.id, "me").unwrap_err();
    assert_eq!(error.code(), "not_staged");
    let error = post.supervisor.stage(post.good(1).read().unwrap(), "me").unwrap_err();
    assert_eq!(error.code(), "pack_rejected");
}

#[test]
fn with_a_share_a_trial_comes_first_and_its_good_end_activates_the_pack() {
    let mut post = Post::new(Some(0.5));
    let other = post.place.other(&Module::default());
    post.put("one.rkp", &post.good(1));
    post.put("other.rkp", &other);
    assert!(post.look().is_empty());
    assert_eq!(post.count(HistoryEvent::OnTrial), 1, "the second one waits");
    post.place.end_window(&post.supervisor);
    assert_eq!(post.look().len(), 1);
    assert_eq!(post.count(HistoryEvent::OnTrial), 2);
    post.place.end_window(&post.supervisor);
    assert_eq!(post.look().len(), 2);
    post.place.end_window(&post.supervisor);
    assert_eq!(post.restart(Some(0.5)).look().len(), 2);
}

#[test]
fn a_trial_that_ends_badly_or_by_an_operator_is_not_repeated() {
    let mut post = Post::new(Some(1.0));
    post.put("pack.rkp", &post.trapping(1));
    post.look();
    post.call();
    assert!(post.look().is_empty());
    assert_eq!(post.count(HistoryEvent::OnTrial), 1);
    post.put("pack.rkp", &post.good(2));
    post.look();
    post.supervisor.end_canary("me").unwrap();
    assert!(post.look().is_empty());
    assert_eq!(post.count(HistoryEvent::OnTrial), 2);
    let mut post = post.restart(Some(1.0));
    assert!(post.look().is_empty());
    assert_eq!(post.count(HistoryEvent::OnTrial), 2);
}

#[test]
fn while_an_operators_trial_runs_deliveries_wait_and_the_trial_is_left_to_them() {
    let mut post = Post::new(None);
    let tried = post.good(1);
    let staged = post.supervisor.stage(tried.read().unwrap(), "me").unwrap();
    post.supervisor.start_canary(staged.id, 0.5, "me").unwrap();
    post.put("two.rkp", &post.good(2));
    assert!(post.look().is_empty());
    post.place.end_window(&post.supervisor);
    assert!(post.look().is_empty());
    post.supervisor.end_canary("me").unwrap();
    assert_eq!(post.look(), ["2.0.0"]);
}

#[cfg(unix)]
#[test]
fn an_entry_may_be_a_link_as_in_a_configmap_and_nothing_inside_of_a_pack_may() {
    use std::os::unix::fs::symlink;
    let mut post = Post::new(None);
    for n in [1, 2] {
        fs::create_dir(post.path(&format!("..{n}"))).unwrap();
        post.put(&format!("..{n}/pack.rkp"), &post.good(n));
    }
    symlink("..1", post.path("..data")).unwrap();
    symlink("..data/pack.rkp", post.path("pack.rkp")).unwrap();
    symlink("nowhere", post.path("lost.rkp")).unwrap();
    assert_eq!(post.look(), ["1.0.0"]);
    symlink("..2", post.path("..next")).unwrap();
    fs::rename(post.path("..next"), post.path("..data")).unwrap();
    assert_eq!(post.look(), ["2.0.0"]);
    let three = post.good(3);
    three.read().unwrap().write_dir(&post.path("three")).unwrap();
    let kernel = post.path("three/test/rmsnorm_f32.wasm");
    fs::rename(&kernel, post.path("elsewhere")).unwrap();
    symlink(post.path("elsewhere"), &kernel).unwrap();
    assert_eq!(post.look(), ["2.0.0"]);
    let reason = &post.supervisor.history(1)[0].reason;
    assert!(reason.contains("symlink"), "{reason}");
}

#[test]
fn a_directory_that_vanishes_and_comes_back_is_read_again() {
    let mut post = Post::new(None);
    let (packs, away) = (post.path(""), post.place.dir().join("away"));
    fs::write(post.path("broken.rkp"), "no archive").unwrap();
    post.look();
    fs::rename(&packs, &away).unwrap();
    post.look();
    fs::rename(&away, &packs).unwrap();
    post.put("one.rkp", &post.good(1));
    assert_eq!(post.look(), ["1.0.0"]);
    assert_eq!(post.count(HistoryEvent::Refused), 1);
}

#[test]
fn what_only_could_not_be_done_is_tried_again_after_a_while() {
    let mut post = Post::new(None);
    let full: Vec<u64> = (0..100)
        .map_while(|n| {
            let pack = post.good(100 + n);
            Some(post.supervisor.stage(pack.read().unwrap(), "me").ok()?.id)
        })
        .collect();
    post.put("one.rkp", &post.good(1));
    let refused = post.count(HistoryEvent::Refused);
    for _ in 0..30 {
        post.delivery.look();
    }
    let tried = post.count(HistoryEvent::Refused) - refused;
    assert!((2..=4).contains(&tried), "{tried}");
    post.supervisor.discard(full[0], "me").unwrap();
    for _ in 0..32 {
        post.delivery.look();
    }
    assert_eq!(active(&post.supervisor), ["1.0.0"]);
}

#[test]
fn a_watch_looks_by_itself() {
    let post = Post::new(None);
    post.put("one.rkp", &post.good(1));
    let Post { supervisor, delivery, place } = post;
    let watch = delivery.watch(Duration::from_millis(1)).unwrap();
    while active(&supervisor).is_empty() {
        std::thread::sleep(Duration::from_millis(1));
    }
    drop((watch, place));
}
