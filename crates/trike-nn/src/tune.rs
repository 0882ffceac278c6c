//! Results of autotuning.

/// Kernels chosen by [`Backend::tune`](crate::Backend::tune).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct KernelTuning {
    /// The products that were measured.
    pub products: Vec<TunedProduct>,
    /// All choices of each device, those of earlier measurements included.
    pub tables: Vec<TunedTable>,
}

/// The kernels for the products of matrices of one form with a number of tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct TunedProduct {
    /// The device.
    pub device: String,
    /// Rows of the matrices, those of fused matrices together.
    pub rows: usize,
    /// Their columns.
    pub cols: usize,
    /// Number of matrices, measured in turn.
    pub matrices: usize,
    /// Tokens.
    pub tokens: usize,
    /// Whether the product is added to its output.
    pub added: bool,
    /// Number of kernels that were tried.
    pub candidates: usize,
    /// The kernel that would be used without a measurement.
    pub predicted: Option<String>,
    /// Its nanoseconds per product; `None` if the driver refused it.
    pub predicted_ns: Option<f64>,
    /// The fastest kernel, used after tuning.
    pub chosen: String,
    /// Its nanoseconds per product.
    pub chosen_ns: f64,
}

/// The choices of one device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TunedTable {
    /// The name of the device.
    pub device: String,
    /// The table, to be stored between runs.
    pub text: String,
}
