//! Builds one form of a kernel, from its recorded launch to the output of its compilers.

use anyhow::{Context, Result};
use cubecl_runtime::id::KernelId;
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use super::cache::{self, Outcomes};
use super::cuda::Compiled;
use super::disassemble::{Disassembler, kept, listing_of};
use super::generate::Source;
use super::shared::Sources;
use super::times::Clocks;
use super::{Built, Code, Machine, Options, wgsl};
use crate::record::Launch;
use crate::share::Share;
use crate::target::{Family, Target};

/// Shared state of all builds.
pub(super) struct Builder<'a> {
    pub(super) options: &'a Options<'a>,
    pub(super) outcomes: &'a Outcomes,
    pub(super) sources: &'a Sources,
    pub(super) clocks: &'a Clocks,
    /// The launches whose machine code is counted, by target and form.
    pub(super) counted: &'a HashSet<(&'static str, KernelId)>,
    /// The first launch of each kernel, by target and form, which is generated in every part.
    pub(super) firsts: &'a HashSet<(&'static str, KernelId)>,
}

impl Builder<'_> {
    /// Generates and compiles one kernel. An error is an I/O error of the output folder; compilation failures are
    /// outcomes.
    pub(super) fn build(&self, target: &Target, launch: &Launch) -> Result<Built> {
        // Without addresses in this program, this is the identity that CubeCL's on-disk caches use for a kernel.
        let id = launch.id.stable_format();
        let form = format!("{} {id}", target.name);
        let other = self.options.share.filter(|share| !share.has(&id)).map(Share::reason);
        let stopped = match (target.family, &self.options.toolkit) {
            (Family::Cuda(_), Err(missing)) => other.clone().or_else(|| Some(missing.clone())),
            _ => other.clone(),
        };
        if other.is_some() && !self.firsts.contains(&(target.name, launch.id.clone())) {
            let outcome = Ok(Code { source_bytes: 0, dynamic_shared: 0, machine: None });
            return Ok(Built::new(target, launch, None, stopped, outcome));
        }
        let disassembler = self.disassembler(target, launch).filter(|_| stopped.is_none());
        let known = self.outcomes.get(&form);
        let (source, outcome) = match known.filter(|(file, _)| disassembler.is_none() || is_listed(file)) {
            Some((source, code)) => {
                self.clocks.known.fetch_add(1, Ordering::Relaxed);
                (Some(source), Ok(code))
            }
            None => match self.sources.get(target, launch, self.clocks) {
                Err(refused) => (None, Err(refused)),
                Ok(source) => {
                    let file = self.write(target, launch, &source)?;
                    let checked = match stopped {
                        None => self.check(target, &source, &file, disassembler),
                        Some(_) => Ok(Code::generated(&source)),
                    };
                    let checked = checked.map_err(|e| format!("{e:#}"));
                    if let (Ok(code), None) = (&checked, &stopped) {
                        self.outcomes.put(&form, &file, code)?;
                    }
                    (Some(file), checked)
                }
            },
        };
        Ok(Built::new(target, launch, source, stopped, outcome))
    }

    /// The disassembler, if a launch's machine code is counted.
    fn disassembler(&self, target: &Target, launch: &Launch) -> Option<&Disassembler> {
        let is_counted = self.counted.contains(&(target.name, launch.id.clone()));
        self.options.disassembler.as_ref().ok().filter(|_| is_counted)
    }

    /// Writes a source to a file named after the hash of its contents.
    fn write(&self, target: &Target, launch: &Launch, source: &Source) -> Result<PathBuf> {
        let extension = match target.family {
            Family::Cuda(_) => "cu",
            Family::Hip(_) => "hip",
            Family::Metal => "metal",
            Family::Vulkan => "spv",
            Family::WebGpu | Family::WebGpuMinimal => "wgsl",
        };
        let key = match (target.family, &self.options.toolkit, std::str::from_utf8(&source.bytes)) {
            (Family::Cuda(sm), Ok(toolkit), Ok(text)) => cache::key(toolkit, text, sm),
            (_, _, Ok(text)) => cache::hash(&cache::comparable(text)),
            (_, _, Err(_)) => cache::hash(&source.bytes),
        };
        let name = launch.path().rsplit("::").next().unwrap_or("kernel");
        let file = self.options.out.join(target.name).join(format!("{name}-{key}.{extension}"));
        std::fs::write(&file, &source.bytes).with_context(|| format!("cannot write {}", file.display()))?;
        Ok(file)
    }

    /// Compiles or validates a source, as far as its target allows on this machine.
    fn check(
        &self,
        target: &Target,
        source: &Source,
        file: &Path,
        disassembler: Option<&Disassembler>,
    ) -> Result<Code> {
        let text = || std::str::from_utf8(&source.bytes).context("the source is not text");
        let mut code = Code::generated(source);
        match (target.family, &self.options.toolkit) {
            (Family::Cuda(sm), Ok(toolkit)) => {
                let ptx_file = file.with_extension("ptx");
                let listed = disassembler.is_none() || is_listed(file);
                let (resources, ptx) = match cache::machine_code(&ptx_file).filter(|_| listed) {
                    Some(kept) => {
                        self.clocks.compiled.fetch_add(1, Ordering::Relaxed);
                        kept
                    }
                    None => {
                        let text = text()?;
                        let Compiled { ptx, resources, code } =
                            self.clocks.nvrtc.time(|| toolkit.compile(text, sm))?;
                        cache::keep_machine_code(&ptx_file, &resources, &ptx)?;
                        if let Some(disassembler) = disassembler {
                            let listing = listing_of(file);
                            self.clocks.disassemble.time(|| disassembler.keep(&code, &listing))?;
                        }
                        (resources, ptx)
                    }
                };
                code.machine = Some(Machine { resources, instructions: instructions(&ptx) });
            }
            (Family::WebGpu, _) => self.clocks.naga.time(|| wgsl::validate(text()?, true))?,
            (Family::WebGpuMinimal, _) => self.clocks.naga.time(|| wgsl::validate(text()?, false))?,
            _ => {}
        }
        Ok(code)
    }
}

