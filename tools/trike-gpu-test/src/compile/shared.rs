//! Sources shared between targets of one generator.
//!
//! CubeCL's generators depend on a target only through their options, and kernels depend on a device only through the
//! properties that they query. Among the targets of one generator these are: clusters and elected lanes (CUDA), the
//! shape and layout of cooperative matrices (all), and nothing else that Trike's kernels use. A source without any of
//! these is therefore the same for all such targets, and is generated once.
//!
//! This is based on CubeCL 0.11.3 and checked in every run: the first form of each kernel is generated for every
//! target, and a source that would have been shared must be equal.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, OnceLock};

use super::cache::comparable;
use super::capture::Captured;
use super::generate::{Source, generate};
use super::lock;
use super::times::Clocks;
use crate::record::Launch;
use crate::target::{Family, Target};

/// Generators whose targets share sources.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Generator {
    Cuda,
    Hip,
    Wgsl,
}

/// A source and the target that it was generated for; `None` if generation failed.
type Cell = Arc<OnceLock<Option<(&'static str, Arc<Source>)>>>;

/// Sources of one run.
pub(super) struct Sources {
    /// By generator and form.
    known: Mutex<HashMap<(Generator, String), Cell>>,
    /// Generators with more than one target in this run.
    sharing: HashSet<Generator>,
    /// Kernels with a compared form, by target.
    compared: Mutex<HashSet<(&'static str, &'static str)>>,
    differences: Mutex<Vec<String>>,
}

impl Sources {
    pub(super) fn of(captured: &[Captured]) -> Self {
        let mut seen = HashSet::new();
        let generators = captured.iter().filter_map(|c| generator(&c.target));
        let sharing = generators.filter(|generator| !seen.insert(*generator)).collect();
        Self { known: Mutex::default(), sharing, compared: Mutex::default(), differences: Mutex::default() }
    }

    /// The source of a launch: newly generated, or shared with another target.
    pub(super) fn get(
        &self,
        target: &Target,
        launch: &Launch,
        clocks: &Clocks,
    ) -> Result<Arc<Source>, String> {
        let own = || {
            let source = clocks.generate.time(|| generate(target, launch.kernel.as_ref()));
            source.map(Arc::new).map_err(|e| format!("{e:#}"))
        };
        let Some(generator) = generator(target).filter(|generator| self.sharing.contains(generator)) else {
            return own();
        };
        let cell = lock(&self.known).entry((generator, launch.id.stable_format())).or_default().clone();
        let mut refused = None;
        let first = cell
            .get_or_init(|| own().map_err(|e| refused = Some(e)).ok().map(|source| (target.name, source)));
        match (refused, first) {
            (Some(e), _) => Err(e),
            (None, Some((of, source))) if *of == target.name => Ok(source.clone()),
            (None, Some((of, source))) if is_portable(source) => {
                if lock(&self.compared).insert((target.name, launch.path())) {
                    let mine = own()?;
                    if text(&mine) != text(source) || mine.dynamic_shared != source.dynamic_shared {
                        lock(&self.differences).push(format!(
                            "{} differs between {of} and {}: see `is_portable` in compile/shared.rs",
                            launch.path(),
                            target.name
                        ));
                    }
                    return Ok(mine);
                }
                clocks.shared.fetch_add(1, Ordering::Relaxed);
                Ok(source.clone())
            }
            (None, _) => own(),
        }
    }

    /// Kernels whose sources should be equal but are not.
    pub(super) fn differences(&self) -> Vec<String> {
        lock(&self.differences).clone()
    }
}

fn generator(target: &Target) -> Option<Generator> {
    match target.family {
        Family::Cuda(_) => Some(Generator::Cuda),
        Family::Hip(_) => Some(Generator::Hip),
        Family::WebGpu | Family::WebGpuMinimal => Some(Generator::Wgsl),
        Family::Metal | Family::Vulkan => None,
    }
}

/// Whether a source is independent of the target. `mma` on CUDA is inline assembly of one form, without a matrix type.
fn is_portable(source: &Source) -> bool {
    let text = std::str::from_utf8(&source.bytes).unwrap_or_default();
    let matrices = if text.contains("__grid_constant__") { "wmma::" } else { "mma" };
    !text.is_empty() && ![matrices, "cluster", "elect"].iter().any(|word| text.contains(word))
}

fn text(source: &Source) -> String {
    comparable(std::str::from_utf8(&source.bytes).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compile::capture::capture;

    fn source(text: &str) -> Source {
        Source { bytes: text.as_bytes().to_vec(), dynamic_shared: 0 }
    }

    #[test]
    fn what_depends_on_the_target_is_not_shared() {
        assert!(is_portable(&source("void add(__grid_constant__ info i) { asm(\"mma.sync\"); }")));
        for text in [
            "rocwmma::fragment",
            "__grid_constant__ nvcuda::wmma::fragment",
            "cluster_dims",
            "elect.sync",
            "",
        ] {
            assert!(!is_portable(&source(text)), "{text}");
        }
    }

    #[test]
    fn targets_of_one_generator_share_and_are_compared() {
        let targets = Target::all().into_iter().filter(|target| target.name.starts_with("cuda"));
        let captured: Vec<Captured> =
            targets.map(|target| capture(target, Some("SiLu of")).expect("a recording")).collect();
        let (sources, clocks) = (Sources::of(&captured), Clocks::default());
        for capture in &captured {
            assert!(capture.launches.len() > 1, "{}", capture.target.name);
            for launch in &capture.launches {
                sources.get(&capture.target, launch, &clocks).expect("a source");
            }
        }
        assert_eq!(sources.differences(), [""; 0]);
        // Of the second and the third target one form of the one kernel was generated anew.
        let shared = 2 * (captured[0].launches.len() - 1) as u64;
        assert_eq!(clocks.shared.load(Ordering::Relaxed), shared);
    }
}
