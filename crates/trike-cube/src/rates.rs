//! Rates of device families, from which plans predict times.

/// Devices with similar rates per multiprocessor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DeviceFamily {
    /// NVIDIA compute capability 8.0: A100, A30.
    Ampere,
    /// NVIDIA 8.6 to 8.9: RTX 30 and 40, L4, L40.
    Ada,
    /// NVIDIA 9.0: H100, H200.
    Hopper,
    /// NVIDIA 10.0 and 10.3: B200, B300.
    Blackwell,
    /// NVIDIA 12.0 and 12.1: RTX 50.
    BlackwellRtx,
    /// AMD gfx9: MI100 to MI350.
    Cdna,
    /// AMD gfx10 to gfx12: RX 5000 to RX 9000.
    Rdna,
    /// Any other device.
    #[default]
    Other,
}

/// Rates of one multiprocessor (compute unit), per nanosecond, and times in nanoseconds. They are those of the largest
/// common device of the family, because runtimes report neither bandwidth nor clock.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    /// Latency of a load under load.
    pub latency: f64,
    /// Bytes from memory, with all multiprocessors reading.
    pub memory: f64,
    /// Bytes from the last cache, with all multiprocessors reading.
    pub cache: f64,
    /// Maximum bytes of loads.
    pub loads: f64,
    /// Bytes of shared memory.
    pub shared: f64,
    /// Instructions issued by all schedulers.
    pub issue: f64,
    /// Multiply-adds of matrix instructions on bytes.
    pub matrix: f64,
    /// Cost of a second launch: the gap between two queued kernels, and one or two load latencies.
    pub launch: f64,
    /// From a cube's last product until the last cube begins to add up all sums: two barriers and a counter.
    pub join: f64,
}

/// 132 multiprocessors at 1.755 GHz: 4.3 TB/s from memory, 5.5 TB/s from the cache, 500 T multiply-adds with `mma`, 63 % of
/// those of the asynchronous instructions, which CubeCL lacks. On an H200 a copy was measured at 4.1 TB/s, `mma` at 490 T
/// multiply-adds, and products fit 5.4 TB/s from the cache and 370 ns for `join`.
const HOPPER: Rates = Rates {
    latency: 700.0,
    memory: 33.0,
    cache: 42.0,
    loads: 110.0,
    shared: 225.0,
    issue: 7.0,
    matrix: 3790.0,
    launch: 2500.0,
    join: 370.0,
};

impl DeviceFamily {
    /// The family of a device, from its compilation target, such as `ptx_sm90` or `hip-kernel_gfx942`, or from its name.
    #[doc(hidden)]
    #[must_use]
    pub fn of(compiled_for: &str, name: &str) -> Self {
        let number = |prefix: &str| {
            let (_, rest) = compiled_for.rsplit_once(prefix)?;
            let rest = rest.trim_start_matches('_');
            // Letters after the digits name variants: sm90a, gfx90a.
            let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
            rest[..digits].parse::<u32>().ok().map(|number| (number, digits))
        };
        match (number("sm"), number("gfx")) {
            (Some((80, _)), _) => return Self::Ampere,
            (Some((81..=89, _)), _) => return Self::Ada,
            (Some((90..=99, _)), _) => return Self::Hopper,
            (Some((100..=119, _)), _) => return Self::Blackwell,
            (Some((120..=139, _)), _) => return Self::BlackwellRtx,
            // gfx906 and gfx90a have a number of two or three digits, gfx1030 of four.
            (_, Some((_, 1..=3))) => return Self::Cdna,
            (_, Some((_, 4..))) => return Self::Rdna,
            _ => {}
        }
        // Vulkan and WebGPU name no architecture.
        let named = |parts: &[&str]| parts.iter().any(|part| name.contains(part));
        match () {
            () if named(&["H100", "H200", "GH200", "H800", "H20"]) => Self::Hopper,
            () if named(&["A100", "A800", "A30"]) => Self::Ampere,
            () if named(&["B100", "B200", "B300", "GB200"]) => Self::Blackwell,
            () if named(&["RTX 50", "RTX PRO"]) => Self::BlackwellRtx,
            () if named(&["RTX 30", "RTX 40", "RTX A", "L40"]) => Self::Ada,
            () if named(&["Instinct", "MI100", "MI210", "MI250", "MI300", "MI325", "MI350"]) => Self::Cdna,
            () if named(&["Radeon RX", "Radeon PRO", "Radeon 8", "NAVI", "RADV"]) => Self::Rdna,
            () => Self::Other,
        }
    }

    /// From data sheets and other projects' measurements of copies and products; only an H200 was measured by Trike.
    #[doc(hidden)]
    #[must_use]
    pub fn rates(self) -> Rates {
        match self {
            // H200, also assumed for unknown devices.
            Self::Hopper | Self::Other => HOPPER,
            // A100: 108 at 1.41 GHz, 1.75 TB/s, 3.6 TB/s, 312 T multiply-adds.
            Self::Ampere => Rates {
                latency: 600.0,
                memory: 16.0,
                cache: 33.0,
                loads: 90.0,
                shared: 180.0,
                issue: 5.6,
                matrix: 2740.0,
                ..HOPPER
            },
            // RTX 4090: 128 at 2.52 GHz, 0.93 TB/s, 5 TB/s, 330 T.
            Self::Ada => Rates {
                latency: 600.0,
                memory: 7.3,
                cache: 39.0,
                loads: 160.0,
                shared: 320.0,
                issue: 10.0,
                matrix: 2400.0,
                ..HOPPER
            },
            // B200: 148 at 1.85 GHz, 7.2 TB/s; `mma` as on Hopper.
            Self::Blackwell => Rates { memory: 48.0, cache: 56.0, loads: 118.0, shared: 237.0, ..HOPPER },
            // RTX 5090: 170 at 2.4 GHz, 1.65 TB/s, 6.5 TB/s, 419 T.
            Self::BlackwellRtx => Rates {
                latency: 600.0,
                memory: 9.7,
                cache: 38.0,
                loads: 153.0,
                shared: 307.0,
                issue: 9.6,
                matrix: 2340.0,
                ..HOPPER
            },
            // MI300X: 304 at 2.1 GHz, 4.3 TB/s, 11.9 TB/s from its last cache; planes of 64 issue every cycle on four units.
            Self::Cdna => Rates {
                latency: 900.0,
                memory: 14.0,
                cache: 39.0,
                loads: 134.0,
                shared: 268.0,
                issue: 8.4,
                matrix: 4200.0,
                launch: 5000.0,
                ..HOPPER
            },
            // RX 7900 XTX: 96 at 2.3 GHz, 0.85 TB/s, 3.3 TB/s.
            Self::Rdna => Rates {
                latency: 600.0,
                memory: 8.9,
                cache: 34.0,
                loads: 147.0,
                shared: 294.0,
                issue: 4.6,
                matrix: 1170.0,
                launch: 5000.0,
                ..HOPPER
            },
        }
    }
}