impl Built {
    fn new(
        target: &Target,
        launch: &Launch,
        source: Option<PathBuf>,
        stopped: Option<String>,
        outcome: std::result::Result<Code, String>,
    ) -> Self {
        let units = launch.id.cube_dim.num_elems();
        Self {
            target: target.name,
            path: launch.path(),
            form: form_of(launch),
            units,
            source,
            stopped,
            outcome,
        }
    }
}

impl Code {
    /// A kernel that was generated and not compiled.
    fn generated(source: &Source) -> Self {
        Self { source_bytes: source.bytes.len(), dynamic_shared: source.dynamic_shared, machine: None }
    }
}

/// Whether the listing of a source's machine code is there.
fn is_listed(source: &Path) -> bool {
    kept(&listing_of(source)).is_some()
}

/// All compile-time parameters of a form, on one line.
fn form_of(launch: &Launch) -> String {
    launch.id.to_string().split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The distinct instructions of a PTX text, without operands, such as `dp4a.s32.s32`.
fn instructions(ptx: &str) -> Vec<String> {
    let mut found: Vec<String> = ptx
        .lines()
        .filter_map(|line| {
            let line = line.trim_start();
            // A guard before the instruction: `@%p1 bra`.
            let line = line.strip_prefix('@').and_then(|l| l.split_once(' ')).map_or(line, |(_, rest)| rest);
            let word = line.split([' ', '\t', ';']).next()?;
            (word.starts_with(|c: char| c.is_ascii_lowercase()) && !word.ends_with(':'))
                .then(|| word.to_owned())
        })
        .collect();
    found.sort_unstable();
    found.dedup();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_are_listed_once_without_operands() {
        let ptx = "//\n.version 8.8\n.visible .entry k(\n$L1:\n\tld.param.u64 %rd1, [k_0];\n\t@%p1 bra $L1;\n\
                   \tdp4a.s32.s32 %r1, %r2, %r3, %r4;\n\tdp4a.s32.s32 %r1, %r2, %r3, %r4;\n\tret;\n}";
        assert_eq!(instructions(ptx), ["bra", "dp4a.s32.s32", "ld.param.u64", "ret"]);
    }
}
