//! Products whose provider is replaced under a running engine.
#![allow(missing_docs)]

mod common;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::{Fixture, LLAMA, best, native_host, some_tokens, two_threads};
use ruvllm_abi::DType;
use ruvllm_engine::{Engine, EngineConfig, Session, Use};
use ruvllm_host::{
    AttentionProvider, AttentionSession, ComparedProvider, EmbedProvider, Failure, Host,
    HostConfig, HostError, MatmulProvider, OpKey, Policy, PreparedEmbed, PreparedMatmul, Preparer,
    Provider, ProviderPack, RegistrySnapshot, Team, Version,
};
use ruvllm_native::Isa;
use ruvllm_native::attention::{AttnScratch, AttnSequence, AttnShape, attention_batch};
use ruvllm_native::gemm::{ActForm, Activations, MatMut, Weights, matmul};
use ruvllm_native::quant::dequantize_row;

/// Multiplies by a copy of the file's bytes, to the same bits as in place.
#[derive(Clone, Default)]
struct Copying {
    /// The weights' type; f32 when absent.
    dtype: Option<DType>,
    /// How many threads it was given, each time.
    threads: Arc<Mutex<BTreeSet<usize>>>,
    /// Whether its products are wrong.
    wrong: Arc<AtomicBool>,
    /// How long it waits in each product.
    delay: Duration,
}

struct Copy {
    bytes: Vec<u8>,
    by: Copying,
}

impl MatmulProvider for Copying {
    fn prepared_bytes(&self, weights: &Weights<'_>, _: Isa) -> Option<usize> {
        Some(weights.size())
    }

    fn prepare(&self, w: &Weights<'_>, team: Team<'_>) -> Result<Box<dyn PreparedMatmul>, String> {
        self.threads.lock().unwrap().insert(team.pool.threads());
        let bytes = (0..w.rows()).flat_map(|row| w.row(row)).copied().collect();
        Ok(Box::new(Copy { bytes, by: self.clone() }))
    }

    fn reads(&self, x: &Activations, rows: usize, isa: Isa) -> ActForm {
        x.form(isa, rows, self.dtype.unwrap_or(DType::F32))
    }
}

impl PreparedMatmul for Copy {
    fn run(
        &self,
        weights: &Weights<'_>,
        x: &Activations,
        y: MatMut<'_>,
        team: Team<'_>,
    ) -> Result<(), String> {
        self.by.threads.lock().unwrap().insert(team.pool.threads());
        let (dtype, rows, cols) = (weights.dtype(), weights.rows(), weights.cols());
        let out = MatMut { data: &mut *y.data, stride: y.stride };
        Weights::new(dtype, rows, cols, &self.bytes)
            .and_then(|copy| matmul(team.pool, team.isa, &copy, x, out))
            .map_err(|error| error.to_string())?;
        std::thread::sleep(self.by.delay);
        if self.by.wrong.load(Relaxed) {
            y.data.iter_mut().for_each(|y| *y += 1.0);
        }
        Ok(())
    }
}

/// Gathers and attends as the host's own code does.
struct Same;

impl EmbedProvider for Same {
    fn prepared_bytes(&self, _: &Weights<'_>, _: Isa) -> Option<usize> {
        Some(0)
    }

    fn prepare(&self, _: &Weights<'_>, _: Team<'_>) -> Result<Box<dyn PreparedEmbed>, String> {
        Ok(Box::new(Same))
    }
}

impl PreparedEmbed for Same {
    fn run(
        &self,
        table: &Weights<'_>,
        tokens: &[u32],
        y: &mut [f32],
        _: Team<'_>,
    ) -> Result<(), String> {
        let rows = tokens.iter().zip(y.chunks_exact_mut(table.cols()));
        rows.into_iter()
            .try_for_each(|(&token, y)| dequantize_row(table.dtype(), table.row(token as usize), y))
            .map_err(|error| error.to_string())
    }
}

impl AttentionProvider for Same {
    fn open(&self) -> Box<dyn AttentionSession> {
        Box::new(SameSession(AttnScratch::new()))
    }
}

struct SameSession(AttnScratch);

