//! Data parallelism: bit-identical where that is promised, and errors instead of wrong results.

use std::cell::Cell;
use std::path::Path;

use serde_json::json;
use trike_comm::{CodecConfig, CommError, Communicator, Threads, Traffic};
use trike_cpu::Cpu;
use trike_train::data::Position;
use trike_train::{
    Adapter, LoraConfig, OptimizerKind, OuterConfig, Parameters, Precision, PrecisionPolicy, RanksConfig,
    Teacher, TernaryPolicy, TrainError, Trainer, TrainerConfig, checkpoint,
};

use crate::common::{Data, config, ternary};

const ONE: checkpoint::Keep = checkpoint::Keep { newest: 1, also: None };
const STEPS: usize = 6;
/// Rows per unit: those that are computed together, of 512 tokens or more.
const UNIT: usize = 22;

/// The configuration of a run on ranks.
#[derive(Clone, Copy)]
struct Case {
    trainer: TrainerConfig,
    ranks: RanksConfig,
    /// Rows of a step.
    rows: usize,
}

impl Case {
    fn of(ranks: RanksConfig) -> Self {
        Self { trainer: config(STEPS), ranks, rows: 4 * UNIT }
    }
}

/// The weights of all ranks after steps `from` to `to`, starting from a checkpoint in `dir` if there is one; saves a new one.
fn run(data: &Data, case: Case, ranks: usize, dir: Option<&Path>, to: usize) -> Vec<Parameters> {
    let start = Parameters::random(&data.spec(), 2).expect("parameters");
    let teacher = Parameters::random(&data.spec(), 3).expect("parameters");
    Threads::run(ranks, |comm| {
        let cpu = Cpu::new(1).expect("a thread");
        let teacher = Teacher { parameters: &teacher, policy: TernaryPolicy::DENSE };
        let trainer = Trainer::new(&cpu, case.trainer, ternary(), start.clone(), Some(teacher));
        let trainer = trainer.and_then(|trainer| trainer.with_ranks(&comm, case.ranks));
        let mut trainer = trainer.expect("a trainer");
        // Only the first rank has access to the disk.
        let found = dir.and_then(|dir| checkpoint::newest(dir).expect("no error"));
        comm.barrier().expect("all are here");
        let position = found.map_or(Position::default(), |found| {
            let path = if comm.rank() == 0 { &found } else { Path::new("none") };
            trainer.resume(path, json!(1)).expect("it continues").position
        });
        let mut batches = data.batches(case.rows, position);
        while trainer.steps() < to {
            let report = trainer.step(&mut batches).expect("a step");
            assert!(report.loss.mean().is_finite() && report.tokens >= report.loss.tokens, "{report:?}");
        }
        if let Some(dir) = dir {
            let dir = if comm.rank() == 0 { dir } else { Path::new("none") };
            trainer.save(dir, batches.position(), json!(1), json!(null), ONE).expect("it is saved");
        }
        trainer.into_parameters()
    })
}

fn alone(data: &Data, case: Case, ranks: usize) -> Vec<Parameters> {
    run(data, case, ranks, None, STEPS)
}

fn codecs() -> Vec<RanksConfig> {
    let coded =
        CodecConfig::DEFAULTS.map(|codec| RanksConfig { codec: Some(codec), ..RanksConfig::default() });
    let local = [None, Some(CodecConfig::SPARSE_LOCO)].map(|codec| {
        let outer = OuterConfig { learning_rate: 0.8, momentum: 0.5 };
        RanksConfig { codec, local_steps: 2, outer }
    });
    coded.into_iter().chain(local).collect()
}

#[test]
fn one_to_four_ranks_have_the_same_weights() {
    let data = Data::new();
    let exact = Case::of(RanksConfig::default());
    let mut cases = vec![exact];
    for (rows, kind) in
        [(5 * UNIT, OptimizerKind::Muon), (3 * UNIT, OptimizerKind::Sgd), (1, OptimizerKind::AdamW)]
    {
        let mut case = Case { rows, ..exact };
        case.trainer.optimizer.kind = kind;
        cases.push(case);
    }
    // Some of its steps overflow.
    let mut half = exact;
    half.trainer.precision = PrecisionPolicy::all(Precision::F16);
    half.trainer.precision.loss_scale.initial = 1e9;
    half.trainer.precision.loss_scale.maximum = 1e12;
    cases.push(half);
    for case in cases {
        let want = &alone(&data, case, 1)[0];
        for ranks in 2..=4 {
            let all = alone(&data, case, ranks);
            assert!(all.iter().all(|weights| weights == want), "{ranks} ranks, {} rows", case.rows);
        }
    }
}

