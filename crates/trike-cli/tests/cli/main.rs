//! The command, run as a user runs it: each test has its own directory and a clean environment.

mod bad_input;
mod chat;
mod convert;
mod harness;
mod measure;
mod reference;
mod run;
