//! A model on several ranks: bit-identical logits and text, and refusals.

use crate::common;
use std::cell::Cell;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use crate::common::random_checkpoint;
use serde_json::{Value, json};
use tempfile::TempDir;
use trike_comm::{CommError, Communicator, Threads, Traffic};
use trike_llm::{
    GenerateOptions, LanguageModel, LlmError, LoadOptions, Model, ModelFile, ModelParallel, RankModel,
    RankPlans,
};
use trike_nn::{ActivationPrecision, KvOptions, KvPrecision, KvPrecisions, KvSpec, NnError};

const TINY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/tiny");

fn options(file: &ModelFile, threads: usize) -> LoadOptions {
    LoadOptions::default()
        .with_cpu(trike_cpu::Cpu::new(threads).expect("threads"))
        .with_sequence(KvSpec::new(file.default_kv(), file.config().spec.context))
}

/// Runs `first` on rank 0 of a model on thread ranks, and `follow` on the others; returns the result of each rank.
fn on_ranks<C: Communicator + Send + 'static, T: Send>(
    path: &Path,
    parallel: ModelParallel,
    comms: impl IntoIterator<Item = C>,
    change: impl Fn(usize, LoadOptions) -> LoadOptions + Sync,
    first: impl Fn(&RankModel<C>) -> Result<T, LlmError> + Sync,
) -> Vec<Result<Option<T>, LlmError>> {
    let run = |comm: C| {
        let file = ModelFile::open(path)?;
        let rank = comm.rank();
        let options = change(rank, options(&file, 1 + rank % 2));
        let comm = Rc::new(comm);
        let plans = RankPlans::new(&*comm, &file, &options, parallel)?;
        let model = plans.load(Rc::clone(&comm), &file, &options, &mut |_, _| ())?;
        match rank {
            0 => first(&model).map(Some),
            _ => Ok(model.decoder().follow().map(|()| None)?),
        }
    };
    std::thread::scope(|scope| {
        let ranks: Vec<_> = comms.into_iter().map(|comm| scope.spawn(|| run(comm))).collect();
        ranks.into_iter().map(|rank| rank.join().expect("no panic")).collect()
    })
}

