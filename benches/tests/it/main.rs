//! The catalogue of problems, the engines that it compares, and the tables of the book.
//!
//! One binary for all files: each further one is linked anew.

mod book;
mod catalogue;
mod engines;
mod scaling;
