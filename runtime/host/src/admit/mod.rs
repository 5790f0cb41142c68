//! Admission: a kernel shows on this machine that it computes the right numbers.
//!
//! A signature says who made a kernel; only this says that it is right. The kernel runs on golden
//! inputs, each twice, and must agree with the f64 oracle within the host's tolerance (byte for
//! byte where the format defines bytes), give the same bits both times, leave its inputs alone and
//! write all of its output and nothing behind it. A kernel with threads does so with 1, 2 and 4 of them, and gives the
//! same bits with each: a tolerance would let races pass that are small here. A kernel that has `kernel_backward` does the same with
//! gradients, which must also agree with how the operation changes along a small step. Then it gets the same calls as a worker makes them,
//! and must give the same results.
//!
//! Numbers, shapes, order and what lies in the output before are drawn for each admission. All the
//! same a kernel can be right here and wrong later: that is for the cross-checks of [`crate::Worker`],
//! which it cannot foresee either.

mod admission;
mod budget;
mod golden;
mod recall;

pub(crate) use admission::{Admission, Pace};
pub(crate) use budget::Budget;
#[cfg(test)]
pub(crate) use golden::cases as golden_cases;
pub(crate) use golden::{Case, live_case};

use crate::compare::{called, judge_of};
use crate::error::{Failure, Refusal};
use crate::exec::cache::CachedCode;
use crate::exec::{Executor, OWN_PAGES};
use crate::gate::GatedKernel;
use crate::instance::{GUARD_BYTES, Instance, InstanceTemplate, WindowSize, check_info, wanted};
use crate::op::call::{Scope, Words};
use crate::random::Random;
use crate::trap::CodeLocation;
use ruvllm_abi::contract::Variant;
use ruvllm_abi::{MAX_THREADS, Op, Status};
use ruvllm_native::judge::{self, Wrong};
use std::sync::Arc;

/// A kernel that computed the right numbers, now or when the cache took it in. Only this module makes
/// one, of a [`GatedKernel`].
///
/// ```compile_fail,E0451
/// use ruvllm_host::lifecycle::{AdmittedKernel, GatedKernel};
///
/// fn skip_admission<'a>(gated: GatedKernel<'a>, other: AdmittedKernel<'a>) -> AdmittedKernel<'a> {
///     AdmittedKernel { gated, ..other }
/// }
/// ```
#[deny(clippy::field_scoped_visibility_modifiers)]
pub struct AdmittedKernel<'a> {
    gated: GatedKernel<'a>,
    template: Arc<InstanceTemplate>,
    verified: bool,
}

/// What the documentation of [`AdmittedKernel`] tries in vain compiles where its fields are seen.
#[cfg(test)]
#[expect(dead_code, reason = "only compiled")]
fn skip_admission<'a>(gated: GatedKernel<'a>, other: AdmittedKernel<'a>) -> AdmittedKernel<'a> {
    AdmittedKernel { gated, ..other }
}

impl AdmittedKernel<'_> {
    /// What passed the gates.
    pub(crate) fn gated(&self) -> &GatedKernel<'_> {
        &self.gated
    }

    /// What its instances are made of.
    pub(crate) fn template(&self) -> &Arc<InstanceTemplate> {
        &self.template
    }

    /// Whether its numbers were held against an oracle: those of a custom operation cannot be.
    pub(crate) fn is_verified(&self) -> bool {
        self.verified
    }
}

/// A kernel on trial.
struct UnprovenKernel<'a> {
    gated: &'a GatedKernel<'a>,
    template: &'a Arc<InstanceTemplate>,
    budget: &'a Budget,
}

/// Admits a gated kernel: takes it from the cache, which vouches for what was admitted before, or else
/// compiles it and lets it prove itself. The flag says whether it was taken from the cache.
///
/// # Errors
/// Why it is not admitted.
pub(crate) fn admit<'a>(
    gated: GatedKernel<'a>,
    admission: &Admission<'_>,
) -> Result<(AdmittedKernel<'a>, bool), Refusal> {
    let executor = admission.executor(&gated)?;
    match recall::recall(&gated, executor, admission) {
        Some((template, verified)) => Ok((AdmittedKernel { gated, template, verified }, true)),
        None => compile(gated, executor, admission).map(|admitted| (admitted, false)),
    }
}

