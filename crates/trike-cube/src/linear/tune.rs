//! Autotuning: the candidates of a product are timed on a device, and later products use the fastest.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use trike_core::ActivationPrecision;

use super::activations::Activations;
use super::blueprint::{DecodeBlueprint, LinearBlueprint, SplitBlueprint};
use super::plan::TernaryProblem;
use super::shape::ActivationShape;
use super::ternary::CubeTernaryMatrix;
use crate::capabilities::{Capabilities, Graphs};
use crate::device::{Buffer, CubeDevice};
use crate::error::{CubeError, Result};
use crate::plan::{KernelProblem, Strategy};

/// First word of the text of a table.
pub const MAGIC: &str = "trike-tuned";
/// Version of the kernels and their names: tables of other versions are refused.
pub const VERSION: &str = concat!("1-", env!("CARGO_PKG_VERSION"));
/// Larger numbers of tokens share a choice.
const MOST_TOKENS: usize = 512;
/// Shapes of the matrix-instruction kernel that are timed.
const SHAPES: usize = 12;
/// Rounds, in each of which every candidate is timed.
const ROUNDS: usize = 5;
/// Duration of a turn.
const TURN: Duration = Duration::from_millis(4);
/// Maximum calls per round.
const MOST_CALLS: u32 = 4096;

/// Kernel choices of one device, by problem, with a text form for storage between runs.
///
/// ```
/// use trike_cube::linear::Tuned;
///
/// let table = Tuned::default();
/// assert_eq!(Tuned::parse(&table.to_text())?, table);
/// # Ok::<(), trike_cube::CubeError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tuned {
    /// The device that was measured.
    device: String,
    /// Names of blueprints by problem.
    choices: BTreeMap<String, String>,
}

impl Tuned {
    /// The name of the device that was measured.
    #[must_use]
    pub fn device(&self) -> &str {
        &self.device
    }

    /// Number of problems.
    #[must_use]
    pub fn len(&self) -> usize {
        self.choices.len()
    }

    /// Returns true without any choice.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.choices.is_empty()
    }

    /// One line per choice, after a line with the version and one with the device.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut text = format!("{MAGIC} {VERSION}\n{}\n", self.device);
        for (problem, choice) in &self.choices {
            let _ = writeln!(text, "{problem}\t{choice}");
        }
        text
    }

    /// Parses the output of [`to_text`](Self::to_text).
    ///
    /// # Errors
    ///
    /// [`CubeError::Tuned`] with the line number: for another version, and for a line without both parts.
    pub fn parse(text: &str) -> Result<Self> {
        let wrong = |line: usize, problem: String| CubeError::Tuned { line, problem };
        let mut lines = text.lines();
        let first = lines.next().unwrap_or_default();
        if first != format!("{MAGIC} {VERSION}") {
            return Err(wrong(1, format!("expected `{MAGIC} {VERSION}`, got `{first:.60}`")));
        }
        let device = lines.next().ok_or_else(|| wrong(2, "the device is missing".to_owned()))?.to_owned();
        let mut choices = BTreeMap::new();
        for (at, line) in lines.enumerate() {
            let (problem, choice) = line.split_once('\t').ok_or_else(|| {
                wrong(at + 3, format!("expected a problem, a tab and a kernel, got `{line:.60}`"))
            })?;
            choices.insert(problem.to_owned(), choice.to_owned());
        }
        Ok(Self { device, choices })
    }
}

/// A timed candidate.
#[derive(Clone, Debug, PartialEq)]
pub struct Tried {
    /// Name of the kernel in a [`Tuned`] table.
    pub name: String,
    /// Median time of a product in nanoseconds; `None` for a kernel that the driver refused.
    pub nanoseconds: Option<f64>,
    /// True for the candidate that [`Strategy::Inferred`] chooses without a table.
    pub inferred: bool,
}

impl LinearBlueprint {
    /// A name that is unique among the blueprints of a problem.
    #[must_use]
    pub fn name(&self) -> String {
        let decode = |b: &DecodeBlueprint| format!("{} rows, {} splits", b.rows, b.splits);
        match self {
            Self::Decode(b) => format!("decode, {}", decode(b)),
            Self::Split(SplitBlueprint { decode: b, cubes }) => {
                format!("split, {}, {cubes} cubes", decode(b))
            }
            Self::Tiled => "tiled".to_owned(),
            Self::Mma(s) => format!(
                "mma, {} x {} per plane, {} x {} planes, {} splits, {} stages, {} cubes",
                s.tiles, s.octets, s.row_planes, s.code_planes, s.splits, s.stages, s.cubes
            ),
            Self::Wmma(s) => format!(
                "wmma, {:?} {} x {} x {}, {} x {} per plane, {} x {} planes",
                s.element, s.m, s.n, s.k, s.row_matrices, s.code_matrices, s.row_planes, s.code_planes
            ),
        }
    }
}

