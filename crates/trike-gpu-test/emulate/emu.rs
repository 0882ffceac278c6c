//! A CUDA device of the host: generated C++ compiled by g++, run with emulated warps.
use cubecl::client::Client;
use cubecl::server::{BufferBinding, CopyDescriptor, CubeCount, IoError, KernelArguments, ProfileError, ProfilingToken, Server, ServerCommunication, ServerError, ServerStorage, ServerUtilities};
use cubecl::{Compiler, define_kernel};
use cubecl_common::bytes::Bytes;
use cubecl_common::device::{DeviceId, DeviceService, ServerUtilitiesHandle, ServiceId};
use cubecl_common::profile::ProfileDuration;
use cubecl_cpp::shared::{CompilationOptions, CppCompiler, CppSupportedFeatures};
use cubecl_cpp::target::Cuda;
use cubecl_environment::backtrace::BackTrace;
use cubecl_environment::future::DynFut;
use cubecl_environment::stream::StreamId;
use cubecl_runtime::dry_run::LaunchMode;
use cubecl_runtime::kernel::CubeKernel;
use cubecl_runtime::logging::ServerLogger;
use cubecl_runtime::memory_management::{ManagedMemoryHandle, MemoryAllocationMode, StreamMemoryReport};
use cubecl_runtime::server::KernelResource;
use cubecl_runtime::storage::ManagedResource;
use cubecl_server::storage::{BytesResource, BytesStorage};
use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use trike_gpu_test::target::Target;

#[derive(Default)]
pub struct State {
    pub memory: HashMap<usize, Vec<u8>>,
    pub failures: Vec<String>,
    pub launches: usize,
    pub kernels: BTreeMap<String, usize>,
    pub binaries: HashMap<cubecl_runtime::id::KernelId, Result<(PathBuf, usize), String>>,
    pub compile: Duration,
    pub run: Duration,
    pub built: usize,
    pub write_only_poison: bool,
}
pub type Shared = Arc<Mutex<State>>;

fn target() -> Target { Target::all().into_iter().find(|t| t.name == "cuda-sm90a").unwrap() }

pub fn client() -> (Client, Shared) {
    let device = DeviceId::new(0, 0);
    let state = Shared::default();
    let client = Client::try_init(device, Emu::new(device, state.clone())).expect("a client");
    (client, state)
}

struct Emu { utilities: Arc<ServerUtilities>, state: Shared }
impl std::fmt::Debug for Emu { fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result { f.write_str("Emu") } }

impl Emu {
    fn new(device: DeviceId, state: Shared) -> Self {
        let target = target();
        let (utilities, _c) = ServerUtilities::init(ServiceId::of::<Self>(device), target.runtime(), target.properties(), target.target_properties(), Arc::new(ServerLogger::default()), target.layout_policy());
        Self { utilities: Arc::new(utilities), state }
    }
}

fn range(b: &BufferBinding) -> (usize, usize, usize) {
    let start = b.offset_start.unwrap_or(0) as usize;
    let end = b.size as usize - b.offset_end.unwrap_or(0) as usize;
    (b.memory.id().value, start, end)
}

fn folder() -> PathBuf { PathBuf::from(std::env::var("EMU").unwrap()) }

/// Operands in parentheses after constraints.
fn operands(line: &str) -> Vec<String> {
    let mut found = Vec::new();
    let tail = line.split_once("\" : ").unwrap().1;
    for part in tail.split('"').skip(2).step_by(2) {
        // (x) or (x),
        let inner = part.trim_start().strip_prefix('(').unwrap();
        let end = inner.find(')').unwrap();
        found.push(inner[..end].to_owned());
    }
    found
}

