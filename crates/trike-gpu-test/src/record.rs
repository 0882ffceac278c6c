//! A device that is not there: it takes every launch, keeps the kernel, and runs nothing.
//!
//! CubeCL's client is erased over its server, so a server of our own can stand where CUDA's or Vulkan's would. With the
//! properties of the device it stands for, Trike's own host code chooses layouts, blueprints and cubes for that device,
//! and what it launches is what there is to compile. No list of kernels is kept by hand.
//!
//! Reads give zeros, writes go nowhere, and allocations always succeed.

use cubecl::client::Client;
use cubecl::server::{
    BufferBinding, CopyDescriptor, CubeCount, IoError, KernelArguments, ProfileError, ProfilingToken, Server,
    ServerCommunication, ServerError, ServerStorage, ServerUtilities,
};
use cubecl_common::bytes::Bytes;
use cubecl_common::device::{DeviceId, DeviceService, ServerUtilitiesHandle, ServiceId};
use cubecl_common::device_handle::DeviceHandle;
use cubecl_common::profile::ProfileDuration;
use cubecl_environment::backtrace::BackTrace;
use cubecl_environment::future::DynFut;
use cubecl_environment::stream::StreamId;
use cubecl_runtime::dry_run::LaunchMode;
use cubecl_runtime::id::KernelId;
use cubecl_runtime::kernel::CubeKernel;
use cubecl_runtime::logging::ServerLogger;
use cubecl_runtime::memory_management::{ManagedMemoryHandle, MemoryAllocationMode, StreamMemoryReport};
use cubecl_runtime::storage::ManagedResource;
use cubecl_server::storage::{BytesResource, BytesStorage};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::target::Target;

/// One launch as the host asked for it.
pub struct Launch {
    /// The kernel, ready to be expanded for the device that it was launched on.
    pub kernel: Box<dyn CubeKernel>,
    /// Its identity: type, cube dimensions and everything that was fixed at compile time.
    pub id: KernelId,
    /// Cubes along x, y and z; `None` when a buffer of the device would have said.
    pub cubes: Option<[u32; 3]>,
}

impl Launch {
    /// Path of the kernel's type without its parameters: `trike_cube::linear::decode::DecodeDp4a`.
    pub fn path(&self) -> &'static str {
        path_of(self.kernel.name())
    }
}

/// A type's name up to its parameters.
fn path_of(type_name: &'static str) -> &'static str {
    type_name.split_once('<').map_or(type_name, |(path, _)| path)
}

/// The list that a recording device and its owner share.
type Launches = Arc<Mutex<Vec<Launch>>>;

/// A client of a recording device, and what was launched through it.
pub struct Recording {
    device: DeviceId,
    client: Client,
    launches: Launches,
}

/// Every recording is a device of its own, so that two of them never share a list.
static NEXT: AtomicU16 = AtomicU16::new(0);

impl Recording {
    /// A device with the properties of `target`.
    ///
    /// # Errors
    /// When CubeCL refuses to register another device (after 65 536 of them).
    pub fn new(target: &Target) -> anyhow::Result<Self> {
        let device = DeviceId::new(0, NEXT.fetch_add(1, Ordering::Relaxed));
        let launches = Launches::default();
        let recorder = Recorder::new(device, target, launches.clone());
        let client = Client::try_init(device, recorder)
            .map_err(|e| anyhow::anyhow!("cannot record for {}: {e:?}", target.name))?;
        Ok(Self { device, client, launches })
    }

    /// A client as a runtime would give it.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// What was launched since the last call.
    ///
    /// # Errors
    /// When the device's thread is gone.
    pub fn take(&self) -> anyhow::Result<Vec<Launch>> {
        // Launches travel through a queue; a flush returns after all of them.
        self.client.flush().map_err(|e| anyhow::anyhow!("the recording device stopped: {e}"))?;
        Ok(std::mem::take(&mut *self.launches.lock().unwrap_or_else(PoisonError::into_inner)))
    }

    /// Ends the device's thread, which looks for work thousands of times a second as long as it lives. Other clients of the
    /// device must be gone.
    pub fn close(self) {
        drop(self.client);
        DeviceHandle::<Recorder>::shutdown(self.device);
    }
}

/// The server's side.
#[derive(Debug)]
struct Recorder {
    utilities: Arc<ServerUtilities>,
    launches: LaunchSink,
}

/// The list again, for a server that must be `Debug`.
struct LaunchSink(Launches);

impl std::fmt::Debug for LaunchSink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("LaunchSink")
    }
}

