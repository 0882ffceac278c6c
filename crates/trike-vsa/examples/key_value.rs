//! 500 keys and values in one vector of 10,000 trits: `cargo run --release -p trike-vsa --example key_value`.
#![expect(clippy::print_stdout, reason = "the example prints its results")]

use trike_vsa::capacity::{BundleForm, retrieval_probability};
use trike_vsa::{Bundle, ItemMemory, PackedTritVec, Z3, bind, bundle_balanced, unbind};

const DIM: usize = 10_000;
const ITEMS: usize = 500;

fn main() -> Result<(), trike_vsa::VsaError> {
    let keys = PackedTritVec::<Z3>::random_set(DIM, ITEMS, 1)?;
    let values = PackedTritVec::random_set(DIM, ITEMS, 2)?;
    let memory = ItemMemory::of(&values)?;
    let bound =
        keys.iter().zip(&values).map(|(key, value)| bind(key, value)).collect::<Result<Vec<_>, _>>()?;

    let counts = Bundle::of(&bound)?;
    for (name, vector) in [("two bits", counts.to_vector()?), ("balanced", bundle_balanced(&bound, 3)?)] {
        let noisy = keys.iter().map(|key| unbind(&vector, key)).collect::<Result<Vec<_>, _>>()?;
        let hits = memory.top_k_batch(&noisy, 1)?;
        let found = hits.iter().enumerate().filter(|(i, hits)| hits[0].index == *i).count();
        println!("{name}, {} bytes: {found} of {ITEMS} values found", DIM / 4);
    }
    let mut found = 0;
    for (i, key) in keys.iter().enumerate() {
        let mut unbound = counts.clone();
        unbound.unbind(key)?;
        found += usize::from(memory.nearest_in_bundle(&unbound)?.index == i);
    }
    println!("counts: {found} of {ITEMS} values found");
    let theory = |kept| retrieval_probability::<Z3>(kept, DIM, ITEMS, ITEMS);
    println!(
        "theory: {:.3} by two bits, {:.4} by counts",
        theory(BundleForm::Trits)?,
        theory(BundleForm::Counts)?
    );
    Ok(())
}
