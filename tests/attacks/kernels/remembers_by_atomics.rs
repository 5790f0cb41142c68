//! The kernel keeps what it saw by atomic instructions, in memory that it may only read.

use super::{Fate, Spy, outlived, thread_later_begins_with, threaded_pack};
use ruvllm_host::TrapKind;
use ruvllm_tests::wat::Module;

#[test]
fn atomic_writes_to_what_may_only_be_read_trap() {
    for write in [
        "(i32.atomic.store (i32.const AT) (i32.const 7))",
        "(drop (i32.atomic.rmw.add (i32.const AT) (i32.const 7)))",
        "(drop (i32.atomic.rmw.xchg (i32.const AT) (i32.const 7)))",
        "(drop (i64.atomic.rmw.or (i32.const AT) (i64.const 7)))",
        "(drop (i32.atomic.rmw8.and_u (i32.const AT) (i32.const 7)))",
        "(drop (i32.atomic.rmw.cmpxchg (i32.const AT) (i32.const 0) (i32.const 7)))",
    ] {
        // One page more than a host sets back.
        let writes = (1..18).map(|page| write.replace("AT", &(page << 12).to_string()));
        let module = thread_later_begins_with(1, &writes.collect::<String>());
        let module = Module { heap_base: 18 << 12, ..module };
        let incidents = outlived(&threaded_pack(&module), 1);
        let kind = incidents[0].failure.trap().map(|trap| trap.kind);
        assert_eq!(kind, Some(TrapKind::OutOfBounds), "{write}");
    }
}

#[test]
fn a_misaligned_atomic_traps() {
    let odd = "(drop (i32.atomic.load (i32.const 3)))";
    let incidents = outlived(&threaded_pack(&thread_later_begins_with(0, odd)), 1);
    assert_eq!(incidents[0].failure.trap().map(|trap| trap.kind), Some(TrapKind::Misaligned));
}

#[test]
fn what_all_threads_share_is_set_back() {
    let spy = Spy {
        keep: "(i32.store (i32.const 512) (local.get $i))".into(),
        recall: "(i32.load (i32.const 512))".into(),
        always: "(i32.store (i32.const 516) (i32.const 1))".into(),
        ..Spy::default()
    };
    assert_eq!(spy.fate(), Fate::Forgotten);
}