impl AttentionSession for SameSession {
    fn run(
        &mut self,
        shape: &AttnShape,
        sequences: &mut [AttnSequence<'_>],
        team: Team<'_>,
    ) -> Result<(), String> {
        attention_batch(team.pool, team.isa, shape, sequences, &mut self.0)
            .map_err(|error| error.to_string())
    }
}

fn stage(host: &Host) -> u64 {
    stage_provider(host, Provider::Matmul(DType::F32, Arc::<Copying>::default()))
}

fn stage_provider(host: &Host, provider: Provider) -> u64 {
    let version = host.config().runtime_version.clone();
    let pack = ProviderPack::new("copying", version).with("copy", provider);
    host.stage_providers(&pack).unwrap().id
}

fn calls(host: &Host, kernel: &str) -> u64 {
    let stats = host.stats().into_iter().filter(|stats| stats.kernel == kernel);
    stats.map(|stats| stats.calls).sum()
}

/// Bytes that kernels hold of the engine's memory.
fn held(engine: &Engine) -> usize {
    let holders = engine.memory().pool.holders;
    holders.iter().filter(|holder| holder.kind == Use::Kernels).map(|holder| holder.bytes).sum()
}

fn continued(session: &mut Session, tokens: usize) -> Vec<u32> {
    let next = |session: &mut Session| {
        let next = best(session.logits());
        session.decode(next).unwrap();
        next
    };
    (0..tokens).map(|_| next(session)).collect()
}

#[test]
fn a_provider_is_tried_activated_and_taken_back_and_no_text_changes() {
    for (provider, native, holds) in [
        (Provider::Matmul(DType::F32, Arc::<Copying>::default()), "native:matmul_f32_rows", true),
        (Provider::Embed(DType::F32, Arc::new(Same)), "native:embed_f32", false),
        (Provider::Attention(Arc::new(Same)), "native:attention", false),
    ] {
        let (host, op) = (native_host(), provider.key());
        let model = Fixture::new(&LLAMA, DType::F32).model();
        let engine = Engine::new(model, host.clone(), two_threads()).unwrap();
        let mut session = engine.session();
        session.prefill(&some_tokens(20)).unwrap();
        let want = {
            let mut other = engine.session();
            other.prefill(&some_tokens(20)).unwrap();
            continued(&mut other, 12)
        };
        let none = held(&engine);
        let id = stage_provider(&host, provider);
        host.start_canary(id, 0.5).unwrap();
        let before = calls(&host, native);
        let mut text = continued(&mut session, 4);
        let tried = calls(&host, "copy");
        assert!(tried > 0 && calls(&host, native) > before, "{op}: half of the steps are its own");
        assert_eq!(held(&engine) > none, holds, "{op}: both layouts are there");
        host.promote_canary().unwrap();
        let others = calls(&host, native);
        text.extend(continued(&mut session, 4));
        assert_eq!(calls(&host, native), others, "{op}: every step is its own");
        assert!(calls(&host, "copy") > tried, "{op}");
        assert_eq!(host.explain(&op).selected.as_deref(), Some("copy"));
        host.roll_back(1).unwrap();
        text.extend(continued(&mut session, 4));
        assert!(calls(&host, native) > others, "{op}");
        assert_eq!(text, want, "{op}");
        drained(&engine, &mut session, none);
    }
}

/// Waits until kernels hold no more than `bytes`: what is let go of is dropped by another thread.
fn drained(engine: &Engine, session: &mut Session, bytes: usize) {
    let waiting = Instant::now();
    while held(engine) > bytes {
        assert!(waiting.elapsed() < Duration::from_secs(20), "it went with its last step");
        session.decode(3).unwrap();
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn what_one_that_goes_out_of_service_has_made_of_the_weights_is_let_go_and_others_take_them_up() {
    let host = Host::new(HostConfig { cross_check_every: 1, ..HostConfig::default() }).unwrap();
    let model = Fixture::new(&LLAMA, DType::Q8_0).model();
    let engine = Engine::new(model, host.clone(), two_threads()).unwrap();
    let mut session = engine.session();
    session.prefill(&some_tokens(4)).unwrap();
    let none = held(&engine);
    let copying = Copying { dtype: Some(DType::Q8_0), ..Copying::default() };
    let provider = Provider::Matmul(DType::Q8_0, Arc::new(copying.clone()));
    host.activate(stage_provider(&host, provider)).unwrap();
    session.decode(1).unwrap();
    assert!(calls(&host, "copy") > 0 && held(&engine) > none);
    let first = |host: &Host| host.explain(&OpKey::matmul(DType::Q8_0)).selected.unwrap();
    assert_eq!(first(&host), "copy");
    copying.wrong.store(true, Relaxed);
    session.decode(2).unwrap();
    let native = first(&host);
    assert_ne!(native, "copy");
    drained(&engine, &mut session, none);
    let before = calls(&host, &native);
    session.decode(3).unwrap();
    assert!(calls(&host, &native) > before, "{native} is said to be asked, so it is");
}

/// Live calls of two generations differ in their rows, so what they took proves nothing.
#[test]
fn a_provider_that_seems_slower_is_compared_on_the_same_calls_of_the_model() {
    let host = native_host();
    let model = Fixture::new(&LLAMA, DType::F32).model();
    let activate = |version: u64, delay: Duration| {
        let copying = Copying { delay, ..Copying::default() };
        let providers = [
            Provider::Matmul(DType::F32, Arc::new(copying)),
            Provider::Embed(DType::F32, Arc::new(Same)),
            Provider::Attention(Arc::new(Same)),
        ];
        let pack = ProviderPack::new("copying", Version::new(version, 0, 0));
        let ids = ["copy", "gather", "attend"].into_iter().zip(providers);
        let pack = ids.fold(pack, |pack, (id, provider)| pack.with(id, provider));
        host.activate(host.stage_providers(&pack).unwrap().id).unwrap();
        host.snapshot()
    };
    let first = activate(1, Duration::ZERO);
    let second = activate(2, Duration::ZERO);
    let slow = activate(3, Duration::from_millis(20));
    let ops = [OpKey::matmul(DType::F32), OpKey::embed(DType::F32), OpKey::attention()];
    let slower = |old, new, ratio| {
        let comparison = host.compare(old, new);
        ops.each_ref().map(|op| comparison.is_slower(&host, op, ratio))
    };
    assert_eq!(slower(&first, &second, 5.0), [true; 3], "no model has calls to compare on");
    // On one thread, since regions of several take as long as the machine is busy.
    let config = EngineConfig { threads: 1, ..two_threads() };
    let _engine = Engine::new(model, host.clone(), config).unwrap();
    assert_eq!(slower(&first, &second, 5.0), [false; 3]);
    assert_eq!(slower(&second, &slow, 5.0), [true, false, false]);
}

#[test]
fn blocks_that_another_provider_computed_are_not_used_again() {
    for provider in [
        Provider::Matmul(DType::F32, Arc::<Copying>::default()),
        Provider::Embed(DType::F32, Arc::new(Same)),
        Provider::Attention(Arc::new(Same)),
    ] {
        let (host, op) = (native_host(), provider.key());
        let model = Fixture::new(&LLAMA, DType::F32).model();
        let config = EngineConfig { kv_block: 16, ..two_threads() };
        let engine = Engine::new(model, host.clone(), config).unwrap();
        let hits = |engine: &Engine| {
            engine.session().prefill(&some_tokens(40)).unwrap();
            engine.memory().kv.prefix_hit_tokens
        };
        assert_eq!((hits(&engine), hits(&engine)), (0, 32), "{op}");
        host.activate(stage_provider(&host, provider)).unwrap();
        assert_eq!(hits(&engine), 32, "{op}");
        assert!(calls(&host, "copy") > 0, "{op}");
        assert_eq!(hits(&engine), 64, "{op}");
    }
}

#[test]
fn who_is_made_ready_while_others_serve_prepares_and_races_on_the_threads_of_the_steps() {
    let config = HostConfig { policy: Policy::Fastest, ..HostConfig::default() };
    let host = Host::new(config).unwrap();
    let model = Fixture::new(&LLAMA, DType::F32).model();
    let _engine = Engine::new(model, host.clone(), two_threads()).unwrap();
    let copying = Copying::default();
    let threads = copying.threads.clone();
    let id = stage_provider(&host, Provider::Matmul(DType::F32, Arc::new(copying)));
    host.activate(id).unwrap();
    assert_eq!(*threads.lock().unwrap(), BTreeSet::from([2]));
    let explained = host.explain(&OpKey::matmul(DType::F32));
    let races = explained.notes.iter().filter(|note| note.starts_with("products of 1 rows"));
    // Of projections and of the vocabulary at least.
    assert!(races.clone().count() > 1 && races.clone().all(|race| race.contains("copy ")));
}

#[test]
fn a_provider_that_the_budget_has_no_room_for_is_refused_and_text_goes_on() {
    let host = native_host();
    let model = Fixture::new(&LLAMA, DType::F32).model();
    let config = EngineConfig { memory: Some(24 << 20), ..two_threads() };
    let engine = Engine::new(model, host.clone(), config).unwrap();
    let free = engine.memory().pool.budget - engine.memory().pool.used;
    let taken = engine.reserve(Use::Adapter, "all that is left", 0, free).unwrap();
    let error = host.activate(stage(&host)).unwrap_err();
    assert_eq!(error.code(), "not_prepared", "{error}");
    assert!(error.to_string().contains("--memory"), "{error}");
    assert_eq!(host.generation(), 1);
    drop(taken);
    let staged = host.staged()[0].id;
    host.activate(staged).unwrap();
    engine.session().prefill(&some_tokens(4)).unwrap();
    assert!(calls(&host, "copy") > 0);
}

#[test]
fn what_was_made_ready_and_gets_no_steps_is_let_go_though_none_is_computed() {
    struct Never;
    impl Preparer for Never {
        fn prepare(&self, _: &Arc<RegistrySnapshot>) -> Result<(), HostError> {
            let (kernel, failure) = ("copy".to_owned(), Failure::WeightMemory { needed: 1 });
            Err(HostError::NotPrepared { kernel, failure })
        }

        fn let_go(&self) {}

        fn compare(&self, _: [ComparedProvider<'_>; 2]) -> Vec<[Duration; 2]> {
            Vec::new()
        }
    }
    let host = native_host();
    let engine = Engine::new(Fixture::new(&LLAMA, DType::F32).model(), host.clone(), two_threads());
    let engine = engine.unwrap();
    let none = held(&engine);
    let let_go = |what: &str| {
        let waiting = Instant::now();
        while held(&engine) > none {
            assert!(waiting.elapsed() < Duration::from_secs(20), "{what}");
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    let id = stage(&host);
    host.start_canary(id, 0.01).unwrap();
    assert!(held(&engine) > none);
    host.end_canary().unwrap();
    let_go("a trial that has ended");
    let never: Arc<dyn Preparer> = Arc::new(Never);
    host.prepare_with(&never);
    let refused = host.activate(stage(&host)).unwrap_err();
    assert_eq!(refused.code(), "not_prepared");
    let_go("an activation that another model refuses");
}

/// Behind a provider that reads one form of the activations stands one that reads another: both are there.
#[test]
fn where_one_fails_the_next_finds_the_form_that_it_reads() {
    let host = native_host();
    let model = Fixture::new(&LLAMA, DType::Q8_0).model();
    let text = |engine: &Engine| {
        let mut session = engine.session();
        session.prefill(&some_tokens(20)).unwrap();
        continued(&mut session, 8)
    };
    let engine = Engine::new(model, host.clone(), two_threads()).unwrap();
    let want = text(&engine);
    let provider = Provider::Matmul(DType::Q8_0, Arc::new(Fails));
    host.activate(stage_provider(&host, provider)).unwrap();
    assert_eq!(text(&engine), want);
    let stats = host.stats().into_iter().find(|stats| stats.kernel == "copy").unwrap();
    assert!(stats.failures["provider_failed"] > 0 && stats.calls == 0, "{stats:?}");
}

/// Reads floats, and has none of them once rows are asked for that were not checked.
struct Fails;

impl MatmulProvider for Fails {
    fn prepared_bytes(&self, _: &Weights<'_>, _: Isa) -> Option<usize> {
        Some(0)
    }

    fn prepare(&self, _: &Weights<'_>, _: Team<'_>) -> Result<Box<dyn PreparedMatmul>, String> {
        Ok(Box::new(FailsAfter(AtomicBool::new(false))))
    }

    fn reads(&self, _: &Activations, _: usize, _: Isa) -> ActForm {
        ActForm::Floats
    }
}

struct FailsAfter(AtomicBool);

impl PreparedMatmul for FailsAfter {
    fn run(
        &self,
        weights: &Weights<'_>,
        x: &Activations,
        y: MatMut<'_>,
        _: Team<'_>,
    ) -> Result<(), String> {
        if self.0.swap(true, Relaxed) {
            return Err("out of order".to_owned());
        }
        let x = &x.floats()[..weights.cols()];
        let mut row = vec![0.0; weights.cols()];
        for (i, y) in y.data.iter_mut().enumerate() {
            dequantize_row(weights.dtype(), weights.row(i), &mut row).map_err(|e| e.to_string())?;
            *y = row.iter().zip(x).map(|(w, x)| w * x).sum();
        }
        Ok(())
    }
}
