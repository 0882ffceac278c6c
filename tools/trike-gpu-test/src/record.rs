//! The recording device: it accepts launches, keeps the kernels, and runs nothing.
//!
//! With the properties of the device that it replaces, Trike's own host code chooses layouts, blueprints and cubes for
//! that device, and the launched kernels are the ones to compile. No list of kernels is maintained by hand.
//!
//! Reads return zeros, writes are discarded, and allocations always succeed.

use cubecl::client::Client;
use cubecl::server::{CopyDescriptor, CubeCount, KernelArguments, ServerError};
use cubecl_common::bytes::Bytes;
use cubecl_runtime::id::KernelId;
use cubecl_runtime::kernel::CubeKernel;
use std::sync::{Arc, Mutex, PoisonError};

use crate::stand_in::{Behaviour, StandIn};
use crate::target::Target;

/// One launch, as requested by the host.
pub struct Launch {
    /// The kernel, ready to be expanded for the device that it was launched on.
    pub kernel: Box<dyn CubeKernel>,
    /// Its identity: type, cube dimensions and all compile-time parameters.
    pub id: KernelId,
    /// Cubes along x, y and z; `None` if read from a device buffer.
    pub cubes: Option<[u32; 3]>,
}

impl Launch {
    /// Path of the kernel's type without its parameters: `trike_cube::linear::decode::DecodeDp4a`.
    pub fn path(&self) -> &'static str {
        path_of(self.kernel.name())
    }
}

/// A type name without its parameters.
fn path_of(type_name: &'static str) -> &'static str {
    type_name.split_once('<').map_or(type_name, |(path, _)| path)
}

/// The list shared by a recording device and its owner.
type Launches = Arc<Mutex<Vec<Launch>>>;

/// A client of a recording device, and its launches.
pub struct Recording {
    device: StandIn<Recorder>,
    launches: Launches,
}

impl Recording {
    /// A device with the properties of `target`.
    ///
    /// # Errors
    /// When CubeCL refuses to register another device (after 65 536 of them).
    pub fn new(target: &Target) -> anyhow::Result<Self> {
        let launches = Launches::default();
        let device = StandIn::new(target, |_| Recorder(launches.clone()))?;
        Ok(Self { device, launches })
    }

    /// A client, as returned by a runtime.
    pub fn client(&self) -> Client {
        self.device.client().clone()
    }

    /// Launches since the last call.
    ///
    /// # Errors
    /// When the device's thread has stopped.
    pub fn take(&self) -> anyhow::Result<Vec<Launch>> {
        // Launches go through a queue; a flush returns after all of them.
        self.device.client().flush().map_err(|e| anyhow::anyhow!("the recording device stopped: {e}"))?;
        Ok(std::mem::take(&mut *self.launches.lock().unwrap_or_else(PoisonError::into_inner)))
    }

    /// Stops the device's thread. All other clients of the device must be dropped first.
    pub fn close(self) {
        self.device.close();
    }
}

/// Records launches only.
struct Recorder(Launches);

impl Behaviour for Recorder {
    /// Records to a list without an owner.
    fn unregistered() -> Self {
        Self(Launches::default())
    }

    fn allocate(&mut self, _id: usize, _bytes: usize) {}

    fn read(&mut self, parts: &[CopyDescriptor]) -> Result<Vec<Bytes>, ServerError> {
        let zeros = |d: &CopyDescriptor| {
            Bytes::from_bytes_vec(vec![0; d.shape.iter().product::<usize>() * d.elem_size])
        };
        Ok(parts.iter().map(zeros).collect())
    }

    fn write(&mut self, _part: &CopyDescriptor, _bytes: &Bytes) {}

    fn launch(&mut self, kernel: Box<dyn CubeKernel>, count: &CubeCount, _arguments: &KernelArguments) {
        let cubes = match *count {
            CubeCount::Static(x, y, z) => Some([x, y, z]),
            CubeCount::Dynamic(_) => None,
        };
        let launch = Launch { id: kernel.id(), kernel, cubes };
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(launch);
    }

    fn failed(&mut self) -> Result<(), ServerError> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cubecl::prelude::*;

    #[cube(launch_unchecked)]
    fn double(x: &mut [f32], #[comptime] times: u32) {
        #[unroll]
        for _ in 0..times {
            x[ABSOLUTE_POS] *= 2.0;
        }
    }

    fn launch(client: &Client, cubes: u32, times: u32) {
        let x = client.empty(256);
        let (cubes, units) = (CubeCount::Static(cubes, 1, 1), CubeDim::new_1d(32));
        // SAFETY: nothing runs on a recording device.
        let x = unsafe { BufferArg::from_raw_parts(x, 64) };
        // SAFETY: nothing runs on a recording device.
        unsafe { double::launch_unchecked(client, cubes, units, x, times) };
    }

    #[test]
    fn every_target_takes_launches_and_keeps_their_kernels() {
        for target in Target::all() {
            let recording = Recording::new(&target).unwrap();
            let client = recording.client();
            assert_eq!(client.name(), target.runtime());
            launch(&client, 3, 1);
            launch(&client, 2, 1);
            launch(&client, 2, 4);
            let taken = recording.take().unwrap();
            let cubes: Vec<_> = taken.iter().map(|l| l.cubes.unwrap()[0]).collect();
            assert_eq!(cubes, [3, 2, 2], "{}", target.name);
            assert!(taken[0].path().ends_with("double::Double"), "{}", taken[0].path());
            assert!(taken[0].id == taken[1].id && taken[1].id != taken[2].id, "what is comptime is identity");
            assert!(recording.take().unwrap().is_empty(), "taken once");
            drop(client);
            recording.close();
        }
    }

    /// Whatever name it goes by: it is asked.
    #[test]
    fn a_stand_in_has_no_graphs() {
        use trike_cube::{CubeDevice, CubeError, DeviceOptions, DeviceSpec, Graphs, Runtime};
        use trike_nn::{ActivationPrecision, CubeBackend};

        let recording = Recording::new(&Target::all()[0]).unwrap();
        let spec = DeviceSpec::Numbered(Runtime::Cuda, 0);
        let device = CubeDevice::over(recording.client(), spec, false, DeviceOptions::default());
        assert_eq!(device.capabilities().graphs, Graphs::None);
        let refused = device.capture(|| Ok::<_, CubeError>(())).unwrap_err();
        assert!(matches!(refused, CubeError::Feature { feature: "graphs", .. }), "{refused}");
        let backend = CubeBackend::new(device, ActivationPrecision::F32).with_graphs(true);
        assert!(!backend.graphs());
    }

    #[test]
    fn a_read_gives_zeros_of_the_buffers_length() {
        let recording = Recording::new(&Target::all()[0]).unwrap();
        let client = recording.client();
        let handle = client.create_from_slice(&[1, 2, 3, 4, 5]);
        assert_eq!(client.read_one(handle).unwrap()[..], [0; 5]);
    }
}
