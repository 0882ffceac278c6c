//! Encoding of a quantized layer.

use trike_cpu::{Isa, Layout, choose_layout};
use trike_trit::{Encoding, TritError, TritTensor};

/// Chooses the packing of a tensor: row-compressed if the kernels multiply it fastest by its nonzeros, by the
/// crossover measured for [`choose_layout`]; else the smaller of five trits per byte and a bitmap with signs. These
/// two do not affect speed: kernels unpack both into the same layout when a model is loaded.
pub(crate) fn packed(tensor: TritTensor) -> Result<TritTensor, TritError> {
    let base3 = tensor.to_encoding(Encoding::Base3)?;
    if choose_layout(&base3, Isa::detect()) == Layout::Sparse {
        return base3.to_encoding(Encoding::RowCompressed);
    }
    let bitmap = base3.to_encoding(Encoding::Bitmap)?;
    Ok(if bitmap.bytes() < base3.bytes() { bitmap } else { base3 })
}

#[cfg(test)]
mod tests {
    use trike_trit::Scales;

    use super::*;

    #[test]
    fn packing_follows_the_zeros() {
        for (every, want) in [(2, Encoding::Base3), (5, Encoding::Bitmap), (20, Encoding::RowCompressed)] {
            let trits: Vec<i8> = (0..64 * 256).map(|i| i8::from(i % every == 0)).collect();
            let scales = Scales::tensor(1.0);
            let tensor = TritTensor::from_trits(64, 256, &trits, Encoding::TwoBit, scales).unwrap();
            let packed = packed(tensor.clone()).unwrap();
            assert_eq!((packed.encoding(), packed.dequantize()), (want, tensor.dequantize()), "{every}");
        }
    }
}
