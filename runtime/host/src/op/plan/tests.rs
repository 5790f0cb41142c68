use super::*;
use crate::{OpKey, RopeDims};

/// An output of so many bytes that is never written.
fn output(len: usize) -> Output<'static> {
    Output::Read { len, read: Box::leak(Box::new(|_, _: &[u8]| ())) }
}

fn plan(key: &OpKey) -> CallPlan {
    let (op, _) = key.known().unwrap();
    CallPlan::of_op(op, &key.inputs, key.output)
}

#[test]
fn sizes_follow_from_the_words() {
    let bytes = plan(&OpKey::rmsnorm_f32()).bytes(&[3, 10, 0]).unwrap();
    assert_eq!(bytes, CallBytes { a: 120, b: 40, out: 120, ..CallBytes::default() });
    let pack = plan(&OpKey::kv_pack(DType::Q8_0));
    assert_eq!(
        pack.bytes(&[2, 64]).unwrap(),
        CallBytes { a: 512, out: 136, ..CallBytes::default() }
    );
    assert!(pack.bytes(&[32, 33]).is_err());
    assert!(pack.bytes(&[0, 64]).is_ok_and(|bytes| bytes.total() == 0));
}

#[test]
fn a_signature_says_what_calls_are_made_of() {
    let mut plan = plan(&OpKey::rmsnorm_f32());
    let signature = "(x: f32[rows, dim], weight: f32[dim], eps: f32) -> y: f32[rows, dim]";
    assert_eq!(plan.signature(), signature);
    plan.params[0].default = Some(ParamValue::F32(1e-5));
    assert_eq!(plan.signature(), signature.replace("eps: f32", "eps: f32 = 0x3727c5ac"));
}

#[test]
fn wrong_sizes_are_named() {
    let plan = plan(&OpKey::rmsnorm_f32());
    let (x, w) = ([0f32; 8], [0f32; 3]);
    let call = OpCall::rmsnorm(Operand::f32(&x), Operand::f32(&w), 2, 4, 1e-5);
    assert!(plan.check(&call, &output(32)).is_none());
    let message = plan.objection(&call, &output(32));
    assert_eq!(message, "weight got 12 bytes; [4] in f32 takes 16 bytes");
    let call = OpCall::kv_pack(Operand::f32(&x), 2, 4);
    assert!(plan.check(&call, &output(32)).is_none());
    assert!(plan.objection(&call, &output(32)).contains("2 words instead of 3"));
}

#[test]
fn calls_are_cut_into_runs_of_rows() {
    let plan = plan(&OpKey::rmsnorm_f32());
    let (x, w) = ([0f32; 40], [0f32; 4]);
    let call = OpCall::rmsnorm(Operand::f32(&x), Operand::f32(&w), 10, 4, 1e-5);
    let bytes = plan.check(&call, &output(160)).unwrap();
    // 16 bytes of weight, 32 bytes a row: three rows fit 112 bytes.
    let tiles: Vec<_> = plan.tiles(&call, &bytes, 112, [true; 2]).unwrap().collect();
    let rows: Vec<_> = tiles.iter().map(|t| t.call.words.as_slice()[0]).collect();
    assert_eq!(rows, [3, 3, 3, 1]);
    assert_eq!(tiles[3].out, 144..160);
    for tile in &tiles {
        assert_eq!(plan.check(&tile.call, &output(tile.out.len())), Some(tile.bytes));
    }
    assert_eq!(plan.tiles(&call, &bytes, 40, [true; 2]).unwrap().count(), 10);
}

#[test]
fn words_are_cut_to_a_budget() {
    let plan = plan(&OpKey::rmsnorm_f32());
    let rows = |rows, budget| Some(plan.within(Words::of([rows, 4, 0]), budget)?.as_slice()[0]);
    assert_eq!(rows(10, 1000), Some(10));
    assert_eq!(rows(10, 100), Some(2));
    assert_eq!(rows(10, 40), None);
    assert_eq!(rows(0, 40), None);
}

