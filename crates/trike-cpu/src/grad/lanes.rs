//! Loops over floats that the compiler vectorizes.

/// `sum a b`, in 16 lanes.
#[inline(always)]
pub(super) fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut lanes = [0f32; 16];
    let (heads_a, tail_a) = a.as_chunks::<16>();
    let (heads_b, tail_b) = b.as_chunks::<16>();
    for (a, b) in heads_a.iter().zip(heads_b) {
        for ((lane, a), b) in lanes.iter_mut().zip(a).zip(b) {
            *lane += a * b;
        }
    }
    lanes.iter().sum::<f32>() + tail_a.iter().zip(tail_b).map(|(a, b)| a * b).sum::<f32>()
}

/// The largest value, or minus infinity if there is none; NaN is ignored.
#[inline(always)]
pub(super) fn largest(x: &[f32]) -> f32 {
    // Comparisons in lanes, because the maximum of the standard library is not vectorized.
    let mut lanes = [f32::NEG_INFINITY; 16];
    let (heads, tail) = x.as_chunks::<16>();
    for head in heads {
        for (lane, v) in lanes.iter_mut().zip(head) {
            *lane = if *v > *lane { *v } else { *lane };
        }
    }
    lanes.iter().chain(tail).fold(f32::NEG_INFINITY, |m, v| m.max(*v))
}
