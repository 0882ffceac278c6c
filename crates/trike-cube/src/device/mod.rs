//! The only module that uses CubeCL's host API: devices, memory, launches.

mod allocation;
mod buffer;
mod capture;
mod graph;
mod open;
mod transfer;

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use cubecl::MemoryAllocationMode;
use cubecl::client::Client;
use cubecl::prelude::{CubeCount, CubeDim};
use trike_core::{DeviceSpec, Runtime};

pub(crate) use buffer::AnyBuffer;
pub use buffer::{Buffer, Element};
pub use graph::LaunchGraph;
pub use open::{DeviceInfo, devices, is_linked};

use crate::capabilities::{Capabilities, Graphs, Planes};
use crate::error::{CubeError, Result, check_len};
use crate::plan::Settings;
use crate::tuning::KernelChoices;

/// Counters of arrived cubes, one per tile of outputs that cubes share.
pub(crate) const COUNTERS: usize = 1024;

/// Options for opening a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct DeviceOptions {
    /// Use of plane operations.
    pub planes: Planes,
    /// Maximum bytes in buffers at a time; `None` = the device's memory.
    pub memory_limit: Option<u64>,
}

impl DeviceOptions {
    /// Sets [`memory_limit`](Self::memory_limit): allocations beyond it are refused with [`CubeError::Memory`].
    #[must_use]
    pub fn with_memory_limit(self, bytes: u64) -> Self {
        Self { memory_limit: Some(bytes), ..self }
    }

    /// Sets [`planes`](Self::planes).
    #[must_use]
    pub fn with_planes(self, planes: Planes) -> Self {
        Self { planes, ..self }
    }
}

/// An open device: a launch queue and memory.
///
/// Operations are added to the queue and run in order; reading a buffer waits for them. Clones share the queue and the memory.
/// All threads use the same queue.
///
/// ```no_run
/// use trike_cube::{CubeDevice, DeviceSpec};
///
/// let device = CubeDevice::open(DeviceSpec::Auto)?;
/// let x = device.upload(&[1.0f32, 2.0])?;
/// assert_eq!(device.read(&x)?, [1.0, 2.0]);
/// # Ok::<(), trike_cube::CubeError>(())
/// ```
#[derive(Clone)]
pub struct CubeDevice {
    client: Client,
    spec: DeviceSpec,
    capabilities: Arc<Capabilities>,
    common: Arc<allocation::Common>,
    /// Kernels that were compiled and enqueued once without error.
    proven: Arc<Mutex<HashSet<u64>>>,
    /// Zeroed counters for kernels, which must reset them to zero.
    counters: Arc<OnceLock<Buffer<u32>>>,
    /// Measured choices of kernels.
    tuning: Arc<KernelChoices>,
}

impl std::fmt::Debug for CubeDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CubeDevice").field("spec", &self.spec).field("name", &self.capabilities.name).finish()
    }
}

/// Memory of a device in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryUsage {
    /// Currently allocated in buffers.
    pub in_use: u64,
    /// Peak of the memory in buffers since the device was opened.
    pub peak: u64,
    /// Reserved by the runtime, including freed buffers kept in its pools.
    pub reserved: u64,
    /// Total memory, if the runtime reports it.
    pub total: Option<u64>,
    /// Maximum in buffers, if the device was opened with a limit.
    pub limit: Option<u64>,
}

impl MemoryUsage {
    /// Memory available for buffers, excluding freed buffers in pools, which only serve allocations of similar size; `None` if
    /// neither the total nor a limit is known.
    #[must_use]
    pub fn available(&self) -> Option<u64> {
        let of_device = self.total.map(|total| total.saturating_sub(self.in_use.max(self.reserved)));
        let of_limit = self.limit.map(|limit| limit.saturating_sub(self.in_use));
        of_device.into_iter().chain(of_limit).min()
    }

    /// Reserved but unused bytes: freed buffers in the pools, and fragmentation.
    #[must_use]
    pub fn unused(&self) -> u64 {
        self.reserved.saturating_sub(self.in_use)
    }
}

