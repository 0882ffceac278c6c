//! The one error type of the crate.

use trike_trit::{Hadamard, TritError};

/// What a device, a plan or a launch refuses. Plans refuse before anything is launched: outputs are as they were.
///
/// Callers that go on without a device match [`CubeError::NoDevice`] and [`CubeError::NotLinked`] first, those that move work
/// elsewhere [`CubeError::Limit`], [`CubeError::Feature`] and [`CubeError::Memory`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CubeError {
    /// A device name that is none.
    #[error(transparent)]
    UnknownDevice(#[from] trike_core::UnknownDevice),
    /// A runtime that this build does not contain.
    #[error("device {spec}: this build has no {runtime} runtime, build with the feature `{runtime}`")]
    NotLinked {
        /// The device asked for.
        spec: String,
        /// The runtime, which is also the feature's name.
        runtime: &'static str,
    },
    /// The machine does not have the device.
    #[error("device {spec}: not found, {available} such devices on this machine")]
    NoDevice {
        /// The device asked for.
        spec: String,
        /// Devices of that runtime.
        available: usize,
    },
    /// A software driver in a build that gives Vulkan SPIR-V: Mesa's ends the process when it reads a kernel that shares memory.
    #[error(
        "device {spec}: a software driver, which this build would give SPIR-V, and that ends the process; \
         build without the feature `vulkan` to compute on it"
    )]
    SoftwareSpirv {
        /// The device asked for.
        spec: String,
    },
    /// A buffer or a matrix does not have the length that the other arguments ask for.
    #[error("{what}: expected {expected} elements, got {got}")]
    Length {
        /// Which one.
        what: &'static str,
        /// The length asked for.
        expected: usize,
        /// The length given.
        got: usize,
    },
    /// A number outside of the range that a kernel is proven for.
    #[error("{what}: expected {}, got {got}", range(*minimum, *maximum))]
    Range {
        /// Which number.
        what: &'static str,
        /// The smallest accepted value.
        minimum: usize,
        /// The largest accepted value.
        maximum: usize,
        /// The value given.
        got: usize,
    },
    /// A number that has to be a multiple of another.
    #[error("{what}: expected a multiple of {unit}, got {got}")]
    NotMultiple {
        /// Which number.
        what: &'static str,
        /// What it has to be a multiple of.
        unit: usize,
        /// The value given.
        got: usize,
    },
    /// Tensors of one packed matrix that differ in a property that they must share.
    #[error(
        "part {part} of a packed matrix: {property}: expected {expected} as in part 0, got {got}; pack the tensors as separate matrices"
    )]
    PartsDiffer {
        /// The part that differs from the first.
        part: usize,
        /// Which property.
        property: &'static str,
        /// Its value in the first part.
        expected: String,
        /// Its value in this part.
        got: String,
    },
    /// A property of the input that an operation or a layout does not support on any device.
    #[error("{operation}: no support for {property}; {remedy}")]
    Unsupported {
        /// The operation or the layout.
        operation: &'static str,
        /// The property, with its value.
        property: String,
        /// What to do instead.
        remedy: &'static str,
    },
    /// Positions of one sequence that are not consecutive.
    #[error(
        "row {row}: position {got} does not follow the position before it, expected {expected}; split the segment there"
    )]
    NotConsecutive {
        /// The row of the position that does not follow.
        row: usize,
        /// The position before it plus one.
        expected: usize,
        /// The position given.
        got: usize,
    },
    /// A shape with an empty side, or with more elements than can be counted.
    #[error("{what} of {rows} x {cols}: expected sides of at least 1 and a product that fits 32 bits")]
    Shape {
        /// Which matrix.
        what: &'static str,
        /// Its rows.
        rows: usize,
        /// Its columns.
        cols: usize,
    },
    /// A parameter that is not finite.
    #[error("{what} {index} is {value}, expected a finite value")]
    NonFinite {
        /// Which parameter.
        what: &'static str,
        /// Its index.
        index: usize,
        /// The value found there.
        value: f32,
    },
    /// A device's limit.
    #[error("{kernel}: {what} of {requested} requested, the device has at most {limit}")]
    Limit {
        /// The operation that asked.
        kernel: &'static str,
        /// Which limit.
        what: &'static str,
        /// What was asked for.
        requested: u64,
        /// What the device has.
        limit: u64,
    },
    /// Something that a device cannot do at all.
    #[error("{kernel}: needs {feature}, which {device} does not have")]
    Feature {
        /// The operation that asked.
        kernel: &'static str,
        /// What it needs.
        feature: &'static str,
        /// The name of the device.
        device: String,
    },
    /// A problem that no kernel computes on this kind of device.
    #[error("{operation}: no kernel for {device}")]
    NoKernel {
        /// The operation.
        operation: &'static str,
        /// The name of the device.
        device: String,
    },
    /// Memory that the device does not have, or not in one piece.
    #[error("{what}: {requested} bytes requested, {limit} available at most")]
    Memory {
        /// For what.
        what: &'static str,
        /// Bytes asked for.
        requested: u64,
        /// Bytes that one allocation may have.
        limit: u64,
    },
    /// A kernel that the device's compiler or driver refused.
    #[error("{kernel}: the launch failed: {reason}")]
    Launch {
        /// The operation.
        kernel: &'static str,
        /// What the runtime said.
        reason: String,
    },
    /// Something inside of a capture that cannot be recorded, or that was not the same in both of its runs.
    #[error("a capture cannot hold {what}")]
    Capture {
        /// What it was.
        what: &'static str,
    },
    /// Values on the host that are no longer those on the device.
    #[error("{what} were overwritten through a clone")]
    Overwritten {
        /// Which.
        what: &'static str,
    },
    /// A transfer or a wait that failed: the device is lost, or a launch before it failed while it ran.
    #[error("{operation} on {device} failed: {reason}")]
    Device {
        /// What was attempted.
        operation: &'static str,
        /// The name of the device.
        device: String,
        /// What the runtime said.
        reason: String,
    },
    /// Buffers that must not share memory.
    #[error("{what} share memory, expected buffers of their own")]
    Overlap {
        /// Which buffers.
        what: &'static str,
    },
    /// Inputs that went through another rotation than the weights were stored behind.
    #[error("{what}: expected inputs rotated in blocks of {expected}, got {got} (1 stands for none)")]
    Rotation {
        /// Of what.
        what: &'static str,
        /// Numbers of a block.
        expected: usize,
        /// Those given.
        got: usize,
    },
    /// A trit tensor that could not be read.
    #[error(transparent)]
    Trit(#[from] TritError),
}

