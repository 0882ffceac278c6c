//! Seeded inputs, identical on every platform.

/// A small generator (SplitMix64) for test inputs: the same seed gives the same values on every platform.
///
/// ```
/// let mut a = trike_testkit::Rng::new(7);
/// let mut b = trike_testkit::Rng::new(7);
/// assert_eq!(a.trits(100, 0.7), b.trits(100, 0.7));
/// ```
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// A generator with this RNG seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// 64 uniform bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Uniform in `[0, 1)`.
    pub fn f32_unit(&mut self) -> f32 {
        (self.next_u64() >> 40) as f32 / (1u64 << 24) as f32
    }

    /// Uniform in `0..n`; 0 when `n` is 0.
    pub fn below(&mut self, n: usize) -> usize {
        if n == 0 { 0 } else { (self.next_u64() % n as u64) as usize }
    }

    /// Standard normal (Box-Muller).
    pub fn normal(&mut self) -> f32 {
        let radius = (-2.0 * (1.0 - self.f32_unit()).ln()).sqrt();
        radius * (std::f32::consts::TAU * self.f32_unit()).cos()
    }

    /// `n` standard normals.
    pub fn normals(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.normal()).collect()
    }

    /// `n` trits as -1, 0, 1; each is nonzero with probability `density`, with a random sign.
    pub fn trits(&mut self, n: usize, density: f32) -> Vec<i8> {
        (0..n)
            .map(|_| match (self.f32_unit() < density, self.next_u64() & 1) {
                (false, _) => 0,
                (true, 0) => -1,
                (true, _) => 1,
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::Rng;
    use crate::assert_near;

    #[test]
    fn moments_and_density() {
        let mut rng = Rng::new(1);
        let x = rng.normals(20_000);
        let mean = x.iter().sum::<f32>() / 20_000.0;
        let variance = x.iter().map(|v| v * v).sum::<f32>() / 20_000.0;
        assert_near!(mean, 0.0, abs = 0.03);
        assert_near!(variance, 1.0, abs = 0.05);
        let trits = rng.trits(20_000, 0.6);
        let zeros = trits.iter().filter(|&&t| t == 0).count() as f32 / 20_000.0;
        assert_near!(zeros, 0.4, abs = 0.02);
    }
}