fn host_source(source: &str) -> Result<String, String> {
    let start = source.find("template <typename T, size_t N>").ok_or("no template")?;
    let mut typedefs: String = source[..start].lines().filter(|l| l.starts_with("typedef")).collect::<Vec<_>>().join("\n");
    let mut out = String::from("#include \"rt.h\"\n");
    typedefs.push('\n');
    out.push_str(&typedefs);
    let mut name = None;
    let mut shared = None;
    let mut params = Vec::new();
    let mut info = None;
    for line in source[start..].lines() {
        if line.starts_with("#include") { continue; }
        if let Some(rest) = line.strip_prefix("extern \"C\" __global__") {
            let open = rest.rfind(") {").ok_or("no end of parameters")?;
            let head = &rest[..open];
            // the name is the word before the parenthesis after the bounds
            let after_bounds = head.find(')').map(|i| i + 1).ok_or("bounds")?;
            let paren = head[after_bounds..].find('(').ok_or("paren")? + after_bounds;
            name = Some(head[after_bounds..paren].trim().to_owned());
            for p in head[paren + 1..].split(", ") {
                if p.contains("__grid_constant__") { info = Some("info_st".to_owned()); continue; }
                params.push(p.rsplit_once(' ').unwrap().0.to_owned());
            }
            out.push_str(line);
        } else if let Some(i) = line.find("extern __shared__") {
            let open = line.find("char ").unwrap() + 5;
            let close = line.find("[];").unwrap();
            shared = Some(());
            out.push_str(&line[..i]);
            out.push_str(&format!("char* const {} = emu_smem;", &line[open..close]));
            out.push_str(&line[close + 3..]);
        } else if line.contains("asm volatile(\"mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32") {
            out.push_str(&format!("emu_mma_s8(__LINE__, {});", operands(line).join(", ")));
        } else if line.contains("asm volatile(\"mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32") {
            out.push_str(&format!("emu_mma_f16(__LINE__, {});", operands(line).join(", ")));
        } else if line.contains("asm") { return Err(format!("asm: {line}")); }
        else { out.push_str(line); }
        out.push('\n');
    }
    let _ = shared;
    let name = name.ok_or("no kernel")?;
    let mut call: Vec<String> = params.iter().enumerate().map(|(i, t)| format!("({t})b[{i}]")).collect();
    if info.is_some() { call.push("*(const info_st*)i".to_owned()); }
    out.push_str(&format!("\nextern \"C\" void emu_entry(char** b, const void* i) {{ {name}({}); }}\nextern const int emu_args; const int emu_args = {};\nextern const unsigned emu_info_size; const unsigned emu_info_size = {};\n", call.join(", "), params.len(), if info.is_some() { "sizeof(info_st)" } else { "0" }));
    Ok(out)
}

fn build(kernel: &dyn CubeKernel, state: &mut State) -> Result<(PathBuf, usize), String> {
    let definition = define_kernel(kernel).map_err(|e| e.to_string())?;
    let supports_features = CppSupportedFeatures { grid_constants: true, clusters: true, fast_math: true, fast_tanh: true, elect_sync: true, dp4a: true };
    let options = CompilationOptions { warp_size: 32, supports_features, amd_wmma: None };
    let kernel = CppCompiler::<Cuda>::default().compile(definition, &options).map_err(|e| e.to_string())?;
    let text = host_source(&kernel.source)?;
    let mut h = DefaultHasher::new();
    text.hash(&mut h);
    let base = folder().join("cache").join(format!("{:016x}", h.finish()));
    let exe = base.with_extension("exe");
    if !exe.exists() {
        let start = Instant::now();
        let cpp = base.with_extension("cpp");
        std::fs::write(&cpp, &text).map_err(|e| e.to_string())?;
        let out = Command::new("g++").args(["-std=c++17", "-O0", "-w", "-fno-strict-aliasing", "-ffp-contract=off", "-fsanitize=address,alignment,bounds,signed-integer-overflow,shift,integer-divide-by-zero", "-fno-sanitize-recover=all", "--param", "asan-stack=0", "-fno-stack-protector", "-I"])
            .arg(folder()).arg(&cpp).arg(folder().join("rt.o")).arg("-o").arg(&exe).output().map_err(|e| e.to_string())?;
        if !out.status.success() { return Err(format!("{}: {}", cpp.display(), String::from_utf8_lossy(&out.stderr).lines().take(6).collect::<Vec<_>>().join("\n"))); }
        state.compile += start.elapsed();
        state.built += 1;
    }
    Ok((exe, kernel.shared_memory_size))
}

fn execute(state: &mut State, exe: &PathBuf, shared: usize, kernel_units: [u32; 3], cubes: [u32; 3], bindings: &KernelArguments) -> Result<(), String> {
    let mut unique: Vec<(usize, usize, usize)> = Vec::new();
    let mut args = Vec::new();
    for r in &bindings.resources {
        let KernelResource::Buffer(b) = r else { return Err("tensor map".into()) };
        let key = range(b);
        let at = unique.iter().position(|k| *k == key).unwrap_or_else(|| { unique.push(key); unique.len() - 1 });
        args.push(at as u32);
    }
    for (i, a) in unique.iter().enumerate() { for b in &unique[..i] { if a.0 == b.0 && a.1 < b.2 && b.1 < a.2 { return Err("overlapping buffers".into()); } } }
    let info: Vec<u8> = bindings.info.data.iter().flat_map(|w| w.to_le_bytes()).collect();
    let mut file: Vec<u8> = Vec::new();
    let policies: u32 = std::env::var("EMU_POLICIES").map_or(3, |s| s.parse().unwrap());
    let head = [unique.len() as u32, args.len() as u32, info.len() as u32, cubes[0], cubes[1], cubes[2], kernel_units[0], kernel_units[1], kernel_units[2], shared as u32, policies];
    for w in head.into_iter().chain(unique.iter().map(|k| (k.2 - k.1) as u32)).chain(args) { file.extend(w.to_le_bytes()); }
    file.extend(&info);
    for (id, a, b) in &unique { file.extend(&state.memory.get(id).ok_or("unknown memory")?[*a..*b]); }
    let (inp, out) = (folder().join(format!("run.{}.in", std::process::id())), folder().join(format!("run.{}.out", std::process::id())));
    std::fs::write(&inp, &file).map_err(|e| e.to_string())?;
    let start = Instant::now();
    let done = Command::new(exe).arg(&inp).arg(&out).env("ASAN_OPTIONS", "detect_leaks=0").output().map_err(|e| e.to_string())?;
    state.run += start.elapsed();
    if !done.status.success() { return Err(format!("{}: {}", exe.display(), String::from_utf8_lossy(&done.stderr).lines().take(12).collect::<Vec<_>>().join("\n"))); }
    let back = std::fs::read(&out).map_err(|e| e.to_string())?;
    let mut at = 0;
    for (id, a, b) in &unique { let n = b - a; state.memory.get_mut(id).unwrap()[*a..*b].copy_from_slice(&back[at..at + n]); at += n; }
    Ok(())
}

