//! Whole runs: from a configuration to a model.

use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use trike_comm::{Communicator, Threads};
use trike_cpu::Cpu;
use trike_eval::{ScoreOptions, score};
use trike_format::HfDirWriter;
use trike_llm::{GenerateOptions, LanguageModel, ModelConfig, ModelFile, Split, open};
use trike_testkit::assert_near;
use trike_train::run::{Ended, LogLine, Run, RunConfig, RunEvent, RunReport, Sharing, Whole};
use trike_train::{Parameters, TernaryPolicy, TrainError, write_packed};

const STORIES: usize = 40;

/// A dense model with the tokenizer of the shipped one, and stories.
pub(crate) struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    pub(crate) fn new() -> Self {
        let place = Self { dir: tempfile::tempdir().expect("a folder") };
        let file = |wanted: &str| {
            trike_models::TINY.iter().find(|(name, _)| *name == wanted).expect("a file of the model").1
        };
        fs::write(place.at("tokenizer.json"), file("tokenizer.json")).expect("it is written");
        let mut shipped: Value = serde_json::from_slice(file("config.json")).expect("JSON");
        for (name, value) in [
            ("hidden_size", json!(32)),
            ("intermediate_size", json!(64)),
            ("num_hidden_layers", json!(2)),
            ("num_attention_heads", json!(4)),
            ("num_key_value_heads", json!(2)),
            ("head_dim", json!(8)),
            ("max_position_embeddings", json!(64)),
        ] {
            shipped[name] = value;
        }
        if let Some(config) = shipped.as_object_mut() {
            config.remove("quantization_config");
        }
        fs::write(place.at("config.json"), shipped.to_string()).expect("it is written");
        let config = ModelConfig::from_hf(&place.at("config.json"), &shipped).expect("a configuration");
        let parameters = Parameters::random(&config.spec, 3).expect("parameters");
        let mut writer = HfDirWriter::create(place.at("dense"), shipped).expect("a writer");
        write_packed(&mut writer, &parameters, &TernaryPolicy::DENSE).expect("it is written");
        writer.write_file("tokenizer.json", file("tokenizer.json")).expect("it is written");
        writer.finish().expect("it is written");
        fs::write(place.at("words.bin"), llama2c(config.spec.vocab)).expect("it is written");
        let animals = ["cat", "dog", "bird", "fish", "frog"];
        let story =
            |i: usize| format!("Once there was a {}. It had {i} friends. They were happy.", animals[i % 5]);
        let text: Vec<String> = (0..STORIES).map(story).collect();
        fs::write(place.at("stories.txt"), text.join("\n<|endoftext|>\n")).expect("it is written");
        place
    }

    pub(crate) fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A run of 12 steps; `more` is TOML.
    pub(crate) fn config(&self, output: &str, more: &str) -> RunConfig {
        let path = self.at(&format!("{output}.toml"));
        let text = format!(
            "datasets = [{{ path = 'stories.txt' }}]\noutput_dir = '{output}'\nval_set_size = 0.1\n\
             micro_batch_size = 2\nlogging_steps = 5\neval_steps = 4\nseed = 5\n{}{}{more}\n",
            if more.contains("sequence_len") { "" } else { "sequence_len = 32\n" },
            if more.contains("learning_rate") { "" } else { "learning_rate = 0.01\n" },
        );
        fs::write(&path, text).expect("it is written");
        RunConfig::open(&path).expect("a configuration")
    }
}

/// A tokenizer of `vocab` tokens in the format of llama2.c: bytes, and words that occur nowhere.
fn llama2c(vocab: usize) -> Vec<u8> {
    let specials = ["<unk>", "\n<s>\n", "\n</s>\n"].map(str::to_owned);
    let bytes = (0..256).map(|byte| format!("<0x{byte:02X}>"));
    let letters = (b' '..=b'~').map(|byte| char::from(byte).to_string());
    let words = (0..).map(|i| format!("qz{i}"));
    let mut file = 8u32.to_le_bytes().to_vec();
    for token in specials.into_iter().chain(bytes).chain(letters).chain(words).take(vocab) {
        file.extend(0f32.to_le_bytes());
        file.extend((token.len() as u32).to_le_bytes());
        file.extend(token.as_bytes());
    }
    file
}

