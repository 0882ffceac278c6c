//! The emulated device: host memory, and one process per launch.

use anyhow::{Context, Result, bail, ensure};
use cubecl::client::Client;
use cubecl::server::{BufferBinding, CopyDescriptor, CubeCount, KernelArguments, ServerError};
use cubecl_common::bytes::Bytes;
use cubecl_environment::backtrace::BackTrace;
use cubecl_runtime::id::KernelId;
use cubecl_runtime::kernel::CubeKernel;
use cubecl_runtime::server::KernelResource;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;

use super::host::{Host, Run};
use super::source;
use crate::session::panic_message;
use crate::stand_in::{Behaviour, StandIn};
use crate::target::Target;

/// Initial contents of memory.
const POISON: u8 = 0xab;

/// A mutation of a kernel's source, to test whether it is detected.
pub(super) type Change = fn(&str) -> String;

/// An emulated device.
pub(super) struct Emulation(StandIn<Emulator>);

/// The emulated GPU: to kernels it looks like an H200.
fn target() -> Result<Target> {
    let all = Target::all();
    all.into_iter().find(|t| t.name == "cuda-sm90a").context("no target cuda-sm90a")
}

impl Emulation {
    /// A device whose kernels are compiled by `host`, after applying `change` if given.
    pub(super) fn new(host: &Arc<Host>, change: Option<Change>) -> Result<Self> {
        let host = Arc::clone(host);
        let behaviour =
            |number: u16| Emulator { name: format!("device-{number}"), ..Emulator::of(Some((host, change))) };
        Ok(Self(StandIn::new(&target()?, behaviour)?))
    }

    /// A client, as returned by a runtime.
    pub(super) fn client(&self) -> Client {
        self.0.client().clone()
    }

    /// Stops the device's thread. All other clients of the device must be dropped first.
    pub(super) fn close(self) {
        self.0.close();
    }
}

/// Host memory, and one process per launch.
struct Emulator {
    name: String,
    host: Option<(Arc<Host>, Option<Change>)>,
    memory: HashMap<usize, Vec<u8>>,
    /// Programs with their shared memory size, or the build error.
    programs: HashMap<KernelId, Result<(PathBuf, usize), String>>,
    /// The first error of a launch, reported by the next synchronizing call.
    failure: Option<String>,
}

/// A part of an allocation: id, start, end.
fn range(binding: &BufferBinding) -> (usize, usize, usize) {
    let from = binding.offset_start.unwrap_or(0) as usize;
    let to = binding.size as usize - binding.offset_end.unwrap_or(0) as usize;
    (binding.memory.id().value, from, to)
}

impl Emulator {
    fn of(host: Option<(Arc<Host>, Option<Change>)>) -> Self {
        let (memory, programs) = (HashMap::new(), HashMap::new());
        Self { name: String::new(), host, memory, programs, failure: None }
    }

    /// The program of a kernel. A panic of the generator is an error of the kernel.
    fn program(&mut self, kernel: &dyn CubeKernel) -> Result<(PathBuf, usize), String> {
        let id = kernel.id();
        if let Some(known) = self.programs.get(&id) {
            return known.clone();
        }
        let build = || -> Result<(PathBuf, usize)> {
            let (host, change) = self.host.as_ref().context("this device has no compiler")?;
            let mut source = source::generate(kernel)?;
            if let Some(change) = change {
                source.text = change(&source.text);
            }
            Ok((host.program(&source)?, source.shared))
        };
        let built = catch_unwind(AssertUnwindSafe(build));
        let built = built.unwrap_or_else(|panic| Err(anyhow::anyhow!("{}", panic_message(panic.as_ref()))));
        let built = built.map_err(|e| format!("{e:#}"));
        self.programs.insert(id, built.clone());
        built
    }

