//! Streams, swaps and readers who leave, for a minute: the process holds no more at the end than in the
//! middle. For longer, and over HTTP: `ruvllm-load soak`.
#![cfg(target_os = "linux")]
#![allow(missing_docs)]

mod common;

use std::fs;
use std::time::{Duration, Instant};

use common::requests::{ask, greedy};
use common::swapping::{Publisher, TOKENS, Tales, engine, host, next_step, start, until};
use ruvllm_engine::scheduler::Request;
use ruvllm_host::HostConfig;

const WARM_UP: Duration = Duration::from_secs(20);
const TIME: Duration = Duration::from_secs(30);

/// Activations after which as much is kept of old generations as ever is: the figures of 512 kernels, of
/// which each generation leaves six.
const KEPT: u64 = 100;

/// Memory that may come and go: a few pages of the allocator's.
const SLACK: u64 = 1 << 20;

/// What this process holds: resident bytes, handles, threads.
#[derive(Clone, Copy, Debug)]
struct Holds {
    memory: u64,
    handles: u64,
    threads: u64,
}

fn holds() -> Holds {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let field = |name: &str| -> u64 {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.split_whitespace().next().unwrap().parse().unwrap()
    };
    let handles = fs::read_dir("/proc/self/fd").unwrap().count() as u64;
    Holds { memory: field("VmRSS:") << 10, handles, threads: field("Threads:") }
}

#[test]
fn a_minute_of_streams_and_swaps_holds_on_to_nothing() {
    let (tales, publisher) = (Tales::new(), Publisher::new());
    let packs = [publisher.relaxed(0), publisher.plain(1)];
    let cache = tempfile::tempdir().unwrap();
    let config = HostConfig { cache_dir: Some(cache.path().join("c")), ..HostConfig::default() };
    let host = host(config, &[&packs[1]]);
    let scheduler = start(&engine(&tales.model, host.clone()));
    // Pages of blocks stay with the process once they were written: more of them here than later.
    let long =
        |prompt: &Vec<u32>| ask(&scheduler, Request::new(prompt.clone(), greedy(4 * TOKENS)));
    let answers: Vec<_> = tales.prompts.iter().map(long).collect();
    answers.into_iter().for_each(|answer| drop(answer.all()));
    let (mut seen, begin) = (Vec::new(), Instant::now());
    let mut warm = None;
    tales.read_during(&scheduler, || {
        for pack in packs.iter().cycle() {
            let staged = host.stage(pack.verify().unwrap()).unwrap();
            host.activate(staged.id).unwrap();
            next_step(&scheduler);
            // A reader who leaves.
            drop(ask(&scheduler, Request::new(tales.prompts[0].clone(), greedy(400))));
            if begin.elapsed() > WARM_UP && host.generation() > KEPT {
                seen.push(holds());
                if warm.get_or_insert_with(Instant::now).elapsed() > TIME {
                    break;
                }
            }
        }
        // Of handles and threads the fewest: what comes and goes only adds to what is kept, and may be seen
        // at any time. A thread that made instances ready stands back, so it may end long after its work
        // where others want the processors.
        let first = &seen[..seen.len().div_ceil(10)];
        let kept = |what: &str, count: fn(&Holds) -> u64| {
            let kept = first.iter().map(count).min().unwrap();
            until(&format!("{kept} {what}, as at first"), || count(&holds()) <= kept);
        };
        kept("handles", |holds| holds.handles);
        kept("threads", |holds| holds.threads);
    });
    // The middle one of what is seen many times, so that the moments do not matter.
    let (middle, end) = seen.split_at(seen.len() / 2);
    let memory = |seen: &[Holds]| {
        let mut memory: Vec<u64> = seen.iter().map(|holds| holds.memory).collect();
        memory.sort_unstable();
        memory[memory.len() / 2]
    };
    let (middle, end) = (memory(middle), memory(end));
    println!("{} activations; {middle} bytes, then {end}", host.generation());
    assert!(end <= middle + SLACK, "memory: {middle} bytes, then {end}");
}
