//! Every operation on a device against the host's, forwards and backwards, on the software Vulkan driver. Outputs are poisoned with
//! NaN before they are written, in builds with debug assertions.
#![cfg(feature = "gpu")]

mod errors;
mod operations;

use std::borrow::Borrow;

use trike_autodiff::{Buffers, CubeEngine, GradError, Tape, TapeEngine, Var};
use trike_cube::{CubeDevice, DeviceOptions, DeviceSpec, Planes, Runtime};
use trike_testkit::{Rng, skip};

/// The software Vulkan driver; `None` after a line that the test runner counts.
fn software(options: DeviceOptions) -> Option<CubeEngine> {
    let open = |index| CubeDevice::open_with(DeviceSpec::Numbered(Runtime::Wgpu, index), options).ok();
    let found = (0..).map_while(open).find(|device| device.is_software() && device.capabilities().f16);
    if found.is_none() {
        skip("no Vulkan driver");
    }
    found.map(CubeEngine::new)
}

/// With and without plane operations.
fn engines() -> Vec<CubeEngine> {
    let options = [Planes::Forced, Planes::Off].map(|planes| DeviceOptions::default().with_planes(planes));
    options.into_iter().filter_map(software).collect()
}

/// Parameters: elements and columns.
type Parameters = Vec<(Vec<f32>, usize)>;

/// Standard normal parameters of some shapes.
fn normals(seed: u64, shapes: &[(usize, usize)]) -> Parameters {
    let mut rng = Rng::new(seed);
    shapes.iter().map(|&(rows, cols)| (rng.normals(rows * cols), cols)).collect()
}

/// A function of parameters on any engine.
trait Function {
    fn run<E: TapeEngine>(&self, tape: &mut Tape<'_, E>, p: &[Var]) -> Result<Var, GradError>;
}

/// The output of `f`, and the gradients of the parameters that it depends on.
fn both_ways<E: TapeEngine>(
    engine: &E,
    parameters: &Parameters,
    f: &impl Function,
) -> Result<Vec<Vec<f32>>, GradError> {
    let resident: Vec<E::Tensor> =
        parameters.iter().map(|(values, _)| engine.upload(values.clone())).collect::<Result<_, _>>()?;
    let buffers = Buffers::default();
    let mut tape = Tape::new(engine, &buffers);
    let vars: Vec<Var> = resident
        .iter()
        .zip(parameters)
        .map(|(values, (_, cols))| tape.parameter(values.borrow(), *cols))
        .collect::<Result<_, _>>()?;
    let y = f.run(&mut tape, &vars)?;
    let mut all = vec![engine.download(tape.value(y)?)?.into_owned()];
    let dy = engine.upload(Rng::new(99).normals(all[0].len()))?;
    let mut gradients = tape.backward_from(y, dy)?;
    for var in vars {
        if let Some(gradient) = gradients.take(var) {
            all.push(engine.download(gradient.borrow())?.into_owned());
        }
    }
    Ok(all)
}