/// A launch: kernel, compile-time key and launch settings.
#[derive(Clone, Copy, Debug)]
pub struct Launch {
    kernel: &'static str,
    settings: Settings,
    key: u64,
}

impl Launch {
    /// Creates a launch from settings checked by a plan and the blueprint, the compile-time parameters that key the kernel.
    pub fn new(kernel: &'static str, blueprint: &impl Hash, settings: Settings) -> Self {
        let mut hasher = DefaultHasher::new();
        (kernel, blueprint, settings.units, settings.bindings).hash(&mut hasher);
        Self { kernel, settings, key: hasher.finish() }
    }
}

impl CubeDevice {
    /// Opens a device by name.
    ///
    /// # Errors
    ///
    /// [`CubeError::NotLinked`] when the runtime is not linked, [`CubeError::NoDevice`] when the device does not exist,
    /// [`CubeError::SoftwareSpirv`] for a software driver in a build with the feature `vulkan`.
    pub fn open(spec: DeviceSpec) -> Result<Self> {
        Self::open_with(spec, DeviceOptions::default())
    }

    /// Opens a device with options.
    ///
    /// # Errors
    ///
    /// As [`CubeDevice::open`].
    pub fn open_with(spec: DeviceSpec, options: DeviceOptions) -> Result<Self> {
        let found = open::find(spec)?;
        let failed = |reason: String| CubeError::Device {
            operation: "opening",
            device: found.spec.to_string(),
            reason: first_lines(&reason),
        };
        let client = guarded(|| found.device.client()).map_err(failed)?;
        Ok(Self::over(client, found.spec, found.software, options))
    }

    /// A device over an existing CubeCL client.
    ///
    /// For test harnesses that compile kernels without running them.
    #[must_use]
    pub fn over(mut client: Client, spec: DeviceSpec, software: bool, options: DeviceOptions) -> Self {
        // The stream ID type is not exported; an allocation carries the ID of this thread's stream.
        let stream = client.empty(size_of::<u32>()).stream;
        // SAFETY: the stream is this thread's own, and from here on every call of this client uses it.
        unsafe { client.set_stream(stream) };
        let mut capabilities = Capabilities::new(client.properties(), software, options.planes);
        capabilities.graphs = graph::supported(&client, spec);
        capabilities.ptx = matches!(spec, DeviceSpec::Numbered(Runtime::Cuda, _));
        if matches!(spec, DeviceSpec::Numbered(Runtime::Wgpu | Runtime::Vulkan | Runtime::Metal, _)) {
            // Shaders address bytes with 32 bits, regardless of the driver's allocation limit.
            capabilities.max_buffer_bytes = capabilities.max_buffer_bytes.min(u32::MAX.into());
        }
        Self {
            client,
            spec,
            capabilities: Arc::new(capabilities),
            common: Arc::new(allocation::Common {
                limit: options.memory_limit,
                ..allocation::Common::default()
            }),
            proven: Arc::default(),
            counters: Arc::default(),
            tuning: Arc::default(),
        }
    }

    /// Measured choices of kernels.
    pub(crate) fn tuning(&self) -> &KernelChoices {
        &self.tuning
    }

    /// The specification that opens this device.
    #[must_use]
    pub fn spec(&self) -> DeviceSpec {
        self.spec
    }

