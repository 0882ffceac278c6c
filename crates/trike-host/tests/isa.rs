//! Names of instruction sets.

use trike_host::{HostError, Isa};

#[test]
fn names_of_instruction_sets() {
    for isa in Isa::available() {
        assert_eq!(Isa::by_name(isa.name()).expect("available"), isa);
    }
    assert!(matches!(Isa::by_name("AVX2"), Err(HostError::UnknownIsa { .. })));
    for name in ["scalar", "sse4.1", "avx2", "avx-vnni", "avx512-vnni"] {
        match Isa::by_name(name) {
            Ok(isa) => assert_eq!(isa.name(), name),
            Err(HostError::IsaUnavailable { available, .. }) => assert!(!available.contains(name)),
            Err(other) => panic!("{name}: {other}"),
        }
    }
}
