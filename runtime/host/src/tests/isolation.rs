//! What a kernel finds in its memory is what a new instance has, whatever came before.

use crate::admit::{Case, golden_cases};
use crate::code::Code;
use crate::instance::TILE_BYTES;
use crate::instance::{Instance, InstanceTemplate, WindowSize};
use crate::op::call::{OpCall, Scope};
use crate::random::{self, Random};
use crate::registry::kernel::PublishedKernel;
use crate::{Host, HostConfig, Operand, Resident};
use ruvllm_signing::{PackLimits, TrustPolicy, UnverifiedPack};
use std::path::Path;
use std::sync::Arc;

/// Calls `check` with every sandboxed kernel of the core pack.
fn for_each_kernel(mut check: impl FnMut(&PublishedKernel, &Arc<InstanceTemplate>)) {
    let dist = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../kernel-packs/core/dist");
    let pack = UnverifiedPack::read_dir(&dist, &PackLimits::default()).unwrap();
    let host = Host::new(HostConfig { all_variants: true, ..HostConfig::default() }).unwrap();
    host.install(pack.verify(&TrustPolicy::builtin(), None).unwrap()).unwrap();
    let snap = host.snapshot();
    let mut seen = 0;
    for kernel in snap.kernels() {
        if let Code::Sandboxed { template, .. } = kernel.code() {
            check(kernel, template);
            seen += 1;
        }
    }
    assert_eq!(seen, 53);
}

fn call<'a>(case: &'a Case, constant: &'a Resident, scope: Scope) -> OpCall<'a> {
    let mut call = case.call().within(scope);
    if !constant.is_empty() {
        call.b = Operand::Resident(constant, 0..constant.len());
    }
    call
}

/// Runs cases in turns of two scopes; before each, all of the memory must be that of an instance that
/// never saw another, with the same constants where they are kept.
fn is_as_new(kernel: &PublishedKernel, keeps: bool, make: impl Fn() -> Instance) {
    let known = kernel.key().known().unwrap();
    let mut random = Random::new(random::seed());
    let cases = golden_cases(known, kernel.has_backward(), TILE_BYTES, &mut random).unwrap();
    let constants: Vec<Resident> = cases.iter().map(|case| Resident::from_bytes(&case.b)).collect();
    let scopes = [Scope::unique(), Scope::unique()];
    let new = || {
        let mut instance = make();
        if keeps {
            instance.warm(&constants);
        }
        instance
    };
    let mut old = new();
    for (turn, (case, constant)) in cases.iter().zip(&constants).enumerate() {
        let call = call(case, constant, scopes[turn % 2]);
        let bytes = kernel.plan().bytes_of(&call).unwrap();
        let mut new = new();
        old.prepare(&call, &bytes).unwrap();
        new.prepare(&call, &bytes).unwrap();
        assert_eq!(old.bytes().len(), new.bytes().len());
        let differs = old.bytes().iter().zip(new.bytes()).position(|(old, new)| old != new);
        assert_eq!(differs, None, "{} on {}", kernel.id(), case.what);
        new.run().unwrap();
        old.run().unwrap();
        assert_eq!(old.outputs(), new.outputs(), "{} on {}", kernel.id(), case.what);
    }
}

#[test]
fn the_memory_before_a_call_of_another_scope_is_that_of_a_new_instance() {
    for_each_kernel(|kernel, template| {
        is_as_new(kernel, true, || Instance::new(template, WindowSize::Tile, None).unwrap());
    });
}

#[test]
fn so_it_is_where_pages_cannot_be_protected() {
    for_each_kernel(|kernel, template| {
        is_as_new(kernel, false, || Instance::unprotected(template, WindowSize::Tile).unwrap());
    });
}

#[test]
fn kernels_of_the_core_pack_have_few_pages_of_their_own() {
    for_each_kernel(|kernel, template| {
        // The top of the stack, where it is used.
        assert!(template.own_pages.len() <= 1, "{}: {:?}", kernel.id(), template.own_pages);
    });
}
