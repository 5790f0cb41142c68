//! Kernels that compute a graph of their pack through WASI-NN.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ruvllm_graph::{GraphCaps, KernelGraphs, OnnxProvider};
use ruvllm_host::graph::{Graph, GraphContext, GraphError, GraphProvider, GraphValue};
use ruvllm_host::{CallError, Failure, Host, HostConfig, HostError, Tensor};
use ruvllm_manifest::{GraphEntry, GraphType, WASI_NN};
use ruvllm_signing::{Publisher, TrustPolicy, VerifiedPack};
use ruvllm_tests::graphs::{LATER, entry, kernel};
use ruvllm_tests::{PackBuilder, TestPack, codes, onnx};
use serde_json::{Value, json};

use crate::parsed;

/// A pack with the kernel that `ruvllm_tests` has, and the graph `mlp`.
struct Kernel {
    later: String,
    features: &'static [&'static str],
    ticks: u64,
    graph: Value,
}

impl Default for Kernel {
    fn default() -> Self {
        Self { later: String::new(), features: &[WASI_NN], ticks: 1000, graph: entry("mlp") }
    }
}

impl Kernel {
    /// One that returns the error of these instructions.
    fn asking(call: &str) -> Self {
        Self { later: format!("(local.set $e {call}) (br $failed)"), ..Self::default() }
    }

    fn pack(&self) -> TestPack {
        let (mut entry, module) = kernel(&self.later);
        entry.resource_limits.max_epoch_ticks = self.ticks;
        let platform = entry.platforms.wasmtime.as_mut().unwrap();
        platform.features = self.features.iter().map(|name| (*name).to_owned()).collect();
        let builder = PackBuilder::new().entry(entry, module);
        builder.graph(parsed(&self.graph), onnx::mlp().model(), Vec::new()).build()
    }

    /// A host that has taken the pack in, its graph computed by this provider.
    fn admitted(&self, provider: impl GraphProvider + 'static) -> Result<Host, HostError> {
        let graphs = KernelGraphs::new(provider, GraphCaps::default());
        let config = HostConfig { graphs: Some(Arc::new(graphs)), ..HostConfig::default() };
        let host = Host::new(config).unwrap();
        host.install(granted(&self.pack()))?;
        Ok(host)
    }

    /// How a call of [`LATER`] rows ends, behind one that is right.
    fn later(&self, provider: impl GraphProvider + 'static) -> Result<Vec<f32>, Failure> {
        let host = self.admitted(provider).unwrap();
        assert_eq!(classify(&host, 2), Ok(expected(2)));
        classify(&host, LATER)
    }
}

/// The pack as a policy has it that grants graphs to its publisher.
fn granted(pack: &TestPack) -> VerifiedPack {
    let publisher = Publisher { wasi_nn: true, ..pack.publisher("test") };
    let policy = TrustPolicy::new(vec![publisher], 1).unwrap();
    pack.read().unwrap().verify(&policy, None).unwrap()
}

fn numbers(rows: u32) -> Vec<f32> {
    (0..rows * 8).map(|i| (i * 5 % 17) as f32 / 8.0 - 1.0).collect()
}

fn classify(host: &Host, rows: u32) -> Result<Vec<f32>, Failure> {
    let x = Tensor::from_f32([rows as usize, 8], &numbers(rows)).unwrap();
    let mut worker = host.worker().unwrap();
    let name = "test-kernels/classify";
    match worker.call_generic(&host.snapshot(), name, &[x], &[]) {
        Ok(y) => Ok(y[0].to_f32()),
        Err(CallError::Failed { failure, .. }) => Err(failure),
        Err(error) => panic!("{error}"),
    }
}

/// What the graph itself gives.
fn expected(rows: u32) -> Vec<f32> {
    let graph = OnnxProvider.load(&parsed(&entry("mlp")), &onnx::mlp().model()).unwrap();
    let bytes = numbers(rows).iter().flat_map(|x| x.to_le_bytes()).collect();
    let mut context = graph.context().unwrap();
    let x = GraphValue::new(GraphType::F32, vec![rows as usize, 8], bytes).unwrap();
    context.set_input(0, x).unwrap();
    context.compute(&|| true).unwrap();
    context.output(0).unwrap().to_f32().unwrap()
}

