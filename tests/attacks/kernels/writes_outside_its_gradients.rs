//! `kernel_backward` writes behind its gradients, between them, or into what it is handed.

use super::{differentiable, later_backward, outlived_backward, refused};

/// The first byte after a gradient: its offset and its size stand at these bytes of the descriptor.
fn behind(offset: u32) -> String {
    let size = offset + 4;
    format!(
        "(i32.add (i32.load offset={offset} (local.get $desc)) (i32.load offset={size} (local.get $desc)))"
    )
}

#[test]
fn writing_behind_a_gradient_is_refused() {
    for offset in [40, 48] {
        let end = format!("(f32.store {} (f32.const 9))", behind(offset));
        assert_eq!(refused(&differentiable("", &end)), ["kernel_mismatch"], "{offset}");
    }
}

#[test]
fn writing_into_what_was_handed_over_is_refused() {
    for offset in [0, 8, 16] {
        let end = format!("(f32.store (i32.load offset={offset} (local.get $desc)) (f32.const 9))");
        // Constants lie where nothing can be written, as soon as the kernel is called as in service.
        let found = refused(&differentiable("", &end));
        assert_eq!(found, ["kernel_wrote_input"], "{offset}");
    }
}

#[test]
fn the_gradient_of_the_output_written_later_is_caught_by_the_cross_check() {
    let end = later_backward("(f32.store (i32.load offset=16 (local.get $desc)) (f32.const 9))");
    assert_eq!(outlived_backward(&differentiable("", &end)), "kernel_wrote_input");
}
