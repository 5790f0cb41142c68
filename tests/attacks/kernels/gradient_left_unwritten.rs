//! `kernel_backward` leaves a gradient as it was: whoever adds gradients up would add what others left there.

use super::{differentiable, refused};

#[test]
fn gradients_that_are_not_written_are_refused() {
    assert_eq!(refused(&differentiable("(return (i32.const 0))", "")), ["kernel_mismatch"]);
}