pub(crate) fn train(config: RunConfig, threads: usize) -> Result<RunReport, TrainError> {
    let cpu = Cpu::new(threads).expect("threads");
    Run::open(config)?.train(&cpu, &mut |_| ControlFlow::Continue(()))
}

/// The files of a model.
pub(crate) fn weights(dir: &Path) -> Vec<u8> {
    fs::read(dir.join("model.safetensors")).expect("weights")
}

pub(crate) fn lines(dir: &Path) -> Vec<LogLine> {
    let text = fs::read_to_string(dir.join("log.jsonl")).expect("a log");
    text.lines().map(|line| serde_json::from_str(line).expect("a line")).collect()
}

#[test]
fn a_run_writes_a_model_that_runs() {
    let place = Place::new();
    for (name, more, ternary) in [
        ("distilled", "base_model = 'dense'\nmax_steps = 12\nkd_ce_alpha = 1\ngroup = 32", true),
        (
            "rows",
            "base_model = 'dense'\nmax_steps = 12\nkd_ce_alpha = 1\ngroup = 'row'\noptimizer = 'muon'",
            true,
        ),
        ("text", "base_model = 'dense'\nteacher = 'none'\nmax_steps = 12\ngradient_checkpointing = 1", true),
        ("random", "base_model_config = 'config.json'\ntokenizer = 'tokenizer.json'\nnum_epochs = 1", true),
        ("llama2c", "base_model_config = 'config.json'\ntokenizer = 'words.bin'\nmax_steps = 12", true),
        ("directory", "base_model_config = 'config.json'\ntokenizer = 'dense'\nmax_steps = 12", true),
        ("dense-twin", "base_model = 'dense'\nplanes = 0\nmax_steps = 12", false),
    ] {
        let report = train(place.config(name, more), 1).expect(name);
        let dir = place.at(name);
        assert_eq!((report.ended, report.steps), (Ended::Complete, report.planned), "{name}");
        let [start, best] = [report.start, report.best].map(|found| found.expect("an evaluation"));
        assert!(best.bits_per_token < start.bits_per_token, "{name}: {start:?} {best:?}");
        assert_eq!(report.teacher.is_some(), matches!(name, "distilled" | "rows"), "{name}");
        let file = ModelFile::open(&dir).expect("a model");
        assert_eq!(file.is_ternary(), ternary, "{name}");
        let model = LanguageModel::load(&dir).expect("it loads");
        let story = model.generate("Once there", &GenerateOptions::default()).expect("a text");
        assert!(!story.text.is_empty(), "{name}");
        let tokenizer = if name == "llama2c" { "tokenizer.bin" } else { "tokenizer.json" };
        for file in ["run.toml", "report.json", "report.html", tokenizer] {
            assert!(dir.join(file).exists(), "{name}: {file}");
        }
        assert!(!dir.join(".unfinished").exists());
        let again = train(place.config(name, more), 1).expect_err("it is there").to_string();
        assert!(again.contains("contains a model"), "{again}");
    }
}

