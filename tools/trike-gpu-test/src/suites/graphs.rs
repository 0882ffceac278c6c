//! Recorded graphs: replayed with other inputs they must produce the same results as direct launches.

use trike_cube::attention::{
    AttentionBlueprint, AttentionSpec, BlockBitmap, BlockMask, CacheSegment, CacheShape, CubeKvCache,
    KvPrecision, Positions, horizon,
};
use trike_cube::linear::{ActivationPrecision, ActivationShape, Activations, CubeTernaryMatrix};
use trike_cube::ops::{CubeRopeTable, Indices, RopePairing, RowInput, RowNorm};
use trike_cube::{Buffer, CubeDevice, CubeError, Strategy};
use trike_testkit::Rng;
use trike_trit::{Coupling, Encoding, Granularity, ScaleValues, Scales, TritTensor};

use crate::session::{Oracle, Session, Verdict, poisoned};

use KvPrecision::{F32, Int8};

/// A small attention: two key heads of 64, shared by four query heads.
const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const DIM: usize = 64;
const CAPACITY: usize = 300;
const HIDDEN: usize = HEADS * DIM;
/// Positions of the rotary embedding table.
const POSITIONS: usize = 1024;

/// A decode step as in a model, at positions around the recorded one; error cases.
pub fn graphs(session: &mut Session) {
    let device = session.device();
    for (window, recorded, others, precision) in [
        // All in one split; two splits, the second of which is filled; four splits, three of which are filled.
        (None, 5, &[6, 63, 0][..], F32),
        (None, 64, &[65, 127, 100, 66], F32),
        (None, 200, &[128, 129, 255, 199], F32),
        (Some(70), 100, &[128, 299, 1000, 71], F32),
        (None, 200, &[128, 129, 255, 199], Int8),
        (Some(70), 100, &[128, 299, 1000, 71], Int8),
    ] {
        let name = format!("graphs/a step recorded at {recorded}, window {window:?}, {precision:?}");
        session.case(name, |oracle| step(oracle, device, (window, precision), recorded, others));
    }
    session.case("graphs refuse what is no launch", |oracle| {
        if !oracle.compares() {
            return Ok(());
        }
        let out = device.upload(&[0u32; 100])?;
        device.capture(|| device.fill(&out, 1))?;
        let read = device.capture(|| device.fill(&out, 1).and_then(|()| device.read(&out)));
        oracle.refused("a copy", read, |e| matches!(e, CubeError::Capture { .. }))?;
        let model = Model::new(device, None, F32)?;
        let (q, attended) = (poisoned(device, HIDDEN)?, poisoned(device, HIDDEN)?);
        let segment = CacheSegment { rows: 0..1, positions: &model.position, cache: &model.cache };
        let spec =
            AttentionSpec { heads: HEADS, kv_heads: KV_HEADS, head_dim: DIM, scale: 0.2, window: None };
        let prompt = Strategy::Forced(AttentionBlueprint::Prefill);
        let attends = device.capture(|| device.attention(&spec, &q, &segment, &attended, &prompt));
        oracle.refused("attention of prompts", attends, |e| matches!(e, CubeError::Capture { .. }))?;
        let mask = BlockMask::upload(device, BlockBitmap::diagonal(1, 0..4096)?)?;
        let inferred = &Strategy::Inferred;
        let attends =
            device.capture(|| device.attention_masked(&spec, &q, &segment, &mask, &attended, inferred));
        oracle.refused("masked attention", attends, |e| matches!(e, CubeError::Capture { .. }))?;
        let mut value = 0;
        let differs = device.capture(|| {
            value += 1;
            device.fill(&out.view(0, value)?, 1)
        });
        // The same grid, with a different length: the recorded launch is the second one.
        let (graph, ()) = differs?;
        device.write(&out, &[5; 100])?;
        graph.replay()?;
        oracle.exact("filled", &device.read(&out)?[..4], &[1, 1, 5, 5])
    });
}

/// Inputs of a decode step.
struct Model {
    table: Buffer<f32>,
    norm: Buffer<f32>,
    weights: CubeTernaryMatrix,
    turns: CubeRopeTable,
    cache: CubeKvCache,
    id: Indices,
    position: Positions,
    window: Option<usize>,
}

