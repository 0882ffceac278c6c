//! Ranks whose messages are damaged.

use std::cell::Cell;

use trike_comm::{CommError, Communicator, Threads, Traffic};
use trike_cpu::Cpu;
use trike_train::Parameters;
use trike_train::data::Position;

use super::Data;
use super::divided::{Begin, Case};

/// Changes the messages of a rank, or stops sending.
struct Broken<'c> {
    comm: &'c Threads,
    /// Messages until then; `None` = all are sent unchanged.
    left: Cell<Option<usize>>,
    change: fn(&mut Vec<u8>),
}

impl Communicator for Broken<'_> {
    fn rank(&self) -> usize {
        self.comm.rank()
    }

    fn size(&self) -> usize {
        self.comm.size()
    }

    fn send(&self, to: usize, message: &[u8]) -> Result<(), CommError> {
        let mut message = message.to_vec();
        match self.left.get() {
            Some(0) => (self.change)(&mut message),
            Some(left) => self.left.set(Some(left - 1)),
            None => {}
        }
        self.comm.send(to, &message)
    }

    fn receive(&self, from: usize, most: usize) -> Result<Vec<u8>, CommError> {
        self.comm.receive(from, most)
    }

    fn traffic(&self) -> Traffic {
        self.comm.traffic()
    }
}

/// The errors of two ranks in a step in which rank `broken` sends a changed message.
fn broken(begin: Begin, broken: usize, after: usize, change: fn(&mut Vec<u8>)) -> Vec<String> {
    let data = Data::new();
    let case = Case::new(&data, "broken");
    Threads::run(2, |comm| {
        let cpu = Cpu::new(1).expect("a cpu");
        let comm = Broken { comm: &comm, left: Cell::new(None), change };
        let mut trainer = begin(&cpu, &case, case.start(), None, &comm).expect("a trainer");
        comm.left.set((comm.rank() == broken).then_some(after));
        let before = trainer.parameters().clone();
        let error = trainer.step(&mut data.batches(case.rows, Position::default())).err();
        assert!(comm.rank() == broken || *trainer.parameters() == before);
        error.map(|error| error.to_string()).unwrap_or_default()
    })
}

/// The errors of three ranks, the last of which starts with other settings and weights.
pub(crate) fn refused(
    begin: Begin,
    case: &Case,
    of_last: &Case,
    edit: &(dyn Fn(Parameters) -> Parameters + Sync),
) -> Vec<String> {
    Threads::run(3, |comm| {
        let cpu = Cpu::new(1).expect("a cpu");
        let is_last = comm.rank() == 2;
        let case = if is_last { of_last } else { case };
        let start = if is_last { edit(case.start()) } else { case.start() };
        begin(&cpu, case, start, None, &comm).err().map(|error| error.to_string()).unwrap_or_default()
    })
}

/// The error on all ranks if the last one starts with another case.
pub(crate) fn difference(begin: Begin, case: &Case, edit: impl Fn(&mut Case)) -> String {
    let errors = refused(begin, case, &case.with("other", edit), &|start| start);
    assert!(errors.iter().all(|error| *error == errors[0]), "{errors:?}");
    errors[0].clone()
}

/// Ranks that differ in configuration or model are refused, naming the difference.
pub(crate) fn check_differences(begin: Begin, case: &Case) {
    let steps = difference(begin, case, |other| other.trainer.steps = 9);
    assert!(
        steps.contains("ranks 2 and 0 differ in training configuration") && steps.contains("steps: 9"),
        "{steps}"
    );
    let model = difference(begin, case, |other| other.spec.rms_eps = 0.5);
    assert!(model.contains("ranks 2 and 0 differ in model") && model.contains("rms_eps: 0.5"), "{model}");
}

/// Truncated messages of either rank, after `after` intact ones.
pub(crate) fn check_cut(begin: Begin, after: &[usize]) {
    for (rank, other) in [(0, 1), (1, 0)] {
        for &after in after {
            let errors = broken(begin, rank, after, |message| message.truncate(message.len() / 2));
            assert!(errors[other].contains(&format!("from rank {rank}, expected")), "{after}: {errors:?}");
        }
    }
}

/// A message of the first rank with non-finite numbers, after `after` intact ones.
pub(crate) fn check_not_finite(begin: Begin, after: usize) {
    let errors = broken(begin, 0, after, |message| message.fill(0xFF));
    assert!(
        errors.iter().all(|error| error.contains("is not finite") || error.contains("gone")),
        "{errors:?}"
    );
}

/// The other ranks wait for a message of a rank that has exited, and name it.
pub(crate) fn check_ended(begin: Begin) {
    let data = Data::new();
    let case = Case::new(&data, "ended");
    for gone in 0..3 {
        let errors = Threads::run(3, |comm| {
            let comm = comm.with_deadline(std::time::Duration::from_secs(20));
            let cpu = Cpu::new(1).expect("a cpu");
            let mut trainer = begin(&cpu, &case, case.start(), None, &comm).expect("a trainer");
            if comm.rank() == gone {
                return String::new();
            }
            let error = trainer.step(&mut data.batches(case.rows, Position::default()));
            error.expect_err("a rank is gone").to_string()
        });
        assert!(errors.iter().any(|error| *error == format!("rank {gone} is gone")), "{gone}: {errors:?}");
    }
}