fn refused(kernel: &Kernel) -> &'static str {
    kernel.admitted(OnnxProvider).err().expect("it was admitted").code()
}

/// The errors of WASI-NN, in the order of their numbers.
const ERRORS: [&str; 9] = [
    "success",
    "invalid_argument",
    "invalid_encoding",
    "missing_memory",
    "busy",
    "runtime_error",
    "unsupported_operation",
    "too_large",
    "not_found",
];

/// Its types of elements, likewise.
const TENSOR_TYPES: [&str; 6] = ["f16", "f32", "f64", "u8", "i32", "i64"];

/// The error of WASI-NN that these instructions give, by its name.
fn error_of(call: &str) -> &'static str {
    error(&Kernel::asking(call).later(OnnxProvider).unwrap_err())
}

fn error(failure: &Failure) -> &'static str {
    match failure {
        Failure::Status { status, .. } => ERRORS[*status as usize - 100],
        failure => panic!("{failure}"),
    }
}

#[test]
fn a_kernel_computes_a_graph_of_its_pack() {
    let host = Kernel::default().admitted(OnnxProvider).unwrap();
    for rows in [1, 8, 2] {
        assert_eq!(classify(&host, rows), Ok(expected(rows)));
    }
}

#[test]
fn the_manifest_must_ask_and_the_policy_grant() {
    let silent = Kernel { features: &[], ..Kernel::default() };
    assert_eq!(refused(&silent), "module_import");
    let pack = Kernel::default().pack();
    assert_eq!(codes(&pack.verify().unwrap_err()), ["wasi_nn_not_granted"]);
    let host = Host::new(HostConfig::default()).unwrap();
    let error = host.install(granted(&pack)).unwrap_err();
    assert_eq!(error.code(), "graphs_unavailable", "{error}");
}

#[test]
fn a_graph_that_is_not_right_here_keeps_its_pack_out() {
    let mut kernel = Kernel::default();
    kernel.graph["checks"][0]["outputs"][0]["values"][0] = json!(7.0);
    assert_eq!(refused(&kernel), "graph_mismatch");
}

#[test]
fn a_graph_is_asked_for_by_the_name_that_the_pack_has_for_it() {
    let named = "(call $load_by_name (i32.const 0) (i32.const 2) (i32.const 64))";
    assert_eq!(error_of(named), "not_found");
    let bytes =
        "(call $load (i32.const 96) (i32.const 1) (i32.const 1) (i32.const 0) (i32.const 64))";
    assert_eq!(error_of(bytes), "unsupported_operation");
    let handle = "(call $init (i32.const 1) (i32.const 68))";
    assert_eq!(error_of(handle), "invalid_argument");
}

#[test]
fn contexts_are_bounded_and_end_with_the_call() {
    let many = "(loop $more
        (br_if $failed
          (local.tee $e (call $init (i32.load (i32.const 64)) (i32.const 68))))
        (local.set $i (i32.add (local.get $i) (i32.const 1)))
        (br_if $more (i32.lt_u (local.get $i) (i32.const 16))))
      (call $init (i32.load (i32.const 64)) (i32.const 68))";
    let kernel =
        Kernel { later: format!("{many} (local.set $e) (br $failed)"), ..Kernel::default() };
    let failure = kernel.later(OnnxProvider).unwrap_err();
    assert_eq!(error(&failure), "missing_memory");
    // The call before had a context of that number.
    assert_eq!(error_of("(call $compute (i32.const 0))"), "invalid_argument");
    // Sixteen of a call are no burden for the next one.
    let sixteen = many.rsplit_once("(call").unwrap().0.to_owned();
    let kernel = Kernel { later: format!("{sixteen} (return (i32.const 5))"), ..Kernel::default() };
    let host = kernel.admitted(OnnxProvider).unwrap();
    for _ in 0..2 {
        let failure = classify(&host, LATER).unwrap_err();
        assert!(matches!(failure, Failure::Status { status: 5, .. }), "{failure}");
    }
    assert_eq!(classify(&host, 2), Ok(expected(2)));
}

#[test]
fn what_contexts_hold_is_bounded() {
    let mut kernel = Kernel::asking(
        "(block (result i32)
          (drop (call $init (i32.load (i32.const 64)) (i32.const 68)))
          (call $set_input (i32.load (i32.const 68)) (i32.const 0)
            (call $tensor (i32.const 200000) (i32.const 8) (i32.const 0))))",
    );
    kernel.graph["extents"]["batch"] = json!(1 << 18);
    let failure = kernel.later(OnnxProvider).unwrap_err();
    assert_eq!(error(&failure), "missing_memory");
}

