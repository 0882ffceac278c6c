//! The one room that talks to CubeCL's host interface: devices, memory, launches.

mod allocation;
mod buffer;
mod capture;
mod graph;
#[cfg(test)]
mod graph_tests;
mod open;

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cubecl::MemoryAllocationMode;
use cubecl::client::Client;
use cubecl::prelude::{CubeCount, CubeDim};
use trike_core::{DeviceSpec, Runtime};

pub(crate) use buffer::Memory as AnyBuffer;
pub use buffer::{Buffer, Element};
pub use graph::Graph;
pub use open::{DeviceInfo, devices, is_linked};

use crate::capabilities::{Capabilities, Planes};
use crate::error::{CubeError, Result, check_len};
use crate::plan::Settings;

/// What can be chosen when a device is opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct DeviceOptions {
    /// Which kernels may use planes.
    pub planes: Planes,
}

impl DeviceOptions {
    /// Sets [`planes`](Self::planes).
    #[must_use]
    pub fn with_planes(self, planes: Planes) -> Self {
        Self { planes, ..self }
    }
}

/// An open device: a queue of launches, and memory.
///
/// Operations are added to the queue and run in order; reading a buffer waits for them. Clones share the queue and the
/// memory. All work goes through one queue, whichever thread calls.
///
/// ```no_run
/// use trike_cube::{Device, DeviceSpec};
///
/// let device = Device::open(DeviceSpec::Auto)?;
/// let x = device.upload(&[1.0f32, 2.0])?;
/// assert_eq!(device.read(&x)?, [1.0, 2.0]);
/// # Ok::<(), trike_cube::CubeError>(())
/// ```
#[derive(Clone)]
pub struct Device {
    client: Client,
    spec: DeviceSpec,
    capabilities: Arc<Capabilities>,
    common: Arc<allocation::Common>,
    /// Kernels that were compiled and enqueued once without an error.
    proven: Arc<Mutex<HashSet<u64>>>,
}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Device").field("spec", &self.spec).field("name", &self.capabilities.name).finish()
    }
}

/// Memory of a device in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// In buffers now.
    pub in_use: u64,
    /// In buffers at most, since the device was opened.
    pub peak: u64,
    /// Held by the runtime, whose pools keep what buffers gave back.
    pub reserved: u64,
    /// In all, where the runtime says so.
    pub total: Option<u64>,
}

/// A launch: which kernel, how it was compiled, and where it runs.
#[derive(Clone, Copy, Debug)]
pub struct Launch {
    kernel: &'static str,
    settings: Settings,
    key: u64,
}

impl Launch {
    /// Settings that a plan has checked, and a key of everything that is compiled into the kernel.
    pub fn new(kernel: &'static str, blueprint: &impl Hash, settings: Settings) -> Self {
        let mut hasher = DefaultHasher::new();
        (kernel, blueprint, settings.units, settings.bindings).hash(&mut hasher);
        Self { kernel, settings, key: hasher.finish() }
    }
}

impl Device {
    /// Opens a device by name.
    ///
    /// # Errors
    ///
    /// [`CubeError::NotLinked`] when the build lacks the runtime, [`CubeError::NoDevice`] when the machine lacks the device,
    /// [`CubeError::SoftwareSpirv`] for a software driver in a build with the feature `vulkan`.
    pub fn open(spec: DeviceSpec) -> Result<Self> {
        Self::open_with(spec, DeviceOptions::default())
    }

    /// Opens a device with options.
    ///
    /// # Errors
    ///
    /// As [`Device::open`].
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

    /// A device over a client of CubeCL, whatever stands behind it.
    ///
    /// This is for harnesses that compile what operations launch without running it.
    #[must_use]
    pub fn over(mut client: Client, spec: DeviceSpec, software: bool, options: DeviceOptions) -> Self {
        // The type of a stream's name is not exported; an allocation knows the one of this thread.
        let stream = client.empty(size_of::<u32>()).stream;
        // SAFETY: the stream is this thread's own, and from here on every call of this client names it.
        unsafe { client.set_stream(stream) };
        let mut capabilities = Capabilities::new(client.properties(), software, options.planes);
        capabilities.graphs = graph::supported(&client, spec);
        if matches!(spec, DeviceSpec::Numbered(Runtime::Wgpu | Runtime::Vulkan | Runtime::Metal, _)) {
            // Shaders count bytes in 32 bits, whatever the driver would allocate.
            capabilities.max_buffer_bytes = capabilities.max_buffer_bytes.min(u32::MAX.into());
        }
        Self {
            client,
            spec,
            capabilities: Arc::new(capabilities),
            common: Arc::default(),
            proven: Arc::default(),
        }
    }

    /// The name under which the device can be opened again.
    #[must_use]
    pub fn spec(&self) -> DeviceSpec {
        self.spec
    }

