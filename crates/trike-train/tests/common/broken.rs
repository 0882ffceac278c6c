//! Ranks whose messages are damaged.

use std::cell::Cell;

use trike_comm::{CommError, Communicator, Threads, Traffic};
use trike_cpu::Cpu;
use trike_train::data::Position;

use super::Data;
use super::divided::{Begin, Case};

/// Changes the messages of a rank, or ends with one of them.
struct Broken<'c> {
    comm: &'c Threads,
    /// Messages until then; `None`: all are sent as they are.
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

/// The errors of two ranks in a step in which rank `broken` sends something else.
pub(crate) fn broken(begin: Begin, broken: usize, after: usize, change: fn(&mut Vec<u8>)) -> Vec<String> {
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
