//! A linear layer on a device compared with the same layer on the host.
#![cfg(feature = "gpu")]

use candle_core::{Device, Module, Tensor};
use trike_candle::{ActivationPrecision, TernaryLinear};
use trike_nn::cube::{self, DeviceOptions, DeviceSpec, Planes, Runtime};
use trike_testkit::{Rng, assert_close, skip};
use trike_trit::{Coupling, Encoding, Granularity, GroupSize, Scales, TritTensor};

/// The software Vulkan driver; if there is none, `None` after printing a line that the test runner counts.
fn software() -> Option<cube::CubeDevice> {
    let open = |index| {
        let spec = DeviceSpec::Numbered(Runtime::Wgpu, index);
        cube::CubeDevice::open_with(spec, DeviceOptions::default().with_planes(Planes::Forced)).ok()
    };
    let found = (0..).map_while(open).find(|device| device.is_software() && device.capabilities().f16);
    if found.is_none() {
        skip("no Vulkan driver");
    }
    found
}

/// Two planes of 70 x 130 trits with scales and means per group.
fn weight(rng: &mut Rng) -> TritTensor {
    let (rows, cols, depth) = (70, 130, 2);
    let granularity = Granularity::Group(GroupSize::G32);
    let groups = granularity.count(rows, cols).expect("a count");
    let planes: Vec<Vec<i8>> = (0..depth).map(|_| rng.trits(rows * cols, 0.6)).collect();
    let planes: Vec<&[i8]> = planes.iter().map(Vec::as_slice).collect();
    let mut near =
        |n: usize, size: f32| -> Vec<f32> { rng.normals(n).iter().map(|v| size * (1.0 + 0.2 * v)).collect() };
    let (values, means) = (near(groups * depth, 0.06), near(groups, 0.006));
    let scales = Scales::new(granularity, values, Some(means.into()));
    TritTensor::from_planes(rows, cols, &planes, Encoding::TwoBit, Coupling::Free, scales).expect("a tensor")
}

#[test]
fn a_linear_layer_of_candle_takes_a_device_and_counts_its_copies() {
    let Some(device) = software() else { return };
    let mut rng = Rng::new(7);
    let weight = weight(&mut rng);
    let bias = Tensor::new(&rng.normals(70)[..], &Device::Cpu).expect("a bias");
    let x = Tensor::from_vec(rng.normals(2 * 3 * 130), (2, 3, 130), &Device::Cpu).expect("x");
    let flat = |y: &Tensor| y.flatten_all().and_then(|y| y.to_vec1::<f32>()).expect("values");
    let on_host = TernaryLinear::new(&weight, Some(bias.clone())).expect("a layer");
    let layer = TernaryLinear::new_on(&device, &weight, Some(bias)).expect("a layer");
    assert_eq!(on_host.device_use(), None);
    let matched = ActivationPrecision::Int8PerGroup(GroupSize::G32);
    assert_eq!([on_host.activations(), layer.activations()], [matched; 2]);
    let calls = [ActivationPrecision::F32, ActivationPrecision::Int8PerToken, matched];
    for (precision, tolerance) in calls.into_iter().zip([1e-5, 1e-3, 1e-3]) {
        let (here, there) =
            (on_host.clone().with_activations(precision), layer.clone().with_activations(precision));
        for call in 1..=2 {
            let (want, got) = (here.forward(&x).expect("here"), there.forward(&x).expect("there"));
            assert_eq!(got.dims(), [2, 3, 70]);
            assert_close(&flat(&got), &flat(&want), tolerance);
            let used = there.device_use().expect("a device");
            assert_eq!((used.uploads, used.read_backs), (call, call));
            assert_eq!((used.uploaded_bytes, used.read_bytes), (call * 4 * 6 * 130, call * 4 * 6 * 70));
        }
    }
    let narrow = Tensor::zeros((2, 129), candle_core::DType::F32, &Device::Cpu).expect("zeros");
    let refused = layer.forward(&narrow).expect_err("a narrow input").to_string();
    assert!(refused.contains("130") && refused.contains("129"), "{refused}");
}
