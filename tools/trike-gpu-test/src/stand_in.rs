//! A custom CubeCL server in place of CUDA's or Vulkan's.
//!
//! CubeCL's client is type-erased over its server, so the server need not be a device. The part of a server that is
//! independent of launches is here; the rest is a [`Behaviour`].

use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

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
use cubecl_runtime::kernel::CubeKernel;
use cubecl_runtime::logging::ServerLogger;
use cubecl_runtime::memory_management::{ManagedMemoryHandle, MemoryAllocationMode, StreamMemoryReport};
use cubecl_runtime::storage::ManagedResource;
use cubecl_server::storage::{BytesResource, BytesStorage};

use crate::target::Target;

/// Memory and launch behaviour of a stand-in.
pub(crate) trait Behaviour: Send + Sized + 'static {
    /// For a device that CubeCL creates itself, when an unregistered one is used.
    fn unregistered() -> Self;

    /// Allocates memory.
    fn allocate(&mut self, id: usize, bytes: usize);

    /// Reads parts of allocations.
    fn read(&mut self, parts: &[CopyDescriptor]) -> Result<Vec<Bytes>, ServerError>;

    /// Writes a part of an allocation.
    fn write(&mut self, part: &CopyDescriptor, bytes: &Bytes);

    /// Executes or records a launch.
    fn launch(&mut self, kernel: Box<dyn CubeKernel>, count: &CubeCount, arguments: &KernelArguments);

    /// Returns and clears the first error since the last call.
    fn failed(&mut self) -> Result<(), ServerError>;
}

/// A simulated device, and a client of it.
pub(crate) struct StandIn<B: Behaviour> {
    device: DeviceId,
    client: Client,
    behaviour: PhantomData<B>,
}

/// Each stand-in gets its own device number.
static NEXT: AtomicU16 = AtomicU16::new(0);

impl<B: Behaviour> StandIn<B> {
    /// A device with the properties of `target`; `behaviour` receives its number.
    ///
    /// # Errors
    /// When CubeCL refuses to register another device (after 65 536 of them).
    pub(crate) fn new(target: &Target, behaviour: impl FnOnce(u16) -> B) -> anyhow::Result<Self> {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let device = DeviceId::new(0, number);
        let service = Service::new(device, target, behaviour(number));
        let client = Client::try_init(device, service)
            .map_err(|e| anyhow::anyhow!("cannot stand in for {}: {e:?}", target.name))?;
        Ok(Self { device, client, behaviour: PhantomData })
    }

    /// The client, as returned by a runtime.
    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// Stops the device's thread, which otherwise polls for work thousands of times per second. All other clients of
    /// the device must be dropped first.
    pub(crate) fn close(self) {
        drop(self.client);
        DeviceHandle::<Service<B>>::shutdown(self.device);
    }
}

/// The server of a stand-in.
struct Service<B> {
    utilities: Arc<ServerUtilities>,
    behaviour: B,
}

impl<B: Behaviour> Service<B> {
    fn new(device: DeviceId, target: &Target, behaviour: B) -> Self {
        let (utilities, _captures) = ServerUtilities::init(
            ServiceId::of::<Self>(device),
            target.runtime(),
            target.properties(),
            target.target_properties(),
            Arc::new(ServerLogger::default()),
            target.layout_policy(),
        );
        Self { utilities: Arc::new(utilities), behaviour }
    }
}

impl<B> std::fmt::Debug for Service<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Service").finish_non_exhaustive()
    }
}

impl<B: Behaviour> DeviceService for Service<B> {
    fn init(device: DeviceId) -> Self {
        Self::new(device, &Target::all()[0], B::unregistered())
    }

    fn utilities(&self) -> ServerUtilitiesHandle {
        self.utilities.clone()
    }
}

impl<B: Behaviour> ServerCommunication for Service<B> {}

impl<B: Behaviour> Server for Service<B> {
    fn initialize_memory(
        &mut self,
        memory: ManagedMemoryHandle,
        size: u64,
        _stream: StreamId,
    ) -> Result<(), ServerError> {
        self.behaviour.allocate(memory.descriptor().id.value, size as usize);
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
        let read = self.behaviour.read(&descriptors);
        Box::pin(std::future::ready(read))
    }

    fn write(&mut self, descriptors: Vec<(CopyDescriptor, Bytes)>, _stream: StreamId) {
        for (part, bytes) in descriptors {
            self.behaviour.write(&part, &bytes);
        }
    }

    fn sync(&mut self, _handles: Vec<BufferBinding>, _stream: StreamId) -> DynFut<Result<(), ServerError>> {
        Box::pin(std::future::ready(self.behaviour.failed()))
    }

    fn check(&mut self, _handles: Vec<BufferBinding>, _stream: StreamId) -> Result<(), ServerError> {
        self.behaviour.failed()
    }

    unsafe fn launch(
        &mut self,
        kernel: Box<dyn CubeKernel>,
        count: CubeCount,
        arguments: KernelArguments,
        _stream: StreamId,
        _mode: LaunchMode,
    ) {
        self.behaviour.launch(kernel, &count, &arguments);
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

impl<B: Behaviour> ServerStorage for Service<B> {
    type Storage = BytesStorage;

    fn get_resource(
        &mut self,
        _binding: BufferBinding,
        _stream: StreamId,
    ) -> Result<ManagedResource<BytesResource>, ServerError> {
        Err(IoError::UnsupportedIoOperation { backtrace: BackTrace::capture() }.into())
    }
}
