//! Every figure that the project set out with, beside what this machine gives: a table in Markdown.
//!
//! A time is the median of 41 rounds of about a millisecond, warm, on one thread unless the table says otherwise; of what
//! takes longer, of as many runs as the table says. A figure that is not met stands there as what it is. Those of lookup,
//! instance and call are what the first design reckoned with: about 100 ns, 1 us, and 2 us for a call with everything.
//!
//! The file of a model with 7 billion weights is written to the directory for temporary files, 3.8 GB, and removed
//! afterwards. Where there is no room for it, on disk or in memory, its rows say so; `--no-model` leaves them out.
//!
//! `cargo bench -p ruvllm-benches --bench targets`

mod model;

use half::f16;
use model::ModelFile;
use ruvllm::{RopeExtension, RopeMethod, Runtime, SessionOptions};
use ruvllm_abi::DType;
use ruvllm_benches::COPY;
use ruvllm_host::{
    Host, HostConfig, OpCall, OpKey, Operand, RegistrySnapshot, Resident, RopeDims, Scope, Words,
    Worker,
};
use ruvllm_native::attention::{AttnScratch, AttnShape, KvSegment, attention};
use ruvllm_native::{Isa, ThreadPool, probe};
use ruvllm_signing::{PackLimits, TrustPolicy, UnverifiedPack};
use ruvllm_tests::{PackBuilder, custom_entry, wat};
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Elements of a hidden state and of a token's keys, in a model of 7 billion weights.
const DIM: usize = 4096;
const HEADS: usize = 32;
const HEAD: usize = DIM / HEADS;
/// Tokens of a block.
const BLOCK: usize = 32;
const LAYERS: usize = 32;
/// Tokens of a prompt before the first token that is written.
const PROMPT: usize = 16;
const ROUNDS: usize = 41;

/// The argument by which this program, started by itself, tells what a host takes of memory.
const HOST_MEMORY: &str = "--host-memory";

/// A promise, and what became of it.
struct Row {
    promise: &'static str,
    most: Amount,
    /// Why there is no figure, where there is none.
    measured: Result<Amount, String>,
    /// What was measured.
    what: String,
}

#[derive(Clone, Copy, PartialEq, PartialOrd)]
enum Amount {
    Time(Duration),
    Megabytes(f64),
}

impl std::fmt::Display for Amount {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Amount::Megabytes(megabytes) => write!(f, "{megabytes:.0} MB"),
            Amount::Time(time) => {
                let seconds = time.as_secs_f64();
                let units = [(1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns")];
                let unit = units.into_iter().find(|(unit, _)| seconds >= *unit);
                let (unit, name) = unit.unwrap_or(units[3]);
                let digits = if seconds / unit < 10.0 && name != "ns" { 2 } else { 0 };
                write!(f, "{:.digits$} {name}", seconds / unit)
            }
        }
    }
}

impl Row {
    fn time(promise: &'static str, most: Duration, measured: Duration, what: &str) -> Row {
        let measured = Ok(Amount::Time(measured));
        Row { promise, most: Amount::Time(most), measured, what: what.to_owned() }
    }

    fn print(&self) {
        let Row { promise, most, measured, what } = self;
        match measured {
            Ok(measured) => {
                let met = if measured <= most { "yes" } else { "no" };
                println!("| {promise} | {most} | {measured} | {met} | {what} |");
            }
            Err(why) => println!("| {promise} | {most} | - | - | {what}: left out, {why} |"),
        }
    }
}

/// The median of 41 rounds.
fn time(mut run: impl FnMut()) -> Duration {
    let (begun, mut runs) = (Instant::now(), 0);
    while begun.elapsed() < Duration::from_millis(20) {
        run();
        runs += 1;
    }
    let batch = (runs / 20).max(1);
    median(ROUNDS, || {
        let begun = Instant::now();
        (0..batch).for_each(|_| run());
        begun.elapsed() / batch
    })
}

fn median(rounds: usize, round: impl FnMut() -> Duration) -> Duration {
    let mut times: Vec<Duration> = std::iter::repeat_with(round).take(rounds).collect();
    times.sort_unstable();
    times[times.len() / 2]
}

