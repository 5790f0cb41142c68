//! A FIFO lies where a file should be; opening it would wait for ever.

use crate::{KERNEL, good_pack};
use ruvllm_tests::codes;
use std::os::unix::net::UnixListener;
use std::process::Command;
use std::sync::mpsc;
use std::time::Duration;

#[test]
fn a_fifo_is_refused_without_waiting_for_a_writer() {
    for name in [KERNEL, "kernels.json", "extra"] {
        let pack = good_pack();
        let path = pack.path().join(name);
        let _ = std::fs::remove_file(&path);
        assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
        let (sender, receiver) = mpsc::channel();
        std::thread::spawn(move || sender.send(codes(&pack.verify().unwrap_err())));
        let found = receiver.recv_timeout(Duration::from_secs(60)).expect("nobody waits");
        assert_eq!(found, ["special_file"], "{name}");
    }
}

#[test]
fn a_socket_is_refused() {
    let pack = good_pack();
    let _listener = UnixListener::bind(pack.path().join("socket")).unwrap();
    assert_eq!(codes(&pack.verify().unwrap_err()), ["special_file"]);
}