#[test]
fn a_rotation_is_cut_by_position_with_its_angles() {
    let plan = plan(&OpKey::rope_f32());
    let dims = RopeDims { batch: 1, seq: 4, heads: 2, dim: 8, dim_half: 4 };
    let (x, f) = ([0f32; 64], [0f32; 32]);
    let call = OpCall::rope(Operand::f32(&x), Operand::f32(&f), dims, 1e4, false);
    let bytes = plan.check(&call, &output(256)).unwrap();
    let tiles: Vec<_> = plan.tiles(&call, &bytes, 330, [true; 2]).unwrap().collect();
    assert_eq!(tiles.len(), 2);
    assert_eq!(tiles[1].call.words.as_slice()[..2], [1, 2]);
    assert_eq!(tiles[1].call.b.bytes().unwrap().len(), 64);
    let batched = OpCall { words: call.words.with(0, 2).with(1, 2), ..call };
    assert_eq!(plan.split_word(batched.words.as_slice()), Some(0));
}

/// A call for the gradients of a norm of so many rows.
fn check_backward(plan: &CallPlan, rows: u32, a: usize, b: Option<usize>) -> Option<CallBytes> {
    let (x, w) = (vec![0f32; rows as usize * 4], [0f32; 4]);
    let call = OpCall::rmsnorm(Operand::f32(&x), Operand::f32(&w), rows, 4, 1e-5);
    let call = call.backward(Operand::f32(&x));
    let (mut a, mut b) = (vec![0f32; a], b.map(|b| vec![0f32; b]));
    let out = Output::from(Gradients { a: &mut a, b: b.as_deref_mut() });
    let found = plan.check(&call, &out);
    assert!(found.is_some() || plan.objection(&call, &out).contains("gradient"));
    found
}

#[test]
fn gradients_have_the_sizes_of_their_inputs_and_the_second_may_be_left_out() {
    let plan = plan(&OpKey::rmsnorm_f32());
    let bytes = CallBytes { a: 32, b: 16, gradient: 32, out: 32, out_b: 16 };
    assert_eq!(check_backward(&plan, 2, 8, Some(4)), Some(bytes));
    assert_eq!(check_backward(&plan, 2, 8, None), Some(bytes));
    assert_eq!(check_backward(&plan, 2, 7, Some(4)), None);
    assert_eq!(check_backward(&plan, 2, 8, Some(5)), None);
    let half = super::CallPlan::of_op(Op::RmsNorm, &[DType::F16, DType::F32], DType::F16);
    assert!(!half.has_gradients());
    let x = [0f32; 8];
    let call = OpCall::rmsnorm(Operand::f32(&x), Operand::f32(&x[..4]), 2, 4, 1e-5);
    assert!(plan.check(&call.clone().backward(Operand::f32(&x)), &output(32)).is_none());
    let mut a = x;
    assert!(plan.check(&call, &Output::from(Gradients { a: &mut a, b: None })).is_none());
}

#[test]
fn calls_for_gradients_are_cut_by_their_sizes_alone() {
    let plan = plan(&OpKey::rmsnorm_f32());
    let (rows, dim) = (64, 4096);
    let (x, w) = (vec![0f32; rows * dim], vec![0f32; dim]);
    let call = OpCall::rmsnorm(Operand::f32(&x), Operand::f32(&w), rows as u32, dim as u32, 1e-5);
    let call = call.backward(Operand::f32(&x));
    let bytes = plan.bytes_of(&call).unwrap();
    let tiles: Vec<_> = plan.backward_tiles(&call, &bytes).unwrap().collect();
    let taken: usize = tiles.iter().map(|tile| tile.call.words.as_slice()[0] as usize).sum();
    assert_eq!((taken, tiles[0].call.words.as_slice()[0]), (rows, 4));
    assert!(tiles.iter().all(|tile| tile.second.is_none() && tile.bytes.out_b == 4 * dim));
    assert_eq!(tiles[1].out, 4 * 4 * dim..8 * 4 * dim);
    assert_eq!(tiles[1].call.gradient.bytes().unwrap().len(), 4 * 4 * dim);
    let units = super::CallPlan::of_op(Op::SwiGlu, &[DType::F32, DType::F32], DType::F32);
    let call = OpCall::swiglu(Operand::f32(&x), Operand::f32(&x), rows as u32, dim as u32);
    let call = call.backward(Operand::f32(&x));
    let bytes = units.bytes_of(&call).unwrap();
    let tiles: Vec<_> = units.backward_tiles(&call, &bytes).unwrap().collect();
    assert_eq!((tiles.len(), tiles[1].second), (22, Some(3 * 4 * dim)));
}
