//! Any bytes as a file of hypervectors, as they are and with the checksum that they should have: what is read is written back
//! as it was.
#![no_main]

use libfuzzer_sys::fuzz_target;
use trike_vsa::{Algebra, Bipolar, ItemMemory, Ternary, Z3};

fuzz_target!(|data: &[u8]| {
    let sum = data
        .iter()
        .fold(0xCBF2_9CE4_8422_2325_u64, |sum, &byte| (sum ^ u64::from(byte)).wrapping_mul(0x100_0000_01B3));
    let sealed = [data, &sum.to_le_bytes()].concat();
    for bytes in [data, &sealed] {
        read::<Z3>(bytes);
        read::<Bipolar>(bytes);
        read::<Ternary>(bytes);
    }
});

fn read<A: Algebra>(bytes: &[u8]) {
    match ItemMemory::<A>::read(bytes) {
        Ok(memory) => {
            let mut again = Vec::new();
            memory.write(&mut again).expect("what was read can be written");
            assert_eq!(again, bytes);
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}
