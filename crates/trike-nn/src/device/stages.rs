//! Layers on several devices.
//!
//! A backend over several devices is the backend of the first, plus one for the layers of each later device. Weights, KV caches and
//! activations of a layer are on its device; the residual stream is copied between stages.

use trike_cube::{CubeDevice, attention::CacheShape};

use super::{CubeBackend, CubeTensor};
use crate::{CacheSpec, DeviceUse, KvPrecision, NnError};

/// The backend of the layers on a later device.
#[derive(Debug)]
pub(super) struct Stage {
    /// The first of these layers.
    first: usize,
    backend: CubeBackend,
}

impl CubeBackend {
    /// Combines several backends, each with its number of consecutive layers; the last one runs all remaining layers. Steps of such
    /// a backend are launched and not recorded, because a recording holds launches of one device.
    ///
    /// ```no_run
    /// use trike_cube::{CubeDevice, DeviceSpec, Runtime};
    /// use trike_nn::{ActivationPrecision, CubeBackend};
    ///
    /// let on = |index, layers| {
    ///     let device = CubeDevice::open(DeviceSpec::Numbered(Runtime::Cuda, index))?;
    ///     Ok::<_, trike_nn::NnError>((CubeBackend::new(device, ActivationPrecision::F32), layers))
    /// };
    /// let backend = CubeBackend::pipeline([on(0, 20)?, on(1, 12)?])?;
    /// assert_eq!(backend.devices().count(), 2);
    /// # Ok::<(), trike_nn::NnError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`NnError::Spec`] for no backend, one without layers, or one that is itself a pipeline.
    pub fn pipeline(stages: impl IntoIterator<Item = (Self, usize)>) -> Result<Self, NnError> {
        let mut stages = stages.into_iter();
        let fail = |rule, got: usize| NnError::Spec { field: "stages", rule, got: got.to_string() };
        let checked = |(backend, layers): (Self, usize)| match (backend.later.len(), layers) {
            (0, 0) => Err(fail("must have one or more layers", 0)),
            (0, _) => Ok((backend, layers)),
            (later, _) => Err(fail("must be on one device each", later + 1)),
        };
        let (mut whole, mut first) = checked(stages.next().ok_or_else(|| fail("must be one or more", 0))?)?;
        for stage in stages {
            let (backend, layers) = checked(stage)?;
            let backend = Self { index: whole.later.len() + 1, ..backend };
            whole.later.push(Stage { first, backend });
            first = first.saturating_add(layers);
        }
        let graphs = whole.graphs();
        Ok(whole.with_graphs(graphs))
    }

    /// The devices, in the order of their layers.
    pub fn devices(&self) -> impl Iterator<Item = &CubeDevice> {
        self.each().map(|stage| &stage.device)
    }

    /// The backends of all devices, this one first.
    pub(super) fn each(&self) -> impl Iterator<Item = &Self> {
        std::iter::once(self).chain(self.later.iter().map(|stage| &stage.backend))
    }

    pub(super) fn stage_at(&self, index: usize) -> &Self {
        let later = index.checked_sub(1).and_then(|index| self.later.get(index));
        later.map_or(self, |stage| &stage.backend)
    }

    pub(super) fn stage_of_layer(&self, layer: usize) -> usize {
        self.later.iter().take_while(|stage| stage.first <= layer).count()
    }

    /// The KV cache of a layer on this device. A device without f16 stores f32 instead, because other stages may support f16.
    pub(super) fn cache_shape(&self, spec: &CacheSpec) -> CacheShape {
        // `new_cache` adds the index; a sequence with the other options was refused.
        let CacheSpec { kv_heads, head_dim, capacity, precision, keys: _, prompt_keys: _, eviction: _ } =
            *spec;
        let is_stage = self.index > 0 || !self.later.is_empty();
        let precision = match precision {
            KvPrecision::F16 if is_stage && !self.device.capabilities().f16 => KvPrecision::F32,
            precision => precision,
        };
        CacheShape { kv_heads, head_dim, capacity, precision }
    }

    /// A tensor of another device.
    pub(super) fn receive_tensor(&self, from: &Self, x: &CubeTensor) -> Result<CubeTensor, NnError> {
        let buffer = from.device.copy_to(&x.buffer, &self.device)?;
        self.traffic.received(buffer.bytes());
        Ok(CubeTensor { buffer, width: x.width })
    }

    /// Memory and traffic of all devices.
    pub(super) fn used_by_all(&self) -> DeviceUse {
        self.each().map(Self::used).reduce(DeviceUse::plus).unwrap_or_default()
    }
}
