//! Measurements of models, compared with other implementations and manual sums.
//!
//! All files are in one binary, since each further one would be linked separately.

mod golden;
mod kv;
mod model;
