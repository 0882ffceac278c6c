//! Host kernels on every instruction set of this machine, compared with oracles.
//!
//! One binary for all files, since every binary is linked separately.

mod blocks;
mod common;
mod dense;
mod edits;
mod grad;
mod int8;
mod keys;
mod kv_half;
mod kv_int4;
mod kv_int8;
mod linear;
mod masked;
mod matmul;
mod ops;
mod pages;
mod sparse;
mod tiles;
