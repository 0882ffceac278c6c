//! Device names: parsed by every build, whether or not it links the runtime.

use std::fmt;
use std::str::FromStr;

/// A device runtime. Every build parses all names; Cargo features select the runtimes that are linked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Runtime {
    /// CUDA through NVRTC.
    Cuda,
    /// ROCm.
    Hip,
    /// Metal Shading Language.
    Metal,
    /// Vulkan with SPIR-V.
    Vulkan,
    /// Any graphics API that wgpu finds, with WGSL unless another shader compiler is built in.
    Wgpu,
}

impl Runtime {
    /// All, in the order in which `auto` tries them.
    pub const ALL: [Self; 5] = [Self::Cuda, Self::Hip, Self::Metal, Self::Vulkan, Self::Wgpu];

    /// The name, which is also the name of the Cargo feature.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cuda => "cuda",
            Self::Hip => "hip",
            Self::Metal => "metal",
            Self::Vulkan => "vulkan",
            Self::Wgpu => "wgpu",
        }
    }
}

impl fmt::Display for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A GPU: `auto`, or a runtime with an index.
///
/// The index counts the devices of that runtime, discrete GPUs first and software renderers last. `auto` is the first device
/// that is not a software renderer.
///
/// ```
/// use trike_core::{DeviceSpec, Runtime};
///
/// let spec: DeviceSpec = "cuda:1".parse()?;
/// assert_eq!(spec, DeviceSpec::Numbered(Runtime::Cuda, 1));
/// assert_eq!("vulkan".parse::<DeviceSpec>()?.to_string(), "vulkan:0");
/// assert!("cuda:one".parse::<DeviceSpec>().is_err());
/// # Ok::<(), trike_core::UnknownDevice>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum DeviceSpec {
    /// The first device that is not a software renderer.
    #[default]
    Auto,
    /// A device of a runtime, counted from zero.
    Numbered(Runtime, usize),
}

impl fmt::Display for DeviceSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Numbered(runtime, index) => write!(f, "{runtime}:{index}"),
        }
    }
}

impl FromStr for DeviceSpec {
    type Err = UnknownDevice;

    fn from_str(name: &str) -> Result<Self, UnknownDevice> {
        let unknown = || UnknownDevice { name: name.to_owned() };
        if name == "auto" {
            return Ok(Self::Auto);
        }
        let (runtime, index) = name.split_once(':').unwrap_or((name, "0"));
        let runtime = Runtime::ALL.into_iter().find(|r| r.name() == runtime).ok_or_else(unknown)?;
        // `parse` alone would accept a sign.
        let digits = !index.is_empty() && index.bytes().all(|b| b.is_ascii_digit());
        let index = index.parse().ok().filter(|_| digits).ok_or_else(unknown)?;
        Ok(Self::Numbered(runtime, index))
    }
}

/// An invalid device name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "unknown device {name:?}: expected auto, or one of wgpu, vulkan, cuda, hip, metal with a number (cuda:0)"
)]
pub struct UnknownDevice {
    /// The name given.
    pub name: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back_and_others_refused() {
        for runtime in Runtime::ALL {
            for index in [0, 1, 12] {
                let spec = DeviceSpec::Numbered(runtime, index);
                assert_eq!(spec.to_string().parse::<DeviceSpec>().expect("its own name"), spec);
            }
        }
        assert_eq!("auto".parse::<DeviceSpec>().expect("a name"), DeviceSpec::Auto);
        for name in [
            "",
            "cpu",
            "auto:0",
            "gpu",
            "cuda:",
            "cuda:-1",
            "cuda:+1",
            "cuda:0:0",
            "CUDA:0",
            "wgpu:99999999999999999999",
        ] {
            assert_eq!(name.parse::<DeviceSpec>(), Err(UnknownDevice { name: name.to_owned() }));
        }
    }
}