#[test]
fn an_adapter_is_trained_by_ranks_too() {
    let data = Data::new();
    let frozen = Parameters::random(&data.spec(), 2).expect("parameters");
    let train = |ranks: usize| {
        Threads::run(ranks, |comm| {
            let cpu = Cpu::new(1).expect("a thread");
            let adapter = Adapter::new(LoraConfig::default(), frozen.spec(), 5).expect("an adapter");
            let config = TrainerConfig { lambda: 0.0, ..config(3) };
            let trainer = Trainer::with_adapter(&cpu, config, ternary(), &frozen, adapter, None);
            let mut trainer =
                trainer.and_then(|t| t.with_ranks(&comm, RanksConfig::default())).expect("a trainer");
            let mut batches = data.batches(3 * UNIT, Position::default());
            for _ in 0..3 {
                trainer.step(&mut batches).expect("a step");
            }
            trainer.into_parameters()
        })
    };
    let want = &train(1)[0];
    assert!(train(3).iter().all(|weights| weights == want));
}

/// Codecs themselves are tested in their crate; here, that all ranks stay in agreement.
#[test]
fn ranks_with_codecs_and_local_steps_stay_together() {
    let data = Data::new();
    for ranks in codecs() {
        let case = Case::of(ranks);
        let all = alone(&data, case, 3);
        assert!(all[1..].iter().all(|weights| *weights == all[0]), "{ranks:?}");
        assert!(all == alone(&data, case, 3), "{ranks:?} again");
        assert!(all[0] != alone(&data, case, 1)[0], "{ranks:?}: other gradients are sent");
    }
}

#[test]
fn a_rank_that_is_alone_between_exchanges_knows_it() {
    let data = Data::new();
    let start = Parameters::random(&data.spec(), 2).expect("parameters");
    let together = Threads::run(2, |comm| {
        let cpu = Cpu::new(1).expect("a thread");
        let ranks = RanksConfig { local_steps: 3, ..RanksConfig::default() };
        let trainer = Trainer::new(&cpu, config(5), ternary(), start.clone(), None);
        let mut trainer = trainer.and_then(|t| t.with_ranks(&comm, ranks)).expect("a trainer");
        let mut batches = data.batches(2 * UNIT, Position::default());
        let steps: Vec<(bool, Parameters)> = (0..5)
            .map(|_| {
                trainer.step(&mut batches).expect("a step");
                (trainer.is_together(), trainer.parameters().clone())
            })
            .collect();
        steps
    });
    for (step, (one, two)) in together[0].iter().zip(&together[1]).enumerate() {
        // After three steps, and after the last.
        let want = step == 2 || step == 4;
        assert_eq!((one.0, two.0, one.1 == two.1), (want, want, want), "step {step}");
    }
}

#[test]
fn runs_continue_to_the_bit() {
    let data = Data::new();
    let all = codecs().into_iter().chain([RanksConfig::default()]);
    for ranks in all {
        let case = Case::of(ranks);
        let want = alone(&data, case, 2);
        let dir = tempfile::tempdir().expect("a folder");
        for to in [2, 4, STEPS] {
            let weights = run(&data, case, 2, Some(dir.path()), to);
            if to == STEPS {
                assert!(weights == want, "{ranks:?}");
            }
        }
    }
}

/// Exact sums give the same weights on any number of ranks; other exchanges resume with their residuals.
#[test]
fn runs_continue_on_other_numbers_of_ranks() {
    let data = Data::new();
    for ranks in codecs().into_iter().chain([RanksConfig::default()]) {
        let case = Case::of(ranks);
        let dir = tempfile::tempdir().expect("a folder");
        let mut last = Vec::new();
        for (ranks, to) in [(2, 2), (4, 4), (3, STEPS)] {
            last = run(&data, case, ranks, Some(dir.path()), to);
        }
        assert!(last[1..].iter().all(|weights| *weights == last[0]), "{ranks:?}");
        if ranks == RanksConfig::default() {
            assert!(last[0] == alone(&data, case, 1)[0]);
        }
    }
}

/// A trainer without ranks resumes a run of several ranks.
#[test]
fn one_machine_reads_the_checkpoint_of_several() {
    let data = Data::new();
    let (case, dir) = (Case::of(RanksConfig::default()), tempfile::tempdir().expect("a folder"));
    let want = &run(&data, case, 3, Some(dir.path()), 4)[0];
    let found = checkpoint::newest(dir.path()).expect("no error").expect("a checkpoint");
    let (cpu, start) =
        (Cpu::new(1).expect("a thread"), Parameters::random(&data.spec(), 9).expect("parameters"));
    let mut trainer = Trainer::new(&cpu, case.trainer, ternary(), start, None).expect("a trainer");
    let state = trainer.resume(&found, json!(1)).expect("it continues");
    assert!(trainer.parameters() == want && trainer.steps() == 4);
    trainer.step(&mut data.batches(case.rows, state.position)).expect("a step");
}