    fn execute(
        &mut self,
        kernel: &dyn CubeKernel,
        count: &CubeCount,
        bindings: &KernelArguments,
    ) -> Result<()> {
        let CubeCount::Static(x, y, z) = *count else { bail!("dynamic cube counts are not emulated") };
        let (program, shared) = self.program(kernel).map_err(anyhow::Error::msg)?;
        let mut ranges: Vec<(usize, usize, usize)> = Vec::new();
        let mut arguments = Vec::new();
        for resource in &bindings.resources {
            let KernelResource::Buffer(binding) = resource else { bail!("tensor maps are not emulated") };
            let key = range(binding);
            arguments.push(ranges.iter().position(|known| *known == key).unwrap_or_else(|| {
                ranges.push(key);
                ranges.len() - 1
            }));
        }
        for (at, (id, from, to)) in ranges.iter().enumerate() {
            let overlaps = ranges[..at].iter().any(|(i, f, t)| i == id && from < t && f < to);
            ensure!(!overlaps, "buffers overlap partially");
        }
        let buffers: Vec<&[u8]> =
            ranges.iter().map(|&(id, from, to)| self.part(id, from, to)).collect::<Result<_>>()?;
        let info: Vec<u8> = bindings.info.data.iter().flat_map(|word| word.to_le_bytes()).collect();
        let dim = kernel.id().cube_dim;
        let run = Run {
            buffers: &buffers,
            arguments: &arguments,
            info: &info,
            cubes: [x, y, z],
            threads: [dim.x, dim.y, dim.z],
            shared,
        };
        let (host, _) = self.host.as_ref().context("this device has no host")?;
        let after = host.run(&program, &self.name, &run)?;
        for ((id, from, to), bytes) in ranges.into_iter().zip(after) {
            let memory = self.memory.get_mut(&id).context("memory is not allocated")?;
            memory[from..to].copy_from_slice(&bytes);
        }
        Ok(())
    }

    fn part(&self, id: usize, from: usize, to: usize) -> Result<&[u8]> {
        let memory = self.memory.get(&id).context("memory is not allocated")?;
        memory
            .get(from..to)
            .with_context(|| format!("bytes {from} to {to} are outside of an allocation of {}", memory.len()))
    }
}

impl Behaviour for Emulator {
    /// A device that rejects launches.
    fn unregistered() -> Self {
        Self::of(None)
    }

    fn allocate(&mut self, id: usize, bytes: usize) {
        self.memory.insert(id, vec![POISON; bytes]);
    }

    fn read(&mut self, parts: &[CopyDescriptor]) -> Result<Vec<Bytes>, ServerError> {
        self.failed()?;
        let one = |d: &CopyDescriptor| -> Result<Bytes> {
            let (id, from, _) = range(&d.handle);
            let bytes = d.shape.iter().product::<usize>() * d.elem_size;
            Ok(Bytes::from_bytes_vec(self.part(id, from, from + bytes)?.to_vec()))
        };
        let generic = |e: anyhow::Error| ServerError::Generic {
            reason: format!("{e:#}"),
            backtrace: BackTrace::capture(),
        };
        parts.iter().map(|d| one(d).map_err(generic)).collect()
    }

    fn write(&mut self, part: &CopyDescriptor, bytes: &Bytes) {
        let (id, from, _) = range(&part.handle);
        let memory = self.memory.get_mut(&id);
        match memory.and_then(|memory| memory.get_mut(from..from + bytes.len())) {
            Some(part) => part.copy_from_slice(bytes),
            None => self.failure = Some("write past the end of an allocation".to_owned()),
        }
    }

    fn launch(&mut self, kernel: Box<dyn CubeKernel>, count: &CubeCount, arguments: &KernelArguments) {
        if let Err(e) = self.execute(kernel.as_ref(), count, arguments) {
            self.failure.get_or_insert(format!("{e:#}"));
        }
    }

    fn failed(&mut self) -> Result<(), ServerError> {
        match self.failure.take() {
            None => Ok(()),
            Some(reason) => Err(ServerError::Generic { reason, backtrace: BackTrace::capture() }),
        }
    }
}