#[test]
fn inputs_and_outputs_are_held_to_the_graph() {
    let with = |then: &str| {
        format!(
            "(block (result i32)
              (drop (call $init (i32.load (i32.const 64)) (i32.const 68))) {then})"
        )
    };
    let set = |index: u32, rows: u32, columns: u32| {
        format!(
            "(call $set_input (i32.load (i32.const 68)) (i32.const {index})
              (call $tensor (i32.const {rows}) (i32.const {columns}) (i32.const 0)))"
        )
    };
    for wrong in [set(0, 3, 7), set(0, 9, 8), set(1, 3, 8)] {
        assert_eq!(error_of(&with(&wrong)), "invalid_argument", "{wrong}");
    }
    let f64s = "(i32.store (i32.const 104) (i32.const 2))";
    let typed = format!(
        "(drop (call $tensor (i32.const 3) (i32.const 8) (i32.const 0))) {f64s}
         (call $set_input (i32.load (i32.const 68)) (i32.const 0) (i32.const 96))"
    );
    assert_eq!(error_of(&with(&typed)), "invalid_argument", "another type");
    assert_eq!(error_of(&with("(call $compute (i32.load (i32.const 68)))")), "invalid_argument");
    let output = |room: u32, to: u32| {
        format!(
            "(call $get_output (i32.load (i32.const 68)) (i32.const 0) (i32.const {to})
              (i32.const {room}) (i32.const 72))"
        )
    };
    assert_eq!(error_of(&with(&output(64, 128))), "invalid_argument", "not computed");
    let computed =
        format!("(drop {}) (drop (call $compute (i32.load (i32.const 68))))", set(0, 3, 8));
    assert_eq!(error_of(&with(&format!("{computed} {}", output(47, 128)))), "too_large");
    assert_eq!(error_of(&with(&format!("{computed} {}", output(48, 128)))), "success");
}

#[test]
fn a_place_that_the_kernel_cannot_use_ends_its_call_and_nothing_else() {
    let tensor = |at: u32, value: u32| {
        format!(
            "(drop (call $tensor (i32.const 3) (i32.const 8) (i32.const 0)))
             (i32.store (i32.const {at}) (i32.const {value}))"
        )
    };
    let set = "(call $set_input (i32.load (i32.const 68)) (i32.const 0) (i32.const 96))";
    let output = |to: u32, len: u32| {
        format!(
            "(call $get_output (i32.load (i32.const 68)) (i32.const 0) (i32.const {to})
              (i32.const 48) (i32.const {len}))"
        )
    };
    // Behind the memory, partly too, and where the kernel may only read.
    let (behind, across, read_only) = (u32::MAX - 50, (128 << 16) - 2, (128 << 16) - 64);
    let mut calls = vec![
        format!("(call $load_by_name (i32.const {behind}) (i32.const 3) (i32.const 64))"),
        "(call $load_by_name (i32.const 0) (i32.const -1) (i32.const 64))".to_owned(),
        format!("(call $set_input (i32.load (i32.const 68)) (i32.const 0) (i32.const {across}))"),
        // Extents, elements and their bytes.
        format!("{} {set}", tensor(96, behind)),
        format!("{} {set}", tensor(108, behind)),
        format!("{} {set}", tensor(112, u32::MAX)),
    ];
    for to in [behind, across, read_only] {
        calls.push(format!("(call $load_by_name (i32.const 0) (i32.const 3) (i32.const {to}))"));
        calls.push(format!("(call $init (i32.load (i32.const 64)) (i32.const {to}))"));
        calls.push(output(to, 72));
        calls.push(output(128, to));
    }
    for call in calls {
        let kernel = Kernel::asking(&format!("(block (result i32) {COMPUTED} {call})"));
        let host = kernel.admitted(OnnxProvider).unwrap();
        let failure = classify(&host, LATER).unwrap_err();
        assert_eq!(failure.code(), "kernel_trap", "{call}: {failure}");
        assert_eq!(classify(&host, 2), Ok(expected(2)), "{call}");
    }
}