impl Model {
    fn new(device: &CubeDevice, window: Option<usize>, precision: KvPrecision) -> Result<Self, CubeError> {
        let mut rng = Rng::new(11);
        // Query, key and value in one matrix.
        let (rows, cols) = (HIDDEN + 2 * KV_HEADS * DIM, HIDDEN);
        let trits = rng.trits(rows * cols, 0.5);
        let scales = Scales::new(Granularity::Tensor, ScaleValues::exact(&[0.125]), None);
        let tensor =
            TritTensor::from_planes(rows, cols, &[&trits[..]], Encoding::TwoBit, Coupling::Free, scales)?;
        let shape = CacheShape { kv_heads: KV_HEADS, head_dim: DIM, capacity: CAPACITY, precision };
        let cache = CubeKvCache::empty(device, shape)?;
        // Cache contents of the earlier positions.
        let keys = rng.normals(KV_HEADS * DIM * CAPACITY);
        let (k, v) = (device.upload(&keys)?, device.upload(&rng.normals(keys.len()))?);
        let all = Positions::upload(device, &(0..CAPACITY as u32).collect::<Vec<_>>())?;
        device.store(&k, &v, &CacheSegment { rows: 0..CAPACITY, positions: &all, cache: &cache })?;
        let frequencies: Vec<f32> = (0..DIM / 2).map(|i| 0.5f32.powi(i as i32)).collect();
        Ok(Self {
            table: device.upload(&rng.normals(9 * HIDDEN))?,
            norm: device.upload(&rng.normals(HIDDEN))?,
            weights: CubeTernaryMatrix::pack(device, &[&tensor])?,
            turns: CubeRopeTable::upload(device, &frequencies, POSITIONS, RopePairing::Halves)?,
            cache,
            id: Indices::upload(device, &[0], 9)?,
            position: Positions::upload(device, &[0])?,
            window,
        })
    }

    fn write(&mut self, device: &CubeDevice, id: u32, position: u32) -> Result<(), CubeError> {
        self.id.write(device, &[id])?;
        self.position.write(device, &[position])
    }

    /// A decode step: lookup, norm and quantization, product, rotation, store, attention, residual sum, and the
    /// largest values of the result.
    fn launch(&self, device: &CubeDevice) -> Result<(Buffer<f32>, Indices), CubeError> {
        let x = device.empty(HIDDEN)?;
        device.select_rows(&self.table, HIDDEN, &self.id, &x)?;
        let precision = ActivationPrecision::Int8PerToken;
        let codes = Activations::empty(device, ActivationShape { tokens: 1, cols: HIDDEN, precision })?;
        let norm = RowNorm { weight: &self.norm, eps: 1e-5 };
        device.quantize(RowInput::Plain(&x), Some(norm), &codes, &Strategy::Inferred)?;
        let all = device.empty::<f32>(HIDDEN + 2 * KV_HEADS * DIM)?;
        device.linear(&codes, &self.weights, &[&all], &Strategy::Inferred)?;
        let part = |from, len| all.view(from, len);
        let (q, k) = (part(0, HIDDEN)?, part(HIDDEN, KV_HEADS * DIM)?);
        let v = part(HIDDEN + KV_HEADS * DIM, KV_HEADS * DIM)?;
        device.rope(&q, DIM, &self.position, &self.turns, &Strategy::Inferred)?;
        device.rope(&k, DIM, &self.position, &self.turns, &Strategy::Inferred)?;
        let segment = CacheSegment { rows: 0..1, positions: &self.position, cache: &self.cache };
        device.store(&k, &v, &segment)?;
        let spec = AttentionSpec {
            heads: HEADS,
            kv_heads: KV_HEADS,
            head_dim: DIM,
            scale: 0.2,
            window: self.window,
        };
        let attended = device.empty(HIDDEN)?;
        device.attention(&spec, &q, &segment, &attended, &Strategy::Inferred)?;
        device.add(&x, &attended, &Strategy::Inferred)?;
        let values = device.empty(5)?;
        let ids = device.top(&x, HIDDEN, 5, &values, &Strategy::Inferred)?;
        Ok((x, ids))
    }
}

fn step(
    oracle: &Oracle,
    device: &CubeDevice,
    (window, precision): (Option<usize>, KvPrecision),
    recorded: u32,
    others: &[u32],
) -> Verdict {
    let mut model = Model::new(device, window, precision)?;
    model.write(device, 3, recorded)?;
    if !oracle.compares() {
        model.launch(device)?;
        return Ok(());
    }
    let (graph, (x, ids)) = device.capture(|| model.launch(device))?;
    // A replay would read past the end of the table.
    let beyond = model.position.write(device, &[POSITIONS as u32]);
    oracle.refused("position", beyond, |e| matches!(e, CubeError::Range { got: POSITIONS, .. }))?;
    for (i, &position) in others.iter().chain([&recorded]).enumerate() {
        let of = |p: u32| horizon(p as usize, window, CAPACITY);
        oracle.exact("horizon", &[of(position)], &[of(recorded)])?;
        let id = i as u32 % 9;
        model.write(device, id, position)?;
        let (want_x, want_ids) = model.launch(device)?;
        let (want_ids, want_x) = want_ids.read_with(device, &want_x)?;
        device.write(&x, &[f32::NAN; HIDDEN])?;
        ids.write(device, &[0; 5])?;
        graph.replay()?;
        let (got_ids, got_x) = ids.read_with(device, &x)?;
        oracle.exact("attended", &got_x, &want_x)?;
        oracle.exact("largest", &got_ids, &want_ids)?;
        let mut order: Vec<u32> = (0..HIDDEN as u32).collect();
        order.sort_by(|&a, &b| got_x[b as usize].total_cmp(&got_x[a as usize]).then(a.cmp(&b)));
        oracle.exact("largest of what came", &got_ids, &order[..5])?;
    }
    Ok(())
}
