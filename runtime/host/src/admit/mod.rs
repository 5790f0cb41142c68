//! Admission: a kernel shows on this machine that it computes the right numbers.
//!
//! A signature says who made a kernel; only this says that it is right. The kernel runs on golden
//! inputs, each twice, and must agree with the f64 oracle within the host's tolerance (byte for
//! byte where the format defines bytes), give the same bits both times, leave its inputs alone and
//! write all of its output and nothing behind it. Then it gets the same calls as a worker makes them,
//! and must give the same results.
//!
//! Numbers, shapes, order and what lies in the output before are drawn for each admission. All the
//! same a kernel can be right here and wrong later: that is for the cross-checks of [`crate::Worker`],
//! which it cannot foresee either.

mod budget;
mod golden;

pub(crate) use budget::Budget;
#[cfg(test)]
pub(crate) use golden::cases as golden_cases;
pub(crate) use golden::{Case, live_case};

use crate::OpKey;
use crate::call::{Scope, Words};
use crate::compare::{Judge, decode, exact_blocks, host_tolerance};
use crate::config::Compiler;
use crate::deadline::Deadline;
use crate::error::{Failure, Refusal};
use crate::exec::cache::{AotCache, Entry, EntryId};
use crate::exec::window::{Bench, GUARD_BYTES, OWN_PAGES, Room, Sandbox, check_info};
use crate::exec::{Executor, KernelSpec, PreparedKernel};
use crate::gate::GatedKernel;
use crate::memory::PackMemory;
use crate::random::{self, Random};
use crate::run::TILE_BYTES;
use crate::worker::wanted;
use ruvllm_abi::{Op, Status};
use ruvllm_native::{Isa, oracle, twin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32};

/// A kernel that computed the right numbers. Only [`admit`] makes one.
pub(crate) struct AdmittedKernel {
    compiled: CompiledKernel,
    verified: bool,
}

struct CompiledKernel {
    gated: GatedKernel,
    sandbox: Arc<Sandbox>,
}

impl AdmittedKernel {
    /// What it computes.
    pub(crate) fn key(&self) -> &OpKey {
        &self.compiled.gated.key
    }

    /// The kernel, its compiled form, and whether its numbers were held against an oracle: those
    /// of a custom operation cannot be.
    pub(crate) fn into_parts(self) -> (GatedKernel, Arc<Sandbox>, bool) {
        (self.compiled.gated, self.compiled.sandbox, self.verified)
    }
}

/// What kernels are admitted with.
pub(crate) struct Means<'a> {
    pub(crate) executor: &'a dyn Executor,
    pub(crate) compiler: &'a Compiler,
    pub(crate) cache: Option<&'a AotCache>,
    pub(crate) pace: Pace,
    pub(crate) budget: Arc<Budget>,
    /// Where instances of the pack count.
    pub(crate) memory: Arc<PackMemory>,
    /// See [`crate::HostConfig::admission_seed`].
    pub(crate) seed: Option<u64>,
}

/// How hard to work on a pack.
#[derive(Clone, Copy)]
pub(crate) struct Pace {
    /// How many threads may compile and prove at once.
    pub(crate) threads: usize,
    /// How many times as long as a kernel took to compile and prove a thread rests before the next.
    pub(crate) rest: u32,
}

/// A kernel that this host admitted at an earlier time, loaded again.
pub(crate) struct Recalled {
    prepared: Arc<dyn PreparedKernel>,
    verified: bool,
    own_pages: Vec<u16>,
}

impl CompiledKernel {
    fn new(gated: GatedKernel, prepared: Arc<dyn PreparedKernel>, own_pages: Vec<u16>) -> Self {
        let sandbox = Sandbox {
            prepared,
            memory: gated.memory.clone(),
            defaults: gated.defaults.clone(),
            own_pages,
            scratch: AtomicBool::new(false),
            heap_base: AtomicU32::new(0),
        };
        Self { gated, sandbox: Arc::new(sandbox) }
    }
}