/// The result of rank 0, after all ranks have ended without an error.
fn result<T>(ranks: Vec<Result<Option<T>, LlmError>>) -> T {
    let mut results = ranks.into_iter().map(|rank| rank.expect("no error"));
    let first = results.next().flatten().expect("a result of rank 0");
    assert!(results.all(|other| other.is_none()));
    first
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Logits of a prompt in one step, of single tokens after it, and of a shorter sequence after that, as one list of bits.
fn logits(model: &dyn Model, ids: &[u32]) -> Result<Vec<u32>, LlmError> {
    let mut all = Vec::new();
    let kv = KvPrecision::F16;
    for ids in [ids, &ids[..1]] {
        model.logits_with(ids, &KvSpec::new(kv, ids.len()), &mut |_, row| all.extend(bits(row)))?;
    }
    all.extend(bits(&model.embed(ids, trike_llm::Pooling::Mean)?));
    // The last layer, which may be on another rank, has a different precision.
    let layers = model.config().spec.layers;
    let mixed = KvPrecisions::from(KvPrecision::Int4).with_layer(layers - 1, KvPrecision::Int8)?;
    model.logits_with(ids, &KvSpec::new(mixed, ids.len()), &mut |_, row| all.extend(bits(row)))?;
    Ok(all)
}

#[test]
fn the_text_of_the_bundled_model_is_that_of_one_machine() {
    let file = ModelFile::open(TINY).expect("the bundled model");
    let single = LanguageModel::load_with(&file, &options(&file, 2), &mut |_, _| ()).expect("it loads");
    let prompt = "Once upon a time";
    let story = GenerateOptions::default().with_max_tokens(40);
    let rolling =
        GenerateOptions::default().with_max_tokens(30).with_kv(KvOptions::default().with_window(12));
    let all = |model: &dyn Model| -> Result<_, LlmError> {
        let mut ids = Vec::new();
        for options in [&story, &rolling] {
            ids.push(model.generate(prompt, options)?.ids);
        }
        // A session is continued, then truncated.
        let mut session = trike_llm::Session::default();
        let mut text = model.tokenizer()?.encode_prompt(prompt)?;
        for _ in 0..2 {
            let options = GenerateOptions::default().with_max_tokens(5).with_context(100);
            let mut quiet = |_: &str| std::ops::ControlFlow::Continue(());
            let next = model.generate_in(&mut session, text.clone(), &[], &options, &mut quiet)?;
            text.extend(&next.ids[..3]);
            ids.push(next.ids);
        }
        Ok(ids)
    };
    let ids: Vec<u32> = (0..70).map(|i| i * 37 % 512).collect();
    let (want, logits_of_one) = (all(&single).expect("text"), logits(&single, &ids).expect("logits"));
    for parallel in ModelParallel::ALL {
        for ranks in [1, 2, 4] {
            let run = |model: &RankModel<Threads>| Ok((all(model)?, logits(model, &ids)?));
            let path = Path::new(TINY);
            let got = result(on_ranks(path, parallel, Threads::new(ranks), |_, options| options, run));
            assert_eq!(got.0, want, "{} {ranks}", parallel.name());
            assert!(got.1 == logits_of_one, "{} {ranks}: other logits", parallel.name());
        }
    }
}

/// Grouped-query attention, biases, norms of heads, sub-norms, a tied head, int8 activations per token and f32 ones; ternary and
/// dense.
#[test]
fn every_architecture_has_the_bits_of_one_machine() {
    let dir = TempDir::new().expect("a directory");
    let qwen = json!({"tie_word_embeddings": true, "num_key_value_heads": 3});
    let all: [(&str, &str, Value, bool); 5] = [
        ("qwen2", "Qwen2ForCausalLM", qwen, true),
        ("qwen3", "Qwen3ForCausalLM", json!({"head_dim": 24}), true),
        ("bitnet", "BitNetForCausalLM", json!({"hidden_act": "relu2", "num_key_value_heads": 1}), true),
        ("mistral", "MistralForCausalLM", json!({"sliding_window": 9}), false),
        ("llama", "LlamaForCausalLM", json!({"num_key_value_heads": 6, "intermediate_size": 161}), true),
    ];
    for (seed, (name, architecture, more, packed)) in all.into_iter().enumerate() {
        let path = dir.path().join(name);
        let config = common::config(architecture, 4, 131, more);
        let spec = random_checkpoint(&path, &config, seed as u64, packed).spec;
        let file = ModelFile::open(&path).expect("a model");
        let ids = common::ids(40, 131, 7);
        for activations in [ActivationPrecision::Int8PerToken, ActivationPrecision::F32] {
            let change = |_: usize, options: LoadOptions| options.with_activations(activations);
            let one = LanguageModel::load_with(&file, &change(0, options(&file, 1)), &mut |_, _| ());
            let want = logits(&one.expect("it loads"), &ids).expect("logits");
            for parallel in ModelParallel::ALL {
                for ranks in 1..=4 {
                    let divides = ranks <= spec.kv_heads || ranks % spec.kv_heads == 0;
                    if parallel == ModelParallel::Tensor && !divides {
                        continue;
                    }
                    let run = |model: &RankModel<Threads>| logits(model, &ids);
                    let got = result(on_ranks(&path, parallel, Threads::new(ranks), change, run));
                    assert!(got == want, "{name} {activations:?} {} {ranks}: other bits", parallel.name());
                }
            }
        }
    }
}

/// Every rank holds only its part, and the plan predicts its size.
#[test]
fn ranks_hold_their_parts() {
    let file = ModelFile::open(TINY).expect("the bundled model");
    let single = LanguageModel::load_with(&file, &options(&file, 1), &mut |_, _| ()).expect("it loads");
    let whole = single.decoder().weight_bytes();
    for parallel in ModelParallel::ALL {
        let held = Threads::run(4, |comm| {
            let file = ModelFile::open(TINY).expect("the bundled model");
            let options = options(&file, 1);
            let comm = Rc::new(comm);
            let plans = RankPlans::new(&*comm, &file, &options, parallel).expect("plans");
            let model = plans.load(Rc::clone(&comm), &file, &options, &mut |_, _| ());
            let held = model.expect("it loads").decoder().weight_bytes();
            (held, plans.ranks().to_vec(), comm.rank())
        });
        let sum: usize = held.iter().map(|(held, ..)| held).sum();
        // The embedding of the first rank of a pipeline is the head of the last one.
        let twice = if parallel == ModelParallel::Pipeline { 512 * 256 * 34 / 32 } else { 0 };
        // Keys and values of two heads are replicated on four ranks.
        assert!(sum >= whole && sum <= whole + twice + whole / 10, "{sum} of {whole}");
        for (held, plans, rank) in held {
            let planned = plans[rank].plan;
            assert!(held * 3 < whole * 2, "{} rank {rank}: {held} of {whole}", parallel.name());
            // Norms are vectors, which the weights of a model exclude; and the kernels may choose a smaller layout.
            let norms = 9 * 256 * 4;
            let (least, most) = (held as u64, held as u64 * 4 / 3 + norms);
            assert!((least..most).contains(&planned.weights), "{planned} and {held}");
        }
    }
}

#[test]
fn ranks_that_were_started_otherwise_are_refused() {
    let differs = |results: Vec<Result<Option<()>, LlmError>>, what: &str, part: &str| {
        for result in results {
            let error = result.expect_err("they differ");
            assert!(
                matches!(&error, LlmError::Nn(NnError::Comm(CommError::Differs { rank: 1, .. }))),
                "{error}"
            );
            let text = error.to_string();
            assert!(text.contains(what) && text.contains(part), "{text}");
        }
    };
    let path = Path::new(TINY);
    let f32 = |rank, options: LoadOptions| match rank {
        1 => options.with_activations(ActivationPrecision::F32),
        _ => options,
    };
    let ends = |_: &RankModel<Threads>| Ok(());
    differs(on_ranks(path, ModelParallel::Tensor, Threads::new(2), f32, ends), "options", "activations f32");

    // A model with one weight changed.
    let dir = TempDir::new().expect("a directory");
    let config = common::config("LlamaForCausalLM", 2, 131, json!({}));
    let other = |name: &str, at: Option<usize>| {
        let path = dir.path().join(name);
        random_checkpoint(&path, &config, 1, true);
        let file = path.join("model.safetensors");
        let mut bytes = std::fs::read(&file).expect("weights");
        if let Some(at) = at {
            let at = bytes.len() - at;
            bytes[at] ^= 1;
        }
        std::fs::write(&file, bytes).expect("it is written");
        path
    };
    let models = [other("one", None), other("two", Some(1000))];
    let plan = |path: &Path, comm: &Threads, parallel| {
        let file = ModelFile::open(path)?;
        RankPlans::new(comm, &file, &options(&file, 1), parallel).map(|_| Some(()))
    };
    let each = |parallel: [ModelParallel; 2], models: [&Path; 2]| -> Vec<Result<Option<()>, LlmError>> {
        Threads::run(2, |comm| plan(models[comm.rank()], &comm, parallel[comm.rank()]))
    };
    let [one, two] = [&*models[0], &*models[1]];
    differs(each([ModelParallel::Tensor; 2], [one, two]), "model", "contents");
    differs(each([ModelParallel::Tensor, ModelParallel::Pipeline], [one, one]), "division", "pipeline");
    for result in each([ModelParallel::Pipeline; 2], [one, one]) {
        result.expect("the same");
    }
    // More ranks than the model can be divided between.
    for parallel in ModelParallel::ALL {
        for rank in on_ranks(one, parallel, Threads::new(5), |_, options| options, ends) {
            let error = rank.expect_err("too many ranks");
            assert!(matches!(error, LlmError::Nn(NnError::Spec { field: "ranks", .. })), "{error}");
        }
    }
}

/// Corrupts messages of rank 1 from a given one on.
struct Faulty {
    comm: Threads,
    sent: Cell<usize>,
    fault: Fault,
}

#[derive(Clone, Copy)]
enum Fault {
    NotANumber,
    Truncated,
    Silent,
}

/// Messages before the fault: loading the model and the first steps.
const HEALTHY: usize = 30;

impl Communicator for Faulty {
    fn rank(&self) -> usize {
        self.comm.rank()
    }

    fn size(&self) -> usize {
        self.comm.size()
    }

    fn send(&self, to: usize, message: &[u8]) -> Result<(), CommError> {
        self.sent.set(self.sent.get() + 1);
        if self.comm.rank() == 0 || self.sent.get() < HEALTHY {
            return self.comm.send(to, message);
        }
        match self.fault {
            Fault::NotANumber => {
                let mut message = message.to_vec();
                if let Some(last) = message.last_chunk_mut::<4>() {
                    *last = f32::NAN.to_le_bytes();
                }
                self.comm.send(to, &message)
            }
            Fault::Truncated => self.comm.send(to, &message[..message.len() - 1]),
            Fault::Silent => Ok(()),
        }
    }

    fn receive(&self, from: usize, most: usize) -> Result<Vec<u8>, CommError> {
        self.comm.receive(from, most)
    }

    fn traffic(&self) -> Traffic {
        self.comm.traffic()
    }
}

#[test]
fn a_rank_that_fails_is_an_error_with_its_number() {
    for parallel in ModelParallel::ALL {
        for fault in [Fault::NotANumber, Fault::Truncated, Fault::Silent] {
            // Rank 1 also waits for rank 0 and needs a longer timeout: otherwise it would exit before rank 0 could report its
            // silence.
            let comms = Threads::new(2).into_iter().zip([2, 60]).map(|(comm, seconds)| Faulty {
                comm: comm.with_deadline(Duration::from_secs(seconds)),
                sent: Cell::new(0),
                fault,
            });
            let story = GenerateOptions::default().with_max_tokens(60);
            let run = |model: &RankModel<Faulty>| model.generate("Once", &story).map(|_| ());
            let path = Path::new(TINY);
            let mut ranks = on_ranks(path, parallel, comms, |_, options| options, run).into_iter();
            let error = ranks.next().expect("rank 0").expect_err("rank 1 fails");
            let LlmError::Nn(error) = &error else { panic!("{error}") };
            let is_named = match fault {
                Fault::NotANumber => {
                    matches!(error, NnError::RankValue { rank: 1, value } if value.is_nan())
                }
                Fault::Truncated => matches!(error, NnError::Comm(CommError::Cut { rank: 1, .. })),
                Fault::Silent => matches!(error, NnError::Comm(CommError::Deadline { rank: 1, .. })),
            };
            assert!(is_named, "{error}");
            // The other rank ends too, since rank 0 has exited.
            let _ = ranks.next();
        }
    }
}

/// A model on ranks runs one sequence at a time, and its weights cannot be replaced.
#[test]
fn what_ranks_cannot_do_is_refused() {
    use trike_nn::{Logits, Step, Tensor, WeightName};
    for parallel in ModelParallel::ALL {
        let run = |model: &RankModel<Threads>| -> Result<(), LlmError> {
            let decoder = model.decoder();
            let kv = KvSpec::new(KvPrecision::F16, 16);
            let (mut one, mut two) = (decoder.sequence(kv)?, decoder.sequence(kv)?);
            let both =
                &mut [Step { sequence: &mut one, ids: &[1, 2] }, Step { sequence: &mut two, ids: &[3] }];
            let refused = decoder.forward(both, Logits::Last).expect_err("two sequences");
            assert!(matches!(refused, NnError::Unsupported { .. }), "{refused}");
            // One after the other.
            decoder.forward(&mut [Step { sequence: &mut one, ids: &[1, 2] }], Logits::Last)?;
            decoder.forward(&mut [Step { sequence: &mut two, ids: &[3] }], Logits::All)?;
            let mut session = trike_llm::Session::default();
            let options = GenerateOptions::default().with_max_tokens(2);
            let mut quiet = |_: &str| std::ops::ControlFlow::Continue(());
            model.generate_in(&mut session, vec![1, 2], &[], &options, &mut quiet)?;
            let saved = model.save_session(&session, Path::new("/nowhere/session"));
            assert!(matches!(saved, Err(LlmError::Nn(NnError::Unsupported { .. }))), "{saved:?}");
            Ok(())
        };
        let path = Path::new(TINY);
        result(on_ranks(path, parallel, Threads::new(2), |_, options| options, run));

        let file = ModelFile::open(TINY).expect("the bundled model");
        let down = file.load(WeightName::Down(3)).expect("a matrix");
        let Tensor::Ternary(down) = down else { panic!("not ternary") };
        let replaced = Threads::run(2, |comm| {
            let file = ModelFile::open(TINY)?;
            let (comm, options) = (Rc::new(comm), options(&file, 1));
            let plans = RankPlans::new(&*comm, &file, &options, parallel)?;
            let mut model = plans.load(comm, &file, &options, &mut |_, _| ())?;
            model.replace_layer(WeightName::Down(3), down.clone())
        });
        assert!(matches!(replaced[0], Err(LlmError::Nn(NnError::Unsupported { .. }))), "{:?}", replaced[0]);
    }
}

/// Ranks send the bytes per token that the division predicts, plus message headers and the notice of the step.
#[test]
fn ranks_send_the_bytes_that_the_division_says() {
    use trike_nn::{Logits, Step};
    const HEADER: u64 = 20;
    // With the precisions of all layers, and the id of the token.
    const NOTICE: u64 = 46 + KvPrecisions::BYTES as u64 + 4;
    // Four tensors of four layers from each of two ranks, and an embedding row and half of the logits from one of them; or a state
    // and the logits.
    for (parallel, messages) in [(ModelParallel::Tensor, 2 * 4 * 4 + 2), (ModelParallel::Pipeline, 2)] {
        let run = |model: &RankModel<Threads>| -> Result<u64, LlmError> {
            let (decoder, comm) = (model.decoder(), model.decoder().backend().comm());
            let mut sequence = decoder.sequence(KvSpec::new(KvPrecision::F16, 16))?;
            decoder.forward(&mut [Step { sequence: &mut sequence, ids: &[1, 2, 3] }], Logits::Last)?;
            let before = comm.traffic();
            decoder.forward(&mut [Step { sequence: &mut sequence, ids: &[4] }], Logits::Last)?;
            let after = comm.traffic();
            let all = after.sent + after.received - before.sent - before.received;
            assert_eq!(
                all - HEADER * (messages + 1) - NOTICE,
                decoder.backend().division().bytes_per_token()
            );
            Ok(all)
        };
        result(on_ranks(Path::new(TINY), parallel, Threads::new(2), |_, options| options, run));
    }
}

/// A step of a sequence that is no longer the most recent one is refused.
#[test]
fn a_sequence_that_was_left_is_refused() {
    use trike_nn::{Logits, Step};
    let run = |model: &RankModel<Threads>| -> Result<(), LlmError> {
        let decoder = model.decoder();
        let kv = KvSpec::new(KvPrecision::F16, 16);
        let (mut one, mut two) = (decoder.sequence(kv)?, decoder.sequence(kv)?);
        decoder.forward(&mut [Step { sequence: &mut one, ids: &[1, 2] }], Logits::Last)?;
        decoder.forward(&mut [Step { sequence: &mut two, ids: &[3] }], Logits::Last)?;
        decoder.forward(&mut [Step { sequence: &mut one, ids: &[3] }], Logits::Last)?;
        Ok(())
    };
    let path = Path::new(TINY);
    let ranks = on_ranks(path, ModelParallel::Tensor, Threads::new(2), |_, options| options, run);
    let error = ranks.into_iter().nth(1).expect("rank 1").expect_err("it has another sequence");
    assert!(matches!(error, LlmError::Nn(NnError::Behind { expected: 0, got: 2 })), "{error}");
}