fn core_pack(cache_dir: Option<PathBuf>) -> Host {
    let dist = Path::new(env!("CARGO_MANIFEST_DIR")).join("../kernel-packs/core/dist");
    let pack = UnverifiedPack::read_dir(&dist, &PackLimits::default())
        .and_then(|pack| pack.verify(&TrustPolicy::builtin(), None))
        .expect("the committed core pack");
    let host = Host::new(HostConfig { cache_dir, ..HostConfig::default() }).expect("a host");
    host.install(pack).expect("an admissible pack");
    host
}

/// Calls kernels of a host from one thread.
struct Caller {
    snap: Arc<RegistrySnapshot>,
    worker: Worker,
    scope: Scope,
}

impl Caller {
    fn new(host: &Host) -> Caller {
        let worker = host.worker().expect("a worker");
        Caller { snap: host.snapshot(), worker, scope: Scope::unique() }
    }

    fn call(&mut self, key: &OpKey, call: OpCall<'_>, out: &mut [u8]) {
        let slot = self.snap.slot(key).expect("an operation that is there");
        let call = call.within(self.scope);
        self.worker.call(&self.snap, slot, black_box(&call), black_box(out)).expect("an answer");
    }
}

fn noise(n: usize) -> Vec<f32> {
    (0..n).map(|i| ((i * 37 % 101) as f32 - 50.0) / 25.0).collect()
}

/// Looking a kernel up, making an instance, and calling it, of a kernel that hardly does anything.
fn calls() -> Vec<Row> {
    let module = wat::assemble(COPY);
    let pack = PackBuilder::new().entry(custom_entry("copy", "copy", "run"), module).build();
    let host = Host::new(HostConfig { cross_check_every: 0, ..HostConfig::default() });
    let host = host.expect("a host");
    host.install(pack.verify().expect("a valid pack")).expect("an admissible kernel");
    let (snap, key) = (host.snapshot(), OpKey::new("copy", [DType::F32], DType::F32));
    let lookup = time(|| {
        black_box(snap.slot(black_box(&key)));
    });
    let slot = snap.slot(&key).expect("the kernel");
    let (x, mut y, scope) = ([1f32; 16], [0u8; 64], Scope::unique());
    let (a, b, words) = (Operand::f32(&x), Operand::None, Words::of([16]));
    let call = OpCall::new(a, b, words).within(scope);
    let mut answer = |worker: &mut Worker| {
        worker.call(&snap, slot, black_box(&call), black_box(&mut y[..])).expect("an answer");
    };
    let mut worker = host.worker().expect("a worker");
    let warm = time(|| answer(&mut worker));
    let first = median(ROUNDS, || {
        let mut worker = host.worker().expect("a worker");
        let begun = Instant::now();
        answer(&mut worker);
        begun.elapsed()
    });
    vec![
        Row::time(
            "kernel lookup",
            Duration::from_nanos(100),
            lookup,
            "an operation's place in a snapshot, by name and types",
        ),
        Row::time(
            "instance creation",
            Duration::from_micros(1),
            first.saturating_sub(warm),
            "what the first call of a worker takes more than a later one",
        ),
        Row::time(
            "call overhead",
            Duration::from_micros(2),
            warm,
            "a kernel that copies 16 numbers, through the host",
        ),
    ]
}