/// All documents but two are held out: the evaluation equals the perplexity of the written model on them.
#[test]
fn the_evaluation_is_that_of_the_written_model() {
    let place = Place::new();
    let more = "base_model = 'dense'\nmax_steps = 4\ngroup = 'row'";
    let mut config = place.config("run", more);
    config.val_set_size = 0.9;
    let report = train(config.clone(), 1).expect("a run");
    let best = report.best.expect("an evaluation");
    let all = fs::read_to_string(place.at("stories.txt")).expect("stories");
    let stories: Vec<&str> = all.split("<|endoftext|>").map(str::trim).collect();
    let held = trike_train::data::HeldOut::new(STORIES, 0.9, config.seed).held_out;
    let text: Vec<&str> = held.iter().map(|&i| stories[i as usize]).collect();
    let model = open(place.at("run"), &Default::default()).expect("it opens");
    let options = ScoreOptions::new(Split::Stories);
    let score = score(&*model, &text.join("<|endoftext|>"), &options, &mut |_, _| ()).expect("a score");
    // The end of a story counts in training but is not scored here, so the two may differ by up to a tenth.
    let bits = score.nats / std::f64::consts::LN_2;
    assert_near!(bits, best.bits_per_token, rel = 0.1);
}

#[test]
fn runs_continue_to_the_bit_wherever_they_stop() {
    let place = Place::new();
    let more = "base_model = 'dense'\nmax_steps = 12\nsave_steps = 3";
    let whole = train(place.config("whole", more), 2).expect("a run");
    for stop in [0, 2, 3, 7, 10] {
        let name = format!("stopped-{stop}");
        let cpu = Cpu::new(1).expect("a thread");
        let first = Run::open(place.config(&name, more)).expect("a run");
        let report = first
            .train(&cpu, &mut |event| match event {
                RunEvent::Step { report, .. } if report.step == stop => ControlFlow::Break(()),
                _ => ControlFlow::Continue(()),
            })
            .expect("it stops");
        assert_eq!((report.ended, report.steps), (Ended::Interrupted, stop + 1));
        assert!(!place.at(&name).join("config.json").exists());
        let other = train(place.config(&name, &format!("{more}\nkd_ce_alpha = 0.5")), 1);
        let refused = other.expect_err("another configuration").to_string();
        assert!(refused.contains("kd_ce_alpha"), "{refused}");
        let report = train(place.config(&name, more), 1).expect("it continues");
        assert_eq!((report.tokens, report.best), (whole.tokens, whole.best), "{stop}");
        assert_eq!(weights(&place.at(&name)), weights(&place.at("whole")), "{stop}");
        let steps = |dir: PathBuf| -> Vec<usize> {
            let of = |line: &LogLine| match line {
                LogLine::Steps(line) => Some(line.step),
                LogLine::Evaluation(_) => None,
            };
            lines(&dir).iter().filter_map(of).collect()
        };
        assert_eq!(steps(place.at(&name)), steps(place.at("whole")), "{stop}");
    }
}

/// Few documents for many steps: the teacher generates more of them, and the same ones when the run resumes.
#[test]
fn a_teacher_writes_what_the_data_lacks() {
    let place = Place::new();
    let more = "base_model = 'dense'\nkd_ce_alpha = 1\nmax_steps = 100\nsave_steps = 30";
    let plan = |more: &str| {
        let run = Run::open(place.config("plan", more)).expect("a run");
        run.check(&Cpu::new(1).expect("a thread")).expect("a plan").written
    };
    let written = plan(more);
    assert!(written > 0, "36 documents for 12,800 tokens");
    assert_eq!(plan(&format!("{more}\nteacher_documents = 7")), 7);
    assert_eq!(plan(&more.replace("max_steps = 100", "max_steps = 2")), 0);
    assert_eq!(plan(&format!("{more}\nteacher = 'none'")), 0);
    let report = train(place.config("whole", more), 2).expect("a run");
    assert_eq!(report.written, written);
    assert!(report.notes.iter().any(|note| note.contains("32 tokens")), "{:?}", report.notes);
    let cpu = Cpu::new(1).expect("a thread");
    let first = Run::open(place.config("stopped", more)).expect("a run");
    let stop = &mut |event: RunEvent<'_>| match event {
        RunEvent::Step { report, .. } if report.step == 45 => ControlFlow::Break(()),
        _ => ControlFlow::Continue(()),
    };
    assert_eq!(first.train(&cpu, stop).expect("it stops").ended, Ended::Interrupted);
    train(place.config("stopped", more), 1).expect("it continues");
    assert_eq!(weights(&place.at("stopped")), weights(&place.at("whole")));
    // During generation there is nothing to save.
    let early = Run::open(place.config("early", more)).expect("a run");
    let stop = &mut |event: RunEvent<'_>| match event {
        RunEvent::Writing { done, of } if (done, of) == (0, written) => ControlFlow::Break(()),
        event => panic!("{event:?}"),
    };
    let report = early.train(&cpu, stop).expect("it stops");
    assert_eq!((report.ended, report.steps, report.planned), (Ended::Interrupted, 0, 100));
    assert!(!place.at("early").exists());
}

