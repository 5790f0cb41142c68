//! What it costs that a kernel's calls know nothing of another client's.
//!
//! The kernel calls of a decoding step of eight clients and of prompts, in TinyLlama-1.1B's shape, through
//! the core pack: once as rows of one scope, where nothing is set back and rows of a norm are one
//! call, and once as rows of eight. Memory is read in between, as products read weights. Both are
//! measured in turns; what differs is put against the time that reading a Q4_0 file's weights takes
//! on this machine at the least, for a step, and that a prompt's products take.
//!
//! `cargo bench -p ruvllm-benches --bench isolation`

use ruvllm_host::{Host, HostConfig, OpCall, OpKey, Operand, Resident, RopeDims, Scope, Worker};
use ruvllm_host::{OpSlot, RegistrySnapshot};
use ruvllm_signing::{PackLimits, TrustPolicy, UnverifiedPack};
use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

const LAYERS: usize = 22;
const DIM: usize = 2048;
const FFN: usize = 5632;
const HEADS: [usize; 2] = [32, 4];
const HEAD: usize = 64;
const CLIENTS: usize = 8;
/// Tokens of a prompt's chunk.
const CHUNK: usize = 512;
/// Bytes of a layer's weights in Q4_0, which are read between its calls.
const WEIGHTS: usize = (2 * DIM * DIM + 2 * DIM * 256 + 3 * DIM * FFN) / 32 * 18;
const ROUNDS: usize = 41;

struct Calls {
    worker: Worker,
    snap: Arc<RegistrySnapshot>,
    slots: [OpSlot; 3],
    norms: Vec<Resident>,
    angles: Resident,
    x: Vec<f32>,
    up: Vec<f32>,
    y: Vec<f32>,
}

impl Calls {
    fn new() -> Self {
        let dist = Path::new(env!("CARGO_MANIFEST_DIR")).join("../kernel-packs/core/dist");
        let pack = UnverifiedPack::read_dir(&dist, &PackLimits::default())
            .and_then(|pack| pack.verify(&TrustPolicy::builtin(), None))
            .expect("the committed core pack");
        let host = Host::new(HostConfig::default()).expect("a host");
        host.install(pack).expect("an admissible pack");
        let snap = host.snapshot();
        let keys = [OpKey::rmsnorm_f32(), OpKey::rope_f32(), OpKey::swiglu_f32()];
        let slots = keys.map(|key| snap.slot(&key).expect("an operation of the pack"));
        let numbers = |n: usize| (0..n).map(|i| (i % 251) as f32 / 125.0 - 1.0).collect::<Vec<_>>();
        Self {
            worker: host.worker().expect("a worker"),
            slots,
            norms: (0..2 * LAYERS).map(|_| Resident::from_f32(&numbers(DIM))).collect(),
            angles: Resident::from_f32(&numbers(CHUNK * HEAD)),
            x: numbers(CHUNK * FFN),
            up: numbers(CHUNK * FFN),
            y: vec![0.0; CHUNK * FFN],
            snap,
        }
    }

    /// The calls of a layer for some rows of a scope, at positions that follow each other or not.
    fn layer(&mut self, index: usize, rows: usize, scope: Scope, one_position: bool) {
        let Self { worker, snap, slots: [norm, rope, swiglu], norms, angles, x: numbers, up, y } =
            self;
        let mut answer = |slot: OpSlot, call: &OpCall<'_>, len: usize| {
            let y = bytemuck::cast_slice_mut(&mut y[..len]);
            worker.call(snap, slot, call, y).expect("an answer");
        };
        for weight in [2 * index, 2 * index + 1] {
            let x = Operand::f32(&numbers[..rows * DIM]);
            let weight = norms[weight].all();
            let call = OpCall::rmsnorm(x, weight, rows as u32, DIM as u32, 1e-5).within(scope);
            answer(*norm, &call, rows * DIM);
        }
        // Clients are at positions of their own.
        let (runs, seq) = if one_position { (1, rows) } else { (rows, 1) };
        for heads in HEADS {
            let row = heads * HEAD;
            for run in 0..runs {
                let x = &numbers[run * seq * row..(run + 1) * seq * row];
                let angles = Operand::Resident(angles, 0..seq * HEAD * 4);
                let (seq, heads) = (seq as u32, heads as u32);
                let dims =
                    RopeDims { batch: 1, seq, heads, dim: HEAD as u32, dim_half: HEAD as u32 / 2 };
                let call = OpCall::rope(Operand::f32(x), angles, dims, 1e4, false).within(scope);
                answer(*rope, &call, seq as usize * row);
            }
        }
        let (gate, up) = (&numbers[..rows * FFN], &up[..rows * FFN]);
        let (gate, up) = (Operand::f32(gate), Operand::f32(up));
        let call = OpCall::swiglu(gate, up, rows as u32, FFN as u32).within(scope);
        answer(*swiglu, &call, rows * FFN);
    }
}

/// Reads memory, as products do.
fn read(weights: &[u64]) {
    black_box(weights.iter().fold(0, |sum: u64, word| sum.wrapping_add(*word)));
}

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort_unstable();
    times[times.len() / 2].as_secs_f64() * 1e6
}

fn main() {
    let mut calls = Calls::new();
    let weights: Vec<u64> = (0..(LAYERS * WEIGHTS / 8) as u64).collect();
    let scopes: Vec<Scope> = (0..CLIENTS).map(|_| Scope::unique()).collect();
    let mut step = |own: bool| {
        let mut took = Duration::ZERO;
        for layer in 0..LAYERS {
            read(&weights[layer * WEIGHTS / 8..(layer + 1) * WEIGHTS / 8]);
            let begun = Instant::now();
            if own {
                scopes.iter().for_each(|&scope| calls.layer(layer, 1, scope, true));
            } else {
                calls.layer(layer, CLIENTS, scopes[0], false);
            }
            took += begun.elapsed();
        }
        took
    };
    let [mut one, mut eight] = [Vec::new(), Vec::new()];
    for _ in 0..ROUNDS {
        one.push(step(false));
        eight.push(step(true));
    }
    let reading = median(
        (0..9)
            .map(|_| {
                let begun = Instant::now();
                read(&weights);
                begun.elapsed()
            })
            .collect(),
    );
    let (one, eight) = (median(one), median(eight));
    println!("a step of {CLIENTS} clients, {LAYERS} layers of TinyLlama-1.1B's shape");
    println!(
        "  calls of one scope {one:.0} us, of {CLIENTS} scopes {eight:.0} us: {:+.0} us",
        eight - one
    );
    println!(
        "  {:+.2} % of the {:.1} ms that one thread takes to read the weights in Q4_0",
        (eight - one) / reading * 100.0,
        reading / 1e3
    );

    let mut prompt = |turns: bool| {
        let begun = Instant::now();
        for layer in 0..LAYERS {
            for client in 0..2 {
                let scope = if turns { scopes[client] } else { scopes[0] };
                calls.layer(layer, CHUNK, scope, true);
            }
        }
        begun.elapsed()
    };
    let [mut same, mut turns] = [Vec::new(), Vec::new()];
    for _ in 0..ROUNDS / 4 {
        same.push(prompt(false));
        turns.push(prompt(true));
    }
    let (same, turns) = (median(same), median(turns));
    println!("two prompts of {CHUNK} tokens in a step, layer by layer");
    println!(
        "  of one scope {:.1} ms, of two {:.1} ms: {:+.2} % of the time in kernels",
        same / 1e3,
        turns / 1e3,
        (turns / same - 1.0) * 100.0
    );
}
