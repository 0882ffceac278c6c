//! CUDA without a GPU: NVRTC makes PTX, `ptxas` makes machine code and says what it costs.

use anyhow::{Context, Result, ensure};
use cudarc::nvrtc::{CompileOptions, compile_ptx_with_opts};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::cache::stamp;
use super::generate::first_lines;
use crate::target::CudaSm;

/// What CubeCL's runtime passes to NVRTC beside the architecture.
const OPTIONS: [&str; 1] = ["-lineinfo"];

/// NVIDIA's compilers as their packages on PyPI lay them out.
pub struct Toolkit {
    includes: Vec<String>,
    ptxas: PathBuf,
    /// Tells versions of the two compilers apart.
    identity: String,
}

impl Toolkit {
    /// The compilers under the folder `nvidia` of an environment's packages.
    ///
    /// NVRTC itself is loaded by name: the folder `cuda_nvrtc/lib` must be on the loader's path.
    ///
    /// # Errors
    /// When a compiler or a folder of headers is missing.
    pub fn find(nvidia: &Path) -> Result<Self> {
        let nvrtc = nvidia.join("cuda_nvrtc/lib/libnvrtc.so.12");
        let ptxas = nvidia.join("cuda_nvcc/bin/ptxas");
        for file in [&nvrtc, &ptxas] {
            ensure!(file.is_file(), "{} is missing", file.display());
        }
        let includes = ["cuda_runtime/include", "cuda_nvcc/include", "cuda_cccl/include"];
        let includes = includes.map(|folder| nvidia.join(folder));
        for folder in &includes {
            ensure!(folder.is_dir(), "{} is missing", folder.display());
        }
        let identity = format!("{} {} {OPTIONS:?}", stamp(&nvrtc), stamp(&ptxas));
        let includes = includes.map(|folder| folder.display().to_string()).to_vec();
        Ok(Self { includes, ptxas, identity })
    }

    /// What differs between versions of the compilers.
    pub(super) fn identity(&self) -> &str {
        &self.identity
    }

    /// PTX of a source, compiled as CubeCL's runtime compiles it.
    ///
    /// # Errors
    /// What NVRTC refuses.
    pub fn ptx(&self, source: &str, sm: CudaSm) -> Result<String> {
        let arch = format!("--gpu-architecture={}", sm.arch());
        let options = CompileOptions {
            include_paths: self.includes.clone(),
            options: std::iter::once(arch).chain(OPTIONS.map(str::to_owned)).collect(),
            ..Default::default()
        };
        let ptx =
            compile_ptx_with_opts(source, options).map_err(|e| first_lines(&format!("NVRTC: {e:?}")))?;
        Ok(ptx.to_src())
    }

    /// What the machine code of a PTX file costs; the code itself is thrown away.
    ///
    /// # Errors
    /// What `ptxas` refuses.
    pub fn resources(&self, ptx: &Path, sm: CudaSm) -> Result<Resources> {
        let arch = format!("-arch={}", sm.arch());
        let run = Command::new(&self.ptxas).args([arch.as_str(), "-v", "-o", "/dev/null"]).arg(ptx).output();
        let run = run.with_context(|| format!("cannot start {}", self.ptxas.display()))?;
        let report = String::from_utf8_lossy(&run.stderr);
        ensure!(run.status.success(), "ptxas: {report}");
        Resources::parse(&report).with_context(|| format!("ptxas says nothing of registers: {report}"))
    }
}

/// What a unit and a cube of a kernel need of a multiprocessor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Resources {
    /// 32-bit registers of a unit.
    pub registers: u32,
    /// Bytes that did not fit into registers, stores and loads together.
    pub spilled: u32,
    /// Bytes of shared memory that the code declares.
    pub shared: u32,
}

impl Resources {
    /// Reads `ptxas -v`.
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

/// The number that stands before `unit`.
fn number_before(text: &str, unit: &str) -> Option<u32> {
    let (before, _) = text.split_once(unit)?;
    before.split_whitespace().last()?.parse().ok()
}

/// Warps that run at once on a multiprocessor, as a share of the warps that it could hold.
///
/// From registers (allocated to a warp in pieces of 256), shared memory (1 KiB of each cube is the driver's) and the cubes
/// and warps that the multiprocessor holds; the rules are those of the occupancy chapter of CUDA's best practices guide.
pub fn occupancy(sm: CudaSm, units: u32, resources: &Resources, dynamic_shared: usize) -> f64 {
    const REGISTERS: u32 = 65_536;
    const DRIVER_SHARED: u32 = 1024;
    let warps = units.div_ceil(32).max(1);
    let per_warp = (resources.registers * 32).next_multiple_of(256).max(256);
    // The register file has four parts, and a warp lies in one of them.
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
