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
}

impl DeviceClassOption {
    pub(crate) fn class(self) -> DeviceClass {
        match self {
            DeviceClassOption::Server => DeviceClass::Server,
            DeviceClassOption::Embedded => DeviceClass::Embedded,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_of_a_device_class_is_what_it_stands_for() {
        for option in DeviceClassOption::value_variants() {
            let shown = option.to_possible_value().unwrap();
            let (class, help) = (option.class(), shown.get_help().unwrap().to_string());
            assert_eq!(shown.get_name(), class.name());
            let embedded = class == DeviceClass::Embedded;
            for (name, value) in class.config().class_values() {
                let value = value.split(',').next().unwrap();
                let told = match name {
                    "stack" | "longest call" => true,
                    "reserved addresses" | "guarded addresses" => !embedded,
                    "instance memory" => embedded,
                    _ => false,
                };
                assert!(!told || help.contains(value), "{name} {value} is not in: {help}");
            }
        }
    }
}