impl Means<'_> {
    /// Takes a kernel from the cache, if it can vouch for it.
    pub(crate) fn recall(
        &self,
        id: &EntryId,
        spec: &KernelSpec,
        deadline: Deadline,
    ) -> Option<Recalled> {
        let cache = self.cache?;
        let Entry { artifact, verified, own_pages } = cache.get(id)?;
        match self.executor.load(&artifact, spec.clone(), deadline) {
            Ok(prepared) => Some(Recalled { prepared, verified, own_pages }),
            Err(_) => {
                cache.forget(id);
                None
            }
        }
    }
}

/// Compiles a gated kernel and lets it prove itself, unless it was recalled from an earlier time
/// when it did; the flag says whether it was.
///
/// # Errors
/// Why it is not admitted.
pub(crate) fn admit(
    mut gated: GatedKernel,
    wasm: &[u8],
    means: &Means<'_>,
) -> Result<(AdmittedKernel, bool), Refusal> {
    if let Some(Recalled { prepared, verified, own_pages }) = gated.recalled.take() {
        let compiled = CompiledKernel::new(gated, prepared, own_pages);
        return Ok((AdmittedKernel { compiled, verified }, true));
    }
    let id = gated.id.clone();
    let artifact = means
        .executor
        .compile(wasm, means.compiler, means.pace.threads == 1)
        .map_err(|e| Refusal::new(&id, e.code, e.detail))?;
    let prepared = means
        .executor
        .load(&artifact, gated.spec.clone(), gated.deadline)
        .map_err(|detail| Refusal::new(&id, "kernel_compile", detail))?;
    let mut compiled = CompiledKernel::new(gated, prepared.clone(), Vec::new());
    let seed = means.seed.unwrap_or_else(random::seed);
    let mut random = Random::new(seed);
    let refused = |objection| refusal(&id, seed, objection);
    let Proof { verified, own_pages, results } = prove(&compiled, &mut random).map_err(refused)?;
    compiled = CompiledKernel::new(compiled.gated, prepared, own_pages.clone());
    serve(&compiled, results, &mut random).map_err(refused)?;
    if let Some(cache) = means.cache {
        // A cache that cannot be written costs the next start its time, and nothing else.
        let entry = Entry { artifact, verified, own_pages };
        let _ = cache.put(&compiled.gated.entry_id, &entry);
    }
    Ok((AdmittedKernel { compiled, verified }, false))
}

/// Lets an admitted kernel show itself on calls of the shapes that this host has seen, as on the
/// golden ones. Gives how many calls those were: those that one run of an instance cannot hold are
/// made of fewer rows, and a custom operation, of which nothing is known, makes none.
///
/// # Errors
/// Why it is not to be used here.
pub(crate) fn rehearse(
    admitted: &AdmittedKernel,
    shapes: &[Words],
    means: &Means<'_>,
) -> Result<usize, Refusal> {
    let CompiledKernel { gated, sandbox } = &admitted.compiled;
    let Some((op, _)) = gated.key.known() else { return Ok(0) };
    let seed = means.seed.unwrap_or_else(random::seed);
    let mut random = Random::new(seed);
    let refused = |objection| refusal(&gated.id, seed, objection);
    let failed = |failure| refused(objection(failure));
    let mut bench = Bench::new(sandbox, Room::Tile, None).map_err(failed)?;
    let room = room(&bench);
    let mut results = Vec::new();
    for &words in shapes {
        let Some(words) = gated.plan.within(words, room) else { continue };
        let (inputs, output) = (&gated.key.inputs, gated.key.output);
        let Some(case) = golden::live_case((op, &gated.plan), inputs, output, words, &mut random)
        else {
            continue;
        };
        let output = manners(&mut bench, &admitted.compiled, &case, false, &mut random)
            .map_err(refused)?
            .unwrap_or_default();
        numbers(gated, op, &case, &output).map_err(refused)?;
        results.push((case, output));
    }
    bench.close().map_err(failed)?;
    let calls = results.len();
    serve(&admitted.compiled, results, &mut random).map_err(refused)?;
    Ok(calls)
}

/// What is told of an objection: with the seed that brings it up again.
fn refusal(id: &str, seed: u64, (code, what): Objection) -> Refusal {
    Refusal::new(id, code, format!("{what} (admission seed {seed})"))
}

