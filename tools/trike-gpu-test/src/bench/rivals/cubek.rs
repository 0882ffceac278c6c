//! cubek, the CubeCL project's kernels for dense products and attention.

use anyhow::{Context, Result, anyhow, bail, ensure};
use cubecl::client::Client;
use cubecl::device::{WgpuBackend, WgpuDevice, WgpuDeviceKind};
use cubecl::ir::{ElemType, FloatKind};
use cubecl::prelude::{CubeElement, TensorBinding};
use cubecl::server::Handle;
use cubek_attention::forward::definition::{AccumulatorPrecision, AttentionGlobalTypes, AttentionOptions};
use cubek_attention::forward::launch as flash;
use cubek_attention::forward::routines::blackbox_accelerated::BlackboxAcceleratedStrategy;
use cubek_matmul::definition::{MatmulElems, MatmulGlobalElems};
use cubek_matmul::{launch::launch_ref, multi_level, strategy::Strategy};
use cubek_std::InputBinding;
use half::f16;
use std::time::Duration;
use trike_bench::{Attention, Contender, Heads, Launching, Product, Shape};
use trike_cube::{Cost, CubeDevice, DeviceSpec, Runtime};

use super::oracle::{self, Numbers, check_attention, halves};
use super::{CUBEK, Library, absent, caught};
use crate::bench::catalogue::{Case, HALVES};
use crate::bench::entrant::{Absent, Entrant, Operands, Timed};
use crate::bench::run::one_line;

const F16: ElemType = ElemType::Float(FloatKind::F16);

/// cubek on a device.
pub(super) struct Cubek {
    client: Client,
}

/// Routines tried for a product; the fastest one is timed, as autotuning would choose it.
fn strategies(tokens: usize) -> Vec<Strategy> {
    use multi_level::Strategy as S;
    let of_all = [S::SimpleCyclicMma(Default::default()), S::SimpleUnit(Default::default())];
    let of_one = [
        S::SimpleVecMat(Default::default()),
        S::DoubleVecMat(Default::default()),
        S::GemvUnitPerpendicular(Default::default()),
    ];
    let of_many = [
        S::DoubleCyclicMma(Default::default()),
        S::OrderedDoubleMma(Default::default()),
        S::SpecializedCyclicMma(Default::default()),
    ];
    let mut all = vec![Strategy::Auto];
    all.extend(of_all.map(Strategy::MultiLevel));
    if tokens == 1 {
        all.extend(of_one.map(Strategy::MultiLevel));
    } else {
        all.extend(of_many.map(Strategy::MultiLevel));
    }
    all
}

/// Routines tried for attention.
fn flashes() -> Vec<(&'static str, flash::Strategy)> {
    let accelerated = |num_planes, seq_q| {
        let strategy = BlackboxAcceleratedStrategy { num_planes, seq_q, seq_kv: 1 };
        flash::Strategy::BlackboxAccelerated(flash::BlueprintStrategy::Inferred(strategy))
    };
    let unit = flash::Strategy::Unit(flash::BlueprintStrategy::Inferred(()));
    vec![
        ("accelerated, 4 planes", accelerated(4, 1)),
        ("accelerated, 8 planes", accelerated(8, 1)),
        ("accelerated, 4 planes of two tiles", accelerated(4, 2)),
        ("unit", unit),
    ]
}

impl Cubek {
    pub(super) fn open(device: &CubeDevice) -> Result<Self> {
        ensure!(device.capabilities().f16, "{} has no f16", device.name());
        Ok(Self { client: client_of(device)? })
    }

    /// The fastest of several routines, as a contender. `prepare` launches a routine once, checks the result, and returns a
    /// function that launches it again.
    fn best<'a, S>(
        &'a self,
        (problem, cost): (String, Cost),
        ways: &[S],
        prepare: impl Fn(&S) -> Result<(Launch<'a>, String)>,
    ) -> Result<Entrant<'a>, Absent> {
        const FEW: usize = 4;
        let mut best: Option<(Duration, Launch<'a>, String)> = None;
        let mut refusals = Vec::new();
        for way in ways {
            let tried = caught(|| {
                let (launch, name) = prepare(way)?;
                let time = self.timed(&launch, FEW, 0)?;
                Ok((time, launch, name))
            });
            match tried {
                Ok(found) if best.as_ref().is_none_or(|best| found.0 < best.0) => best = Some(found),
                Ok(_) => {}
                Err(e) => refusals.push(one_line(&e)),
            }
        }
        let Some((_, launch, blueprint)) = best else {
            return Err(absent(Some(problem), CUBEK, anyhow!("{}", refusals.join("; "))));
        };
        let mut next = 0;
        let contender = Contender::by(move |calls| {
            let first = next;
            next += calls as usize;
            caught(|| self.timed(&launch, calls as usize, first))
        });
        // cubek plans and allocates in each launch, so its launches cannot be recorded.
        let timed = Timed { contender, launching: Launching::default() };
        let kernel = CUBEK.to_owned();
        Ok(Entrant { problem, kernel, blueprint, rival: true, cost, limits: HALVES, timed })
    }