/// The operations of a model of 7 billion weights, by kernels of the core pack; attention by the host's own code.
fn operations() -> Vec<Row> {
    let host = core_pack(None);
    let mut caller = Caller::new(&host);
    let (tenth, once) = (Duration::from_micros(100), Duration::from_millis(1));
    let mut rows = Vec::new();
    for (seq, heads, what) in [
        (1, HEADS, "a position of 32 heads of 128, f32"),
        (512, 1, "512 positions of a head of 128, f32"),
    ] {
        let x = noise(seq * heads * HEAD);
        let angles = Resident::from_f32(&noise(seq * HEAD));
        let mut y = vec![0; size_of_val(&*x)];
        let [seq, heads, dim] = [seq, heads, HEAD].map(|n| n as u32);
        let dims = RopeDims { batch: 1, seq, heads, dim, dim_half: dim / 2 };
        let took = time(|| {
            let call = OpCall::rope(Operand::f32(&x), angles.all(), dims, 1e4, false);
            caller.call(&OpKey::rope_f32(), call, &mut y);
        });
        rows.push(Row::time("RoPE", tenth, took, what));
    }
    let (x, weight) = (noise(DIM), Resident::from_f32(&noise(DIM)));
    let mut y = vec![0; 4 * DIM];
    let took = time(|| {
        let call = OpCall::rmsnorm(Operand::f32(&x), weight.all(), 1, DIM as u32, 1e-5);
        caller.call(&OpKey::rmsnorm_f32(), call, &mut y);
    });
    rows.push(Row::time("RMSNorm", tenth / 2, took, "a row of 4096, f32"));
    rows.push(attend());
    let pack = |caller: &mut Caller, x: &[f32], rows: usize, dtype, y: &mut [u8]| {
        let call = OpCall::kv_pack(Operand::f32(x), rows as u32, DIM as u32);
        caller.call(&OpKey::kv_pack(dtype), call, y);
    };
    let bytes = |dtype: DType, rows: usize| dtype.bytes_for(rows * DIM).expect("whole blocks");
    // A block has the keys and values of all layers, each of which has its own place in memory.
    let all = [(1, "a layer"), (LAYERS, "all 32 layers")];
    let mut packed = vec![0; 2 * LAYERS * bytes(DType::Q8_0, 1)];
    for (layers, of) in all {
        let took = time(|| {
            let places = packed.chunks_mut(bytes(DType::Q8_0, 1)).take(2 * layers);
            places.for_each(|to| pack(&mut caller, &x, 1, DType::Q8_0, to));
        });
        let what = format!("a token's keys and values of {of}, 4096 numbers each, to q8_0");
        rows.push(Row::time("KV append", tenth, took, &what));
    }
    let mut old = vec![0; bytes(DType::Q8_0, BLOCK)];
    pack(&mut caller, &noise(BLOCK * DIM), BLOCK, DType::Q8_0, &mut old);
    let old = old.repeat(2 * LAYERS);
    let mut numbers = vec![0f32; BLOCK * DIM];
    let mut new = vec![0; 2 * LAYERS * bytes(DType::Q4_0, BLOCK)];
    for (layers, of) in all {
        let took = time(|| {
            let old = old.chunks(bytes(DType::Q8_0, BLOCK));
            let new = new.chunks_mut(bytes(DType::Q4_0, BLOCK));
            for (old, new) in old.zip(new).take(2 * layers) {
                let call = OpCall::kv_unpack(Operand::Bytes(old), BLOCK as u32, DIM as u32);
                let out = bytemuck::cast_slice_mut(&mut numbers);
                caller.call(&OpKey::kv_unpack(DType::Q8_0), call, out);
                pack(&mut caller, &numbers, BLOCK, DType::Q4_0, new);
            }
        });
        let what =
            format!("keys and values of 32 tokens in {of}, 4096 numbers each, from q8_0 to q4_0");
        rows.push(Row::time("migration of a block", once, took, &what));
    }
    rows
}

fn attend() -> Row {
    const POSITIONS: usize = 256;
    let shape = AttnShape {
        heads: HEADS,
        kv_heads: HEADS,
        head_dim: HEAD,
        scale: 1.0 / (HEAD as f32).sqrt(),
        window: None,
        deterministic: false,
    };
    let cache: Vec<u8> =
        noise(POSITIONS * DIM).into_iter().flat_map(|x| f16::from_f32(x).to_le_bytes()).collect();
    let kv = [KvSegment::tokens(DType::F16, POSITIONS, &cache, &cache)];
    let (pool, mut scratch) = (ThreadPool::new(1), AttnScratch::new());
    let (q, mut y) = (noise(DIM), vec![0.0; DIM]);
    let took = time(|| {
        let q = black_box(&q);
        attention(&pool, Isa::detect(), &shape, q, DIM, POSITIONS - 1, &kv, &mut y, &mut scratch)
            .expect("it computes");
    });
    let what = "a query of 32 heads of 128 over 256 positions in f16, 32 heads of keys";
    Row::time("attention over 256", Duration::from_millis(2), took, what)
}

