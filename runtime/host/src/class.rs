//! Device classes: named sets of defaults for the machines that a host runs on.

use crate::HostConfig;
use ruvllm_abi::MAX_THREADS;
use ruvllm_manifest::ExecutorKind;
use serde::Serialize;
use std::fmt;
use std::time::Duration;

/// A kind of machine. Each stands for a [`HostConfig`], whose fields can still be set one by one.
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

    /// The defaults that it stands for.
    pub fn config(self) -> HostConfig {
        match self {
            DeviceClass::Server => HostConfig::server(),
            DeviceClass::Embedded => HostConfig {
                device_class: self,
                call_time: Duration::from_millis(100),
                instance_memory: Some(128 << 10),
                stack: 32 << 10,
                threads: Some(1),
                ..HostConfig::server()
            },
            DeviceClass::Threads => HostConfig { device_class: self, ..HostConfig::server() },
        }
    }

    /// The executors in the order in which it prefers them.
    const fn executors(self) -> &'static [ExecutorKind] {
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

impl HostConfig {
    /// What its device class decides, as it is set: names and values for people.
    pub fn class_values(&self) -> Vec<(&'static str, String)> {
        let size = |bytes: u64| match bytes.is_multiple_of(1 << 30) {
            true => format!("{} GiB", bytes >> 30),
            false => format!("{} KiB", bytes >> 10),
        };
        let executors = self.executors().iter().map(ToString::to_string);
        let memory = match self.instance_memory {
            Some(bytes) => size(bytes as u64),
            None => format!("as the kernel asks, {} MiB at most", self.limits.memory_pages >> 4),
        };
        let threads = self.threads.map_or("all cores".to_owned(), |threads| threads.to_string());
        vec![
            ("executors", executors.collect::<Vec<_>>().join(", then ")),
            ("code", "optimised for speed".to_owned()),
            ("threads", threads),
            ("threads of a kernel", self.device_class.kernel_threads().to_string()),
            ("stack", size(self.stack as u64)),
            ("instance memory", memory),
            ("reserved addresses", size(self.memory_reservation)),
            ("guarded addresses", size(self.memory_guard)),
            ("tick", format!("{:?}", self.tick)),
            (
                "longest call",
                format!("{:?}, of a known operation as long as its size takes", self.call_time),
            ),
        ]
    }

    /// The executors that may run kernels, in the order in which they are preferred.
    pub(crate) const fn executors(&self) -> &'static [ExecutorKind] {
        match self.executor {
            None => self.device_class.executors(),
            Some(ExecutorKind::Wasmtime) => &[ExecutorKind::Wasmtime],
            Some(ExecutorKind::Wamr) => &[ExecutorKind::Wamr],
        }
    }

    /// Ticks that no call exceeds.
    pub(crate) fn call_ticks(&self) -> u64 {
        let ticks = self.call_time.as_nanos() / self.tick.as_nanos().max(1);
        u64::try_from(ticks).unwrap_or(u64::MAX).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_classes_have_the_values_that_are_stated() {
        let server = DeviceClass::Server.config();
        assert_eq!((server.memory_reservation, server.memory_guard), (4 << 30, 64 << 10));
        assert!(server.tick <= Duration::from_millis(10));
        assert_eq!(server.call_time, Duration::from_millis(10) * 1000);
        let embedded = DeviceClass::Embedded.config();
        assert_eq!((embedded.stack, embedded.instance_memory), (32 << 10, Some(128 << 10)));
        assert_eq!((embedded.call_time.as_millis(), embedded.threads), (100, Some(1)));
        assert_eq!(embedded.call_ticks(), 100);
        assert_eq!(HostConfig::default().device_class, DeviceClass::Server);
        assert_eq!(DeviceClass::ALL.map(DeviceClass::kernel_threads), [1, 1, 4]);
        for class in DeviceClass::ALL {
            let values = class.config().class_values();
            assert!(values.iter().all(|(_, value)| !value.is_empty()));
        }
    }
}
