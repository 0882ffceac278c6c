//! The device of tuning.

use trike_llm::DeviceChoice;

use crate::{CalibrateError, ModelQuantizationConfig};

/// The executor of tuning.
pub(crate) enum TuningDevice {
    /// The host.
    Host {
        /// Whether it replaces a GPU that was looked for.
        no_gpu: bool,
    },
    /// A device.
    #[cfg(feature = "gpu")]
    Device(trike_autodiff::CubeEngine),
}

impl TuningDevice {
    /// Opens the device of a configuration.
    pub(crate) fn open(config: &ModelQuantizationConfig) -> Result<Self, CalibrateError> {
        #[cfg(feature = "gpu")]
        if let Some(device) = config.device.open()?.into_cube() {
            return Ok(Self::Device(trike_autodiff::CubeEngine::new(device)));
        }
        #[cfg(not(feature = "gpu"))]
        config.device.open()?;
        Ok(Self::Host { no_gpu: config.device == DeviceChoice::Auto })
    }

    /// A note on the device for the report, if one was requested.
    pub(crate) fn note(&self) -> Option<String> {
        match self {
            Self::Host { no_gpu: false } => None,
            Self::Host { no_gpu: true } => {
                Some("no GPU was found for the device auto: tuned on the CPU".to_owned())
            }
            #[cfg(feature = "gpu")]
            Self::Device(engine) => {
                let device = engine.device();
                Some(format!("tuned on {} ({})", device.spec(), device.name()))
            }
        }
    }
}
