//! Training: runs, adapters, exports, ranks, devices.
//!
//! One binary for all files: each further one is linked anew.

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