    /// Total time of `launches` launches by the device's clock.
    fn timed(&self, launch: &Launch<'_>, launches: usize, first: usize) -> Result<Duration> {
        let window = self.client.profile_start().map_err(|e| anyhow!("{e:?}"))?;
        if let Err(e) = (first..first + launches).try_for_each(launch) {
            self.client.profile_abandon(window);
            return Err(e);
        }
        let ticks = self.client.profile_end(window).map_err(|e| anyhow!("{e:?}"))?;
        let ticks = cubecl::future::block_on(ticks.resolve()).context("the device returned no time")?;
        Ok(ticks.duration())
    }

    fn product<'a>(
        &'a self,
        product: &Product,
        operands: &oracle::Operands,
        strategy: &Strategy,
        weights: &'a [Handle],
        x: &'a Handle,
    ) -> Result<(Launch<'a>, String)> {
        let &Product { shape: Shape { rows, cols, .. }, tokens, .. } = product;
        let y = self.upload(&vec![f16::NAN; tokens * rows]);
        let (name, strategy, out) = (strategy.to_string(), strategy.clone(), y.clone());
        let launch = move |i: usize| {
            let w = &weights[i % weights.len()];
            let lhs = InputBinding::new(binding(x, &[tokens, cols], &[cols, 1]), F16);
            let rhs = InputBinding::new(binding(w, &[cols, rows], &[1, cols]), F16);
            let out = binding(&out, &[tokens, rows], &[rows, 1]);
            let mut types = MatmulElems::from_globals(&MatmulGlobalElems { lhs: F16, rhs: F16, out: F16 });
            launch_ref(&strategy, &self.client, lhs, rhs, out, &mut types).map_err(|e| anyhow!("{e:?}"))
        };
        launch(0).with_context(|| name.clone())?;
        let written: Vec<f64> = self.read(&y)?.into_iter().map(f16::to_f64).collect();
        operands.check(product, &written).with_context(|| name.clone())?;
        Ok((Box::new(launch), name))
    }

    fn attend<'a>(
        &'a self,
        case: &Attention,
        strategy: &flash::Strategy,
        handles: &[Handle; 3],
        given: &[Vec<f16>; 3],
    ) -> Result<Launch<'a>> {
        let &Attention { heads: Heads { heads, head_dim, .. }, tokens, batch, .. } = case;
        let shape = [batch, heads, tokens, head_dim];
        let strides = [heads * tokens * head_dim, tokens * head_dim, head_dim, 1];
        let out = self.upload(&vec![f16::NAN; shape.iter().product()]);
        let (strategy, written, handles) = (strategy.clone(), out.clone(), handles.clone());
        let types = AttentionGlobalTypes::from_single_float_dtype(
            F16,
            AttentionGlobalTypes::mask_dtype(&self.client),
        );
        let launch = move |_: usize| {
            let [q, k, v] = handles.each_ref().map(|handle| binding(handle, &shape, &strides));
            let precision = AccumulatorPrecision::Strict(ElemType::Float(FloatKind::F32));
            let options = AttentionOptions { causal: true, accumulator_precision: precision };
            let out = binding(&written, &shape, &strides);
            flash::launch_ref(strategy.clone(), &self.client, q, k, v, None, out, &types, options)
                .map_err(|e| anyhow!("{e:?}"))
        };
        launch(0)?;
        check_attention(case, given.each_ref().map(Vec::as_slice), &self.read(&out)?)?;
        Ok(Box::new(launch))
    }

    fn upload(&self, values: &[f16]) -> Handle {
        self.client.create_from_slice(f16::as_bytes(values))
    }

    /// Reads a buffer. Asynchronous launch errors are returned here.
    fn read(&self, handle: &Handle) -> Result<Vec<f16>> {
        let bytes = self.client.read_one(handle.clone()).map_err(|e| anyhow!("{e}"))?;
        Ok(f16::from_bytes(&bytes).to_vec())
    }
}

