//! Any bytes as a `config.json`: what is accepted is a spec that holds together.
#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;
use trike_llm::ModelConfig;

fuzz_target!(|data: &[u8]| {
    let Ok(json) = serde_json::from_slice(data) else { return };
    match ModelConfig::from_hf(Path::new("config.json"), &json) {
        Ok(config) => {
            config.spec.validate().expect("an accepted spec is valid");
            if config.spec.head_dim <= 1024 {
                let frequencies = config.spec.rope.frequencies(config.spec.head_dim);
                assert_eq!(frequencies.len(), config.spec.head_dim / 2);
                assert!(frequencies.iter().all(|f| f.is_finite()), "{:?}", config.spec.rope);
            }
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
});
