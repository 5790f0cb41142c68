//! Streams of texts that must stay the same while their kernels change.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use ruvllm_engine::scheduler::{Request, Scheduler, SchedulerConfig};
use ruvllm_engine::{Engine, EngineConfig, Model};
use ruvllm_host::{Host, HostConfig};
use ruvllm_signing::SecretKey;
use ruvllm_tests::{PackBuilder, TestPack};

use super::repository;
use super::requests::{LONG, alone, ask, greedy, tales};

/// Kernels that decoding calls with a cache whose blocks are in 8 bits first, and in 4 when they are
/// older.
pub const USED: [&str; 6] =
    ["rmsnorm_f32", "rope_f32", "swiglu_f32", "kv_pack_q8", "kv_pack_q4", "kv_unpack_q8"];

/// Tokens of each text.
pub const TOKENS: usize = 40;

/// A signer of versions of one pack.
pub struct Publisher(pub SecretKey);

impl Publisher {
    pub fn new() -> Publisher {
        Publisher(SecretKey::generate().unwrap())
    }

    pub fn pack(
        &self,
        version: u64,
        change: impl Fn(&str, Vec<u8>) -> Option<Vec<u8>>,
    ) -> TestPack {
        let key = SecretKey::parse(self.0.to_pem().unwrap().as_bytes()).unwrap();
        PackBuilder::new()
            .like(&repository().join("kernel-packs/core/dist"), |entry, wasm| {
                change(&entry.id, wasm)
            })
            .manifest(|m| (m.version.minor, m.version.patch) = (version, 0))
            .key(key)
            .build()
    }

    /// The core pack's kernels that are used, those with relaxed SIMD where there are two.
    pub fn relaxed(&self, version: u64) -> TestPack {
        self.pack(version, |id, wasm| USED.contains(&id).then_some(wasm))
    }

    /// Those without relaxed SIMD: other code, whose results differ in their last bits.
    pub fn plain(&self, version: u64) -> TestPack {
        self.pack(version, |id, wasm| {
            let unpacks = id.starts_with("kv_unpack");
            let plain = if unpacks { Some(id) } else { id.strip_suffix("_plain") };
            plain.is_some_and(|id| USED.contains(&id)).then_some(wasm)
        })
    }
}

/// Two packs that decode tales, and the texts.
pub struct Tales {
    pub model: Arc<Model>,
    pub prompts: Vec<Vec<u32>>,
    pub texts: Vec<Vec<u32>>,
}

pub fn host(config: HostConfig, packs: &[&TestPack]) -> Host {
    let host = Host::new(config).unwrap();
    packs.iter().for_each(|pack| drop(host.install(pack.verify().unwrap()).unwrap()));
    host
}

/// One thread, 8 bits of the newest tokens, 4 of the others, and memory that is soon full.
pub fn engine(model: &Arc<Model>, host: Host) -> Engine {
    let kv = "q8_0:32+q4_0".parse().unwrap();
    let memory = Some(64 << 20);
    let config = EngineConfig { threads: 1, kv, memory, ..EngineConfig::default() };
    Engine::new(Arc::clone(model), host, config).unwrap()
}

impl Tales {
    /// As many as a stream each needs, written without any swap.
    pub fn new() -> Tales {
        let (model, mut prompts) = tales(11, 4);
        prompts.truncate(32);
        let host = host(HostConfig::default(), &[&Publisher::new().relaxed(0)]);
        let engine = engine(&model, host);
        let write = |prompt: &Vec<u32>| alone(&engine, prompt, &greedy(TOKENS)).0;
        let texts = prompts.iter().map(write).collect();
        Tales { model, prompts, texts }
    }

    /// Keeps a stream of requests going for each text until `swap` has returned, and holds every
    /// answer against the text. Gives how many answers there were.
    pub fn read_during(&self, scheduler: &Scheduler, swap: impl FnOnce()) -> u64 {
        let (done, answers) = (AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for (prompt, text) in self.prompts.iter().zip(&self.texts) {
                let (done, answers) = (&done, &answers);
                scope.spawn(move || {
                    while !done.load(Relaxed) {
                        let request = Request::new(prompt.clone(), greedy(TOKENS));
                        assert_eq!(ask(scheduler, request).tokens(), *text);
                        answers.fetch_add(1, Relaxed);
                    }
                });
            }
            // Whatever happens, nobody may wait for it for ever.
            let _end = End(&done);
            swap();
        });
        let stats = scheduler.stats();
        assert_eq!((stats.failed, stats.failed_steps), (0, 0), "{stats:?}");
        answers.into_inner()
    }
}

struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

pub fn start(engine: &Engine) -> Scheduler {
    Scheduler::start(engine.clone(), SchedulerConfig::default()).unwrap()
}

/// Waits until something is so.
pub fn until(what: &str, is: impl Fn() -> bool) {
    let start = Instant::now();
    while !is() {
        assert!(start.elapsed() < LONG, "{what}");
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// Waits until a whole step was computed after this moment.
pub fn next_step(scheduler: &Scheduler) {
    // The one that runs may have begun before.
    let steps = scheduler.stats().steps + 2;
    until("a step is computed", || scheduler.stats().steps >= steps);
}
