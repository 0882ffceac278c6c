//! Tuning on a device against the host, on the software Vulkan driver.

use tempfile::TempDir;
use trike_autodiff::CubeEngine;
use trike_core::Tensor;
use trike_cpu::Cpu;
use trike_llm::ModelFile;
use trike_nn::cube::{CubeDevice, DeviceOptions, DeviceSpec, Planes, Runtime};
use trike_testkit::{assert_close, assert_near, skip};

use super::{DecoderSpec, RandomBlock, specs};
use crate::{
    Tuning, TuningReport,
    device::TuningDevice,
    memory,
    store::Store,
    tests::{HOST, LAYERS, model, named, options, short, text, walk_on},
};

/// The software Vulkan driver; `None` after a line that the test runner counts.
fn software() -> Option<CubeDevice> {
    let options = DeviceOptions::default().with_planes(Planes::Off);
    let open = |index| CubeDevice::open_with(DeviceSpec::Numbered(Runtime::Wgpu, index), options).ok();
    let found = (0..).map_while(open).find(CubeDevice::is_software);
    if found.is_none() {
        skip("no Vulkan driver");
    }
    found
}

/// The order of sums and the reciprocal square root of norms differ; the bound is that of gradients of whole decoders in `trike-train`.
#[test]
fn gradients_of_a_block_are_those_of_the_host() {
    let Some(engine) = software().map(CubeEngine::new) else { return };
    for spec in specs() {
        let block = RandomBlock::new(DecoderSpec { hidden: 12, ..spec });
        let (host, device) = (block.pass(&Cpu::new(1).unwrap()), block.pass(&engine));
        assert_close(&device.y, &host.y, 1e-4);
        assert_close(&device.input, &host.input, 1e-4);
        for (device, host) in device.gradients.iter().zip(&host.gradients) {
            assert_eq!(device.is_some(), host.is_some());
            if let (Some(device), Some(host)) = (device, host) {
                assert_close(device, host, 1e-4);
            }
        }
        for (device, host) in device.outputs.iter().zip(&host.outputs) {
            assert_close(device, host, 1e-4);
        }
    }
}

/// A tuned model: the reports of its blocks and of the whole, and the values of its ternary matrices.
struct Made {
    blocks: Vec<TuningReport>,
    whole: TuningReport,
    values: Vec<Vec<f32>>,
}

fn made(dir: &TempDir, name: &str, input: &ModelFile, tuning: Tuning, on: &TuningDevice) -> Made {
    let store = Store::open(&dir.path().join(name), &named(name)).unwrap();
    let walked = walk_on(input, &options(1, Some(tuning)), &store, &short_text(), on).unwrap();
    // Tuned blocks come first.
    let parts = store.blocks(LAYERS).unwrap();
    let mut values = Vec::new();
    for layer in 0..LAYERS {
        let of_layer = parts.iter().map(|part| part.all(layer).unwrap()).find(|part| !part.is_empty());
        let ternary =
            of_layer.unwrap().into_iter().filter(|(_, tensor)| matches!(tensor, Tensor::Ternary(_)));
        values.extend(ternary.map(|(_, tensor)| tensor.into_f32()));
    }
    let blocks = walked.blocks.into_iter().map(|(_, report)| report).collect();
    Made { blocks, whole: walked.model.unwrap(), values }
}

/// Sequences that are tuned on and judged, because there are fewer than 16: the driver takes a tenth of a second for a step.
fn short_text() -> Vec<Vec<u32>> {
    text(1)[..4].to_vec()
}

/// The fraction of weights with the same trit.
fn equal_trits(a: &Made, b: &Made) -> f64 {
    let both = || a.values.iter().zip(&b.values).flat_map(|(a, b)| a.iter().zip(b));
    let sign = |value: &f32| i32::from(*value > 0.0) - i32::from(*value < 0.0);
    both().filter(|(a, b)| sign(a) == sign(b)).count() as f64 / both().count() as f64
}

/// Compares losses and trits after tuning on the host and on a device, and its memory with the estimate.
fn check(tuning: Tuning) {
    let Some(device) = software() else { return };
    let dir = TempDir::new().unwrap();
    let input = model(&dir.path().join("dense"), |_, _| ());
    let on = TuningDevice::Device(CubeEngine::new(device.clone()));
    let host = made(&dir, "host", &input, tuning, &HOST);
    let got = made(&dir, "device", &input, tuning, &on);
    assert!(host.whole.kept && got.whole.kept, "{:?} {:?}", host.whole, got.whole);
    for (got, host) in got.blocks.iter().chain([&got.whole]).zip(host.blocks.iter().chain([&host.whole])) {
        // The same weights on both, except for the blocks that were tuned before; loss of f32 sums: 4e-9.
        assert_near!(got.before, host.before, rel = 1e-4);
        // Gradients of the host have operands in bf16, so that Adam takes other steps where they cancel. Losses differ by 2e-5, and
        // by less than a tenth of what tuning gains.
        assert_near!(got.after, host.after, rel = 1e-3);
    }
    let equal = equal_trits(&host, &got);
    assert!(equal > 0.99, "{equal}");
    let text = short_text();
    let (tokens, longest) = (text.iter().map(Vec::len).sum(), text.iter().map(Vec::len).max().unwrap());
    let needed = memory::of_device(&input, &tuning, tokens, longest).unwrap();
    let peak = device.memory().peak;
    assert!(peak <= needed && needed < 3 * peak, "estimated {needed}, used {peak}");
}

/// In this random model no other code gives a smaller loss, on either: scales and norms are what changes.
#[test]
fn blocks_and_the_model_are_tuned_as_on_the_host() {
    check(Tuning { block_epochs: Some(1), model_epochs: Some(2), ..short() });
}

#[test]
fn scales_are_tuned_as_on_the_host() {
    check(Tuning { max_weights: 0, block_epochs: Some(0), model_epochs: Some(2), ..short() });
}