    /// The name that the device gives itself.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.capabilities.name
    }

    /// Whether the device is a driver that computes on the host.
    #[must_use]
    pub fn is_software(&self) -> bool {
        self.capabilities.software
    }

    /// What the device can do.
    #[must_use]
    pub fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    /// How much memory is used.
    #[must_use]
    pub fn memory(&self) -> Memory {
        let usage = self.client.memory_report(cubecl::MemoryScope::Device).usage();
        Memory {
            in_use: self.common.counter.now(),
            peak: self.common.counter.peak(),
            reserved: usage.bytes_reserved,
            total: self.capabilities.memory_bytes,
        }
    }

    /// Gives memory that no buffer is in back to the driver.
    ///
    /// # Errors
    ///
    /// [`CubeError::Device`] when the device is lost.
    pub fn release(&self) -> Result<()> {
        let _turn = self.common.captures.enter_to("a wait")?;
        self.wait("giving memory back", || self.client.memory_cleanup())
    }

    /// Waits until allocations are made, which otherwise fail where they are used.
    pub(crate) fn confirm(&self, operation: &'static str, buffers: &[&dyn AnyBuffer]) -> Result<()> {
        let _turn = self.common.captures.enter_to("a wait")?;
        let handles: Vec<_> = buffers.iter().map(|buffer| buffer.handle()).collect();
        self.wait(operation, || self.client.check(&handles))
    }

    /// Room for `len` numbers, which hold anything.
    ///
    /// # Errors
    ///
    /// [`CubeError::Range`] for no numbers or more than `2^32 - 1`, [`CubeError::Memory`] for more bytes than one allocation
    /// may have.
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

    /// A copy of `values` in the memory of the device.
    ///
    /// # Errors
    ///
    /// As [`Device::empty`].
    pub fn upload<T: Element>(&self, values: &[T]) -> Result<Buffer<T>> {
        self.check_size::<T>(values.len())?;
        let _turn = self.common.captures.enter_to("a copy to the device")?;
        let handle = self.client.create_from_slice(bytemuck::cast_slice(values));
        Ok(Buffer::over(handle, values.len(), self.capabilities.alignment, &self.common))
    }

    /// A copy of `values` that stays: weights lie in allocations of exactly their size, which are not moved or reused.
    ///
    /// # Errors
    ///
    /// As [`Device::empty`], and [`CubeError::Device`] when the device did not take them.
    pub fn upload_weights<T: Element>(&self, values: &[T]) -> Result<Buffer<T>> {
        self.check_size::<T>(values.len())?;
        // The mode is that of the queue, which all clones of a device share: two uploads at once would end each other's.
        static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
        let _turn = self.common.captures.enter_to("a copy to the device")?;
        let alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the mode is the queue's own and is put back below; nothing between the two lines can return.
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

    /// The same when `check` finds nothing wrong, with no capture between the two.
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

    /// Waits for everything that writes the buffer, and copies it to the host.
    ///
    /// # Errors
    ///
    /// [`CubeError::Device`] when the device is lost or when something that should have written the buffer failed.
    pub fn read<T: Element>(&self, buffer: &Buffer<T>) -> Result<Vec<T>> {
        let _turn = self.common.captures.enter_to("a copy from the device")?;
        let bytes = self.wait("reading back", || self.client.read_one(buffer.handle()))?;
        numbers(buffer, &bytes)
    }

    /// [`Device::read`] of two buffers, with one wait.
    ///
    /// # Errors
    ///
    /// As [`Device::read`].
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

    /// Waits until everything in the queue has run.
    ///
    /// # Errors
    ///
    /// [`CubeError::Device`] when the device is lost.
    pub fn sync(&self) -> Result<()> {
        let _turn = self.common.captures.enter_to("a wait")?;
        self.wait("waiting", || cubecl::future::block_on(self.client.sync()))
    }

    /// The time that the device took for what `run` added to the queue, by the device's own clock where it has one.
    ///
    /// `run` must not wait for anything; call it once before, so that compiling is not measured.
    ///
    /// # Errors
    ///
    /// Those of `run`, [`CubeError::Device`] when the device gives no time, and [`CubeError::Capture`] inside of a capture or of
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
        Ok(ticks.ok_or_else(|| failed("no time came back".to_owned()))?.duration())
    }

    /// Adds a kernel to the queue.
    ///
    /// `enqueue` gets the client, the cubes and the units that the launch says, and passes them to the kernel's own launch
    /// function. The first launch of a kernel (as the key of `launch` tells kernels apart) waits until it was compiled and
    /// enqueued, so that a refusal of the compiler or the driver is this call's error; later ones do not wait.
    ///
    /// # Errors
    ///
    /// Those of [`Settings::check`], [`CubeError::Launch`], and [`CubeError::Capture`] for what the first run of a capture did
    /// not launch.
    pub(crate) fn launch(
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
        Ok(bytes)
    }

    /// Waits for the device's thread.
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

/// The numbers of a buffer from what came back.
fn numbers<T: Element>(buffer: &Buffer<T>, bytes: &[u8]) -> Result<Vec<T>> {
    let len = buffer.bytes().min(bytes.len());
    check_len("bytes read back", buffer.bytes(), len)?;
    Ok(bytemuck::pod_collect_to_vec(&bytes[..len]))
}

/// A call that waits for the device's thread. CubeCL catches what panics there (a driver that is out of memory, a device that
/// is lost) and raises it again here, where it becomes an error. It takes a build that unwinds.
fn guarded<T>(call: impl FnOnce() -> T) -> std::result::Result<T, String> {
    // Nothing of ours is left half done: the closures call the client and touch nothing else.
    catch_unwind(AssertUnwindSafe(call)).map_err(|payload| {
        let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
        text.unwrap_or_else(|| "a panic without a message".to_owned())
    })
}

/// The beginning of a message, without the backtraces that runtimes put at its end.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panics_of_calls_become_their_message() {
        assert_eq!(guarded(|| 5), Ok(5));
        assert_eq!(
            guarded(|| panic!("no memory for {} bytes", 7)),
            Err::<(), _>("no memory for 7 bytes".to_owned())
        );
        assert_eq!(guarded(|| panic!("lost")), Err::<(), _>("lost".to_owned()));
        let other = guarded(|| std::panic::panic_any(5));
        assert_eq!(other, Err::<(), _>("a panic without a message".to_owned()));
    }
}