/// Bytes that a call may move which is to be watched.
fn room(bench: &Bench) -> usize {
    bench.capacity().saturating_sub(GUARD_BYTES).min(TILE_BYTES)
}

type Objection = (&'static str, String);

fn objection(failure: Failure) -> Objection {
    (failure.code(), format!("the kernel {failure}"))
}

/// What a kernel showed of itself.
struct Proof {
    /// Whether its numbers were held against an oracle.
    verified: bool,
    /// The pages below the window that it writes to.
    own_pages: Vec<u16>,
    /// The cases that it took, and its results.
    results: Vec<(Case, Vec<u8>)>,
}

/// Lets a kernel compute the golden cases, in a memory that it may write to anywhere.
fn prove(compiled: &CompiledKernel, random: &mut Random) -> Result<Proof, Objection> {
    let CompiledKernel { gated, sandbox } = compiled;
    let mut bench = Bench::learning(sandbox, Room::Tile).map_err(objection)?;
    if let Some(info) = bench
        .info()
        .map_err(|failure| (failure.code(), format!("kernel_info: the kernel {failure}")))?
    {
        check_info(info).map_err(|what| ("kernel_abi", what))?;
    }
    let known = gated.key.known();
    let cases = match known {
        Some((op, _)) => golden::cases(
            (op, &gated.plan),
            &gated.key.inputs,
            gated.key.output,
            room(&bench),
            random,
        )
        .map_err(|detail| ("admission_failed", detail))?,
        None => golden::custom_cases(&gated.plan, random),
    };
    let mut results = Vec::with_capacity(cases.len());
    let first = cases.first().cloned();
    for case in cases.into_iter().chain(first) {
        let output = manners(&mut bench, compiled, &case, known.is_none(), random)?;
        if let (Some((op, _)), Some(output)) = (known, &output) {
            numbers(gated, op, &case, output)?;
        }
        results.extend(output.map(|output| (case, output)));
    }
    let own_pages = bench.own_pages();
    bench.close().map_err(objection)?;
    if own_pages.len() > OWN_PAGES {
        let what = format!(
            "the kernel writes to {} pages of 4 KiB beside its output, each of which is set back \
             between clients; this host takes {OWN_PAGES}: use less static memory",
            own_pages.len()
        );
        return Err(("kernel_own_pages", what));
    }
    Ok(Proof { verified: known.is_some(), own_pages, results })
}

/// Instances that a kernel is tried in at once as in service.
const INSTANCES: usize = 8;

/// Lets a kernel compute the same once more as in service: fenced in, in instances of the sizes that a
/// worker makes, with constants in place, for two clients in turns.
fn serve(
    compiled: &CompiledKernel,
    mut results: Vec<(Case, Vec<u8>)>,
    random: &mut Random,
) -> Result<(), Objection> {
    let CompiledKernel { gated, sandbox } = compiled;
    let scopes = [Scope::unique(), Scope::unique()];
    let mut benches: Vec<Bench> = Vec::new();
    random.shuffle(&mut results);
    for (case, want) in &results {
        let on = |(code, what): Objection| (code, format!("{what}, on {}", case.what));
        let failed = |failure| on(objection(failure));
        let _spending = gated.budget.spend()?;
        let bytes = gated.plan.bytes(case.words.as_slice()).unwrap_or_default();
        let constant = case.constant();
        let call = case.call_with(&constant).within(random.one_of(scopes));
        let (room, _) = wanted(&gated.plan, &call, &bytes);
        let at = match benches.iter().position(|bench| bench.is_for(room, None)) {
            Some(at) => at,
            None => {
                if benches.len() == INSTANCES {
                    benches.remove(0).close().map_err(failed)?;
                }
                let bench = loop {
                    match Bench::new(sandbox, room, None) {
                        Err(Failure::Memory { .. }) if !benches.is_empty() => {
                            benches.remove(0).close().map_err(failed)?;
                        }
                        made => break made.map_err(failed)?,
                    }
                };
                benches.push(bench);
                benches.len() - 1
            }
        };
        let got = benches[at].call(&call, &bytes).map_err(failed)?;
        if got != want {
            let what = "the kernel gives other results as in service, where it remembers nothing \
                        and its constants are kept in place";
            return Err(on(("kernel_not_deterministic", what.to_owned())));
        }
        if !benches[at].inputs_unchanged(&call) {
            return Err(failed(Failure::InputWritten));
        }
    }
    benches.into_iter().try_for_each(Bench::close).map_err(objection)
}

/// Runs a case twice and checks everything but the numbers. `None` where the kernel declined the
/// inputs, which only a custom operation may.
fn manners(
    bench: &mut Bench,
    compiled: &CompiledKernel,
    case: &Case,
    may_decline: bool,
    random: &mut Random,
) -> Result<Option<Vec<u8>>, Objection> {
    let plan = &compiled.gated.plan;
    let _spending = compiled.gated.budget.spend()?;
    let constant = case.constant();
    let on = |(code, what): Objection| (code, format!("{what}, on {}", case.what));
    let bytes = plan
        .bytes(case.words.as_slice())
        .map_err(|tensor| on(("admission_failed", format!("{} has no size", tensor.name))))?;
    let mut runs = Vec::with_capacity(2);
    for call in [case.call(), case.call_with(&constant)] {
        let ran = bench.prepare(&call, &bytes).and_then(|()| bench.run_guarded(random));
        let before = match ran {
            Ok(before) => before,
            Err(Failure::Status { status }) if may_decline && declined(status) => return Ok(None),
            Err(failure) => return Err(on(objection(failure))),
        };
        if !bench.inputs_unchanged(&call) {
            return Err(on(objection(Failure::InputWritten)));
        }
        bench.learn();
        runs.push((before, bench.output().to_vec()));
    }
    let [one, other] = &runs[..] else { return Ok(None) };
    let stay = |(before, after): &(Vec<u8>, Vec<u8>)| -> Vec<bool> {
        before.chunks(4).zip(after.chunks(4)).map(|(before, after)| before == after).collect()
    };
    if let Some(at) = stay(one).into_iter().zip(stay(other)).position(|stay| stay == (true, true)) {
        let what = format!("the kernel leaves its output from byte {} on unwritten", 4 * at);
        return Err(on(("kernel_mismatch", what)));
    }
    if one.1 != other.1 {
        let what = "the kernel gives different results for the same inputs".to_owned();
        return Err(on(("kernel_not_deterministic", what)));
    }
    Ok(runs.pop().map(|(_, output)| output))
}

/// Whether the status says that the inputs are none that the kernel takes.
fn declined(status: i32) -> bool {
    use Status::{InvalidInput, InvalidOutput, InvalidParams, NotImplemented, OutOfMemory};
    let declining = [InvalidInput, InvalidOutput, InvalidParams, OutOfMemory, NotImplemented];
    Status::from_code(status).is_some_and(|status| declining.contains(&status))
}

/// Holds an output against the oracle.
fn numbers(gated: &GatedKernel, op: Op, case: &Case, output: &[u8]) -> Result<(), Objection> {
    let key = &gated.key;
    let words = case.words.as_slice();
    let internal = |what: String| ("admission_failed", format!("{what}, on {}", case.what));
    let verdict = match host_tolerance(op, key.output) {
        Some(tolerance) => {
            let want = oracle::run(op, &key.inputs, key.output, &case.a, &case.b, words)
                .map_err(|e| internal(e.to_string()))?;
            let mut got = Vec::new();
            decode(key.output, output, &mut got).map_err(internal)?;
            let judge = Judge {
                dtype: key.output,
                tolerance,
                author: gated.author(),
                row: case.row,
                floor: case.floor,
            };
            judge.check(&got, &want)
        }
        None => {
            let mut want = vec![0; output.len()];
            twin::run(Isa::Scalar, op, &key.inputs, key.output, &case.a, &case.b, words, &mut want)
                .map_err(|e| internal(e.to_string()))?;
            exact_blocks(key.output, &case.a, output, &want)
        }
    };
    verdict.map_err(|failure| {
        let (code, what) = objection(failure);
        (code, format!("{what}, on {}", case.what))
    })
}
