//! Every operation, and a small decoder of all of them: against finite differences, against Candle's primitive operations, and
//! bit-identical on other numbers of threads.

mod candle;
mod decoder;
mod differences;
mod refusals;
mod ternary;

use trike_autodiff::{Buffers, GradError, Tape, Var};
use trike_cpu::Cpu;
use trike_testkit::Rng;

/// Parameters: elements and columns.
type Parameters = Vec<(Vec<f32>, usize)>;

/// A function of the parameters.
type Function<'f> = dyn Fn(&mut Tape<'_>, &[Var]) -> Result<Var, GradError> + 'f;

/// Standard normal parameters of some shapes.
fn normals(seed: u64, shapes: &[(usize, usize)]) -> Parameters {
    let mut rng = Rng::new(seed);
    shapes.iter().map(|&(rows, cols)| (rng.normals(rows * cols), cols)).collect()
}

fn cpus() -> [Cpu; 3] {
    [1, 2, 3].map(|threads| Cpu::new(threads).expect("a few threads"))
}

/// The output of `f`.
fn forward(cpu: &Cpu, parameters: &Parameters, f: &Function) -> Vec<f32> {
    let mut tape = Tape::new(cpu, &Buffers::default());
    let vars: Vec<Var> =
        parameters.iter().map(|(values, cols)| tape.constant(values, *cols).expect("whole rows")).collect();
    let y = f(&mut tape, &vars).expect("it runs");
    tape.value(y).expect("of this tape").to_vec()
}

/// The output of `f` and the gradients of `sum(f dy)` with respect to the parameters.
fn backward(
    cpu: &Cpu,
    parameters: &Parameters,
    dy: impl Fn(usize) -> Vec<f32>,
    f: &Function<'_>,
) -> (Vec<f32>, Vec<Vec<f32>>) {
    let mut tape = Tape::new(cpu, &Buffers::default());
    let vars: Vec<Var> =
        parameters.iter().map(|(values, cols)| tape.parameter(values, *cols).expect("whole rows")).collect();
    let y = f(&mut tape, &vars).expect("it runs");
    let output = tape.value(y).expect("of this tape").to_vec();
    let mut gradients = tape.backward_from(y, dy(output.len())).expect("it runs");
    let each = vars.into_iter().map(|var| gradients.take(var).expect("every parameter has a gradient"));
    (output, each.collect())
}

/// The gradient of an output.
fn upstream(len: usize) -> Vec<f32> {
    Rng::new(99).normals(len)
}
