//! Any bytes as a llama2.c checkpoint.
#![no_main]

use libfuzzer_sys::fuzz_target;
use trike_format::{Llama2c, detect};

fuzz_target!(|data: &[u8]| {
    let path = trike_fuzz::put("model.bin", data);
    let _ = detect(&path);
    let file = Llama2c::open(&path);
    if let Ok(file) = &file {
        let _ = (file.config().head_dim(), file.config().kv_dim());
    }
    trike_fuzz::load_all(file);
});
