//! Tensor parallelism: losses and weights bit-identical to a single machine.

mod errors;

use std::path::Path;

use trike_autodiff::{BitLinearSpec, TernarizeSpec, TernaryScale};
use trike_comm::{Communicator, Threads};
use trike_cpu::Cpu;
use trike_nn::{Biases, WeightName};
use trike_train::data::Position;
use trike_train::{OptimizerKind, Parameters, Teacher, TensorShard, TernaryPolicy, TrainError, Trainer};
use trike_trit::{Granularity, GroupSize};

use crate::common::Data;
use crate::common::divided::{self, Case, Outcome, STEPS, on_ranks, one_machine};

fn begin<'a>(
    cpu: &'a Cpu,
    case: &Case,
    start: Parameters,
    teacher: Option<Teacher<'a>>,
    comm: &'a dyn Communicator,
) -> Result<Trainer<'a>, TrainError> {
    Trainer::in_tensor_parallel(cpu, case.trainer, case.policy.clone(), start, teacher, comm)
}

fn tensor(data: &Data, case: &Case, ranks: usize, dir: Option<&Path>, to: usize) -> Vec<Outcome> {
    on_ranks(begin, data, case, ranks, dir, to)
}

fn check(data: &Data, case: &Case, counts: std::ops::RangeInclusive<usize>) {
    divided::check(begin, data, case, counts);
}

#[test]
fn one_to_four_ranks_train_the_weights_of_one_machine() {
    divided::check_one_to_four(begin);
}

fn ternarized(weights: TernarizeSpec) -> TernaryPolicy {
    TernaryPolicy {
        blocks: Some(BitLinearSpec { weights, ..BitLinearSpec::default() }),
        int8_embedding: true,
    }
}

#[test]
fn other_settings_train_the_weights_of_one_machine_too() {
    let data = Data::new();
    let tied = Case::new(&data, "tied");
    let with = |name, weights: TernarizeSpec| tied.with(name, |case| case.policy = ternarized(weights));
    let groups = TernarizeSpec::default().with_granularity(Granularity::Group(GroupSize::G32));
    let mut cases = divided::settings(&data);
    cases.extend([
        tied.with("a teacher", |case| case.taught_by = Some(2)),
        with("a scale per group", groups),
        with("a scale per row", TernarizeSpec::default().with_granularity(Granularity::Row)),
        with("scales of least squares", TernarizeSpec::default().with_scale(TernaryScale::LeastSquares)),
        with("limits of gradients", TernarizeSpec::default().with_clip(1.5)),
        with("limits per group", groups.with_clip(1.5)),
    ]);
    for case in cases {
        check(&data, &case, 2..=2);
    }
}

#[test]
fn models_of_other_shapes_have_the_weights_of_one_machine_too() {
    let data = Data::new();
    let flat = Case::new(&data, "tied").with("flat", |case| case.spec.layers = 2);
    let with = |name, edit: &dyn Fn(&mut Case)| flat.with(name, edit);
    let cases = [
        // As many key/value heads as ranks, and a number that cannot be divided evenly.
        with("three heads", &|case| {
            (case.spec.heads, case.spec.kv_heads, case.spec.head_dim) = (3, 3, 10);
        }),
        with("four groups", &|case| (case.spec.heads, case.spec.kv_heads, case.spec.head_dim) = (8, 4, 4)),
        with("one key/value head", &|case| case.spec.kv_heads = 1),
        with("widths that cannot be divided", &|case| {
            (case.spec.hidden, case.spec.intermediate) = (34, 47);
        }),
        with("all weights of a block", &|case| {
            case.spec.qk_norm = true;
            case.spec.sub_norms = true;
            case.spec.biases = Biases { qkv: true, output: true, mlp: true };
        }),
        with("norms between layers", &|case| {
            case.spec.kv_heads = 4;
            case.spec.sub_norms = true;
            case.spec.biases = Biases { qkv: true, output: true, mlp: true };
        }),
    ];
    for case in cases {
        check(&data, &case, 3..=3);
    }
}

#[test]
fn large_models_add_their_gradients_in_the_order_of_one_machine() {
    divided::check_large(begin);
}

/// Weights, gradients and the optimizer's state are divided, and replicated weights have the same bits everywhere.
#[test]
fn a_rank_holds_its_rows_only() {
    let data = Data::new();
    let case = Case::new(&data, "held");
    let start = case.start();
    let all = Threads::run(3, |comm| {
        let cpu = Cpu::new(1).expect("a cpu");
        let shard = TensorShard::new(&case.spec, comm.rank(), 3);
        let own = Parameters::random_shard(&case.spec, 2, &shard).expect("parameters");
        assert!(own == start.clone().into_shard(&shard).expect("its rows"));
        assert!(own == own.clone().into_shard(&shard).expect("its rows"));
        let mut trainer = begin(&cpu, &case, own, None, &comm).expect("a trainer");
        assert_eq!(trainer.shard(), Some(&shard));
        let mut batches = data.batches(case.rows, Position::default());
        for _ in 0..2 {
            trainer.step(&mut batches).expect("a step");
        }
        for parameter in trainer.parameters().all() {
            let rows = shard.rows(parameter.name);
            let len = if parameter.name.is_vector() { parameter.cols } else { parameter.rows() };
            assert!(rows.is_none_or(|rows| rows.len() == len), "{}", parameter.name);
        }
        trainer.into_parameters()
    });
    let places = |name: WeightName| all.iter().map(move |rank| rank.place(name).expect("it is there"));
    for parameter in start.all() {
        let parts = all.iter().zip(places(parameter.name)).map(|(rank, place)| &rank.all()[place].values);
        let parts: Vec<&Vec<f32>> = parts.collect();
        if TensorShard::new(&case.spec, 0, 3).rows(parameter.name).is_some() {
            let held: usize = parts.iter().map(|part| part.len()).sum();
            assert_eq!(held, parameter.values.len(), "{}", parameter.name);
        } else {
            assert!(parts.iter().all(|part| *part == parts[0]), "{}", parameter.name);
        }
    }
}