impl TernaryProblem {
    /// The measured choice for the problem, if there is one that the device and the problem support.
    #[doc(hidden)]
    #[must_use]
    pub fn tuned(&self, device: &CubeDevice) -> Option<LinearBlueprint> {
        let name = device.tuning().get(&self.tuned_key())?;
        let device = device.capabilities();
        let blueprint = self.tuned_candidates(device).into_iter().find(|b| b.name() == name)?;
        self.plan(&Strategy::Forced(blueprint), device).is_ok().then_some(blueprint)
    }

    /// The key of the problem in a table; the number of tokens is rounded up to a power of two.
    fn tuned_key(&self) -> String {
        let tokens = self.x.tokens.next_power_of_two().min(MOST_TOKENS);
        let precision = match self.x.precision {
            ActivationPrecision::F32 => "f32".to_owned(),
            ActivationPrecision::Int16 => "int16".to_owned(),
            ActivationPrecision::Int8PerToken => "int8".to_owned(),
            ActivationPrecision::Int8PerGroup(size) => format!("int8 per {}", size.get()),
        };
        let w = &self.w;
        let rows: Vec<String> = w.parts.iter().map(usize::to_string).collect();
        format!(
            "{tokens} x {} {precision}, rows {}, {} x {} planes, groups of {}, means {}, f16 scales {}, {:?}, add {}",
            w.cols,
            rows.join(" "),
            w.sets,
            w.planes,
            w.group.unwrap_or(0),
            w.means,
            w.f16_scales,
            w.layout,
            self.add
        )
    }

    /// The blueprints to time: those of [`KernelProblem::candidates`], more shapes of matrix instructions, and other splits of the
    /// columns.
    fn tuned_candidates(&self, device: &Capabilities) -> Vec<LinearBlueprint> {
        let mut all = self.candidates(device);
        if self.x.code_rows() > 2 {
            all.extend(self.mma_candidates(device, SHAPES).into_iter().map(LinearBlueprint::Mma));
        }
        let rows = self.x.code_rows().next_power_of_two();
        if rows <= 16 {
            for splits in [1, 2, 4, 8, 16, 32] {
                let decode = DecodeBlueprint { rows: rows.max(self.x.precision.slices()), splits };
                all.push(LinearBlueprint::Decode(decode));
                if splits <= 8 {
                    all.extend(
                        [2, 4, 8].map(|cubes| LinearBlueprint::Split(SplitBlueprint { decode, cubes })),
                    );
                }
            }
        }
        let mut seen = std::collections::HashSet::new();
        all.retain(|blueprint| {
            seen.insert(*blueprint)
                && self
                    .settings(blueprint, device)
                    .is_ok_and(|settings| settings.check(TernaryProblem::NAME, device).is_ok())
        });
        all
    }
}

impl CubeDevice {
    /// Uses the choices of a table for all later products of this device and its clones with [`Strategy::Inferred`]. Choices that a
    /// problem does not support have no effect.
    ///
    /// # Errors
    ///
    /// [`CubeError::Mismatch`] for a table of another device.
    pub fn use_tuned(&self, table: &Tuned) -> Result<()> {
        if table.device != self.name() && !table.is_empty() {
            return Err(CubeError::Mismatch {
                what: "table of measured kernels".to_owned(),
                expected: format!("one for {}", self.name()),
                got: format!("one for {}", table.device),
                remedy: "measure the kernels of this device",
            });
        }
        self.tuning().add(table.choices.clone());
        Ok(())
    }

    /// The choices of this device, loaded and measured.
    #[must_use]
    pub fn tuned(&self) -> Tuned {
        Tuned { device: self.name().to_owned(), choices: self.tuning().all() }
    }

