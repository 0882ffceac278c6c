//! Rewriting of weights that preserves the function of the model.

use std::{collections::HashMap, path::Path};

use half::{bf16, f16};
use trike_format::{DenseData, DenseTensor, StoredType, Tensor, TensorInfo};
use trike_llm::{LlmError, ModelConfig, WeightSource};
use trike_nn::{DecoderSpec, HookPoint, NnError, WeightName};
use trike_quant::{Rotation, scale_columns};

use crate::{CalibrateError, FoldError};

/// A rewriting of a model's weights that preserves the outputs up to rounding. It makes the weights easier to quantize
/// at no cost at inference.
///
/// * A **rotation** `R` of the residual stream. Norm gains `g` are merged into the layers that follow them and become
///   1; then every weight that reads the stream is `W diag(g) R^T`, and every weight, bias and embedding that writes
///   to it is `R W`. RMSNorm without a gain is invariant to a rotation (QuaRot, Ashkboos et al., 2404.00456).
///   Embedding and head become different matrices, even if they were tied.
/// * **Scales** of the inputs of a [`HookPoint`]: its matrices become `W diag(s)`, and the preceding operation gives
///   `x / s`. That operation is the preceding norm; without a norm it is the value projection for the output
///   projection, and the up projection, in which the gated activation is linear, for the down projection (AWQ, Lin et
///   al., 2306.00978).
///
/// [`Folded`] applies it to a source of weights as they are loaded; no file is written.
///
/// ```
/// use trike_calibrate::{Fold, Folded};
/// use trike_llm::ModelFile;
/// use trike_nn::HookPoint;
///
/// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/tiny");
// This model has ternary weights, which cannot be scaled or rotated.
/// let fold = Fold::default().with_rotation(1).with_scales(0, HookPoint::Mlp, vec![1.5; 160]);
/// assert!(Folded::new(&ModelFile::open(path)?, fold).is_err());
/// # Ok::<(), trike_llm::LlmError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Fold {
    rotation: Option<u64>,
    scales: HashMap<(usize, HookPoint), Vec<f32>>,
}

impl Fold {
    /// Adds a rotation of the residual stream, whose signs are generated from `seed`.
    #[must_use]
    pub fn with_rotation(mut self, seed: u64) -> Self {
        self.rotation = Some(seed);
        self
    }

    /// Adds divisors of the inputs of a hook point. At an output projection without a norm, all query heads that share
    /// a value head need the same scales. The scales are in the order of the heads.
    #[must_use]
    pub fn with_scales(mut self, layer: usize, site: HookPoint, scales: Vec<f32>) -> Self {
        self.scales.insert((layer, site), scales);
        self
    }

    /// Whether nothing is rewritten.
    pub fn is_empty(&self) -> bool {
        self.rotation.is_none() && self.scales.is_empty()
    }
}

/// A source of weights that applies a [`Fold`] to the weights of another source as they are loaded.
///
/// A folded source can be folded again.
pub struct Folded<'a> {
    inner: &'a dyn WeightSource,
    /// Configuration of `inner`, with an untied head if `unties`.
    config: ModelConfig,
    rotation: Option<Rotation>,
    scales: HashMap<(usize, HookPoint), Vec<f32>>,
    /// Whether `inner` has a tied head and this model an untied one: the gain of the final norm is only in the head.
    unties: bool,
}

/// Changes to a weight, in this order.
#[derive(Default)]
struct Change<'a> {
    /// Norm whose gain multiplies the columns.
    gain: Option<WeightName>,
    /// Rotate the inputs; for an embedding, the rows.
    rotate_rows: bool,
    /// Factors of the columns.
    columns: Option<&'a [f32]>,
    /// Rotate the outputs.
    rotate_columns: bool,
    /// A gain that was merged into the following weights and becomes 1.
    ones: bool,
    /// Divisors of the rows, or of the elements of a vector.
    rows: Option<Vec<f32>>,
}

impl Change<'_> {
    fn is_none(&self) -> bool {
        let Self { gain, rotate_rows, columns, rotate_columns, ones, rows } = self;
        gain.is_none() && !rotate_rows && columns.is_none() && !rotate_columns && !ones && rows.is_none()
    }
}

/// Width of the inputs at a hook point.
pub(crate) fn input_width(spec: &DecoderSpec, site: HookPoint) -> usize {
    match site {
        HookPoint::Attention | HookPoint::Mlp => spec.hidden,
        HookPoint::Output => spec.query_width(),
        HookPoint::Down => spec.intermediate,
    }
}

/// The layer whose outputs absorb the division of the inputs at a hook point, if that is not a norm.
pub(crate) fn divided_by(spec: &DecoderSpec, layer: usize, site: HookPoint) -> Option<WeightName> {
    match site {
        HookPoint::Output if !spec.sub_norms => Some(WeightName::Value(layer)),
        HookPoint::Down if !spec.sub_norms => Some(WeightName::Up(layer)),
        _ => None,
    }
}