/// A replicated teacher is computed by every rank; a sharded one by all ranks together.
#[test]
fn a_teacher_is_divided_too() {
    let data = Data::new();
    let mut case = Case::new(&data, "taught");
    case.taught_by = Some(1);
    let (reports, ..) = one_machine(&data, &case, None, STEPS);
    let all = Threads::run(3, |comm| {
        let cpu = Cpu::new(1).expect("a cpu");
        let whole = case.teacher().expect("a teacher");
        let shard = TensorShard::new(whole.spec(), comm.rank(), 3);
        let rows = whole.into_shard(&shard).expect("its rows");
        let teacher = Teacher { parameters: &rows, policy: TernaryPolicy::DENSE };
        let mut trainer = begin(&cpu, &case, case.start(), Some(teacher), &comm).expect("a trainer");
        let mut batches = data.batches(case.rows, Position::default());
        (0..STEPS).map(|_| trainer.step(&mut batches).expect("a step")).collect::<Vec<_>>()
    });
    assert!(all.iter().all(|found| *found == reports));
}

#[test]
fn runs_continue_on_other_numbers_of_ranks_and_on_one_machine() {
    let data = Data::new();
    for kind in [OptimizerKind::AdamW, OptimizerKind::Muon] {
        let case = Case::new(&data, "tied").with("continued", |case| case.trainer.optimizer.kind = kind);
        divided::check_continued(begin, &data, &case);
    }
}

/// Number of weights of all matrices of the blocks.
fn matrices(case: &Case) -> usize {
    let start = case.start();
    let matrices = start.all().iter().filter(|parameter| parameter.name.is_block_matrix());
    matrices.map(|parameter| parameter.values.len()).sum()
}

/// The bytes documented in the guide: activations, their gradients, and once per step the columns of matrices.
#[test]
fn ranks_send_what_the_guide_says() {
    let data = Data::new();
    // The last case has fewer key/value heads than ranks.
    for (ranks, kind, segment, granularity, sub_norms) in [
        (2, OptimizerKind::AdamW, None, Granularity::Row, false),
        (2, OptimizerKind::AdamW, None, Granularity::Row, true),
        (2, OptimizerKind::Muon, Some(1), Granularity::Tensor, false),
        (4, OptimizerKind::AdamW, Some(2), Granularity::Row, false),
        (4, OptimizerKind::Sgd, None, Granularity::Row, true),
    ] {
        let mut case = Case::new(&data, "sent");
        case.trainer.optimizer.kind = kind;
        case.trainer.checkpoint = segment;
        case.spec.sub_norms = sub_norms;
        case.policy = ternarized(TernarizeSpec::default().with_granularity(granularity));
        let tokens = data.batches(case.rows, Position::default()).next_batch().expect("a batch").ids.len();
        let sent = divided::sent_bytes(begin, &data, &case, ranks);
        let spec = &case.spec;
        let (q, kv) = (spec.query_width(), spec.kv_width());
        let [shared, hidden, i] = [q + 2 * kv, 2 * spec.hidden, spec.intermediate];
        // Divided by heads, keys and values are not exchanged in the forward pass, but their gradients are; otherwise the other way
        // round.
        let is_by_heads = ranks <= spec.kv_heads;
        let (forward, mut back) = match is_by_heads {
            true => (q + hidden + i, shared + hidden + 2 * i),
            false => (shared + hidden + i, q + hidden + 2 * i),
        };
        if sub_norms {
            back += i + if is_by_heads { q } else { 0 };
        }
        // All segments but the last are computed twice.
        let again = segment.map_or(0, |segment| spec.layers - segment);
        let per_token = spec.layers * (forward + back) + again * forward;
        let mut want = (ranks - 1) * 4 * per_token * tokens;
        let matrices = matrices(&case);
        want += 4 * matrices * (ranks - 1) / ranks;
        let divided = 7 * spec.layers;
        if granularity == Granularity::Tensor {
            want += 4 * matrices * (ranks - 1) / ranks + 4 * divided * (ranks - 1);
        }
        if kind == OptimizerKind::Muon {
            want += 2 * 4 * matrices * (ranks - 1) / ranks;
        }
        // The squares of the gradient of each tensor.
        want += (ranks - 1) * 8 * (divided + case.start().all().len());
        assert_eq!(sent, want as u64, "{ranks} ranks, {kind:?}");
    }
}