/// A context with its input set and computed, in calls of [`LATER`] rows.
const COMPUTED: &str = "(drop (call $init (i32.load (i32.const 64)) (i32.const 68)))
    (drop (call $set_input (i32.load (i32.const 68)) (i32.const 0)
      (call $tensor (i32.const 3) (i32.const 8) (i32.const 0))))
    (drop (call $compute (i32.load (i32.const 68))))";

#[test]
fn whatever_a_function_is_given_it_answers_or_ends_the_call() {
    // What is wrong in one place or another: beyond a table, a page that is read-only, the last bytes of the memory,
    // its end, and the largest of integers with a sign and without.
    let values = [0, 1, 6, 17, 255, 256, 65, 66, 1 << 15, 4 << 20, 5 << 20];
    let end = 128 << 16;
    let ends = [end - 4, end - 2, end, 1 << 31, u32::MAX - 3, u32::MAX];
    let functions: [(&str, &[u32]); 7] = [
        ("$load", &[96, 1, 1, 0, 64]),
        ("$load_by_name", &[0, 3, 64]),
        ("$init", &[0, 68]),
        ("$set_input", &[0, 0, 96]),
        ("$compute", &[0]),
        ("$get_output", &[0, 0, 128, 48, 72]),
        // The record of a tensor, which the fourth one is given.
        ("record", &[80, 2, 1, 0, 96]),
    ];
    for (name, good) in functions {
        for place in 0..good.len() {
            for value in values.into_iter().chain(ends) {
                let mut given = good.to_vec();
                given[place] = value;
                let words = given.iter().map(|word| format!("(i32.const {word})"));
                let call = if name == "record" {
                    let stores = (96..).step_by(4).zip(words);
                    let record: String = stores
                        .map(|(at, word)| format!("(i32.store (i32.const {at}) {word})"))
                        .collect();
                    format!("{record} (call $set_input (i32.const 0) (i32.const 0) (i32.const 96))")
                } else {
                    format!("(call {name} {})", words.collect::<String>())
                };
                let kernel = Kernel::asking(&format!("(block (result i32) {COMPUTED} {call})"));
                let host = kernel.admitted(OnnxProvider).unwrap();
                let failure = classify(&host, LATER).unwrap_err();
                match &failure {
                    Failure::Status { status, .. } => {
                        assert!((100..109).contains(status), "{name} {given:?}: {failure}");
                    }
                    failure => {
                        assert_eq!(failure.code(), "kernel_trap", "{name} {given:?}: {failure}")
                    }
                }
                assert_eq!(classify(&host, 2), Ok(expected(2)), "{name} {given:?}");
            }
        }
    }
}

#[test]
fn words_are_aligned() {
    for call in [
        "(call $load_by_name (i32.const 0) (i32.const 3) (i32.const 66))",
        "(call $init (i32.const 0) (i32.const 66))",
        "(call $set_input (i32.const 0) (i32.const 0) (i32.const 98))",
        "(call $get_output (i32.const 0) (i32.const 0) (i32.const 130) (i32.const 48) (i32.const 73))",
        "(i32.store (i32.const 96) (i32.const 81))
         (call $set_input (i32.const 0) (i32.const 0) (i32.const 96))",
    ] {
        let asked = format!("(block (result i32) {COMPUTED} {call})");
        assert_eq!(error_of(&asked), "invalid_argument", "{call}");
    }
    // An output is bytes.
    let output = "(call $get_output (i32.const 0) (i32.const 0) (i32.const 130) (i32.const 48) (i32.const 72))";
    assert_eq!(error_of(&format!("(block (result i32) {COMPUTED} {output})")), "success");
}

