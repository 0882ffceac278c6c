//! CUDA without a GPU: NVRTC compiles to PTX and machine code, and reports the resource usage.

use anyhow::{Context, Result, anyhow, ensure};
use cudarc::nvrtc::{result, sys};
use std::ffi::{CStr, CString, c_char};
use std::path::Path;

use super::generate::first_lines;
use crate::target::CudaSm;

/// Options that CubeCL's runtime passes to NVRTC besides the architecture, plus the `ptxas` report in NVRTC's log. For
/// a real architecture NVRTC runs its own `ptxas`, so nothing is compiled to machine code twice.
const OPTIONS: [&str; 2] = ["-lineinfo", "--ptxas-options=-v"];

/// NVIDIA's compilers, in the folder layout of their PyPI packages.
pub struct Toolkit {
    includes: Vec<String>,
    /// Distinguishes versions of NVRTC.
    identity: String,
}

impl Toolkit {
    /// The compilers under the folder `nvidia` of the packages of a Python environment.
    ///
    /// NVRTC is loaded by name: the folder `cuda_nvrtc/lib` must be on the loader's path.
    ///
    /// # Errors
    /// When NVRTC or a folder of headers is missing.
    pub fn find(nvidia: &Path) -> Result<Self> {
        let nvrtc = nvidia.join("cuda_nvrtc/lib/libnvrtc.so.12");
        ensure!(nvrtc.is_file(), "{} is missing", nvrtc.display());
        let includes = ["cuda_runtime/include", "cuda_nvcc/include", "cuda_cccl/include"];
        let includes = includes.map(|folder| nvidia.join(folder));
        for folder in &includes {
            ensure!(folder.is_dir(), "{} is missing", folder.display());
        }
        let identity = format!("{} {OPTIONS:?}", stamp(&nvrtc));
        let includes = includes.map(|folder| format!("--include-path={}", folder.display())).to_vec();
        Ok(Self { includes, identity })
    }

    /// A string that differs between versions of the compilers.
    pub(super) fn identity(&self) -> &str {
        &self.identity
    }

    /// Compiles a source with the options of CubeCL's runtime.
    ///
    /// # Errors
    /// Errors of NVRTC.
    pub fn compile(&self, source: &str, sm: CudaSm) -> Result<Compiled> {
        let source = CString::new(source).context("the source has a zero byte")?;
        let program = Program::new(&source)?;
        let arch = format!("--gpu-architecture={}", sm.arch());
        let options: Vec<&str> = [arch.as_str()]
            .into_iter()
            .chain(self.includes.iter().map(String::as_str))
            .chain(OPTIONS)
            .collect();
        let compiled = program.compile(&options);
        let log = program.log()?;
        compiled.map_err(|e| first_lines(&format!("NVRTC: {e:?}: {log}")))?;
        let resources = Resources::parse(&log);
        let resources = resources.with_context(|| format!("no register count in the ptxas log: {log}"))?;
        Ok(Compiled { ptx: program.ptx()?, resources, code: program.code()? })
    }
}

/// What NVRTC makes of a source.
pub struct Compiled {
    /// The intermediate code.
    pub ptx: String,
    /// Registers, spills and shared memory of the machine code.
    pub resources: Resources,
    /// The machine code, as an ELF file.
    pub code: Vec<u8>,
}

/// Length and modification time of a file: enough to detect another version of a compiler.
fn stamp(file: &Path) -> String {
    let data = std::fs::metadata(file);
    let time = |data: &std::fs::Metadata| {
        data.modified().ok()?.duration_since(std::time::UNIX_EPOCH).ok().map(|since| since.as_secs())
    };
    data.map_or_else(|_| String::new(), |data| format!("{} {:?}", data.len(), time(&data)))
}

/// An NVRTC program, destroyed on drop.
struct Program<'a> {
    program: sys::nvrtcProgram,
    _source: &'a CStr,
}

impl<'a> Program<'a> {
    fn new(source: &'a CStr) -> Result<Self> {
        let program = result::create_program(source, None).map_err(|e| anyhow!("NVRTC: {e:?}"))?;
        Ok(Self { program, _source: source })
    }

    fn compile(&self, options: &[&str]) -> std::result::Result<(), result::NvrtcError> {
        // SAFETY: `new` created the program, and only `drop` destroys it.
        unsafe { result::compile_program(self.program, options) }
    }

    fn log(&self) -> Result<String> {
        // SAFETY: as in `compile`.
        let log = unsafe { result::get_program_log(self.program) };
        Ok(text(&log.map_err(|e| anyhow!("NVRTC has no log: {e:?}"))?))
    }

    fn ptx(&self) -> Result<String> {
        // SAFETY: as in `compile`.
        let ptx = unsafe { result::get_ptx(self.program) };
        Ok(text(&ptx.map_err(|e| anyhow!("NVRTC has no PTX: {e:?}"))?))
    }

    fn code(&self) -> Result<Vec<u8>> {
        let failed = |e| anyhow!("NVRTC has no machine code: {e:?}");
        let mut bytes = 0;
        // SAFETY: as in `compile`; the function writes one number.
        unsafe { sys::nvrtcGetCUBINSize(self.program, &raw mut bytes) }.result().map_err(failed)?;
        let mut code = vec![0u8; bytes];
        // SAFETY: as in `compile`; the buffer has the length that NVRTC asked for.
        unsafe { sys::nvrtcGetCUBIN(self.program, code.as_mut_ptr().cast::<c_char>()) }
            .result()
            .map_err(failed)?;
        Ok(code)
    }
}

