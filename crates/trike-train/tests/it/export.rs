//! Trained models, packed and run.

use serde_json::json;
use trike_autodiff::{BitLinearSpec, TernarizeSpec, TernaryScale};
use trike_cpu::Cpu;
use trike_format::HfDirWriter;
use trike_llm::ModelFile;
use trike_nn::{
    ActivationPrecision, CpuBackend, Decoder, DecoderSpec, DecoderWeights, KvPrecision, KvSpec, Logits,
    NnError, Step, Tensor, WeightName,
};
use trike_testkit::assert_all_near;
use trike_train::data::Batch;
use trike_train::{Parameters, TernaryPolicy, Trained, write_packed};
use trike_trit::{Granularity, GroupSize};

struct Stored<'a>(&'a ModelFile);

impl DecoderWeights for Stored<'_> {
    fn matrix(&mut self, name: WeightName) -> Result<Tensor, NnError> {
        Ok(self.0.load(name).expect("a weight"))
    }

    fn vector(&mut self, name: WeightName) -> Result<Vec<f32>, NnError> {
        Ok(self.0.load(name).expect("a vector").into_f32())
    }
}

#[test]
fn packed_weights_are_the_weights_that_were_multiplied() {
    let cpu = Cpu::new(1).expect("a thread");
    let spec = DecoderSpec {
        intermediate: 96,
        kv_heads: 2,
        context: 32,
        tied_head: true,
        ..DecoderSpec::llama(64, 2, 4, 50)
    };
    let config = json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 96,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 50,
        "max_position_embeddings": 32, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": true,
        "hidden_act": "silu",
    });
    let parameters = Parameters::random(&spec, 6).expect("parameters");
    let ids: Vec<u32> = (0..20).map(|i| (i * i * 3 + 1) % 50).collect();
    let batch =
        Batch { targets: vec![None; ids.len()], segments: std::iter::once(0..ids.len()).collect(), ids };
    let scales = [TernaryScale::AbsMean, TernaryScale::LeastSquares];
    let granularities = [Granularity::Tensor, Granularity::Row, Granularity::Group(GroupSize::G32)];
    for (scale, granularity) in scales.into_iter().flat_map(|scale| granularities.map(|g| (scale, g))) {
        let weights = TernarizeSpec::default().with_scale(scale).with_granularity(granularity);
        let policy = TernaryPolicy {
            blocks: Some(BitLinearSpec { weights, ..BitLinearSpec::default() }),
            int8_embedding: true,
        };
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("model");
        let mut writer = HfDirWriter::create(&path, config.clone()).expect("a writer");
        write_packed(&mut writer, &parameters, &policy).expect("it is written");
        writer.finish().expect("it is written");
        let file = ModelFile::open(&path).expect("a model");
        assert!(file.is_ternary());
        assert_eq!(file.config().spec, spec);

        let model = Trained::new(&cpu, &spec, None).expect("a model");
        let want = model.logits(&parameters, &batch, &policy).expect("logits");
        let backend = CpuBackend::new(Cpu::new(1).expect("a thread"), ActivationPrecision::Int8PerToken);
        let decoder = Decoder::new(backend, spec.clone(), &mut Stored(&file)).expect("a decoder");
        let mut sequence = decoder.sequence(KvSpec::new(KvPrecision::F32, 32)).expect("a sequence");
        let mut steps = [Step { sequence: &mut sequence, ids: &batch.ids }];
        let got = decoder.forward(&mut steps, Logits::All).expect("logits").remove(0);
        let largest = want.iter().fold(0f32, |m, v| m.max(v.abs()));
        // Integer sums compared with sums of scaled products; an activation on the border of two codes may round either way.
        assert_all_near!(&got, &want, abs = 2e-3 * largest, "{scale:?} {granularity:?}");
    }
}