/// Compiles a kernel and lets it prove itself.
fn compile<'a>(
    gated: GatedKernel<'a>,
    executor: &dyn Executor,
    admission: &Admission<'_>,
) -> Result<AdmittedKernel<'a>, Refusal> {
    let artifact = executor
        .compile(gated.module(), admission.compiler, admission.pace.threads == 1)
        .map_err(|e| Refusal::new(gated.id(), e.code, e.detail))?;
    let deadline = admission.deadline(&gated, executor);
    let prepared = executor
        .load(&artifact, gated.module(), admission.spec(&gated), deadline)
        .map_err(|detail| Refusal::new(gated.id(), "kernel_compile", detail))?;
    let seed = admission.seed();
    let mut random = Random::new(seed);
    let refused = |failure| refusal(gated.id(), seed, failure);
    let budget = &admission.budget;
    let learning = admission.template(&gated, prepared.clone(), Vec::new());
    let candidate = UnprovenKernel { gated: &gated, template: &learning, budget };
    let Proof { verified, own_pages, results } = prove(&candidate, &mut random).map_err(refused)?;
    let template = admission.template(&gated, prepared, own_pages.clone());
    let candidate = UnprovenKernel { template: &template, ..candidate };
    serve(&candidate, results, &mut random).map_err(refused)?;
    recall::keep(&gated, executor, admission, CachedCode { artifact, verified, own_pages });
    Ok(AdmittedKernel { gated, template, verified })
}

/// Lets an admitted kernel show itself on calls of the shapes that this host has seen, as on the
/// golden ones. Gives how many calls those were: those that one run of an instance cannot hold are
/// made of fewer rows, and a custom operation, of which nothing is known, makes none.
///
/// # Errors
/// Why it is not to be used here.
pub(crate) fn rehearse(
    admitted: &AdmittedKernel<'_>,
    shapes: &[Words],
    admission: &Admission<'_>,
) -> Result<usize, Refusal> {
    let AdmittedKernel { gated, template, .. } = admitted;
    let candidate = UnprovenKernel { gated, template, budget: &admission.budget };
    let Some(known) = gated.key().known() else { return Ok(0) };
    let seed = admission.seed();
    let mut random = Random::new(seed);
    let refused = |failure| refusal(gated.id(), seed, failure);
    let failed = |failure| refused(admission_failure(failure));
    let mut instance = Instance::new(template, WindowSize::Tile, None).map_err(failed)?;
    let room = room(&instance);
    let mut results = Vec::new();
    for &words in shapes {
        let Some(words) = gated.plan().within(words, room) else { continue };
        let Some(case) = golden::live_case(known, words, &mut random) else { continue };
        let output = check_contract(&mut instance, &candidate, &case, false, &mut random)
            .map_err(refused)?
            .unwrap_or_default();
        numbers(gated, known, &case, &output).map_err(refused)?;
        results.push((case, output));
    }
    instance.close().map_err(failed)?;
    let calls = results.len();
    serve(&candidate, results, &mut random).map_err(refused)?;
    Ok(calls)
}

/// What is told of a failure: with the seed that brings it up again.
fn refusal(
    id: &str,
    seed: u64,
    AdmissionFailure { code, what, place }: AdmissionFailure,
) -> Refusal {
    Refusal::new(id, code, format!("{what} (admission seed {seed})")).at(place)
}

/// Bytes that a call may move which is to be watched.
fn room(instance: &Instance) -> usize {
    instance.capacity().saturating_sub(GUARD_BYTES).min(judge::ROOM)
}

/// Why a kernel is not admitted.
struct AdmissionFailure {
    code: &'static str,
    what: String,
    /// Where it trapped, if that is why.
    place: Option<Box<CodeLocation>>,
}

impl AdmissionFailure {
    /// The same, with the case that brought it up.
    fn on(mut self, case: &Case) -> Self {
        self.what = format!("{}, on {}", self.what, case.what);
        self
    }
}

