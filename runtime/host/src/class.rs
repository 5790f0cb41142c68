//! Device classes: named sets of defaults for the machines that a host runs on.

use ruvllm_abi::MAX_THREADS;
use ruvllm_manifest::ExecutorKind;
use serde::Serialize;
use std::fmt;

/// A kind of machine. Each stands for a [`HostConfig`](crate::HostConfig), whose fields can still be set one by one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum DeviceClass {
    /// A machine with cores and memory to spare.
    #[default]
    Server,
    /// A small device: one thread, little stack and memory for a kernel, short calls.
    Embedded,
    /// A server whose kernels may have threads, where the trust policy grants that: instances over one memory that
    /// they share. That takes the threads proposal of WebAssembly, which is off in the other classes.
    Threads,
}

impl DeviceClass {
    /// Every class.
    pub const ALL: [DeviceClass; 3] =
        [DeviceClass::Server, DeviceClass::Embedded, DeviceClass::Threads];

    /// Its name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            DeviceClass::Server => "server",
            DeviceClass::Embedded => "embedded",
            DeviceClass::Threads => "threads",
        }
    }

    /// How many threads compute a call of one kernel together at most.
    pub const fn kernel_threads(self) -> u32 {
        match self {
            DeviceClass::Server | DeviceClass::Embedded => 1,
            DeviceClass::Threads => MAX_THREADS,
        }
    }

    /// The executors in the order in which it prefers them.
    pub(crate) const fn executors(self) -> &'static [ExecutorKind] {
        match self {
            DeviceClass::Server => &[ExecutorKind::Wasmtime, ExecutorKind::Wamr],
            DeviceClass::Embedded => &[ExecutorKind::Wamr, ExecutorKind::Wasmtime],
            DeviceClass::Threads => &[ExecutorKind::Wasmtime],
        }
    }
}

impl fmt::Display for DeviceClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
