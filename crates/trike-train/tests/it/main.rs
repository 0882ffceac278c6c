//! Training: runs, adapters, exports, ranks, devices.
//!
//! One binary for all files, since every binary is linked separately.

mod adapter;
mod common;
mod continued;
mod device;
mod export;
mod gradients;
mod peft;
mod pipeline;
mod ranks;
mod run;
mod samples;
mod tensor;
mod training;
