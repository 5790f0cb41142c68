//! The kernel keeps what it saw in globals of other types, exported under a name of the host's.

use super::{Fate, Spy};

#[test]
fn globals_of_every_type_are_set_back() {
    let spy = Spy {
        keep: r#"(global.set $wide (i32x4.splat (local.get $i))) (global.set $float (f64.convert_i32_u (local.get $i)))"#.into(),
        recall: r#"(i32.or (i32x4.extract_lane 3 (global.get $wide)) (i32.trunc_sat_f64_u (global.get $float)))"#.into(),
        fields: r#"(global $wide (mut v128) (v128.const i32x4 0 0 0 0)) (global $float (mut f64) (f64.const 0))"#.into(),
        ..Spy::default()
    };
    assert_eq!(spy.fate(), Fate::Forgotten);
}
