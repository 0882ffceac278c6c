//! The one error type of the crate.

use trike_trit::{Hadamard, TritError};

/// Errors of devices, plans and launches. A plan fails before anything is launched, so outputs are unchanged.
///
/// To continue without a device, match [`CubeError::NoDevice`] and [`CubeError::NotLinked`]; to move work elsewhere, match
/// [`CubeError::Limit`], [`CubeError::Feature`] and [`CubeError::Memory`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CubeError {
    /// An unknown device name.
    #[error(transparent)]
    UnknownDevice(#[from] trike_core::UnknownDevice),
    /// A runtime that is not linked into this build.
    #[error("device {spec}: this build has no {runtime} runtime, build with the feature `{runtime}`")]
    NotLinked {
        /// The requested device.
        spec: String,
        /// The runtime, which is also the feature's name.
        runtime: &'static str,
    },
    /// A malformed table of measured choices, or one of another version.
    #[error("table of measured kernels, line {line}: {problem}")]
    Tuned {
        /// The line, from 1.
        line: usize,
        /// The problem found.
        problem: String,
    },
    /// The machine does not have the device.
    #[error("device {spec}: not found, {available} such devices on this machine")]
    NoDevice {
        /// The requested device.
        spec: String,
        /// Devices of that runtime.
        available: usize,
    },
    /// A software driver in a build that passes SPIR-V to Vulkan: Mesa's driver aborts the process when it compiles a kernel
    /// with shared memory.
    #[error(
        "device {spec}: software driver, which aborts the process on the SPIR-V that this build generates; \
         build without the feature `vulkan` to use it"
    )]
    SoftwareSpirv {
        /// The requested device.
        spec: String,
    },
    /// A buffer or a matrix whose length does not match the other arguments.
    #[error("{what}: expected {expected} elements, got {got}")]
    Length {
        /// Name of the argument.
        what: &'static str,
        /// The required length.
        expected: usize,
        /// The actual length.
        got: usize,
    },
    /// A number outside the range that a kernel supports.
    #[error("{what}: expected {}, got {got}", range(*minimum, *maximum))]
    Range {
        /// Name of the number.
        what: &'static str,
        /// The smallest accepted value.
        minimum: usize,
        /// The largest accepted value.
        maximum: usize,
        /// The actual value.
        got: usize,
    },
    /// A number that must be a multiple of another.
    #[error("{what}: expected a multiple of {unit}, got {got}")]
    NotMultiple {
        /// Name of the number.
        what: &'static str,
        /// The required divisor.
        unit: usize,
        /// The actual value.
        got: usize,
    },
    /// A property that must equal that of another argument: of the first tensor of a packed matrix, of the previous position, of
    /// the weights or of the device.
    #[error("{what}: expected {expected}, got {got}; {remedy}")]
    Mismatch {
        /// Name of the property and its owner.
        what: String,
        /// The required value.
        expected: String,
        /// The actual value.
        got: String,
        /// What to do.
        remedy: &'static str,
    },
    /// A property of the input that an operation or a layout does not support on any device.
    #[error("{operation}: no support for {property}; {remedy}")]
    Unsupported {
        /// The operation or the layout.
        operation: &'static str,
        /// The property and its value.
        property: String,
        /// The alternative to use.
        remedy: &'static str,
    },
    /// A mask that does not match its positions, or an attention that does not match the mask.
    #[error(transparent)]
    Blocks(#[from] trike_core::BlockError),
    /// A shape with an empty side, or with `2^32` elements or more.
    #[error("{what} of {rows} x {cols}: expected nonzero sides and a product below 2^32")]
    Shape {
        /// Name of the matrix.
        what: &'static str,
        /// Its rows.
        rows: usize,
        /// Its columns.
        cols: usize,
    },
    /// A parameter that is not finite.
    #[error("{what} {index} is {value}, expected a finite value")]
    NonFinite {
        /// Name of the parameter.
        what: &'static str,
        /// Index of the parameter.
        index: usize,
        /// Value of the parameter.
        value: f32,
    },
    /// A limit of the device is exceeded.
    #[error("{kernel}: {what}: requested {requested}, the device limit is {limit}")]
    Limit {
        /// The operation.
        kernel: &'static str,
        /// Name of the limit.
        what: &'static str,
        /// The requested value.
        requested: u64,
        /// The device's maximum.
        limit: u64,
    },
    /// A feature that the device lacks.
    #[error("{kernel}: requires {feature}, which {device} does not support")]
    Feature {
        /// The operation.
        kernel: &'static str,
        /// The required feature.
        feature: &'static str,
        /// The name of the device.
        device: String,
    },
    /// A problem without a kernel for this kind of device.
    #[error("{operation}: no kernel for {device}")]
    NoKernel {
        /// The operation.
        operation: &'static str,
        /// The name of the device.
        device: String,
    },
    /// An allocation that exceeds the device's memory or its maximum buffer size.
    #[error("{what}: requested {requested} bytes, at most {limit} available")]
    Memory {
        /// Purpose of the memory.
        what: &'static str,
        /// Requested bytes.
        requested: u64,
        /// Maximum bytes of one allocation.
        limit: u64,
    },
    /// A kernel that the device's compiler or driver rejected.
    #[error("{kernel}: the launch failed: {reason}")]
    Launch {
        /// The operation.
        kernel: &'static str,
        /// The runtime's message.
        reason: String,
    },
    /// A capture with an operation that cannot be recorded, or whose two runs differ.
    #[error("a capture cannot contain {what}")]
    Capture {
        /// The offending operation.
        what: &'static str,
    },
    /// Host values that no longer match the device's.
    #[error("{what} were overwritten through a clone")]
    Overwritten {
        /// Name of the values.
        what: &'static str,
    },
    /// Caches that cannot share a launch: of different shapes or allocations, or not those that the tokens were uploaded with.
    #[error(
        "caches of several sequences are not those that the tokens were uploaded with, or not made together"
    )]
    Apart,
    /// A failed transfer or wait: the device is lost, or an earlier launch failed during execution.
    #[error("{operation} on {device} failed: {reason}")]
    Device {
        /// The attempted operation.
        operation: &'static str,
        /// The name of the device.
        device: String,
        /// The runtime's message.
        reason: String,
    },
    /// A buffer in the memory of another device.
    #[error("{what} is not in the memory of {device}")]
    OtherDevice {
        /// Name of the buffer.
        what: &'static str,
        /// Name of the device that was to use it.
        device: String,
    },
    /// Buffers that must not share memory.
    #[error("{what} share memory, expected separate buffers")]
    Overlap {
        /// Names of the buffers.
        what: &'static str,
    },
    /// A trit tensor that cannot be read.
    #[error(transparent)]
    Trit(#[from] TritError),
}