    /// The device name reported by the driver.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.capabilities.name
    }

    /// True for a software driver, which computes on the host CPU.
    #[must_use]
    pub fn is_software(&self) -> bool {
        self.capabilities.software
    }

    /// Features and limits of the device.
    #[must_use]
    pub fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    /// This device as one that cannot replay.
    #[doc(hidden)]
    #[must_use]
    pub fn without_graphs(self) -> Self {
        let without = Capabilities { graphs: Graphs::None, ..self.capabilities().clone() };
        Self { capabilities: Arc::new(without), ..self }
    }

    /// Number of kernels launched through this device and its clones, without those of replays.
    #[must_use]
    pub fn launches(&self) -> u64 {
        self.common.launches.load(Ordering::Relaxed)
    }

    /// Current memory use.
    #[must_use]
    pub fn memory(&self) -> MemoryUsage {
        let usage = self.client.memory_report(cubecl::MemoryScope::Device).usage();
        MemoryUsage {
            in_use: self.common.counter.now(),
            peak: self.common.counter.peak(),
            reserved: usage.bytes_reserved,
            total: self.capabilities.memory_bytes,
            limit: self.common.limit,
        }
    }

    /// Returns unused pool memory to the driver.
    ///
    /// # Errors
    ///
    /// [`CubeError::Device`] when the device is lost.
    pub fn release(&self) -> Result<()> {
        let _turn = self.common.captures.enter_to("a wait")?;
        self.wait("releasing memory", || self.client.memory_cleanup())
    }

    /// Waits for allocations, so that a failure is reported here instead of at first use.
    pub(crate) fn confirm(&self, operation: &'static str, buffers: &[&dyn AnyBuffer]) -> Result<()> {
        let _turn = self.common.captures.enter_to("a wait")?;
        let handles: Vec<_> = buffers.iter().map(|buffer| buffer.handle()).collect();
        self.wait(operation, || self.client.check(&handles))
    }

    /// Allocates `len` uninitialized elements.
    ///
    /// # Errors
    ///
    /// [`CubeError::Range`] for a length of 0 or more than `2^32 - 1`, [`CubeError::Memory`] for more bytes than one allocation
    /// allows.
    pub fn empty<T: Element>(&self, len: usize) -> Result<Buffer<T>> {
        let bytes = self.check_size::<T>(len)?;
        let (alignment, captures) = (self.capabilities.alignment, &self.common.captures);
        if let Some(room) = captures.room(bytes as u64)? {
            return Ok(Buffer::whole(room, alignment));
        }
        let _turn = capture::enter();
        let made = Buffer::over(self.client.empty(bytes), len, alignment, &self.common);
        captures.keep(made.allocation());
        Ok(made)
    }

    /// Uploads `values` to device memory.
    ///
    /// # Errors
    ///
    /// As [`CubeDevice::empty`].
    pub fn upload<T: Element>(&self, values: &[T]) -> Result<Buffer<T>> {
        self.check_size::<T>(values.len())?;
        let _turn = self.common.captures.enter_to("a copy to the device")?;
        let handle = self.client.create_from_slice(bytemuck::cast_slice(values));
        Ok(Buffer::over(handle, values.len(), self.capabilities.alignment, &self.common))
    }

    /// [`COUNTERS`] zeros, shared by all callers, that kernels may count in if they reset them to zero: launches run one after
    /// another. Allocated before a capture.
    pub(crate) fn counters(&self) -> Result<Buffer<u32>> {
        if let Some(counters) = self.counters.get() {
            return Ok(counters.clone());
        }
        let made = self.upload_weights(&[0u32; COUNTERS])?;
        Ok(self.counters.get_or_init(|| made).clone())
    }

    /// Uploads long-lived `values`: weights get allocations of exactly their size, which are not moved or reused.
    ///
    /// # Errors
    ///
    /// As [`CubeDevice::empty`], and [`CubeError::Device`] when the upload fails.
    pub fn upload_weights<T: Element>(&self, values: &[T]) -> Result<Buffer<T>> {
        self.check_size::<T>(values.len())?;
        // The mode belongs to the queue, which all clones of a device share: concurrent uploads would reset each other's mode.
        static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
        let _turn = self.common.captures.enter_to("a copy to the device")?;
        let alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the mode belongs to the queue and is restored below; nothing between the two calls can return.
        unsafe { self.client.allocation_mode(MemoryAllocationMode::Persistent) };
        let handle = self.client.create_from_slice(bytemuck::cast_slice(values));
        // SAFETY: as above.
        unsafe { self.client.allocation_mode(MemoryAllocationMode::Auto) };
        drop(alone);
        self.wait("upload of weights", || self.client.check([&handle]))?;
        Ok(Buffer::over(handle, values.len(), self.capabilities.alignment, &self.common))
    }

    /// Overwrites a whole buffer.
    ///
    /// # Errors
    ///
    /// [`CubeError::Length`] when the lengths differ.
    pub fn write<T: Element>(&self, buffer: &Buffer<T>, values: &[T]) -> Result<()> {
        self.write_checked(buffer, values, || Ok(()))
    }

    /// As [`CubeDevice::write`], if `check` succeeds; no capture can start between the two.
    pub(crate) fn write_checked<T: Element>(
        &self,
        buffer: &Buffer<T>,
        values: &[T],
        check: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        check_len("values to write", buffer.len(), values.len())?;
        let _turn = self.common.captures.enter_to("a copy to the device")?;
        check()?;
        let bytes = cubecl::bytes::Bytes::from_bytes_vec(bytemuck::cast_slice(values).to_vec());
        self.client.write(&buffer.handle(), bytes);
        Ok(())
    }

    /// Waits for all launches that write the buffer, and copies it to the host.
    ///
    /// # Errors
    ///
    /// [`CubeError::Device`] when the device is lost or a launch that writes the buffer failed.
    pub fn read<T: Element>(&self, buffer: &Buffer<T>) -> Result<Vec<T>> {
        let _turn = self.common.captures.enter_to("a copy from the device")?;
        let bytes = self.wait("reading back", || self.client.read_one(buffer.handle()))?;
        numbers(buffer, &bytes)
    }

    /// Reads two buffers with one wait.
    ///
    /// # Errors
    ///
    /// As [`CubeDevice::read`].
    pub fn read_both<T: Element, U: Element>(
        &self,
        first: &Buffer<T>,
        second: &Buffer<U>,
    ) -> Result<(Vec<T>, Vec<U>)> {
        let _turn = self.common.captures.enter_to("a copy from the device")?;
        let bytes = self.wait("reading back", || self.client.read(vec![first.handle(), second.handle()]))?;
        let [first_bytes, second_bytes] = &bytes[..] else {
            return Err(CubeError::Length { what: "buffers read back", expected: 2, got: bytes.len() });
        };
        Ok((numbers(first, first_bytes)?, numbers(second, second_bytes)?))
    }

    /// Waits until the queue is empty.
    ///
    /// # Errors
    ///
    /// [`CubeError::Device`] when the device is lost.
    pub fn sync(&self) -> Result<()> {
        let _turn = self.common.captures.enter_to("a wait")?;
        self.wait("synchronizing", || cubecl::future::block_on(self.client.sync()))
    }

    /// Measures the device time of the launches that `run` enqueues, with device timestamps where supported.
    ///
    /// `run` must not wait for anything; call it once before, so that compilation is not measured.
    ///
    /// # Errors
    ///
    /// Errors of `run`, [`CubeError::Device`] when the device reports no time, and [`CubeError::Capture`] within a capture or
    /// another measurement.
    pub fn timed(&self, run: impl FnOnce() -> Result<()> + Send) -> Result<Duration> {
        let failed = |reason: String| CubeError::Device {
            operation: "measuring",
            device: self.name().to_owned(),
            reason: first_lines(&reason),
        };
        let _turn = capture::enter_to_measure()?;
        let profile = guarded(|| self.client.profile(capture::measured(run), "timed")).map_err(failed)?;
        let (ran, ticks) = profile.map_err(|e| failed(e.to_string()))?;
        ran?;
        let ticks = cubecl::future::block_on(ticks.resolve());
        Ok(ticks.ok_or_else(|| failed("no time was reported".to_owned()))?.duration())
    }

    /// Enqueues a kernel.
    ///
    /// `enqueue` receives the client and the cubes and units of `launch`, and passes them to the kernel's launch function. The
    /// first launch of a kernel (identified by the key of `launch`) waits until it is compiled and enqueued, so that a compiler
    /// or driver error is returned by this call; later ones do not wait.
    ///
    /// # Errors
    ///
    /// Errors of [`Settings::check`], [`CubeError::Launch`], and [`CubeError::Capture`] for a launch that the first run of a
    /// capture did not make.
    #[doc(hidden)]
    pub fn launch(
        &self,
        launch: &Launch,
        written: &[&dyn AnyBuffer],
        enqueue: impl FnOnce(&Client, CubeCount, CubeDim),
    ) -> Result<()> {
        let Launch { kernel, settings, key } = *launch;
        settings.check(kernel, &self.capabilities)?;
        let [x, y, z] = settings.cubes;
        let [units_x, units_y] = settings.units;
        let _turn = capture::enter();
        let proven = self.proven.lock().unwrap_or_else(PoisonError::into_inner).contains(&key);
        self.common.captures.note(launch, proven)?;
        self.common.launches.fetch_add(1, Ordering::Relaxed);
        enqueue(&self.client, CubeCount::Static(x, y, z), CubeDim::new_2d(units_x, units_y));
        if proven {
            return Ok(());
        }
        let handles: Vec<_> = written.iter().map(|buffer| buffer.handle()).collect();
        let failed = |reason: String| CubeError::Launch { kernel, reason: first_lines(&reason) };
        guarded(|| self.client.check(&handles)).map_err(failed)?.map_err(|e| failed(e.to_string()))?;
        self.proven.lock().unwrap_or_else(PoisonError::into_inner).insert(key);
        Ok(())
    }

    fn check_size<T: Element>(&self, len: usize) -> Result<usize> {
        let bytes = len.checked_mul(size_of::<T>()).filter(|_| len > 0 && u32::try_from(len).is_ok());
        let bytes = bytes.ok_or(CubeError::Range {
            what: "elements of a buffer",
            minimum: 1,
            maximum: u32::MAX as usize,
            got: len,
        })?;
        let limit = self.capabilities.max_buffer_bytes;
        if bytes as u64 > limit {
            return Err(CubeError::Memory { what: "a buffer", requested: bytes as u64, limit });
        }
        if let Some(limit) = self.common.limit {
            let requested = self.common.counter.now().saturating_add(bytes as u64);
            if requested > limit {
                return Err(CubeError::Memory { what: "all buffers of a limited device", requested, limit });
            }
        }
        Ok(bytes)
    }

    /// Calls the device thread and converts its failures to [`CubeError::Device`].
    fn wait<T>(
        &self,
        operation: &'static str,
        wait: impl FnOnce() -> std::result::Result<T, cubecl::server::ServerError>,
    ) -> Result<T> {
        let failed = |reason: String| CubeError::Device {
            operation,
            device: self.name().to_owned(),
            reason: first_lines(&reason),
        };
        guarded(wait).map_err(failed)?.map_err(|e| failed(e.to_string()))
    }
}

/// The elements of a buffer from the bytes read back.
fn numbers<T: Element>(buffer: &Buffer<T>, bytes: &[u8]) -> Result<Vec<T>> {
    let len = buffer.bytes().min(bytes.len());
    check_len("bytes read back", buffer.bytes(), len)?;
    Ok(bytemuck::pod_collect_to_vec(&bytes[..len]))
}

/// Converts a panic of `call`, which waits for the device thread, to an error. CubeCL catches panics of that thread (driver out
/// of memory, device lost) and resumes them in the caller. Requires `panic = "unwind"`.
pub fn guarded<T>(call: impl FnOnce() -> T) -> std::result::Result<T, String> {
    // Unwind safe: the closures call the client and modify nothing else.
    catch_unwind(AssertUnwindSafe(call)).map_err(|payload| {
        let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
        text.unwrap_or_else(|| "a panic without a message".to_owned())
    })
}

/// The first lines of a message, without the backtrace that runtimes append.
fn first_lines(message: &str) -> String {
    let text = message.split("Backtrace").next().unwrap_or(message);
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let mut out = lines.next().unwrap_or("no reason given").to_owned();
    for line in lines.take(20) {
        out.push_str("; ");
        out.push_str(line);
    }
    out
}
