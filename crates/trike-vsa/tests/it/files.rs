//! Files of memories: round trips, corruption at every position, and false headers.

use trike_vsa::{Algebra, Bipolar, Bundle, ItemMemory, MAX_FILE_DIM, PackedTritVec, Ternary, VsaError, Z3};

fn file<A: Algebra>(dim: usize, count: usize) -> (ItemMemory<A>, Vec<u8>) {
    let mut memory = ItemMemory::new(dim).unwrap();
    for vector in PackedTritVec::random_set(dim, count, 1).unwrap() {
        memory.push(&vector).unwrap();
    }
    let mut bytes = Vec::new();
    memory.write(&mut bytes).unwrap();
    (memory, bytes)
}

fn round_trips<A: Algebra>() {
    for dim in (1..=17).chain([63, 64, 65, 1000]) {
        for count in [0, 1, 5] {
            let (memory, bytes) = file::<A>(dim, count);
            assert_eq!(ItemMemory::<A>::read(bytes.as_slice()).unwrap(), memory, "{dim} {count}");
            let packed = if A::KIND == Bipolar::KIND { dim.div_ceil(8) } else { dim.div_ceil(5) };
            assert_eq!(bytes.len(), 32 + count * packed + 8);
        }
    }
}

#[test]
fn what_was_written_is_read() {
    round_trips::<Z3>();
    round_trips::<Bipolar>();
    round_trips::<Ternary>();
}

#[test]
fn damage_anywhere_is_found() {
    fn check<A: Algebra>() {
        let (_, bytes) = file::<A>(23, 3);
        for at in 0..bytes.len() {
            for flip in [1, 0x80, 0xFF] {
                let mut damaged = bytes.clone();
                damaged[at] ^= flip;
                let error = ItemMemory::<A>::read(damaged.as_slice()).unwrap_err();
                assert!(matches!(error, VsaError::File { .. } | VsaError::Algebra { .. }), "{at}: {error}");
            }
            let error = ItemMemory::<A>::read(&bytes[..at]).unwrap_err();
            assert!(matches!(error, VsaError::File { .. }), "cut at {at}: {error}");
        }
        let longer = [bytes.as_slice(), &[0]].concat();
        assert!(matches!(ItemMemory::<A>::read(longer.as_slice()), Err(VsaError::File { what: "end", .. })));
    }
    check::<Z3>();
    check::<Bipolar>();
    check::<Ternary>();
}

#[test]
fn sizes_that_lie_take_no_memory() {
    let (_, bytes) = file::<Z3>(23, 3);
    for dim in [0, MAX_FILE_DIM as u64 + 1, u64::MAX] {
        let mut lying = bytes.clone();
        lying[16..24].copy_from_slice(&dim.to_le_bytes());
        let error = ItemMemory::<Z3>::read(lying.as_slice()).unwrap_err();
        assert!(matches!(error, VsaError::File { what: "dimensions", .. }), "{error}");
    }
    for (dim, count) in [(23, u64::MAX), (MAX_FILE_DIM as u64, u64::MAX), (23, 4), (24, 3)] {
        let mut lying = bytes.clone();
        lying[16..24].copy_from_slice(&dim.to_le_bytes());
        lying[24..32].copy_from_slice(&count.to_le_bytes());
        let error = ItemMemory::<Z3>::read(lying.as_slice()).unwrap_err();
        assert!(matches!(error, VsaError::File { .. }), "{error}");
    }
}

#[test]
fn another_algebra_is_refused_by_its_name() {
    let (_, bytes) = file::<Z3>(23, 3);
    let error = ItemMemory::<Ternary>::read(bytes.as_slice()).unwrap_err();
    assert_eq!(error.to_string(), "expected the algebra ternary, got z3");
    let json = serde_json::to_string(&PackedTritVec::<Z3>::random(10, 1).unwrap()).unwrap();
    let error = serde_json::from_str::<PackedTritVec<Bipolar>>(&json).unwrap_err();
    assert!(error.to_string().contains("expected the algebra bipolar, got z3"), "{error}");
}

#[test]
fn serialized_values_are_checked() {
    for json in [
        r#"{"algebra":"z3","dim":3,"pos":[1],"neg":[1]}"#,
        r#"{"algebra":"z3","dim":3,"pos":[8],"neg":[1]}"#,
        r#"{"algebra":"z3","dim":300,"pos":[1],"neg":[2]}"#,
        r#"{"algebra":"z3","dim":0,"pos":[],"neg":[]}"#,
        r#"{"algebra":"z3","dim":18446744073709551615,"pos":[],"neg":[]}"#,
        r#"{"algebra":"z9","dim":3,"pos":[1],"neg":[2]}"#,
    ] {
        assert!(serde_json::from_str::<PackedTritVec<Z3>>(json).is_err(), "{json}");
    }
    assert!(
        serde_json::from_str::<PackedTritVec<Z3>>(r#"{"algebra":"z3","dim":3,"pos":[1],"neg":[2]}"#).is_ok()
    );
    for json in [
        r#"{"algebra":"z3","total":2,"squares":2,"positive":[2],"negative":[1]}"#,
        r#"{"algebra":"z3","total":2,"squares":2,"positive":[2],"negative":[]}"#,
        r#"{"algebra":"z3","total":2,"squares":2,"positive":[],"negative":[]}"#,
        r#"{"algebra":"z3","total":4294967295,"squares":2,"positive":[2],"negative":[0]}"#,
    ] {
        assert!(serde_json::from_str::<Bundle<Z3>>(json).is_err(), "{json}");
    }
    let two = [3, 4].map(|dim| PackedTritVec::<Z3>::random(dim, 1).unwrap());
    let [a, b] = two.map(|v| serde_json::to_string(&v).unwrap());
    assert!(serde_json::from_str::<ItemMemory<Z3>>(&format!(r#"{{"dim":3,"vectors":[{a},{b}]}}"#)).is_err());
    assert!(serde_json::from_str::<ItemMemory<Z3>>(&format!(r#"{{"dim":3,"vectors":[{a},{a}]}}"#)).is_ok());
}