/// Result of this crate.
pub type Result<T> = std::result::Result<T, CubeError>;

/// Checks a length.
pub(crate) fn check_len(what: &'static str, expected: usize, got: usize) -> Result<()> {
    if expected == got { Ok(()) } else { Err(CubeError::Length { what, expected, got }) }
}

/// Checks that two rotations are equal.
pub(crate) fn check_rotation(
    what: &'static str,
    expected: Option<Hadamard>,
    got: Option<Hadamard>,
    remedy: &'static str,
) -> Result<()> {
    let block = |rotation: Option<Hadamard>| match rotation {
        Some(rotation) => format!("blocks of {}", rotation.block()),
        None => "none".to_owned(),
    };
    if expected == got {
        return Ok(());
    }
    let what = format!("rotation of {what}");
    Err(CubeError::Mismatch { what, expected: block(expected), got: block(got), remedy })
}

/// Formats a range for messages.
fn range(minimum: usize, maximum: usize) -> String {
    match (minimum, maximum) {
        (_, usize::MAX) => format!("at least {minimum}"),
        _ if minimum == maximum => minimum.to_string(),
        _ => format!("{minimum} to {maximum}"),
    }
}

/// Returns [`CubeError::Unsupported`].
pub fn unsupported<T>(
    operation: &'static str,
    property: impl Into<String>,
    remedy: &'static str,
) -> Result<T> {
    Err(CubeError::Unsupported { operation, property: property.into(), remedy })
}

/// Checks that a number is inside a range.
pub fn check_range(what: &'static str, minimum: usize, maximum: usize, got: usize) -> Result<()> {
    if (minimum..=maximum).contains(&got) {
        Ok(())
    } else {
        Err(CubeError::Range { what, minimum, maximum, got })
    }
}

/// The number of elements of a matrix that kernels can index: both sides at least 1, the product below `2^32`.
pub(crate) fn check_shape(what: &'static str, rows: usize, cols: usize) -> Result<usize> {
    rows.checked_mul(cols)
        .filter(|&count| count > 0 && u32::try_from(count).is_ok())
        .ok_or(CubeError::Shape { what, rows, cols })
}