/// For each row of the value projection, the index of the first input of the output projection that it produces.
fn value_rows(spec: &DecoderSpec) -> impl Iterator<Item = usize> {
    let (shared, d) = (spec.heads / spec.kv_heads, spec.head_dim);
    (0..spec.kv_heads).flat_map(move |kv| (0..d).map(move |i| kv * shared * d + i))
}

impl<'a> Folded<'a> {
    /// Checks that `fold` fits `inner`.
    ///
    /// # Errors
    ///
    /// [`CalibrateError::Fold`] for a ternary weight that would have to change, and for scales that do not fit the
    /// model.
    pub fn new(inner: &'a dyn WeightSource, fold: Fold) -> Result<Self, CalibrateError> {
        let mut config = inner.config().clone();
        let spec = &config.spec;
        let Fold { rotation, scales } = fold;
        for (&(layer, site), scales) in &scales {
            check_scales(spec, layer, site, scales)?;
        }
        let rotation = rotation
            .map(|seed| Rotation::new(spec.hidden, seed))
            .transpose()
            .map_err(|e| CalibrateError::quantize("the residual stream", e))?;
        let unties = rotation.is_some() && spec.tied_head;
        config.spec.tied_head &= !unties;
        let folded = Self { inner, config, rotation, scales, unties };
        for name in inner.weights() {
            if !folded.change(name).is_none() {
                check(inner, name)?;
            }
        }
        Ok(folded)
    }

    fn change(&self, name: WeightName) -> Change<'_> {
        use WeightName as W;
        let spec = &self.config.spec;
        let rotated = self.rotation.is_some();
        let scales = |layer: usize, site| self.scales.get(&(layer, site)).map(Vec::as_slice);
        let owned = |layer, site| scales(layer, site).map(<[f32]>::to_vec);
        let reads = |layer, site, norm| Change {
            gain: rotated.then_some(norm),
            rotate_rows: rotated,
            columns: scales(layer, site),
            ..Change::default()
        };
        let writes = |columns| Change { columns, rotate_columns: rotated, ..Change::default() };
        // Applies only without a norm.
        let values = |layer| {
            let scales = scales(layer, HookPoint::Output).filter(|_| !spec.sub_norms)?;
            Some(value_rows(spec).map(|i| scales[i]).collect())
        };
        let ups = |layer| owned(layer, HookPoint::Down).filter(|_| !spec.sub_norms);
        match name {
            W::Embedding => Change { rotate_rows: rotated, ..Change::default() },
            W::Query(l) | W::Key(l) => reads(l, HookPoint::Attention, W::AttentionNorm(l)),
            W::Value(l) => Change { rows: values(l), ..reads(l, HookPoint::Attention, W::AttentionNorm(l)) },
            W::Gate(l) => reads(l, HookPoint::Mlp, W::MlpNorm(l)),
            W::Up(l) => Change { rows: ups(l), ..reads(l, HookPoint::Mlp, W::MlpNorm(l)) },
            W::Output(l) => writes(scales(l, HookPoint::Output)),
            W::Down(l) => writes(scales(l, HookPoint::Down)),
            W::OutputBias(_) | W::DownBias(_) => writes(None),
            W::ValueBias(l) => Change { rows: values(l), ..Change::default() },
            W::UpBias(l) => Change { rows: ups(l), ..Change::default() },
            W::AttentionNorm(l) => {
                Change { ones: rotated, rows: owned(l, HookPoint::Attention), ..Change::default() }
            }
            W::MlpNorm(l) => Change { ones: rotated, rows: owned(l, HookPoint::Mlp), ..Change::default() },
            W::AttentionSubNorm(l) => Change { rows: owned(l, HookPoint::Output), ..Change::default() },
            W::MlpSubNorm(l) => Change { rows: owned(l, HookPoint::Down), ..Change::default() },
            W::FinalNorm => Change { ones: rotated, ..Change::default() },
            W::Head => {
                Change { gain: rotated.then_some(W::FinalNorm), rotate_rows: rotated, ..Change::default() }
            }
            W::QueryBias(_) | W::KeyBias(_) | W::GateBias(_) | W::QueryNorm(_) | W::KeyNorm(_) => {
                Change::default()
            }
        }
    }

    /// The weight of the inner source from which `name` is derived.
    fn origin(&self, name: WeightName) -> WeightName {
        if self.unties && name == WeightName::Head { WeightName::Embedding } else { name }
    }

    /// A weight of the inner source, rewritten in f32.
    fn rewrite(&self, name: WeightName, change: Change<'_>) -> Result<Tensor, CalibrateError> {
        let tensor = self.inner.load(self.origin(name))?;
        if matches!(tensor, Tensor::Ternary(_)) {
            return Err(not_foldable(self.inner, name).into());
        }
        let failed = |e| CalibrateError::quantize(name, e);
        let shape = tensor.shape();
        // A vector is the output for a single input.
        let cols = if shape.len() == 1 { 1 } else { tensor.cols() };
        let mut values = tensor.into_f32();
        if let Some(norm) = change.gain {
            scale_columns(&mut values, &self.inner.load(norm)?.into_f32()).map_err(failed)?;
        }
        if let (Some(rotation), true) = (&self.rotation, change.rotate_rows) {
            rotation.rows(&mut values).map_err(failed)?;
        }
        if let Some(scales) = change.columns {
            scale_columns(&mut values, scales).map_err(failed)?;
        }
        if let (Some(rotation), true) = (&self.rotation, change.rotate_columns) {
            rotation.columns(&mut values, cols).map_err(failed)?;
        }
        if change.ones {
            values.fill(1.0);
        }
        for (row, scale) in values.chunks_exact_mut(cols).zip(change.rows.iter().flatten()) {
            row.iter_mut().for_each(|v| *v /= scale);
        }
        Ok(DenseTensor::new(shape, DenseData::F32(values))?.into())
    }

    /// A rewritten weight in its storage type: matrices in the float type of the file, or f16 for any other type;
    /// vectors, and values outside the range of f16, stay in f32.
    fn narrow(&self, name: WeightName, tensor: Tensor) -> Result<Tensor, LlmError> {
        let Tensor::Dense(dense) = tensor else { return Ok(tensor) };
        if name.is_vector() {
            return Ok(dense.into());
        }
        let (shape, values) = (dense.shape().to_vec(), dense.to_f32());
        let data = match &self.info(name)?.kind {
            StoredType::F32 => return Ok(dense.into()),
            StoredType::Bf16 => DenseData::Bf16(values.iter().map(|v| bf16::from_f32(*v)).collect()),
            _ => {
                let halves: Vec<f16> = values.iter().map(|v| f16::from_f32(*v)).collect();
                if halves.iter().any(|v| !v.is_finite()) {
                    return Ok(dense.into());
                }
                DenseData::F16(halves)
            }
        };
        Ok(DenseTensor::new(shape, data)?.into())
    }
}

