//! What enters and what does not.

use super::*;
use ruvllm_tests::custom_entry;

fn always(instructions: &str) -> Module {
    Module { prologue: instructions.to_owned(), ..Module::default() }
}

#[test]
fn a_good_kernel_is_admitted_and_selected() {
    let host = host(config(), &pack(&Module::default()));
    let explanation = host.explain(&OpKey::rmsnorm_f32());
    assert_eq!(explanation.selected.as_deref(), Some("rmsnorm_f32"));
    let snap = host.snapshot();
    let mut worker = host.worker().unwrap();
    for (rows, dim) in [(1, 1), (1, 2048), (3, 5), (7, 300)] {
        rmsnorm(&mut worker, &snap, rows, dim).unwrap();
    }
    let stats = stats(&host, "rmsnorm_f32");
    assert_eq!((stats.calls, stats.fallbacks, stats.generation), (4, 0, 2));
}

#[test]
fn imports_start_and_unbounded_memory_are_refused() {
    let import = Module { imports: "(import \"env\" \"now\" (func))".into(), ..Module::default() };
    assert_eq!(refusal(&pack(&import)), "module_import");
    let start = Module { fields: "(func $s) (start $s)".into(), ..Module::default() };
    assert_eq!(refusal(&pack(&start)), "module_start");
    let memory = Module { memory: "(memory (export \"memory\") 1)".into(), ..Module::default() };
    assert_eq!(refusal(&pack(&memory)), "memory_unbounded");
}

#[test]
fn all_refusals_of_a_pack_come_together() {
    let bad = rmsnorm_f32(&always("(unreachable)"));
    let worse = rmsnorm_f32(&always("(return (i32.const 6))"));
    let entry = |id: &str| {
        let built = PackBuilder::new().kernel("rmsnorm_f32", bad.clone()).build();
        let mut entry = built.manifest.kernels[0].clone();
        (entry.id, entry.path) = (id.to_owned(), format!("{id}.wasm").parse().unwrap());
        entry
    };
    let pack = PackBuilder::new().entry(entry("one"), bad.clone()).entry(entry("two"), worse);
    let host = Host::new(config()).unwrap();
    let error = host.install(pack.build().verify().unwrap()).unwrap_err();
    let codes: Vec<_> = error.refusals().iter().map(|r| (r.kernel.as_str(), r.code)).collect();
    assert_eq!(codes, [("one", "kernel_trap"), ("two", "kernel_status")]);
}

/// What is told of a pack that is refused.
fn message(module: &Module) -> String {
    // With two rows, types of two shapes have one size, and which is named is then of no account.
    message_of_seed(module, 3)
}

fn message_of_seed(module: &Module, seed: u64) -> String {
    let host = Host::new(HostConfig { admission_seed: Some(seed), ..config() }).unwrap();
    let error = host.install(pack(module).verify().unwrap()).unwrap_err();
    error.refusals()[0].message.clone()
}

#[test]
fn a_declined_tensor_is_named_with_what_the_kernel_takes_instead() {
    // Of the tensor whose size stands there in the descriptor, the kernel takes so many bytes.
    let taking = |at: u32, bytes: &str, status: u32| {
        message(&always(&format!(
            "(local.set $i (i32.load offset=32 (local.get $desc)))
             (local.set $rows (i32.load offset=0 (local.get $i)))
             (local.set $dim (i32.load offset=4 (local.get $i)))
             (if (i32.ne (i32.load offset={at} (local.get $desc)) {bytes})
               (then (return (i32.const {status}))))"
        )))
    };
    let words = |of: &str, bytes: u32| format!("(i32.mul {of} (i32.const {bytes}))");
    let (dim, all) = ("(local.get $dim)", "(i32.mul (local.get $rows) (local.get $dim))");
    for (what, told) in [
        (
            taking(12, &words(dim, 2), 1),
            "it takes `weight` as f16[dim], the manifest says f32[dim]",
        ),
        (taking(12, &words(all, 4), 1), "it takes `weight` as f32[rows, dim]"),
        (
            taking(4, &words(dim, 4), 1),
            "it takes `x` as f32[dim], the manifest says f32[rows, dim]",
        ),
        (taking(20, &words(all, 2), 2), "it gives `y` as f16[rows, dim]"),
        (
            taking(36, "(i32.const 16)", 3),
            "it reads 4 words of extents and params, the manifest has 3",
        ),
    ] {
        assert!(what.contains(told), "{told:?} is not in: {what}");
    }
    let square = always(
        "(local.set $i (i32.load offset=32 (local.get $desc)))
         (local.set $dim (i32.load offset=4 (local.get $i)))
         (if (i32.ne (i32.load offset=12 (local.get $desc))
                     (i32.mul (i32.const 4) (i32.mul (local.get $dim) (local.get $dim))))
           (then (return (i32.const 1))))",
    );
    // Among the seeds are some whose first call has 2048 elements, 16 MiB as a square.
    let messages: Vec<String> = (0..8).map(|seed| message_of_seed(&square, seed)).collect();
    assert!(messages.iter().any(|message| message.contains("dim 2048")), "{messages:#?}");
    for message in messages {
        assert!(message.contains("it takes `weight` as f32[dim, dim]"), "{message}");
    }
    // With a single row, that is the size of one number, too.
    let by_rows = always(
        "(local.set $i (i32.load offset=32 (local.get $desc)))
         (local.set $rows (i32.load offset=0 (local.get $i)))
         (if (i32.ne (i32.load offset=12 (local.get $desc)) (i32.mul (i32.const 4) (local.get $rows)))
           (then (return (i32.const 1))))",
    );
    let messages: Vec<String> = (0..8).map(|seed| message_of_seed(&by_rows, seed)).collect();
    assert!(messages.iter().any(|message| message.contains("rows 1,")), "{messages:#?}");
    for message in messages {
        assert!(message.contains("it takes `weight` as f32[rows],"), "{message}");
    }
    let picky = message(&always("(return (i32.const 1))"));
    assert!(picky.contains("INVALID_INPUT): it was called with x: f32["), "{picky}");
    let values = message(&always(
        "(if (f32.ne (f32.load (i32.load offset=0 (local.get $desc))) (f32.const 0))
          (then (return (i32.const 1))))",
    ));
    assert!(values.contains("of these sizes, but not these numbers"), "{values}");
}

