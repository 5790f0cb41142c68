//! `--device-class`: what kind of machine this is.

use clap::ValueEnum;
use ruvllm::host::DeviceClass;

/// The `--device-class` choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum DeviceClassOption {
    /// Kernels are compiled on all cores; for each memory 4 GiB of addresses are reserved and 64 KiB guarded;
    /// 512 KiB of stack; calls of up to 10s.
    Server,
    /// One thread; 32 KiB of stack and 128 KiB of memory for an instance of a kernel; calls of up to 100ms; the
    /// executor wamr where the program has it.
    Embedded,
    /// As server; and kernels of publishers whom the trust policy grants `threads` may have up to 4, over a memory
    /// that they share; 512 KiB of stack each; calls of up to 10s.
    Threads,
}

impl DeviceClassOption {
    pub(crate) fn class(self) -> DeviceClass {
        match self {
            DeviceClassOption::Server => DeviceClass::Server,
            DeviceClassOption::Embedded => DeviceClass::Embedded,
            DeviceClassOption::Threads => DeviceClass::Threads,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ruvllm::host::HostConfig;

    #[test]
    fn what_is_said_of_a_device_class_is_what_it_stands_for() {
        for option in DeviceClassOption::value_variants() {
            let shown = option.to_possible_value().unwrap();
            let (class, help) = (option.class(), shown.get_help().unwrap().to_string());
            assert_eq!(shown.get_name(), class.name());
            // As many threads as a class gives at most.
            let config = HostConfig { threads: Some(64), ..class.config() };
            for (name, value) in config.class_values() {
                let value = value.split(',').next().unwrap();
                let told = match name {
                    "stack" | "longest call" => true,
                    "reserved addresses" | "guarded addresses" => class == DeviceClass::Server,
                    "instance memory" => class == DeviceClass::Embedded,
                    "threads of a kernel" => class == DeviceClass::Threads,
                    _ => false,
                };
                assert!(!told || help.contains(value), "{name} {value} is not in: {help}");
            }
        }
    }
}