/// Launches with the copy of the weights at this index (modulo their number).
type Launch<'a> = Box<dyn Fn(usize) -> Result<()> + 'a>;

impl Library for Cubek {
    fn name(&self) -> &'static str {
        CUBEK
    }

    fn operands<'a>(
        &'a self,
        case: &'a Case,
        tokens: &[usize],
        rotate: usize,
    ) -> Result<Box<dyn Operands + 'a>> {
        caught(|| {
            let operands = oracle::Operands::new(case.shape, tokens, rotate, Numbers::F16);
            let weights = (0..operands.copies).map(|_| self.upload(&operands.w)).collect();
            let x = self.upload(&operands.x);
            Ok(Box::new(Held { cubek: self, case, operands, weights, x }) as _)
        })
    }

    /// Causal attention in prefill. cubek does not support grouped-query attention: each query head gets its own keys.
    fn attention<'a>(&'a self, case: &Attention) -> Option<Result<Entrant<'a>, Absent>> {
        if case.tokens == 1 {
            return None;
        }
        let len = case.batch * case.heads.heads * case.tokens * case.heads.head_dim;
        let given = [1, 2, 3].map(|seed| halves(seed, len));
        let handles = given.each_ref().map(|values| self.upload(values));
        Some(self.best((case.to_string(), case.cost()), &flashes(), |(name, strategy)| {
            Ok((self.attend(case, strategy, &handles, &given)?, (*name).to_owned()))
        }))
    }
}

/// Operands of a product on the device.
struct Held<'a> {
    cubek: &'a Cubek,
    case: &'a Case,
    operands: oracle::Operands,
    weights: Vec<Handle>,
    x: Handle,
}

impl Operands for Held<'_> {
    fn entrants<'a>(&'a self, tokens: usize) -> Vec<Result<Entrant<'a>, Absent>> {
        let product = self.case.product(tokens);
        let named = (product.to_string(), product.cost_in_halves());
        vec![self.cubek.best(named, &strategies(tokens), |strategy| {
            self.cubek.product(&product, &self.operands, strategy, &self.weights, &self.x)
        })]
    }
}

fn binding(handle: &Handle, shape: &[usize], strides: &[usize]) -> TensorBinding {
    TensorBinding {
        handle: handle.clone().binding(),
        strides: strides.into(),
        shape: shape.to_vec().into(),
        tiling: Default::default(),
    }
}

/// CubeCL's client of an open device; Trike's own client is private. The device is found again by its index, so the names are
/// compared.
fn client_of(device: &CubeDevice) -> Result<Client> {
    let DeviceSpec::Numbered(runtime, index) = device.spec() else { bail!("expected a numbered device") };
    let found = match runtime {
        Runtime::Cuda => cubecl::Device::cuda(index).ok(),
        Runtime::Hip => cubecl::Device::rocm(index).ok(),
        Runtime::Metal => graphics(WgpuBackend::Metal).nth(index),
        Runtime::Vulkan => graphics(WgpuBackend::Vulkan).nth(index),
        Runtime::Wgpu => graphics(WgpuBackend::Auto).nth(index),
    };
    let client = found.with_context(|| format!("{} is not available", device.spec()))?.client();
    let name = &client.properties().identity.name;
    ensure!(name == device.name(), "{}: expected device {}, got {name}", device.spec(), device.name());
    Ok(client)
}

/// Devices in the order of `trike_cube::devices`: discrete GPUs first, software devices last.
fn graphics(backend: WgpuBackend) -> impl Iterator<Item = cubecl::Device> {
    use WgpuDeviceKind::{Cpu, DiscreteGpu, IntegratedGpu, Other, VirtualGpu};
    let kinds = [DiscreteGpu(0), IntegratedGpu(0), VirtualGpu(0), Other(0), Cpu];
    kinds.into_iter().flat_map(move |kind| {
        let first = cubecl::Device::Wgpu(WgpuDevice::new(kind).on(backend));
        cubecl::Device::enumerate(first.to_id()).into_iter().map(cubecl::Device::from_id)
    })
}
