//! Limits of launches.

use trike_cube::internals::spread;
use trike_cube::{Capabilities, CubeError, Settings};

#[test]
fn every_limit_is_checked_at_its_edge() {
    let device = Capabilities::smallest();
    let at = Settings {
        cubes: device.max_cubes,
        units: [device.max_units, 1],
        shared_bytes: device.max_shared_bytes,
        bindings: device.max_bindings as usize,
    };
    at.check("edge", &device).expect("at the limit");
    let mut over = vec![
        Settings { shared_bytes: at.shared_bytes + 1, ..at },
        Settings { bindings: at.bindings + 1, ..at },
        Settings { units: [device.max_units, 2], ..at },
        Settings { units: [device.max_unit_sides[0] + 1, 1], ..at },
    ];
    for axis in 0..3 {
        let mut cubes = at.cubes;
        cubes[axis] += 1;
        over.push(Settings { cubes, ..at });
    }
    for settings in over {
        let refused = settings.check("edge", &device).expect_err("over the limit");
        assert!(
            matches!(refused, CubeError::Limit { requested, limit, .. } if requested > limit),
            "{refused}"
        );
    }
    for zero in [Settings { cubes: [1, 0, 1], ..at }, Settings { units: [0, 1], ..at }] {
        assert!(matches!(zero.check("edge", &device), Err(CubeError::Range { got: 0, .. })));
    }
}

#[test]
fn cubes_are_spread_over_two_lines() {
    assert_eq!(spread(0), [1, 1, 1]);
    for cubes in [1, 65_535, 65_536, 131_071, 1 << 24] {
        let [x, y, z] = spread(cubes).map(|n| n as usize);
        assert!(x <= 65_535 && y <= 65_535 && z == 1, "{cubes}");
        assert!(x * y >= cubes && x * y < cubes + y, "{cubes}: {x} x {y}");
    }
}