/// Result of this crate.
pub type Result<T> = std::result::Result<T, CubeError>;

/// Checks a length.
pub(crate) fn check_len(what: &'static str, expected: usize, got: usize) -> Result<()> {
    if expected == got { Ok(()) } else { Err(CubeError::Length { what, expected, got }) }
}

/// Checks what inputs go through.
pub(crate) fn check_rotation(
    what: &'static str,
    expected: Option<Hadamard>,
    got: Option<Hadamard>,
) -> Result<()> {
    let block = |rotation: Option<Hadamard>| rotation.map_or(1, Hadamard::block);
    if expected == got {
        Ok(())
    } else {
        Err(CubeError::Rotation { what, expected: block(expected), got: block(got) })
    }
}

/// A range as messages show it.
fn range(minimum: usize, maximum: usize) -> String {
    match (minimum, maximum) {
        (_, usize::MAX) => format!("at least {minimum}"),
        _ if minimum == maximum => minimum.to_string(),
        _ => format!("{minimum} to {maximum}"),
    }
}

/// Refuses what an operation or a layout does not support.
pub(crate) fn unsupported<T>(
    operation: &'static str,
    property: impl Into<String>,
    remedy: &'static str,
) -> Result<T> {
    Err(CubeError::Unsupported { operation, property: property.into(), remedy })
}

/// Checks that a number is inside of a range.
pub(crate) fn check_range(what: &'static str, minimum: usize, maximum: usize, got: usize) -> Result<()> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_name_the_field_the_value_the_limit_and_the_remedy() {
        let message = |error: CubeError| error.to_string();
        let refused = check_range("head_dim", 32, 128, 160).expect_err("over the limit");
        assert_eq!(message(refused), "head_dim: expected 32 to 128, got 160");
        let refused = check_range("window", 1, usize::MAX, 0).expect_err("below the limit");
        assert_eq!(message(refused), "window: expected at least 1, got 0");
        let refused = check_range("splits", 1, 1, 2).expect_err("over the limit");
        assert_eq!(message(refused), "splits: expected 1, got 2");
        let (expected, got) = ("64".to_owned(), "65".to_owned());
        let differ = CubeError::PartsDiffer { part: 1, property: "columns", expected, got };
        assert_eq!(
            message(differ),
            "part 1 of a packed matrix: columns: expected 64 as in part 0, got 65; pack the tensors as separate matrices"
        );
        let refused = unsupported::<()>("base-3 layout", "2 tied trit planes", "use the two-bit layout");
        assert_eq!(
            message(refused.expect_err("refused")),
            "base-3 layout: no support for 2 tied trit planes; use the two-bit layout"
        );
        let gap = CubeError::NotConsecutive { row: 3, expected: 8, got: 9 };
        assert_eq!(
            message(gap),
            "row 3: position 9 does not follow the position before it, expected 8; split the segment there"
        );
    }
}