impl Recorder {
    fn new(device: DeviceId, target: &Target, launches: Launches) -> Self {
        let (utilities, _captures) = ServerUtilities::init(
            ServiceId::of::<Self>(device),
            target.runtime(),
            target.properties(),
            target.target_properties(),
            Arc::new(ServerLogger::default()),
            target.layout_policy(),
        );
        Self { utilities: Arc::new(utilities), launches: LaunchSink(launches) }
    }
}

impl DeviceService for Recorder {
    /// What CubeCL calls when a device is named that nobody registered: the first target, recorded for nobody.
    fn init(device: DeviceId) -> Self {
        Self::new(device, &Target::all()[0], Launches::default())
    }

    fn utilities(&self) -> ServerUtilitiesHandle {
        self.utilities.clone()
    }
}

impl ServerCommunication for Recorder {}

impl Server for Recorder {
    fn initialize_memory(
        &mut self,
        _memory: ManagedMemoryHandle,
        _size: u64,
        _stream: StreamId,
    ) -> Result<(), ServerError> {
        Ok(())
    }

    fn logger(&self) -> Arc<ServerLogger> {
        self.utilities.logger.clone()
    }

    fn utilities(&self) -> Arc<ServerUtilities> {
        self.utilities.clone()
    }

    fn read(
        &mut self,
        descriptors: Vec<CopyDescriptor>,
        _stream: StreamId,
    ) -> DynFut<Result<Vec<Bytes>, ServerError>> {
        let zeros = |d: &CopyDescriptor| {
            Bytes::from_bytes_vec(vec![0; d.shape.iter().product::<usize>() * d.elem_size])
        };
        let zeros: Vec<Bytes> = descriptors.iter().map(zeros).collect();
        Box::pin(std::future::ready(Ok(zeros)))
    }

    fn write(&mut self, _descriptors: Vec<(CopyDescriptor, Bytes)>, _stream: StreamId) {}

    fn sync(&mut self, _handles: Vec<BufferBinding>, _stream: StreamId) -> DynFut<Result<(), ServerError>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn check(&mut self, _handles: Vec<BufferBinding>, _stream: StreamId) -> Result<(), ServerError> {
        Ok(())
    }

    unsafe fn launch(
        &mut self,
        kernel: Box<dyn CubeKernel>,
        count: CubeCount,
        _bindings: KernelArguments,
        _stream: StreamId,
        _mode: LaunchMode,
    ) {
        let cubes = match count {
            CubeCount::Static(x, y, z) => Some([x, y, z]),
            CubeCount::Dynamic(_) => None,
        };
        let launch = Launch { id: kernel.id(), kernel, cubes };
        self.launches.0.lock().unwrap_or_else(PoisonError::into_inner).push(launch);
    }

    fn flush(&mut self, _stream: StreamId) -> Result<(), ServerError> {
        Ok(())
    }

    fn memory_report(&mut self, _stream: StreamId) -> Option<StreamMemoryReport> {
        None
    }

    fn memory_cleanup(&mut self, _stream: StreamId) -> Result<(), ServerError> {
        Ok(())
    }

    fn start_profile(&mut self, _stream: StreamId) -> Result<ProfilingToken, ServerError> {
        Ok(ProfilingToken { id: 0 })
    }

    fn end_profile(
        &mut self,
        _stream: StreamId,
        _token: ProfilingToken,
    ) -> Result<ProfileDuration, ProfileError> {
        Err(ProfileError::NotMeasured { backtrace: BackTrace::capture() })
    }

    fn allocation_mode(&mut self, _mode: MemoryAllocationMode, _stream: StreamId) {}
}

impl ServerStorage for Recorder {
    type Storage = BytesStorage;

    fn get_resource(
        &mut self,
        _binding: BufferBinding,
        _stream: StreamId,
    ) -> Result<ManagedResource<BytesResource>, ServerError> {
        Err(IoError::UnsupportedIoOperation { backtrace: BackTrace::capture() }.into())
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

    #[test]
    fn a_read_gives_zeros_of_the_buffers_length() {
        let recording = Recording::new(&Target::all()[0]).unwrap();
        let client = recording.client();
        let handle = client.create_from_slice(&[1, 2, 3, 4, 5]);
        assert_eq!(client.read_one(handle).unwrap()[..], [0; 5]);
    }
}
