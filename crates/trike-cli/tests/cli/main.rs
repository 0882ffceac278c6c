//! The command, run as by a user: each test has its own directory and a clean environment.

mod bad_input;
mod chat;
mod convert;
mod device;
#[cfg(feature = "hub")]
mod download;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod emulated;
mod fields;
#[cfg(unix)]
mod guide;
mod harness;
#[cfg(feature = "hub")]
mod hub_server;
mod kv;
mod measure;
mod messages;
mod models;
mod needle;
#[cfg(unix)]
mod outputs;
mod prompts;
mod quantize;
mod quantize_plan;
mod reference;
mod run;
#[cfg(feature = "serve")]
mod serve;
mod split;
mod train;
