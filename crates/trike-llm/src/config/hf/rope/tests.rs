//! Rotary frequencies compared with those of transformers, in `tests/reference/rope.json`.

use std::path::Path;

use serde_json::{Value, json};
use trike_testkit::assert_near;

use crate::ModelConfig;

/// The keys of a configuration unrelated to RoPE.
fn whole(part: &Value) -> Value {
    let mut config = json!({
        "intermediate_size": 128, "num_hidden_layers": 2, "num_key_value_heads": 2, "vocab_size": 100,
        "sliding_window": null,
    });
    for (key, value) in part.as_object().unwrap() {
        config[key] = value.clone();
    }
    config
}

#[test]
fn frequencies_and_factors_are_those_of_transformers() {
    let cases: Vec<Value> =
        serde_json::from_str(include_str!("../../../../tests/reference/rope.json")).unwrap();
    assert_eq!(cases.len(), 21);
    for case in cases {
        let spec = ModelConfig::from_hf(Path::new("m"), &whole(&case["config"])).unwrap().spec;
        let got = spec.rope.frequencies(spec.head_dim);
        let want: Vec<f32> =
            case["frequencies"].as_array().unwrap().iter().map(|v| v.as_f64().unwrap() as f32).collect();
        assert_eq!(got.len(), want.len(), "{}", case["config"]);
        for (got, want) in got.iter().zip(&want) {
            // transformers computes in f32, Trike in f64.
            assert_near!(*got, *want, rel = 3e-6, "{}", case["config"]);
        }
        let factor = case["attention_factor"].as_f64().unwrap() as f32;
        assert_near!(spec.rope.attention_factor(), factor, rel = 1e-6);
    }
}

#[test]
fn settings_that_are_not_implemented_are_named() {
    let list = |factor: f64| json!(vec![factor; 8]);
    for (more, words) in [
        (json!({"rope_scaling": {"type": "dynamic", "factor": 2.0}}), "dynamic"),
        (json!({"rope_parameters": {"rope_type": "proportional"}}), "proportional"),
        (json!({"rope_parameters": {"rope_type": "axial"}}), "axial"),
        (json!({"rope_scaling": {"factor": 4.0}}), "rope_type"),
        (json!({"rope_scaling": {"type": 3}}), "`type`"),
        (json!({"rope_scaling": {"type": "yarn", "factor": 4.0, "truncate": false}}), "truncate"),
        (
            json!({"rope_scaling": {"rope_type": "default", "partial_rotary_factor": 0.5}}),
            "partial_rotary_factor",
        ),
        (json!({"rope_scaling": {"rope_type": "linear", "factor": 2.0, "betafast": 8}}), "`beta_fast`"),
        (json!({"rope_parameters": {"full_attention": {"rope_type": "default"}}}), "full_attention"),
        (
            json!({"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_parameters": {"rope_theta": 5e5}}),
            "remove one",
        ),
        (
            json!({"rope_scaling": {
                "rope_type": "longrope", "short_factor": list(1.0), "long_factor": list(2.0),
                "attention_factor": 1.0, "original_max_position_embeddings": 512,
            }}),
            "long_factor",
        ),
        (
            json!({"rope_scaling": {
                "rope_type": "longrope", "short_factor": list(2.0), "long_factor": list(2.0),
                "original_max_position_embeddings": 512,
            }}),
            "attention_factor",
        ),
    ] {
        let mut part = json!({
            "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "num_attention_heads": 4,
            "head_dim": 16, "max_position_embeddings": 2048,
        });
        for (key, value) in more.as_object().unwrap() {
            part[key] = value.clone();
        }
        let error = ModelConfig::from_hf(Path::new("m"), &whole(&part)).unwrap_err().to_string();
        assert!(error.contains(words), "{more}: {error}");
    }
}

#[test]
fn an_empty_object_is_none() {
    let part = json!({
        "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "num_attention_heads": 4, "head_dim": 16,
        "rope_scaling": {}, "rope_theta": 2e4,
    });
    let spec = ModelConfig::from_hf(Path::new("m"), &whole(&part)).unwrap().spec;
    assert_eq!((spec.rope.theta, spec.rope.scaling), (2e4, trike_nn::RopeScaling::None));
}
