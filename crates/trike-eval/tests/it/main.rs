//! Measurements of models, against numbers of other implementations and sums by hand.
//!
//! One binary for all files: each further one is linked anew.

mod golden;
mod kv;
mod model;