#[test]
fn a_trap_is_told_with_its_function_and_a_missing_entry_point_with_the_exports() {
    let trap = message(&always("(unreachable)"));
    assert!(trap.contains("unreachable") && trap.contains("in rmsnorm_forward"), "{trap}");
    let called = message(&Module {
        fields: "(func $helper (unreachable))".to_owned(),
        ..always("(call $helper)")
    });
    assert!(called.contains("in helper at 0x"), "{called}");
    assert!(called.contains("of the module, called by rmsnorm_forward"), "{called}");
    let misnamed = message(&Module { entry_point: "rmsnorm_backward".into(), ..Module::default() });
    assert!(misnamed.contains("it exports rmsnorm_backward"), "{misnamed}");
}

#[test]
fn a_kernel_that_makes_numbers_of_nan_is_refused() {
    let hiding = Module {
        epilogue: "(local.set $i (local.get $out))
            (block $end (loop $each
              (br_if $end (i32.ge_u (local.get $i) (local.get $out_end)))
              (if (f32.ne (f32.load (local.get $i)) (f32.load (local.get $i)))
                (then (f32.store (local.get $i) (f32.const 0))))
              (local.set $i (i32.add (local.get $i) (i32.const 4)))
              (br $each)))"
            .to_owned(),
        ..Module::default()
    };
    assert_eq!(refusal(&pack(&hiding)), "kernel_mismatch");
    let what = message(&hiding);
    assert!(what.contains("0e0 instead of NaN") && what.contains("not made a finite"), "{what}");
}

#[test]
fn a_wrong_number_is_refused() {
    let wrong = spoiled_for(64, "(f32.store (local.get $out) (f32.const 0.125))");
    assert_eq!(refusal(&pack(&wrong)), "kernel_mismatch");
    let nan = spoiled_for(64, "(f32.store (local.get $out) (f32.const nan))");
    assert_eq!(refusal(&pack(&nan)), "kernel_non_finite");
    let lazy = always("(return (i32.const 0))");
    let code = refusal(&pack(&lazy));
    assert!(["kernel_mismatch", "kernel_non_finite"].contains(&code), "{code}");
}

#[test]
fn writing_inputs_or_behind_the_output_is_refused() {
    let inputs = always("(f32.store (i32.load offset=0 (local.get $desc)) (f32.const 1))");
    assert_eq!(refusal(&pack(&inputs)), "kernel_wrote_input");
    let behind = Module {
        epilogue: "(i32.store8 (local.get $out_end) (i32.const 1))".into(),
        ..Module::default()
    };
    assert_eq!(refusal(&pack(&behind)), "kernel_mismatch");
}

#[test]
fn state_between_calls_that_changes_results_is_refused() {
    let counting = Module {
        fields: "(global $n (mut f32) (f32.const 0))".into(),
        epilogue: "(global.set $n (f32.add (global.get $n) (f32.const 1e-9)))
            (f32.store (local.get $out) (f32.add (global.get $n) (f32.load (local.get $out))))"
            .into(),
        ..Module::default()
    };
    let code = refusal(&pack(&counting));
    assert!(["kernel_not_deterministic", "kernel_mismatch"].contains(&code), "{code}");
}

#[test]
fn a_loop_without_end_is_refused_at_its_deadline() {
    let endless = rmsnorm_f32(&always("(loop $l (br $l))"));
    let pack = PackBuilder::new()
        .kernel("rmsnorm_f32", endless)
        .manifest(|m| m.kernels[0].resource_limits.max_epoch_ticks = 20)
        .build();
    assert_eq!(refusal(&pack), "kernel_deadline");
}