#[test]
fn a_run_that_gets_worse_ends() {
    let place = Place::new();
    // Early stopping: with a rate near zero, nothing improves much after the first evaluation; without any decay it still may.
    let more = "base_model = 'dense'\nteacher = 'none'\nplanes = 0\nmax_steps = 400\nlearning_rate = 1.0\nmax_grad_norm = 0\n\
                early_stopping_patience = 2\nlr_scheduler = 'constant'";
    match train(place.config("worse", more), 1) {
        Ok(report) => {
            assert_eq!(report.ended, Ended::Early);
            let best = report.best.expect("an evaluation");
            assert!(best.step < report.steps && ModelFile::open(place.at("worse")).is_ok());
        }
        Err(TrainError::Diverged { checkpoint, .. }) => assert!(checkpoint.is_some()),
        Err(other) => panic!("{other}"),
    }
    let more = "base_model = 'dense'\nteacher = 'none'\nplanes = 0\nmax_steps = 400\nlearning_rate = 10.0\nweight_decay = 10.0\n\
                warmup_steps = 0\nlr_scheduler = 'constant'\nmax_grad_norm = 0";
    let error = train(place.config("diverges", more), 1).expect_err("it diverges");
    assert!(matches!(error, TrainError::Diverged { .. }), "{error}");
    assert!(!place.at("diverges").join("config.json").exists());
}

#[test]
fn the_length_may_be_given_in_minutes() {
    let place = Place::new();
    let more = "base_model = 'dense'\nminutes = 0.02\ngroup = 32";
    let run = Run::open(place.config("minutes", more)).expect("a run");
    let plan = run.check(&Cpu::new(1).expect("a thread")).expect("a plan");
    assert!(plan.memory > 100_000 && plan.memory < 100_000_000);
    assert!(plan.steps >= 1 && plan.seconds_per_step.is_some_and(|seconds| seconds > 0.0), "{plan:?}");
    assert_eq!((plan.documents, plan.held_out, plan.tokens_per_step), (36, 4, 128));
    let report = train(place.config("minutes", more), 1).expect("a run");
    assert_eq!(report.steps, report.planned);
}

#[test]
fn what_does_not_fit_is_refused_before_the_start() {
    let place = Place::new();
    let refused = |more: &str| {
        let name = "refused";
        let error = train(place.config(name, more), 1).expect_err(more).to_string();
        assert!(!place.at(name).exists(), "{more}");
        error
    };
    let too_long = refused("base_model = 'dense'\nmax_steps = 1\nsequence_len = 65").to_lowercase();
    assert!(too_long.contains("sequence_len"), "{too_long}");
    let large = refused("base_model = 'dense'\nmax_steps = 1\nmemory_limit = 100000");
    assert!(large.contains("100000"), "{large}");
    let gone = refused("base_model = 'nowhere'\nmax_steps = 1");
    assert!(gone.contains("nowhere"), "{gone}");
    // Products that overflow every integer.
    let base = || place.config("refused", "base_model = 'dense'\nmax_steps = 1");
    let config = RunConfig { micro_batch_size: 1 << 40, gradient_accumulation_steps: 1 << 30, ..base() };
    let error = train(config, 1).expect_err("2^75 tokens").to_string();
    assert!(error.contains("1099511627776 x sequence_len 32 x"), "{error}");
    let config = RunConfig { max_steps: Some(usize::MAX), ..base() };
    let error = train(config, 1).expect_err("2^71 tokens").to_string();
    assert!(error.contains("steps is 18446744073709551615: expected 1 to 1441151880758558"), "{error}");
    let shape = Sharing::Named(Whole::Tensor);
    let config = RunConfig { group: shape, ..place.config("refused", "base_model = 'dense'") };
    let error = train(config, 1).expect_err("no length").to_string();
    assert!(error.contains("max_steps"), "{error}");
}

