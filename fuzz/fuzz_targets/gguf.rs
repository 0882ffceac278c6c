//! Any bytes as a GGUF file: the header, the metadata and every tensor.
#![no_main]

use libfuzzer_sys::fuzz_target;
use trike_format::{Gguf, detect};

fuzz_target!(|data: &[u8]| {
    let path = trike_fuzz::put("model.gguf", data);
    let _ = detect(&path);
    let file = Gguf::open(&path);
    if let Ok(file) = &file {
        for (key, _) in file.metadata().iter() {
            let _ = (file.u32(key), file.f32(key), file.bool(key), file.str(key));
            let _ = (file.strings(key).map(|s| s.map(|s| s.iter().count())), file.f32s(key), file.i64s(key));
        }
    }
    trike_fuzz::load_all(file);
});
