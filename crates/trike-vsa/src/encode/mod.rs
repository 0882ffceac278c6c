//! Encoders of numbers, vectors and texts as hypervectors, and a classifier.

mod classifier;
mod projection;
mod scalar;
mod text;

pub use classifier::CentroidClassifier;
pub use projection::RandomProjection;
pub use scalar::ScalarEncoder;
pub use text::TextEncoder;