impl WeightSource for Folded<'_> {
    fn path(&self) -> &Path {
        self.inner.path()
    }

    fn config(&self) -> &ModelConfig {
        &self.config
    }

    fn info(&self, name: WeightName) -> Result<&TensorInfo, LlmError> {
        self.inner.info(self.origin(name))
    }

    fn load(&self, name: WeightName) -> Result<Tensor, LlmError> {
        let change = self.change(name);
        if change.is_none() {
            return self.inner.load(self.origin(name));
        }
        let failed = |e| NnError::Load { name: name.to_string(), source: Box::new(e) };
        Ok(self.rewrite(name, change).map_err(failed)?)
    }

    fn load_stored(&self, name: WeightName) -> Result<Tensor, LlmError> {
        match self.change(name).is_none() {
            true => self.inner.load_stored(self.origin(name)),
            false => self.narrow(name, self.load(name)?),
        }
    }

    fn stored_bytes(&self, name: WeightName) -> Result<u64, LlmError> {
        Ok(self.load_stored(name)?.bytes() as u64)
    }

    fn is_online_ternary(&self, name: WeightName) -> bool {
        self.inner.is_online_ternary(self.origin(name))
    }

    fn is_f32(&self) -> bool {
        self.inner.is_f32()
    }
}

fn check_scales(spec: &DecoderSpec, layer: usize, site: HookPoint, scales: &[f32]) -> Result<(), FoldError> {
    if layer >= spec.layers {
        return Err(FoldError::Layer { layer, layers: spec.layers });
    }
    let (reader, expected) = (site.matrices(layer)[0], input_width(spec, site));
    if scales.len() != expected {
        return Err(FoldError::Count { reader, expected, got: scales.len() });
    }
    if let Some(&got) = scales.iter().find(|s| !(s.is_normal() && **s > 0.0)) {
        return Err(FoldError::Value { reader, got });
    }
    let (d, group) = (spec.head_dim, spec.query_width() / spec.kv_heads);
    let differ = |group: &[f32]| group.chunks_exact(d).any(|head| head != &group[..d]);
    if site == HookPoint::Output && !spec.sub_norms && scales.chunks_exact(group).any(differ) {
        return Err(FoldError::Heads { reader });
    }
    Ok(())
}

/// Returns an error for a weight that is stored only as trits.
pub(crate) fn check(source: &dyn WeightSource, name: WeightName) -> Result<(), CalibrateError> {
    match source.info(name)?.kind.is_ternary() || source.is_online_ternary(name) {
        true => Err(not_foldable(source, name).into()),
        false => Ok(()),
    }
}

fn not_foldable(source: &dyn WeightSource, name: WeightName) -> FoldError {
    FoldError::Ternary { path: source.path().to_owned(), tensor: name }
}