impl From<(&'static str, String)> for AdmissionFailure {
    fn from((code, what): (&'static str, String)) -> Self {
        Self { code, what, place: None }
    }
}

fn admission_failure(failure: Failure) -> AdmissionFailure {
    let place = failure.trap().and_then(|trap| trap.place.clone());
    AdmissionFailure { place, ..(failure.code(), format!("the kernel {failure}")).into() }
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
fn prove(candidate: &UnprovenKernel<'_>, random: &mut Random) -> Result<Proof, AdmissionFailure> {
    let UnprovenKernel { gated, template, .. } = candidate;
    let mut instance = Instance::learning(template, WindowSize::Tile).map_err(admission_failure)?;
    if let Some(info) = instance
        .info()
        .map_err(admission_failure)
        .map_err(|o| AdmissionFailure { what: format!("kernel_info: {}", o.what), ..o })?
    {
        check_info(info).map_err(|what| ("kernel_abi", what))?;
    }
    let known = gated.key().known();
    let cases = match known {
        Some(known) => golden::cases(known, gated.spec().backward, room(&instance), random)
            .map_err(|error| ("admission_failed", error.to_string()))?,
        None => golden::custom_cases(gated.plan(), random),
    };
    let mut results = Vec::with_capacity(cases.len());
    let first = cases.first().cloned();
    for case in cases.into_iter().chain(first) {
        let output = check_contract(&mut instance, candidate, &case, known.is_none(), random)?;
        if let (Some(known), Some(output)) = (known, &output) {
            numbers(gated, known, &case, output)?;
        }
        results.extend(output.map(|output| (case, output)));
    }
    if let Some(known) = known.filter(|_| gated.spec().backward)
        && let Some(case) = golden::differentiable_case(known, random)
    {
        let output =
            check_contract(&mut instance, candidate, &case, false, random)?.unwrap_or_default();
        // First against the operation itself, which knows nothing of the oracle's gradients.
        differences(gated, known, &case, &output, random)?;
        numbers(gated, known, &case, &output)?;
        results.push((case, output));
    }
    let own_pages = instance.own_pages();
    instance.close().map_err(admission_failure)?;
    if own_pages.len() > OWN_PAGES {
        let what = format!(
            "the kernel writes to {} pages of 4 KiB beside its output, each of which is set back \
             between clients; this host takes {OWN_PAGES}: use less static memory",
            own_pages.len()
        );
        return Err(("kernel_own_pages", what).into());
    }
    Ok(Proof { verified: known.is_some(), own_pages, results })
}

/// Instances that a kernel is tried in at once as in service.
const INSTANCES: usize = 8;

/// Lets a kernel compute the same once more as in service: fenced in, in instances of the sizes that a
/// worker makes, with constants in place, for two clients in turns.
fn serve(
    candidate: &UnprovenKernel<'_>,
    mut results: Vec<(Case, Vec<u8>)>,
    random: &mut Random,
) -> Result<(), AdmissionFailure> {
    let UnprovenKernel { gated, template, budget } = candidate;
    let scopes = [Scope::unique(), Scope::unique()];
    let mut instances: Vec<Instance> = Vec::new();
    random.shuffle(&mut results);
    for (case, want) in &results {
        let failed = |failure| admission_failure(failure).on(case);
        let _guard = budget.spend(gated.spec().threads)?;
        let constant = case.constant();
        let call = case.call_with(&constant).within(random.one_of(scopes));
        let bytes = gated.plan().bytes_of(&call).unwrap_or_default();
        let (window_size, _) = wanted(gated.plan(), &call, &bytes);
        let at = match instances.iter().position(|instance| instance.is_for(window_size, None)) {
            Some(at) => at,
            None => {
                if instances.len() == INSTANCES {
                    instances.remove(0).close().map_err(failed)?;
                }
                let instance = loop {
                    match Instance::new(template, window_size, None) {
                        Err(Failure::Memory { .. }) if !instances.is_empty() => {
                            instances.remove(0).close().map_err(failed)?;
                        }
                        made => break made.map_err(failed)?,
                    }
                };
                instances.push(instance);
                instances.len() - 1
            }
        };
        instances[at].call(&call, &bytes).map_err(failed)?;
        if instances[at].outputs().concat() != *want {
            let what = "the kernel gives other results as in service, where it remembers nothing \
                        and its constants are kept in place";
            return Err(
                AdmissionFailure::from(("kernel_not_deterministic", what.to_owned())).on(case)
            );
        }
        if !instances[at].inputs_unchanged(&call) {
            return Err(failed(Failure::InputWritten));
        }
    }
    instances.into_iter().try_for_each(Instance::close).map_err(admission_failure)
}

/// With how many threads a kernel is tried that asks for so many.
fn thread_counts(most: u32) -> impl Iterator<Item = u32> {
    [1, 2, MAX_THREADS].into_iter().filter(move |&count| count < most).chain([most])
}

/// Runs a case twice, with each number of threads, and checks everything but the numbers. `None` where the kernel declined the
/// inputs, which only a custom operation may.
fn check_contract(
    instance: &mut Instance,
    candidate: &UnprovenKernel<'_>,
    case: &Case,
    may_decline: bool,
    random: &mut Random,
) -> Result<Option<Vec<u8>>, AdmissionFailure> {
    let plan = candidate.gated.plan();
    let threads = candidate.gated.spec().threads;
    let _guard = candidate.budget.spend(threads)?;
    let constant = case.constant();
    let on = |failure: AdmissionFailure| failure.on(case);
    let bytes = plan.bytes_of(&case.call()).map_err(|tensor| {
        on(("admission_failed", format!("{} has no size", tensor.name)).into())
    })?;
    let mut runs = Vec::with_capacity(2);
    let tries = thread_counts(threads)
        .flat_map(|count| [(count, case.call()), (count, case.call_with(&constant))]);
    for (count, call) in tries {
        instance.set_threads(count);
        let ran = instance.prepare(&call, &bytes).and_then(|()| instance.run_guarded(random));
        let run = match ran {
            Ok(run) => run,
            Err(Failure::Status { status, .. }) if may_decline && declined(status) => {
                return Ok(None);
            }
            Err(Failure::Status { status, message, .. }) => {
                let detail = instance.explain_status(plan, &call, status);
                return Err(on(admission_failure(Failure::Status { status, detail, message })));
            }
            Err(failure) => return Err(on(admission_failure(failure))),
        };
        if !instance.inputs_unchanged(&call) {
            return Err(on(admission_failure(Failure::InputWritten)));
        }
        instance.learn();
        runs.push((count, run));
    }
    let stays = |run: &(u32, (Vec<u8>, Vec<u8>)), at: usize| {
        let (_, (before, after)) = run;
        before[at..].iter().zip(&after[at..]).take(4).all(|(before, after)| before == after)
    };
    let Some((_, (_, first))) = runs.first() else { return Ok(None) };
    let mut words = (0..first.len()).step_by(4);
    if let Some(at) = words.find(|&at| runs.iter().all(|run| stays(run, at))) {
        let what = format!("the kernel leaves its output from byte {at} on unwritten");
        return Err(on(("kernel_mismatch", what).into()));
    }
    if let Some((count, _)) = runs.iter().find(|(_, (_, output))| output != first) {
        let what = match count {
            1 => "the kernel gives different results for the same inputs".to_owned(),
            _ => format!(
                "the kernel gives other results with {count} threads than with one: threads write or read what \
                 others write, or add up in another order"
            ),
        };
        return Err(on(("kernel_not_deterministic", what).into()));
    }
    Ok(runs.pop().map(|(_, (_, output))| output))
}

/// Whether the status says that the inputs are none that the kernel takes.
fn declined(status: i32) -> bool {
    use Status::{InvalidInput, InvalidOutput, InvalidParams, NotImplemented, OutOfMemory};
    let declining = [InvalidInput, InvalidOutput, InvalidParams, OutOfMemory, NotImplemented];
    Status::from_code(status).is_some_and(|status| declining.contains(&status))
}

/// Holds an output, or gradients that lie end to end, against the oracle.
fn numbers(
    gated: &GatedKernel<'_>,
    known: (Op, &'static Variant),
    case: &Case,
    output: &[u8],
) -> Result<(), AdmissionFailure> {
    let (judge, call) = (judge_of(known, gated.author()), case.call());
    let judged = match call.is_backward() {
        true => judge.check_gradients(called(&call), &case.gradient, gradients(case, output)),
        false => judge.check(called(&call), output),
    };
    judged.map(|_| ()).map_err(|wrong| wrong_on(case, wrong))
}

/// Holds gradients against differences of the operation itself.
fn differences(
    gated: &GatedKernel<'_>,
    known: (Op, &'static Variant),
    case: &Case,
    output: &[u8],
    random: &mut Random,
) -> Result<(), AdmissionFailure> {
    let judge = judge_of(known, gated.author());
    let (call, gradients) = (case.call(), gradients(case, output));
    judge
        .check_differences(called(&call), &case.gradient, gradients, random)
        .map_err(|wrong| wrong_on(case, wrong))
}

/// The gradients by both inputs, the first of which has the size of its input.
fn gradients<'a>(case: &Case, output: &'a [u8]) -> [&'a [u8]; 2] {
    output.split_at(case.a.len().min(output.len())).into()
}

fn wrong_on(case: &Case, wrong: Wrong) -> AdmissionFailure {
    let failure = match wrong {
        Wrong::Refused(error) => ("admission_failed", error.to_string()).into(),
        wrong => admission_failure(wrong.into()),
    };
    failure.on(case)
}