impl Drop for Program<'_> {
    fn drop(&mut self) {
        // A leaked program only costs memory.
        // SAFETY: as in `compile`; nothing uses the program afterwards.
        let _ = unsafe { result::destroy_program(self.program) };
    }
}

/// Converts a C string, up to the first zero byte.
fn text(characters: &[c_char]) -> String {
    let bytes: Vec<u8> = characters.iter().map(|&c| c as u8).take_while(|&byte| byte != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Resource usage of a kernel on a multiprocessor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Resources {
    /// 32-bit registers per unit.
    pub registers: u32,
    /// Bytes of register spills, stores plus loads.
    pub spilled: u32,
    /// Statically declared shared memory, in bytes.
    pub shared: u32,
}

impl Resources {
    /// Parses the output of `ptxas -v`.
    fn parse(report: &str) -> Option<Self> {
        let mut found = None;
        let mut spilled = 0;
        for line in report.lines() {
            for part in line.split(',') {
                if let Some(bytes) = number_before(part, "bytes spill") {
                    spilled += bytes;
                }
            }
            if line.contains("Used") {
                let parts = || line.split(',');
                found = Some(Self {
                    registers: parts().find_map(|p| number_before(p, "registers"))?,
                    shared: parts().find_map(|p| number_before(p, "bytes smem")).unwrap_or(0),
                    spilled: 0,
                });
            }
        }
        found.map(|resources| Self { spilled, ..resources })
    }
}

/// The number before `unit`.
fn number_before(text: &str, unit: &str) -> Option<u32> {
    let (before, _) = text.split_once(unit)?;
    before.split_whitespace().last()?.parse().ok()
}

/// Occupancy: resident warps per multiprocessor as a fraction of the maximum.
///
/// Limited by registers (allocated per warp in units of 256), shared memory (1 KiB per cube is reserved by the driver)
/// and the maximum cubes and warps per multiprocessor; see the occupancy chapter of CUDA's best practices guide.
pub fn occupancy(sm: CudaSm, units: u32, resources: &Resources, dynamic_shared: usize) -> f64 {
    const REGISTERS: u32 = 65_536;
    const DRIVER_SHARED: u32 = 1024;
    let warps = units.div_ceil(32).max(1);
    let per_warp = (resources.registers * 32).next_multiple_of(256).max(256);
    // The register file has four partitions, and a warp resides in one of them.
    let by_registers = (REGISTERS / 4 / per_warp) * 4 / warps;
    let shared = resources.shared + u32::try_from(dynamic_shared).unwrap_or(u32::MAX - 4096);
    let by_shared = sm.shared / (shared.saturating_add(DRIVER_SHARED)).next_multiple_of(128);
    let cubes = sm.cubes.min(sm.warps / warps).min(by_registers).min(by_shared);
    f64::from(cubes * warps) / f64::from(sm.warps)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::{SM_80, SM_90, SM_120};
    use trike_testkit::assert_near;

    #[test]
    fn the_report_of_ptxas_is_read() {
        let report = "ptxas info    : 0 bytes gmem\n\
            ptxas info    : Compiling entry function 'k' for 'sm_90a'\n\
            ptxas info    : Function properties for k\n    \
            8 bytes stack frame, 12 bytes spill stores, 16 bytes spill loads\n\
            ptxas info    : Used 40 registers, used 1 barriers, 8 bytes cumulative stack size, 4112 bytes smem\n\
            ptxas info    : Compile time = 12.3 ms";
        assert_eq!(Resources::parse(report), Some(Resources { registers: 40, spilled: 28, shared: 4112 }));
        let small = "ptxas info    : Used 8 registers, used 0 barriers";
        assert_eq!(Resources::parse(small), Some(Resources { registers: 8, spilled: 0, shared: 0 }));
        assert_eq!(Resources::parse("ptxas fatal   : nothing"), None);
    }

    #[test]
    fn occupancy_follows_the_tightest_limit() {
        let of = |registers, shared| Resources { registers, spilled: 0, shared };
        // 32 registers a unit fill all of the 64 warps; 64 halve them, 128 quarter them.
        for (registers, share) in [(32, 1.0), (64, 0.5), (128, 0.25), (255, 0.125)] {
            assert_near!(occupancy(SM_90, 256, &of(registers, 0), 0), share, abs = 1e-9, "{registers}");
        }
        // Cubes of one warp: 32 cubes are half of 64 warps.
        assert_near!(occupancy(SM_80, 32, &of(32, 0), 0), 0.5, abs = 1e-9);
        // 24 cubes of two warps fill the 48 warps.
        assert_near!(occupancy(SM_120, 64, &of(32, 0), 0), 1.0, abs = 1e-9);
        // 100 KiB of shared memory in all: one cube of 60 KiB.
        assert_near!(occupancy(SM_120, 256, &of(32, 0), 60 << 10), 8.0 / 48.0, abs = 1e-9);
        // Static and dynamic shared memory count alike.
        assert_near!(occupancy(SM_120, 256, &of(32, 30 << 10), 30 << 10), 8.0 / 48.0, abs = 1e-9);
    }
}
