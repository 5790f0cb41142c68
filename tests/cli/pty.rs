//! The program at a terminal.

use crate::program::caches;
use nix::pty::{Winsize, openpty};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// What the line editor writes when it begins to read.
pub(crate) const PROMPT: &str = "\u{1b}[?2004h";

/// The program at a terminal.
pub(crate) struct Terminal {
    pub(crate) child: Child,
    keyboard: File,
    screen: Receiver<Vec<u8>>,
    /// What was shown since it was last waited for something.
    shown: String,
}

impl Terminal {
    pub(crate) fn start(args: &[&str]) -> Self {
        Self::writing(args, None)
    }

    /// With standard output elsewhere.
    pub(crate) fn writing(args: &[&str], stdout: Option<File>) -> Self {
        let size = Winsize { ws_row: 24, ws_col: 120, ws_xpixel: 0, ws_ypixel: 0 };
        let pty = openpty(&size, None).expect("a terminal");
        let end = || pty.slave.try_clone().expect("a handle");
        let child = Command::new(env!("CARGO_BIN_EXE_ruvllm"))
            .args(args)
            .env("TERM", "xterm")
            .env("XDG_CACHE_HOME", caches())
            .stdin(end())
            .stdout(stdout.map_or_else(|| Stdio::from(end()), Stdio::from))
            .stderr(end())
            .spawn()
            .expect("the program starts");
        let mut master = File::from(pty.master);
        let keyboard = master.try_clone().expect("a handle");
        let (sender, screen) = channel();
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            // It ends with an error when nobody has the other end any more.
            while let Ok(n @ 1..) = master.read(&mut bytes) {
                if sender.send(bytes[..n].to_vec()).is_err() {
                    break;
                }
            }
        });
        Self { child, keyboard, screen, shown: String::new() }
    }

    /// Waits until this text is shown behind what was waited for before; gives what came until then.
    pub(crate) fn wait_for(&mut self, text: &str) -> String {
        let end = Instant::now() + Duration::from_secs(60);
        loop {
            if let Some(at) = self.shown.find(text) {
                let rest = self.shown.split_off(at + text.len());
                return std::mem::replace(&mut self.shown, rest);
            }
            let left = end.saturating_duration_since(Instant::now());
            match self.screen.recv_timeout(left) {
                Ok(bytes) => self.shown.push_str(&String::from_utf8_lossy(&bytes)),
                Err(_) => panic!("no {text:?} in: {:?}", self.shown),
            }
        }
    }

    /// Presses keys, and waits for the next prompt; gives what came until then.
    pub(crate) fn enter(&mut self, keys: &str) -> String {
        self.press(keys);
        self.wait_for(PROMPT)
    }

    pub(crate) fn press(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).expect("a terminal");
    }

    /// As Ctrl-C does while keys make signals.
    pub(crate) fn interrupt(&self) {
        kill(Pid::from_raw(self.child.id() as i32), Signal::SIGINT).expect("a process");
    }

    pub(crate) fn ended(mut self) -> Option<i32> {
        let end = Instant::now() + Duration::from_secs(60);
        loop {
            match self.child.try_wait().expect("an end") {
                Some(status) => return status.code(),
                None => assert!(Instant::now() < end, "it goes on"),
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