#[test]
fn ranks_that_differ_are_refused() {
    let data = Data::new();
    let start = Parameters::random(&data.spec(), 2).expect("parameters");
    let other = Parameters::random(&data.spec(), 3).expect("parameters");
    let with = |of_last: (TrainerConfig, RanksConfig, &Parameters)| {
        let errors = Threads::run(3, |comm| {
            let cpu = Cpu::new(1).expect("a thread");
            let own = (config(STEPS), RanksConfig::default(), &start);
            let (config, ranks, start) = if comm.rank() == 2 { of_last } else { own };
            let trainer = Trainer::new(&cpu, config, ternary(), start.clone(), None).expect("a trainer");
            trainer.with_ranks(&comm, ranks).err().map(|e| e.to_string()).unwrap_or_default()
        });
        assert!(errors.iter().all(|error| *error == errors[0]), "{errors:?}");
        errors[0].clone()
    };
    let rate = with((config(9), RanksConfig::default(), &start));
    assert!(
        rate.contains("ranks 2 and 0 differ in training configuration") && rate.contains("steps: 9"),
        "{rate}"
    );
    let local = with((config(STEPS), RanksConfig { local_steps: 4, ..RanksConfig::default() }, &start));
    assert!(local.contains("local_steps: 4"), "{local}");
    let model = with((config(STEPS), RanksConfig::default(), &other));
    assert!(model.contains("ranks 2 and 0 differ in model: checksum"), "{model}");
}

#[test]
fn what_ranks_cannot_do_is_refused() {
    let data = Data::new();
    let start = Parameters::random(&data.spec(), 2).expect("parameters");
    let cpu = Cpu::new(1).expect("a thread");
    let [comm] = &Threads::new(1)[..] else { unreachable!("one rank") };
    let trainer = |config| Trainer::new(&cpu, config, ternary(), start.clone(), None).expect("a trainer");
    let local = |local_steps| RanksConfig { local_steps, ..RanksConfig::default() };
    assert!(matches!(trainer(config(1)).with_ranks(comm, local(0)), Err(TrainError::Option(_))));
    let outer = OuterConfig { learning_rate: 0.0, momentum: 0.0 };
    let outer = RanksConfig { outer, ..local(2) };
    assert!(matches!(trainer(config(1)).with_ranks(comm, outer), Err(TrainError::Option(_))));
    let share = RanksConfig { codec: Some(CodecConfig::TopK { share: 2.0, momentum: 0.0 }), ..local(1) };
    let refused = trainer(config(1)).with_ranks(comm, share);
    assert!(matches!(refused, Err(TrainError::Comm(CommError::Range { .. }))));
    let half = TrainerConfig { precision: PrecisionPolicy::all(Precision::F16), ..config(1) };
    let coded = RanksConfig { codec: Some(CodecConfig::Ternary), ..local(1) };
    for ranks in [local(2), coded] {
        assert!(matches!(trainer(half).with_ranks(comm, ranks), Err(TrainError::Config { .. })));
    }
    let mut ranked = trainer(config(1)).with_ranks(comm, local(1)).expect("a trainer");
    let mut batches = data.batches(1, Position::default());
    assert!(matches!(ranked.gradients(&mut batches), Err(TrainError::Alone { .. })));
    // Rows for only one of two ranks.
    let errors = Threads::run(2, |comm| {
        let mut trainer = Trainer::new(&cpu, config(2), ternary(), start.clone(), None)
            .and_then(|t| t.with_ranks(&comm, local(2)))
            .expect("a trainer");
        trainer.step(&mut data.batches(1, Position::default())).expect_err("no row").to_string()
    });
    assert!(errors.iter().all(|e| e.contains("1 units") && e.contains("2 ranks")), "{errors:?}");
}

/// A rank that sends non-finite numbers.
struct Poisoned<'c> {
    comm: &'c Threads,
    on: Cell<bool>,
}

impl Communicator for Poisoned<'_> {
    fn rank(&self) -> usize {
        self.comm.rank()
    }

    fn size(&self) -> usize {
        self.comm.size()
    }

    fn send(&self, to: usize, message: &[u8]) -> Result<(), CommError> {
        let nan = vec![0xFF; message.len()];
        self.comm.send(to, if self.on.get() { &nan } else { message })
    }

    fn receive(&self, from: usize, most: usize) -> Result<Vec<u8>, CommError> {
        self.comm.receive(from, most)
    }

    fn traffic(&self) -> Traffic {
        self.comm.traffic()
    }
}

#[test]
fn a_rank_that_sends_no_numbers_is_named() {
    let data = Data::new();
    let start = Parameters::random(&data.spec(), 2).expect("parameters");
    for codec in [None, Some(CodecConfig::Ternary)] {
        let results = Threads::run(2, |comm| {
            let cpu = Cpu::new(1).expect("a thread");
            let comm = Poisoned { comm: &comm, on: Cell::new(false) };
            let ranks = RanksConfig { codec, ..RanksConfig::default() };
            let trainer = Trainer::new(&cpu, config(2), ternary(), start.clone(), None);
            let mut trainer = trainer.and_then(|t| t.with_ranks(&comm, ranks)).expect("a trainer");
            comm.on.set(comm.rank() == 1);
            let step = trainer.step(&mut data.batches(2 * UNIT, Position::default()));
            // With a codec the rank's own step precedes the exchange.
            let is_unchanged = trainer.parameters() == &start && trainer.steps() == 0;
            assert!(comm.rank() == 1 || codec.is_some() || is_unchanged);
            step.err().map(|error| error.to_string()).unwrap_or_default()
        });
        assert!(results[0].contains("rank 1"), "{results:?}");
    }
}
