//! The module is larger than any kernel: a custom section pads it.

use super::refused;
use ruvllm_tests::PackBuilder;
use ruvllm_tests::wat::{Module, rmsnorm_f32};

#[test]
fn it_is_refused_unread() {
    let mut wasm = rmsnorm_f32(&Module::default());
    let content = 2 << 20;
    // A custom section: its id, its length as LEB128, an empty name, zeros.
    wasm.push(0);
    let mut length = content + 1u32;
    while length >= 0x80 {
        wasm.push((length & 0x7f) as u8 | 0x80);
        length >>= 7;
    }
    wasm.push(length as u8);
    wasm.extend(std::iter::repeat_n(0, content as usize + 1));
    let pack = PackBuilder::new().kernel("rmsnorm_f32", wasm).build();
    assert_eq!(refused(&pack), ["module_too_large"]);
}