#[test]
fn memory_has_the_size_that_the_host_gives_it() {
    let grow = "(drop (memory.grow (i32.const 1)))";
    assert_eq!(refusal(&super::pack(&always(grow))), "module_memory_grow");
    let over = Module { memory: "(memory (export \"memory\") 1 257)".into(), ..Module::default() };
    assert_eq!(refusal(&super::pack(&over)), "memory_over_limit");
}

#[test]
fn a_module_of_another_abi_is_refused() {
    let info = |version: u32| Module {
        fields: format!(
            "(func (export \"kernel_info\") (param i32) (result i32)
                (i32.store (local.get 0) (i32.const {version})) (i32.const 0))"
        ),
        ..Module::default()
    };
    assert_eq!(refusal(&pack(&info(2))), "kernel_abi");
    host(config(), &pack(&info(1)));
    let manifest = pack(&Module::default());
    manifest.sign_edited(|json| json["abi_version"] = 2.into());
    assert_eq!(refusal(&manifest), "abi_version_unsupported");
}

#[test]
fn init_runs_once_and_a_failed_one_refuses() {
    let init = |status: u32| Module {
        fields: format!(
            "(global $ready (mut i32) (i32.const 0))
             (func (export \"kernel_init\") (param i32 i32) (result i32)
                (global.set $ready (i32.const 1)) (i32.const {status}))"
        ),
        prologue: "(if (i32.eqz (global.get $ready)) (then (unreachable)))".into(),
        ..Module::default()
    };
    host(config(), &pack(&init(0)));
    assert_eq!(refusal(&pack(&init(4))), "kernel_instantiate");
}

#[test]
fn the_authors_tolerance_binds_the_kernel_and_cannot_be_loose() {
    let with = |rel: f64, abs: f64| {
        PackBuilder::new()
            .kernel("rmsnorm_f32", rmsnorm_f32(&Module::default()))
            .manifest(|m| {
                m.kernels[0].tolerance = Some(ruvllm_manifest::Tolerance { rel, abs });
            })
            .build()
    };
    assert_eq!(refusal(&with(1e-3, 1e-6)), "tolerance_too_loose");
    host(config(), &with(1e-6, 1e-7));
    assert_eq!(refusal(&with(0.0, 0.0)), "kernel_mismatch");
}

#[test]
fn kernels_for_other_executors_are_skipped_with_a_reason() {
    let built = pack(&Module::default());
    let mut other = built.manifest.kernels[0].clone();
    (other.id, other.path) = ("rmsnorm_future".into(), "future.wasm".parse().unwrap());
    if let Some(wasmtime) = &mut other.platforms.wasmtime {
        wasmtime.min_version = semver::Version::new(99, 0, 0);
    }
    let module = rmsnorm_f32(&Module::default());
    let pack = PackBuilder::new().kernel("rmsnorm_f32", module.clone()).entry(other, module);
    let host = Host::new(config()).unwrap();
    let report = host.install(pack.build().verify().unwrap()).unwrap();
    assert_eq!(report.kernels, ["rmsnorm_f32"]);
    assert_eq!(report.skipped[0].0, "rmsnorm_future");
    let text = host.explain(&OpKey::rmsnorm_f32()).to_string();
    assert!(text.contains("rejected    rmsnorm_future"), "{text}");
}

#[test]
fn a_custom_kernel_must_behave_although_nobody_knows_its_numbers() {
    let module = |body: &str| {
        let text = format!(
            "(module (memory (export \"memory\") 1 16)
              (global (export \"__heap_base\") i32 (i32.const 64))
              (func (export \"run\") (param i32) (result i32) {body}))"
        );
        ruvllm_tests::wat::assemble(&text)
    };
    let pack = |body: &str| {
        PackBuilder::new().entry(custom_entry("mine", "my_op", "run"), module(body)).build()
    };
    assert_eq!(refusal(&pack("(unreachable)")), "kernel_trap");
    assert_eq!(refusal(&pack("(i32.const 6)")), "kernel_status");
    host(config(), &pack("(i32.const 1)"));
}

#[test]
fn a_kernel_whose_memory_is_too_small_for_a_call_is_refused_in_a_sentence_that_says_so() {
    let memory = "(memory (export \"memory\") 2 2)".to_owned();
    let module = rmsnorm_f32(&Module { memory, heap_base: 100_000, ..Module::default() });
    let pack = PackBuilder::new().kernel("rmsnorm_f32", module);
    let pack = pack.manifest(|m| m.kernels[0].resource_limits.max_memory_pages = 2).build();
    let host = Host::new(config()).unwrap();
    let error = host.install(pack.verify().unwrap()).unwrap_err();
    assert_eq!(error.code(), "call_too_large");
    let told = "rmsnorm_f32: the kernel lacks memory for the call, which needs ";
    assert!(error.to_string().contains(told), "{error}");
}
