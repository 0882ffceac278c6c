//! From numbers, vectors and texts to hypervectors, and classifiers on top.

mod classifier;
mod projection;
mod scalar;
mod text;

pub use classifier::CentroidClassifier;
pub use projection::RandomProjection;
pub use scalar::ScalarEncoder;
pub use text::TextEncoder;
