//! Any bytes as a HuggingFace directory: two bytes say how many of the rest are `config.json`; the others are
//! `model.safetensors`.
#![no_main]

use libfuzzer_sys::fuzz_target;
use trike_format::{HfDir, detect};

fuzz_target!(|data: &[u8]| {
    let Some((len, rest)) = data.split_first_chunk::<2>() else { return };
    let (config, weights) = rest.split_at(rest.len().min(u16::from_le_bytes(*len).into()));
    trike_fuzz::put("config.json", config);
    trike_fuzz::put("model.safetensors", weights);
    let path = trike_fuzz::scratch();
    let _ = detect(path);
    trike_fuzz::load_all(HfDir::open(path));
});