#[test]
fn graphs_that_a_call_loads_are_bounded_and_end_with_it() {
    let load = "(call $load_by_name (i32.const 0) (i32.const 3) (i32.const 64))";
    let loads = |n: u32| {
        format!(
            "(loop $more
              (br_if $failed (local.tee $e {load}))
              (local.set $i (i32.add (local.get $i) (i32.const 1)))
              (br_if $more (i32.lt_u (local.get $i) (i32.const {n}))))"
        )
    };
    // One was loaded before.
    let last = format!("{} (return (i32.add (i32.const 1) (i32.load (i32.const 64))))", loads(255));
    let kernel = Kernel { later: last, ..Kernel::default() };
    let host = kernel.admitted(OnnxProvider).unwrap();
    for _ in 0..2 {
        let failure = classify(&host, LATER).unwrap_err();
        assert!(matches!(failure, Failure::Status { status: 256, .. }), "{failure}");
    }
    let kernel = Kernel { later: loads(256), ..Kernel::default() };
    assert_eq!(error(&kernel.later(OnnxProvider).unwrap_err()), "missing_memory");
    let endless = format!("(loop $more (drop {load}) (br $more))");
    let kernel = Kernel { later: endless, ticks: 20, ..Kernel::default() };
    let failure = kernel.later(OnnxProvider).unwrap_err();
    assert_eq!(failure.code(), "kernel_deadline", "{failure}");
}

#[test]
fn what_a_function_writes_may_be_in_pages_that_no_call_has_written_to() {
    for call in [
        "(call $load_by_name (i32.const 0) (i32.const 3) (i32.const 32768))",
        "(call $init (i32.const 0) (i32.const 32768))",
        "(call $get_output (i32.const 0) (i32.const 0) (i32.const 40952) (i32.const 48) (i32.const 50000))",
        // A buffer of several pages, of which little is used.
        "(call $get_output (i32.const 0) (i32.const 0) (i32.const 20000) (i32.const 20000) (i32.const 72))",
    ] {
        assert_eq!(
            error_of(&format!("(block (result i32) {COMPUTED} {call})")),
            "success",
            "{call}"
        );
    }
    // Nothing is written, so no page is asked for.
    let none = "(call $get_output (i32.const 0) (i32.const 0) (i32.const 32769) (i32.const 0) (i32.const 72))";
    assert_eq!(error_of(&format!("(block (result i32) {COMPUTED} {none})")), "too_large");
}

#[test]
fn names_are_text_and_types_those_of_the_graph() {
    // Neither is text, nor the name of a graph.
    let bytes = "(i32.store8 (i32.const 64) (i32.const 255))
        (call $load_by_name (i32.const 64) (i32.const 1) (i32.const 64))";
    assert_eq!(error_of(&format!("(block (result i32) {bytes})")), "not_found");
    for (number, ty) in TENSOR_TYPES.into_iter().enumerate() {
        let set = format!(
            "(drop (call $init (i32.load (i32.const 64)) (i32.const 68)))
             (drop (call $tensor (i32.const 3) (i32.const 8) (i32.const 0)))
             (i32.store (i32.const 104) (i32.const {number}))
             (call $set_input (i32.load (i32.const 68)) (i32.const 0) (i32.const 96))"
        );
        let error = error_of(&format!("(block (result i32) {set})"));
        assert_eq!(error == "success", ty == "f32", "{ty}: {error}");
    }
}

/// Computes like tract until it is told to compute without end.
#[derive(Debug)]
struct Endless(Arc<AtomicBool>);

#[derive(Debug)]
struct EndlessGraph(Box<dyn Graph>, Arc<AtomicBool>);

struct EndlessContext<'g>(Box<dyn GraphContext + 'g>, &'g AtomicBool);

impl GraphProvider for Endless {
    fn load(&self, entry: &GraphEntry, bytes: &[u8]) -> Result<Box<dyn Graph>, GraphError> {
        Ok(Box::new(EndlessGraph(OnnxProvider.load(entry, bytes)?, self.0.clone())))
    }
}

impl Graph for EndlessGraph {
    fn context(&self) -> Result<Box<dyn GraphContext + '_>, GraphError> {
        Ok(Box::new(EndlessContext(self.0.context()?, &self.1)))
    }
}

