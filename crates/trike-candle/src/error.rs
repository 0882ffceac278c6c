//! Errors of the modules.

use trike_nn::NnError;

/// Error of building a module or computing a tensor.
///
/// Errors that backends of `trike-nn` also return are [`CandleError::Nn`], so that a shape mismatch, a full cache or a
/// kernel error has one type in the workspace. Both directions of `From` unwrap: no error is ever wrapped twice.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use trike_candle::{CandleError, NnError, rms_norm, shared_cpu};
///
/// let (x, w) = (Tensor::zeros(4, DType::F32, &Device::Cpu)?, Tensor::zeros(5, DType::F32, &Device::Cpu)?);
/// let refused = rms_norm(&shared_cpu()?, &x, &w, 1e-5);
/// assert!(matches!(refused, Err(CandleError::Nn(NnError::Shape { expected: 5, got: 4, .. }))));
/// # Ok::<(), CandleError>(())
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CandleError {
    /// An error of Candle.
    #[error("candle: {0}")]
    Candle(#[from] candle_core::Error),
    /// An invalid shape, size, weight, cache or kernel input.
    #[error(transparent)]
    Nn(NnError),
    /// An error of products of trits.
    #[error(transparent)]
    Popcount(#[from] trike_popcount::PopcountError),
}

impl From<NnError> for CandleError {
    fn from(error: NnError) -> Self {
        match error {
            NnError::Backend(error) => match error.downcast::<Self>() {
                Ok(error) => *error,
                Err(other) => Self::Nn(NnError::Backend(other)),
            },
            other => Self::Nn(other),
        }
    }
}

impl From<CandleError> for NnError {
    fn from(error: CandleError) -> Self {
        match error {
            CandleError::Nn(error) => error,
            other @ (CandleError::Candle(_) | CandleError::Popcount(_)) => Self::Backend(Box::new(other)),
        }
    }
}

/// For `?` in functions that return Candle's error, such as those of `candle_nn::Module`. The message is
/// kept; an error that came from Candle is unwrapped.
impl From<CandleError> for candle_core::Error {
    fn from(error: CandleError) -> Self {
        match error {
            CandleError::Candle(error) => error,
            // Not `wrap`, which would add a backtrace to the message.
            CandleError::Nn(error) => Self::Wrapped(Box::new(error)),
            CandleError::Popcount(error) => Self::Wrapped(Box::new(error)),
        }
    }
}

macro_rules! through_nn {
    ($($error:ty),+) => {
        $(impl From<$error> for CandleError {
            fn from(error: $error) -> Self {
                Self::Nn(error.into())
            }
        })+
    };
}
through_nn!(
    trike_cpu::HostError,
    trike_cpu::CpuError,
    trike_trit::TritError,
    trike_core::TensorError,
    trike_core::SpecError
);

#[cfg(feature = "gpu")]
through_nn!(trike_nn::cube::CubeError);

#[cfg(test)]
mod tests {
    use std::error::Error;

    use super::*;

    #[test]
    fn no_error_is_wrapped_twice() {
        let row = || NnError::Row { row: 3, rows: 2 };
        let text = row().to_string();
        assert!(matches!(NnError::from(CandleError::from(row())), NnError::Row { row: 3, rows: 2 }));
        let wrapped = candle_core::Error::from(CandleError::from(row()));
        assert_eq!(wrapped.to_string(), text);

        let candle = || CandleError::Candle(candle_core::Error::Msg("no".to_owned()));
        let through = NnError::from(candle());
        assert_eq!(through.to_string(), candle().to_string());
        assert!(through.to_string().starts_with("candle: "));
        assert!(matches!(CandleError::from(through), CandleError::Candle(candle_core::Error::Msg(_))));
        assert!(matches!(candle_core::Error::from(candle()), candle_core::Error::Msg(_)));

        let popcount = || CandleError::from(trike_popcount::PopcountError::MultiplePlanes { planes: 2 });
        let text = popcount().to_string();
        let through = NnError::from(popcount());
        assert_eq!(through.to_string(), text);
        assert!(matches!(CandleError::from(through), CandleError::Popcount(_)));
        assert_eq!(candle_core::Error::from(popcount()).to_string(), text);

        // Another backend's error is passed through unchanged.
        let foreign: Box<dyn Error + Send + Sync> = "foreign".into();
        let kept = CandleError::from(NnError::Backend(foreign));
        assert!(matches!(&kept, CandleError::Nn(NnError::Backend(error)) if error.to_string() == "foreign"));
    }
}
