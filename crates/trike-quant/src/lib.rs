//! From floats to trits, as algorithms on matrices and statistics: quantizers, error compensation, calibration.
//!
//! Start from [`quantize_matrix`], which rounds a matrix, or from [`compensate`], which also sees what goes into the layer and
//! loses far less. `trike_calibrate::quantize` walks them over a model.
//!
//! The decision that shaped this crate: there is no model in sight. What calibration saw arrives as a [`Hessian`], what is to be
//! ternary as a [`MatrixView`], and a [`TritTensor`](trike_trit::TritTensor) leaves. Each algorithm can so be tested against its own
//! definition; the price is that whatever joins layers (running text, inputs that are quantized already) is done elsewhere.
//!
//! The second one: planes are tied by default. `w = s (t0 + t1 / 3 + ...)` is an evenly spaced grid of `3^planes` levels, fits
//! weights as well as free scales do (a test holds it to 5 %), and stores one scale.
//!
//! * matrices: [`MatrixView`], [`SquareMatrix`]; grids of values: [`Grid`], [`fit_tied`], [`fit_tied_mean`], [`fit_free`], [`error()`]
//! * rounding: [`quantize_matrix`], [`QuantizeConfig`], [`ScaleRule`], [`CalibrationMethod`], [`Rounding`], [`QuantizationStats`]
//! * the result's shape: [`TritLayout`], [`ScaleType`]
//! * calibration: [`Hessian`], [`CrossProduct`]
//! * compensation: [`compensate`], [`CompensateConfig`], [`HessianFactor`], [`ColumnOrder`], [`hessian_error`]
//! * rewriting weights first: [`Rotation`], [`salience()`], [`scale_columns`], [`scaled_hessian`]
//! * learning: [`Latent`], [`LatentRates`]
//! * pruning: [`prune`], [`PruneScore`], [`PrunePattern`]; [`compensate`] takes the result
//! * planning: [`allocate`] with a [`Choice`] for each way to store a layer
//! * activations: [`quantize_activations`]
//! * errors: [`QuantError`]
//!
//! It depends on the crates of the trits and of the host kernels, which multiply its matrices; there are no features to turn on.
#![forbid(unsafe_code)]

mod activations;
mod compensate;
mod config;
mod error;
mod factor;
mod fit;
mod grid;
mod hessian;
mod latent;
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
pub use compensate::{CompensateConfig, compensate, hessian_error};
pub use config::{CalibrationMethod, QuantizeConfig, Rounding, ScaleRule, ScaleType, TritLayout};
pub use error::QuantError;
pub use factor::{ColumnOrder, HessianFactor};
pub use fit::{error, fit_free, fit_tied, fit_tied_mean};
pub use grid::Grid;
pub use hessian::{CrossProduct, Hessian};
pub use latent::{Latent, LatentRates};
pub use plan::{Choice, allocate};
pub use prune::{PrunePattern, PruneScore, prune};
pub use quantize::{QuantizationStats, quantize_matrix};
pub use rotate::Rotation;
pub use salience::{Salience, salience, scale_columns, scaled_hessian};
pub use square::SquareMatrix;
pub use view::MatrixView;
