//! Ternary quantization of matrices: quantizers, error compensation, calibration statistics, pruning and bit allocation.
//!
//! Start from [`quantize_matrix`], which rounds a matrix, or from [`compensate`], which also uses statistics of the layer's
//! inputs and has a much smaller error. `trike_calibrate::quantize` applies them to a model.
//!
//! The decision that shaped this crate: it does not depend on models. Its inputs are calibration statistics ([`Hessian`]) and
//! weights ([`MatrixView`]), its output is a [`TritTensor`](trike_trit::TritTensor). So each algorithm can be tested against its
//! definition; the price is that all steps that span layers (running text, using inputs that are already quantized) are in
//! another crate.
//!
//! The second decision: planes are tied by default. `w = s (t0 + t1 / 3 + ...)` is an evenly spaced grid of `3^planes` levels,
//! fits weights as well as free scales (a test checks this within 5 %), and stores one scale.
//!
//! * matrices: [`MatrixView`], [`SquareMatrix`]; grids: [`Grid`], [`fit_tied`], [`fit_tied_mean`], [`fit_free`], [`error()`]
//! * rounding: [`quantize_matrix`], [`QuantizeConfig`], [`ScaleRule`], [`CalibrationMethod`], [`Rounding`], [`RoundingStats`]
//! * layout of the result: [`TritLayout`], [`ScaleType`]
//! * calibration: [`Hessian`], [`InputStatistics`], [`CrossProduct`]
//! * compensation: [`compensate`], [`CompensateConfig`], [`HessianFactor`], [`ColumnOrder`], [`hessian_error`]
//! * transforms of the weights before rounding: [`Rotation`], [`salience()`], [`scale_columns`], [`scaled_hessian`]
//! * training: [`LatentWeights`], [`LatentLearningRates`]; of scales alone: [`LatentScales`]; the optimizer: [`Adam`]
//! * pruning: [`prune`], [`PruneScore`], [`PrunePattern`]; [`compensate`] takes the mask
//! * bit allocation: [`allocate`], with one [`Choice`] per format of a layer
//! * activations: [`quantize_activations`]
//! * errors: [`QuantError`]
//!
//! It depends on the trit tensors (`trike-trit`) and on the CPU kernels (`trike-cpu`) for matrix products; it has no Cargo
//! features.
#![forbid(unsafe_code)]

mod activations;
mod adam;
mod compensate;
mod config;
mod error;
mod factor;
mod fit;
mod grid;
mod hessian;
mod latent;
mod latent_scales;
mod linalg;
mod plan;
mod prune;
mod quantize;
mod rotate;
mod salience;
mod square;
mod tensor;
mod view;

pub use activations::quantize_activations;
pub use adam::Adam;
pub use compensate::{CompensateConfig, compensate, hessian_error};
pub use config::{CalibrationMethod, QuantizeConfig, Rounding, ScaleRule, ScaleType, TritLayout};
pub use error::QuantError;
pub use factor::{ColumnOrder, HessianFactor};
pub use fit::{error, fit_free, fit_tied, fit_tied_mean};
pub use grid::Grid;
pub use hessian::{CrossProduct, Hessian, InputStatistics};
pub use latent::{LatentLearningRates, LatentWeights};
pub use latent_scales::LatentScales;
pub use plan::{Choice, allocate};
pub use prune::{PrunePattern, PruneScore, prune};
pub use quantize::{RoundingStats, quantize_matrix};
pub use rotate::Rotation;
pub use salience::{Salience, salience, scale_columns, scaled_hessian};
pub use square::SquareMatrix;
pub use view::MatrixView;