impl DeviceService for Emu {
    fn init(device: DeviceId) -> Self { Self::new(device, Shared::default()) }
    fn utilities(&self) -> ServerUtilitiesHandle { self.utilities.clone() }
}
impl ServerCommunication for Emu {}
impl Server for Emu {
    fn initialize_memory(&mut self, memory: ManagedMemoryHandle, size: u64, _stream: StreamId) -> Result<(), ServerError> {
        self.state.lock().unwrap().memory.insert(memory.descriptor().id.value, vec![0xAB; size as usize]);
        Ok(())
    }
    fn logger(&self) -> Arc<ServerLogger> { self.utilities.logger.clone() }
    fn utilities(&self) -> Arc<ServerUtilities> { self.utilities.clone() }
    fn read(&mut self, descriptors: Vec<CopyDescriptor>, _s: StreamId) -> DynFut<Result<Vec<Bytes>, ServerError>> {
        let state = self.state.lock().unwrap();
        let all: Vec<Bytes> = descriptors.iter().map(|d| {
            let (id, a, _) = range(&d.handle);
            let n = d.shape.iter().product::<usize>() * d.elem_size;
            Bytes::from_bytes_vec(state.memory[&id][a..a + n].to_vec())
        }).collect();
        Box::pin(std::future::ready(Ok(all)))
    }
    fn write(&mut self, descriptors: Vec<(CopyDescriptor, Bytes)>, _s: StreamId) {
        let mut state = self.state.lock().unwrap();
        for (d, bytes) in descriptors {
            let (id, a, _) = range(&d.handle);
            state.memory.get_mut(&id).expect("memory")[a..a + bytes.len()].copy_from_slice(&bytes);
        }
    }
    fn sync(&mut self, _h: Vec<BufferBinding>, _s: StreamId) -> DynFut<Result<(), ServerError>> { Box::pin(std::future::ready(Ok(()))) }
    fn check(&mut self, _h: Vec<BufferBinding>, _s: StreamId) -> Result<(), ServerError> { Ok(()) }
    unsafe fn launch(&mut self, kernel: Box<dyn CubeKernel>, count: CubeCount, bindings: KernelArguments, _s: StreamId, _m: LaunchMode) {
        let mut state = self.state.lock().unwrap();
        let state = &mut *state;
        let cubes = match count { CubeCount::Static(x, y, z) => [x, y, z], CubeCount::Dynamic(_) => { state.failures.push("dynamic".into()); return; } };
        state.launches += 1;
        let id = kernel.id();
        *state.kernels.entry(kernel.name().split('<').next().unwrap().to_owned()).or_default() += 1;
        let units = [id.cube_dim.x, id.cube_dim.y, id.cube_dim.z];
        if !state.binaries.contains_key(&id) {
            let built = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| build(kernel.as_ref(), state))).unwrap_or_else(|_| Err("generator panicked".into()));
            state.binaries.insert(id.clone(), built);
        }
        let done = match state.binaries[&id].clone() { Err(e) => Err(e), Ok((exe, shared)) => execute(state, &exe, shared, units, cubes, &bindings) };
        if let Err(e) = done { state.failures.push(format!("{}: {e}", kernel.name().split('<').next().unwrap())); }
    }
    fn flush(&mut self, _s: StreamId) -> Result<(), ServerError> { Ok(()) }
    fn memory_report(&mut self, _s: StreamId) -> Option<StreamMemoryReport> { None }
    fn memory_cleanup(&mut self, _s: StreamId) -> Result<(), ServerError> { Ok(()) }
    fn start_profile(&mut self, _s: StreamId) -> Result<ProfilingToken, ServerError> { Ok(ProfilingToken { id: 0 }) }
    fn end_profile(&mut self, _s: StreamId, _t: ProfilingToken) -> Result<ProfileDuration, ProfileError> { Err(ProfileError::NotMeasured { backtrace: BackTrace::capture() }) }
    fn allocation_mode(&mut self, _m: MemoryAllocationMode, _s: StreamId) {}
}
impl ServerStorage for Emu {
    type Storage = BytesStorage;
    fn get_resource(&mut self, _b: BufferBinding, _s: StreamId) -> Result<ManagedResource<BytesResource>, ServerError> {
        Err(IoError::UnsupportedIoOperation { backtrace: BackTrace::capture() }.into())
    }
}
