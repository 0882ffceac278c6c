//! Names of devices, and of lists of devices.

use std::{fmt, str::FromStr};

use trike_core::{DeviceSpec, Runtime};

/// The device that a model runs on: the CPU, a device by name, the first available device, or several devices that each hold some
/// of its layers.
///
/// Every build parses all names; a build without the runtime returns an error when the device is opened.
///
/// ```
/// use trike_llm::DeviceChoice;
///
/// assert_eq!("cpu".parse::<DeviceChoice>()?, DeviceChoice::Cpu);
/// assert_eq!("cuda".parse::<DeviceChoice>()?.to_string(), "cuda:0");
/// // Layers in proportion to free memory, or 20 and 12 of them.
/// assert!("cuda:0,cuda:1".parse::<DeviceChoice>().is_ok());
/// assert!("cuda:0=20,cuda:1=12".parse::<DeviceChoice>().is_ok());
/// assert!("cuda:first".parse::<DeviceChoice>().is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum DeviceChoice {
    /// The CPU.
    #[default]
    Cpu,
    /// The first device that is not a software driver, otherwise the CPU.
    Auto,
    /// A device of a runtime, by its zero-based index.
    Numbered(Runtime, usize),
    /// The layers of the model divided between devices, in this order.
    Several(Vec<DeviceShare>),
}

/// One of the devices that share the layers of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceShare {
    /// Its runtime.
    pub runtime: Runtime,
    /// Its zero-based index.
    pub index: usize,
    /// The number of layers on it; for all devices or for none. If `None`, layers are divided in proportion to free memory.
    pub layers: Option<usize>,
}

impl DeviceShare {
    /// The device.
    pub fn spec(&self) -> DeviceSpec {
        DeviceSpec::Numbered(self.runtime, self.index)
    }
}

/// An invalid name of a device, or an invalid list of names.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidDevice {
    /// An unknown name.
    #[error(
        "unknown device {name:?}: expected auto, cpu, or one of wgpu, vulkan, cuda, hip, metal with a number (cuda:0)"
    )]
    Unknown {
        /// The name given.
        name: String,
    },
    /// Names that cannot form a list.
    #[error("device list {list:?}: {rule}")]
    List {
        /// The list.
        list: String,
        /// The rule that it violates, with an example.
        rule: &'static str,
    },
}

impl fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => f.write_str("cpu"),
            Self::Auto => DeviceSpec::Auto.fmt(f),
            Self::Numbered(runtime, index) => DeviceSpec::Numbered(*runtime, *index).fmt(f),
            Self::Several(shares) => {
                for (i, share) in shares.iter().enumerate() {
                    f.write_str(if i == 0 { "" } else { "," })?;
                    share.spec().fmt(f)?;
                    share.layers.map_or(Ok(()), |layers| write!(f, "={layers}"))?;
                }
                Ok(())
            }
        }
    }
}

impl FromStr for DeviceChoice {
    type Err = InvalidDevice;

    fn from_str(name: &str) -> Result<Self, InvalidDevice> {
        match name.contains([',', '=']) {
            true => Ok(Self::Several(shares(name)?)),
            false => one(name),
        }
    }
}

/// A name of one device.
fn one(name: &str) -> Result<DeviceChoice, InvalidDevice> {
    if name == "cpu" {
        return Ok(DeviceChoice::Cpu);
    }
    match name.parse() {
        Ok(DeviceSpec::Auto) => Ok(DeviceChoice::Auto),
        Ok(DeviceSpec::Numbered(runtime, index)) => Ok(DeviceChoice::Numbered(runtime, index)),
        // The message of `DeviceSpec` does not list the CPU.
        Err(_) => Err(InvalidDevice::Unknown { name: name.to_owned() }),
    }
}

/// Names separated by commas, each with an optional number of layers.
fn shares(list: &str) -> Result<Vec<DeviceShare>, InvalidDevice> {
    let fail = |rule| Err(InvalidDevice::List { list: list.to_owned(), rule });
    let mut shares: Vec<DeviceShare> = Vec::new();
    for part in list.split(',') {
        let (name, layers) = part.split_once('=').map_or((part, None), |(name, layers)| (name, Some(layers)));
        let DeviceChoice::Numbered(runtime, index) = one(name)? else {
            return fail("expected GPUs with a number, such as cuda:0,cuda:1");
        };
        let digits = |layers: &&str| layers.bytes().all(|b| b.is_ascii_digit());
        let count =
            layers.filter(digits).and_then(|layers| layers.parse().ok()).filter(|&count: &usize| count > 0);
        if layers.is_some() != count.is_some() {
            return fail("expected a number of layers after =, such as cuda:0=20,cuda:1=12");
        }
        let share = DeviceShare { runtime, index, layers: count };
        if shares.iter().any(|other| other.spec() == share.spec()) {
            return fail("expected each device once, such as cuda:0,cuda:1");
        }
        shares.push(share);
    }
    if shares.len() < 2 {
        return fail("expected two or more devices, such as cuda:0=20,cuda:1=12");
    }
    if shares.windows(2).any(|two| two[0].layers.is_some() != two[1].layers.is_some()) {
        return fail(
            "expected a number of layers after every device or after none, such as cuda:0=20,cuda:1=12",
        );
    }
    Ok(shares)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back_and_others_refused() {
        for name in [
            "cpu",
            "auto",
            "wgpu:0",
            "vulkan:1",
            "cuda:12",
            "hip:0",
            "metal:3",
            "cuda:0,cuda:1",
            "cuda:1=20,vulkan:0=12",
            "hip:0,hip:2,wgpu:1",
        ] {
            assert_eq!(name.parse::<DeviceChoice>().expect(name).to_string(), name);
        }
        for name in
            ["", "gpu", "cuda:", "cuda:-1", "cuda:+1", "cuda:0:0", "CUDA:0", "cpu:0", "cpu:1", "auto:0"]
        {
            let unknown = InvalidDevice::Unknown { name: name.to_owned() };
            assert_eq!(name.parse::<DeviceChoice>(), Err(unknown.clone()));
            // In a list, an unknown name is refused with the same message.
            assert_eq!(format!("cuda:7,{name}").parse::<DeviceChoice>(), Err(unknown));
        }
    }

    #[test]
    fn lists_are_of_different_gpus_and_have_all_counts_or_none() {
        for (list, part) in [
            ("cuda:0,cpu", "GPUs with a number"),
            ("auto,cuda:0", "GPUs with a number"),
            ("cuda:0,cuda:1,cuda:0", "each device once"),
            ("cuda,cuda:0", "each device once"),
            ("cuda:0=3", "two or more"),
            ("cuda:0=3,cuda:1", "after every device or after none"),
            ("cuda:0=0,cuda:1=3", "number of layers"),
            ("cuda:0=,cuda:1=3", "number of layers"),
            ("cuda:0=+1,cuda:1=3", "number of layers"),
            ("cuda:0=1=2,cuda:1=3", "number of layers"),
        ] {
            let message = list.parse::<DeviceChoice>().expect_err(list).to_string();
            assert!(message.contains(part) && message.contains(list), "{message}");
        }
    }
}