/// A run on several ranks, each with its own output directory, as on machines without a shared disk. `stop` ends it after that many
/// steps, at the request of the last rank.
fn train_ranks(
    place: &Place,
    name: &str,
    more: &str,
    ranks: usize,
    stop: Option<usize>,
) -> Vec<Result<RunReport, TrainError>> {
    Threads::run(ranks, |comm| {
        let output =
            if comm.rank() == 0 { name.to_owned() } else { format!("{name}-unused-{}", comm.rank()) };
        let (config, cpu) = (place.config(&output, more), Cpu::new(1).expect("a thread"));
        let mut steps = 0;
        Run::open_ranks(config, &comm)?.train_ranks(&cpu, &comm, &mut |event| {
            steps += usize::from(matches!(event, RunEvent::Step { .. }));
            match stop == Some(steps) && comm.rank() == ranks - 1 {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        })
    })
}

/// Steps of four units of 512 tokens.
const RANKED: &str =
    "base_model = 'dense'\nmax_steps = 6\ngradient_accumulation_steps = 32\nteacher_documents = 7\n";

#[test]
fn ranks_write_one_model() {
    let place = Place::new();
    let want = {
        let reports = train_ranks(&place, "one", RANKED, 1, None);
        assert!(reports[0].is_ok(), "{reports:?}");
        weights(&place.at("one"))
    };
    for ranks in [2, 4] {
        let name = format!("ranks-{ranks}");
        let reports: Vec<RunReport> = train_ranks(&place, &name, RANKED, ranks, None)
            .into_iter()
            .map(|report| report.expect("a report"))
            .collect();
        assert!(weights(&place.at(&name)) == want, "{ranks} ranks");
        assert!(!place.at(&format!("{name}-unused-1")).exists());
        assert_eq!(lines(&place.at(&name)).len(), lines(&place.at("one")).len());
        for report in &reports {
            assert_eq!(
                (report.best, report.teacher, report.tokens),
                (reports[0].best, reports[0].teacher, reports[0].tokens)
            );
        }
    }
    // Stopped on three ranks, resumed on two.
    let stopped = train_ranks(&place, "stopped", RANKED, 3, Some(3));
    for report in stopped {
        let report = report.expect("a report");
        assert_eq!((report.ended, report.steps), (Ended::Interrupted, 3));
    }
    for report in train_ranks(&place, "stopped", RANKED, 2, None) {
        assert_eq!(report.expect("a report").ended, Ended::Complete);
    }
    assert!(weights(&place.at("stopped")) == want);
}

#[test]
fn ranks_write_one_model_with_codecs_and_local_steps() {
    let place = Place::new();
    for (name, more) in [
        ("ternary", "codec = 'ternary'\n"),
        ("sparse", "codec = 'sparse'\nlocal_steps = 4\nouter_learning_rate = 1.0\nouter_momentum = 0.0\n"),
        ("local", "local_steps = 2\n"),
    ] {
        let more = format!("{RANKED}{more}");
        let all: Vec<Vec<u8>> = [name.to_owned(), format!("{name}-again")]
            .map(|name| {
                for report in train_ranks(&place, &name, &more, 2, None) {
                    let report = report.expect("a report");
                    // Evaluated when all ranks have the same weights.
                    assert_eq!((report.ended, report.steps), (Ended::Complete, 6));
                }
                weights(&place.at(&name))
            })
            .into();
        assert!(all[0] == all[1], "{name}");
        let stopped = train_ranks(&place, &format!("{name}-stopped"), &more, 2, Some(1));
        assert!(stopped.iter().flatten().all(|report| report.ended == Ended::Interrupted), "{stopped:?}");
        train_ranks(&place, &format!("{name}-stopped"), &more, 2, None);
        assert!(weights(&place.at(&format!("{name}-stopped"))) == all[0], "{name} continued");
    }
    // A single machine takes the same steps as a single rank.
    let more = format!("{RANKED}codec = 'top-k'\n");
    train_ranks(&place, "rank", &more, 1, None);
    train(place.config("machine", &more), 1).expect("a report");
    assert!(weights(&place.at("rank")) == weights(&place.at("machine")));
}

#[test]
fn ranks_that_cannot_work_together_are_refused() {
    let place = Place::new();
    let errors = Threads::run(2, |comm| {
        let more = format!("{RANKED}warmup_steps = {}\n", comm.rank() + 1);
        let run = Run::open(place.config(&format!("other-{}", comm.rank()), &more)).expect("a run");
        let cpu = Cpu::new(1).expect("a thread");
        let trained = run.train_ranks(&cpu, &comm, &mut |_| ControlFlow::Continue(()));
        trained.expect_err("they differ").to_string()
    });
    let want = "ranks 1 and 0 differ in run.warmup_steps: 2 and 1";
    assert_eq!(errors, [want, want]);
    // A checkpoint that only the first rank can read, of another run.
    train_ranks(&place, "changed", RANKED, 2, Some(2));
    let more = format!("{RANKED}weight_decay = 0.5\n");
    for error in train_ranks(&place, "changed", &more, 2, None) {
        let error = error.expect_err("another run").to_string();
        assert!(error.contains("weight_decay was 0.0, and is 0.5 now"), "{error}");
    }
}

/// Steps of four units of 512 tokens; each pipeline rank computes its blocks of them.
const PIPED: &str = "base_model = 'dense'\nmax_steps = 6\ngradient_accumulation_steps = 32\nteacher_documents = 0\nparallel = 'pipeline'\n";

#[test]
fn a_pipeline_writes_the_model_of_one_machine() {
    ranks_write_the_model_of_one_machine(PIPED);
}

#[test]
fn tensor_parallelism_writes_the_model_of_one_machine() {
    ranks_write_the_model_of_one_machine(&tensor());
}

/// The same run with tensor parallelism.
fn tensor() -> String {
    PIPED.replace("'pipeline'", "'tensor'")
}

fn ranks_write_the_model_of_one_machine(more: &str) {
    let place = Place::new();
    let machine = train(place.config("machine", more), 1).expect("a report");
    let want = weights(&place.at("machine"));
    for ranks in [1, 2] {
        let name = format!("ranks-{ranks}");
        for report in train_ranks(&place, &name, more, ranks, None) {
            let report = report.expect("a report");
            assert_eq!(
                (report.start, report.best, report.teacher, report.tokens),
                (machine.start, machine.best, machine.teacher, machine.tokens)
            );
        }
        assert!(weights(&place.at(&name)) == want, "{ranks} ranks");
        assert!(!place.at(&format!("{name}-unused-1")).exists());
        assert_eq!(lines(&place.at(&name)).len(), lines(&place.at("machine")).len());
    }
    // Stopped on two ranks, resumed on a single machine; and vice versa.
    train_ranks(&place, "stopped", more, 2, Some(3));
    let continued = train(place.config("stopped", more), 1).expect("a report");
    assert_eq!((continued.ended, continued.best), (Ended::Complete, machine.best));
    assert!(weights(&place.at("stopped")) == want);
    let mut steps = 0;
    let first = Run::open(place.config("begun", more)).expect("a run");
    let cpu = Cpu::new(1).expect("a thread");
    let begun = first.train(&cpu, &mut |event| {
        steps += usize::from(matches!(event, RunEvent::Step { .. }));
        if steps == 2 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    assert_eq!(begun.expect("a report").ended, Ended::Interrupted);
    for report in train_ranks(&place, "begun", more, 2, None) {
        assert_eq!(report.expect("a report").ended, Ended::Complete);
    }
    assert!(weights(&place.at("begun")) == want);
}

/// Random weights and the plan are the same as on a single machine.
#[test]
fn ranks_that_hold_parts_read_their_part_only() {
    for parallel in ["pipeline", "tensor"] {
        ranks_read_their_part_only(parallel);
    }
}

fn ranks_read_their_part_only(parallel: &str) {
    let place = Place::new();
    let more = "base_model_config = 'config.json'\ntokenizer = 'tokenizer.json'\nmax_steps = 2\n";
    let more = &format!("{more}parallel = '{parallel}'\n");
    let machine = Run::open(place.config("machine", more)).expect("a run");
    let cpu = Cpu::new(1).expect("a thread");
    let want = machine.check(&cpu).expect("a plan");
    let plans = Threads::run(2, |comm| {
        let run =
            Run::open_ranks(place.config(&format!("plan-{}", comm.rank()), more), &comm).expect("a run");
        let cpu = Cpu::new(1).expect("a thread");
        run.check_ranks(&cpu, &comm).expect("a plan")
    });
    for plan in plans {
        assert_eq!(
            (plan.parameters, plan.steps, plan.held_out),
            (want.parameters, want.steps, want.held_out)
        );
        // Tensor-parallel ranks replicate activations, which dominate in so small a run.
        assert!(parallel == "tensor" || plan.memory < want.memory, "{plan:?}");
    }
    train(place.config("machine", more), 1).expect("a report");
    for report in train_ranks(&place, "ranks", more, 2, None) {
        report.expect("a report");
    }
    assert!(weights(&place.at("ranks")) == weights(&place.at("machine")));
}

#[test]
fn parts_that_cannot_work_are_refused() {
    let place = Place::new();
    let errors = |name: &str, more: &str, ranks: usize| -> Vec<String> {
        let all = train_ranks(&place, name, more, ranks, None);
        all.into_iter().map(|report| report.expect_err("it is refused").to_string()).collect()
    };
    assert_eq!(errors("many", PIPED, 3), ["number of ranks is 3: expected 1 to 2"; 3]);
    let writes = PIPED.replace("teacher_documents = 0", "teacher_documents = 7");
    assert_eq!(errors("writes", &writes, 2), ["teacher_documents is 7: expected 0 to 0"; 2]);
    let coded = errors("coded", &format!("{PIPED}codec = 'ternary'\n"), 2);
    assert!(coded.iter().all(|error| error.contains("a pipeline with codec Ternary")), "{coded:?}");
    let writes = writes.replace("'pipeline'", "'tensor'");
    assert_eq!(errors("tensor-writes", &writes, 2), ["teacher_documents is 7: expected 0 to 0"; 2]);
    let coded = errors("tensor-coded", &format!("{}local_steps = 3\n", tensor()), 2);
    let want = "tensor parallelism with codec None and local_steps 3";
    assert!(coded.iter().all(|error| error.contains(want)), "{coded:?}");
    let differ = Threads::run(2, |comm| {
        let more = if comm.rank() == 0 { PIPED.to_owned() } else { PIPED.replace("'pipeline'", "'data'") };
        let run =
            Run::open_ranks(place.config(&format!("differ-{}", comm.rank()), &more), &comm).expect("a run");
        let cpu = Cpu::new(1).expect("a thread");
        run.train_ranks(&cpu, &comm, &mut |_| ControlFlow::Continue(())).expect_err("they differ").to_string()
    });
    assert_eq!(differ, ["ranks 1 and 0 differ in parallel: Data and Pipeline"; 2]);
}