impl GraphContext for EndlessContext<'_> {
    fn set_input(&mut self, index: usize, value: GraphValue) -> Result<(), GraphError> {
        self.0.set_input(index, value)
    }

    fn compute_within(
        &mut self,
        most: usize,
        waited_for: &dyn Fn() -> bool,
    ) -> Result<(), GraphError> {
        while self.1.load(Ordering::Relaxed) {
            if !waited_for() {
                return Err(GraphError::Cancelled);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        self.0.compute_within(most, waited_for)
    }

    fn output(&self, index: usize) -> Result<&GraphValue, GraphError> {
        self.0.output(index)
    }
}

#[test]
fn a_computation_ends_with_the_time_of_the_call() {
    let kernel = Kernel { ticks: 200, ..Kernel::default() };
    let endless = Arc::new(AtomicBool::new(false));
    let host = kernel.admitted(Endless(endless.clone())).unwrap();
    assert_eq!(classify(&host, 2), Ok(expected(2)));
    endless.store(true, Ordering::Relaxed);
    let begun = Instant::now();
    let failure = classify(&host, 2).unwrap_err();
    assert_eq!(failure.code(), "kernel_deadline", "{failure}");
    assert!(begun.elapsed() >= Duration::from_millis(200), "{:?}", begun.elapsed());
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    endless.store(false, Ordering::Relaxed);
    assert_eq!(classify(&host, 2), Ok(expected(2)));
}

/// Computes like tract, notes what it may give, and gives an output of so many bytes where that is not 0.
#[derive(Debug)]
struct Measured(Arc<Mutex<Vec<usize>>>, Arc<AtomicUsize>);

#[derive(Debug)]
struct MeasuredGraph(Box<dyn Graph>, Arc<Mutex<Vec<usize>>>, Arc<AtomicUsize>);

struct MeasuredContext<'g>(Box<dyn GraphContext + 'g>, &'g MeasuredGraph, Option<GraphValue>);

impl GraphProvider for Measured {
    fn load(&self, entry: &GraphEntry, bytes: &[u8]) -> Result<Box<dyn Graph>, GraphError> {
        let graph = OnnxProvider.load(entry, bytes)?;
        Ok(Box::new(MeasuredGraph(graph, self.0.clone(), self.1.clone())))
    }
}

impl Graph for MeasuredGraph {
    fn context(&self) -> Result<Box<dyn GraphContext + '_>, GraphError> {
        Ok(Box::new(MeasuredContext(self.0.context()?, self, None)))
    }
}

impl GraphContext for MeasuredContext<'_> {
    fn set_input(&mut self, index: usize, value: GraphValue) -> Result<(), GraphError> {
        self.0.set_input(index, value)
    }

    fn compute_within(
        &mut self,
        most: usize,
        waited_for: &dyn Fn() -> bool,
    ) -> Result<(), GraphError> {
        let MeasuredGraph(_, noted, size) = self.1;
        noted.lock().unwrap().push(most);
        let size = size.load(Ordering::Relaxed);
        self.2 = GraphValue::new(GraphType::U8, vec![size], vec![0; size]).filter(|_| size > 0);
        self.0.compute_within(most, waited_for)
    }

    fn output(&self, index: usize) -> Result<&GraphValue, GraphError> {
        self.2.as_ref().map_or_else(|| self.0.output(index), Ok)
    }
}

#[test]
fn a_graph_is_told_how_much_it_may_give_and_more_is_not_taken() {
    const MOST: usize = 4 << 20;
    // A second context, of which the first one's output takes its share.
    let second = "(drop (call $init (i32.load (i32.const 64)) (i32.const 68)))
         (drop (call $set_input (i32.load (i32.const 68)) (i32.const 0)
           (call $tensor (i32.const 3) (i32.const 8) (i32.const 0))))
         (drop (call $compute (i32.load (i32.const 68))))
         (drop (call $init (i32.load (i32.const 64)) (i32.const 68)))
         (drop (call $set_input (i32.load (i32.const 68)) (i32.const 0)
           (call $tensor (i32.const 3) (i32.const 8) (i32.const 0))))
         (call $compute (i32.load (i32.const 68)))";
    let kernel = Kernel::asking(&format!("(block (result i32) {second})"));
    let (noted, size) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicUsize::new(0)));
    let host = kernel.admitted(Measured(noted.clone(), size.clone())).unwrap();
    let asked = || {
        noted.lock().unwrap().clear();
        let error = error(&classify(&host, LATER).unwrap_err());
        (error, noted.lock().unwrap().clone())
    };
    assert_eq!(asked(), ("success", vec![MOST, MOST - 3 * 4 * 4]));
    size.store(MOST / 2, Ordering::Relaxed);
    assert_eq!(asked(), ("success", vec![MOST, MOST / 2]));
    // Providers that do not hold to it.
    size.store(MOST / 2 + 1, Ordering::Relaxed);
    assert_eq!(asked(), ("missing_memory", vec![MOST, MOST / 2 - 1]));
}