    /// Autotunes the kernels for products of `tokens` tokens with matrices of one form, such as one layer's matrix of every block:
    /// times all candidates and uses the fastest from now on. Returns all of them, fastest first.
    ///
    /// The matrices alternate, so that caches are as cold as in a model. Times are medians of five rounds, in each of which all
    /// candidates are timed; with graphs ([`Capabilities::graphs`]), of replays. Kernels differ in the order of f32 sums, so the
    /// last bits of a product may change with the choice.
    ///
    /// # Errors
    ///
    /// [`CubeError::Length`] without a matrix or for matrices of several forms, errors of [`CubeDevice::linear`], and
    /// [`CubeError::Capture`] within a capture.
    pub fn tune(
        &self,
        matrices: &[&CubeTernaryMatrix],
        tokens: usize,
        precision: ActivationPrecision,
        add: bool,
    ) -> Result<Vec<Tried>> {
        let Some(first) = matrices.first() else {
            return Err(CubeError::Length { what: "matrices to tune", expected: 1, got: 0 });
        };
        let same = matrices.iter().filter(|matrix| matrix.form() == first.form()).count();
        crate::error::check_len("matrices of one form", matrices.len(), same)?;
        let shape = ActivationShape { tokens, cols: first.form().cols, precision };
        let problem = TernaryProblem { x: shape, w: first.form().clone(), add };
        let inferred = problem.plan(&Strategy::Inferred, self.capabilities())?.0;
        let values = vec![0.5f32; shape.tokens * shape.cols];
        let x = Activations::upload(self, shape, &values)?.with_rotation(first.rotation())?;
        let parts = &problem.w.parts;
        let outs = parts.iter().map(|rows| self.upload(&vec![0.0f32; tokens * rows]));
        let outs = outs.collect::<Result<Vec<Buffer<f32>>>>()?;
        let outs: Vec<&Buffer<f32>> = outs.iter().collect();
        let once = |blueprint: LinearBlueprint| -> Result<()> {
            let strategy = Strategy::Forced(blueprint);
            matrices.iter().try_for_each(|matrix| match add {
                true => self.linear_add(&x, matrix, &outs, &strategy),
                false => self.linear(&x, matrix, &outs, &strategy),
            })
        };
        let candidates = problem.tuned_candidates(self.capabilities());
        let mut calls = Vec::with_capacity(candidates.len());
        for &blueprint in &candidates {
            // The first launch compiles. A kernel that the driver rejects is not a candidate.
            let works = once(blueprint).and_then(|()| self.sync()).is_ok();
            calls.push(works.then(|| self.prepared(move || once(blueprint))).transpose()?);
        }
        let mut times: Vec<Vec<f64>> = vec![Vec::new(); candidates.len()];
        for _ in 0..ROUNDS {
            for (call, times) in calls.iter().zip(&mut times) {
                if let Some(call) = call {
                    times.push(call.time(self)? / matrices.len() as f64);
                }
            }
        }
        drop(calls);
        let mut tried: Vec<(Tried, LinearBlueprint)> = candidates
            .into_iter()
            .zip(times)
            .map(|(blueprint, mut times)| {
                times.sort_by(f64::total_cmp);
                let nanoseconds = times.get(times.len() / 2).copied();
                (Tried { name: blueprint.name(), nanoseconds, inferred: blueprint == inferred }, blueprint)
            })
            .collect();
        let time = |tried: &Tried| tried.nanoseconds.unwrap_or(f64::INFINITY);
        tried.sort_by(|a, b| time(&a.0).total_cmp(&time(&b.0)));
        if let Some((best, _)) = tried.first().filter(|(best, _)| best.nanoseconds.is_some()) {
            self.tuning().add([(problem.tuned_key(), best.name.clone())]);
        }
        Ok(tried.into_iter().map(|(tried, _)| tried).collect())
    }

    /// Prepares launches for timing.
    fn prepared<'c>(&self, once: impl Fn() -> Result<()> + Sync + 'c) -> Result<Timed<'c>> {
        let mut timed = Timed { graph: None, once: Box::new(once), calls: 1 };
        if self.capabilities().graphs != Graphs::None {
            timed.graph = Some(self.capture(|| (timed.once)())?.0);
        }
        // Enough calls to fill a round.
        let nanoseconds = timed.time(self)?.max(1.0);
        timed.calls = ((TURN.as_nanos() as f64 / nanoseconds) as u32).clamp(1, MOST_CALLS);
        Ok(timed)
    }
}

/// Launches that are timed.
struct Timed<'c> {
    graph: Option<crate::device::LaunchGraph>,
    once: Box<dyn Fn() -> Result<()> + Sync + 'c>,
    calls: u32,
}

impl Timed<'_> {
    /// Nanoseconds of one call.
    fn time(&self, device: &CubeDevice) -> Result<f64> {
        let all = device.timed(|| {
            (0..self.calls).try_for_each(|_| match &self.graph {
                Some(graph) => graph.replay(),
                None => (self.once)(),
            })
        })?;
        Ok(all.as_nanos() as f64 / f64::from(self.calls))
    }
}