/// How long it takes to find what a client has said before, and to the first token, with the built-in model.
fn sessions() -> Vec<Row> {
    const SAID: usize = 1985;
    let extension = RopeExtension { method: RopeMethod::Yarn, factor: None };
    let runtime = Runtime::builder().context(2560).rope_scaling(extension).build();
    let runtime = runtime.expect("the built-in model");
    // What was said but for the last token fills whole blocks.
    let said: Vec<u32> = (0..SAID as u32).map(|i| 300 + (i * 97 + i * i * 13) % 1000).collect();
    let mut before = runtime.session();
    before.prefill(&said).expect("it computes");
    // In turns, and the least of each: what is looked for is small beside a token.
    let [mut found, mut token] = [Duration::MAX; 2];
    for _ in 0..5 * ROUNDS {
        let mut session = runtime.session();
        let begun = Instant::now();
        session.prefill(&said).expect("it computes");
        found = found.min(begun.elapsed());
        before.truncate(SAID - 1);
        let begun = Instant::now();
        before.decode(said[SAID - 1]).expect("it computes");
        token = token.min(begun.elapsed());
    }
    let lookup = found.saturating_sub(token);
    let what = "1984 tokens found in the prefix cache: a prompt of these and one more, less that one; the least of 205 runs";
    vec![
        Row::time("session lookup", Duration::from_micros(100), lookup, what),
        first_token(&runtime, "the built-in model"),
    ]
}

fn first_token(runtime: &Runtime, model: &str) -> Row {
    let alone = SessionOptions { scope: None, ..SessionOptions::default() };
    let prompt: Vec<u32> = (0..PROMPT as u32).map(|i| 300 + i * 97 % 1000).collect();
    let took = median(9, || {
        let mut session = runtime.engine().session_with(&alone);
        let begun = Instant::now();
        session.prefill(&prompt).expect("it computes");
        begun.elapsed()
    });
    let threads = runtime.engine().config().threads;
    let what = format!("{model}, a prompt of {PROMPT} tokens, {threads} threads, of 9 runs");
    Row::time("first token", Duration::from_millis(50), took, &what)
}

/// Loading a large file, and the first token then.
fn large_model() -> Vec<Row> {
    let limit = Duration::from_secs(30);
    let what = "7B, Q4_0, 3.8 GB just written, so in memory already; weights rearranged, one run";
    let loaded = ModelFile::write().and_then(|file| {
        let begun = Instant::now();
        let runtime = Runtime::builder().model(file.path()).build().map_err(|e| e.to_string())?;
        Ok((begun.elapsed(), runtime, file))
    });
    match loaded {
        Ok((took, runtime, _file)) => vec![
            Row::time("loading a 7B Q4 file", limit, took, what),
            first_token(&runtime, "7B, Q4_0"),
        ],
        Err(why) => {
            let (promise, most, what) =
                ("loading a 7B Q4 file", Amount::Time(limit), what.to_owned());
            vec![Row { promise, most, measured: Err(why), what }]
        }
    }
}

/// Megabytes that this process has in memory.
fn resident() -> Result<f64, String> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.trim().parse::<f64>().ok());
    kib.map(|kib| kib * 1.024e-3).ok_or_else(|| "this system does not tell".to_owned())
}

/// What a process that has a host with the core pack, and no model, has in memory.
fn host_memory() -> Row {
    let measure = || -> Result<f64, String> {
        let cache = tempfile::tempdir().map_err(|e| e.to_string())?;
        // The first run compiles, the second finds the machine code.
        let mut printed = String::new();
        for _ in 0..2 {
            let program = std::env::current_exe().map_err(|e| e.to_string())?;
            let output =
                Command::new(program).arg(HOST_MEMORY).arg(cache.path().join("c")).output();
            let output = output.map_err(|e| e.to_string())?;
            printed = String::from_utf8_lossy(&output.stdout).into_owned();
        }
        printed.trim().parse().map_err(|_| format!("it says {printed:?}"))
    };
    let measured = measure().map(Amount::Megabytes);
    let what = "resident memory of a process with the core pack, its machine code from the cache";
    let (promise, most) = ("memory of a host", Amount::Megabytes(50.0));
    Row { promise, most, measured, what: what.to_owned() }
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    if let Some(at) = args.iter().position(|arg| arg == HOST_MEMORY) {
        let host = core_pack(args.get(at + 1).map(PathBuf::from));
        match resident() {
            Ok(megabytes) => println!("{megabytes}"),
            Err(why) => println!("{why}"),
        }
        drop(host);
        return;
    }
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    println!("{}, {threads} processors, {}\n", probe::processor(), Isa::detect().name());
    println!("| figure | at most | here | met | what was measured |");
    println!("|---|---:|---:|---|---|");
    let parts: [fn() -> Vec<Row>; 4] = [calls, operations, sessions, large_model];
    let large = usize::from(args.iter().all(|arg| arg != "--no-model"));
    for part in &parts[..parts.len() - 1 + large] {
        part().iter().for_each(Row::print);
    }
    host_memory().print();
}
