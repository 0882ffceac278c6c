//! Hypervectors of 10,000 dimensions: single operations, bundles, search and retrieval, compared with numpy on int8 arrays
//! and with torch-hd in the same run if the Python (`TRIKE_PYTHON`, else `python3`) has them; tryte arithmetic compared with
//! scalar code, one trit at a time. A full run regenerates `docs/src/vsa-capacity.svg`.
#![allow(clippy::print_stdout, reason = "a benchmark reports on stdout")]

mod common;

use std::collections::HashMap;
use std::error::Error;
use std::hint::black_box;

use criterion::{BenchmarkId, Criterion};
use trike_bench::{Chart, Scale};
use trike_cpu::{Cpu, probe};
use trike_testkit::Rng;
use trike_trit::{Trit, Tryte3, TryteVec};
use trike_vsa::capacity::{BundleForm, retrieval_probability};
use trike_vsa::{
    Algebra, Bipolar, Bundle, ItemMemory, PackedTritVec, Ternary, Z3, bind, bind_into, bundle_balanced,
    bundle_many, dot, hamming_distance, matches, permute_into, unbind, unbind_into,
};

/// Dimensions per vector.
const DIM: usize = 10_000;
/// Vectors per bundle, and pairs per record.
const ITEMS: usize = 500;
/// Vectors of the search: far larger than any cache.
const STORED: usize = 100_000;
/// Vectors of the search compared with numpy, which takes seconds for [`STORED`] vectors.
const STORED_NUMPY: usize = 2_000;
/// Trytes per vector.
const TRYTES: usize = 4096;

type Outcome<T> = Result<T, Box<dyn Error>>;

/// The same operations with numpy on int8 arrays; prints a name and the seconds per call on each line.
const NUMPY: &str = r#"
import sys, time
import numpy as np

D, K, N = (int(a) for a in sys.argv[1:4])
rng = np.random.default_rng(1)
a, b = (rng.integers(-1, 2, D, dtype=np.int8) for _ in range(2))
many = rng.integers(-1, 2, (K, D), dtype=np.int8)
stored = rng.integers(-1, 2, (N, D), dtype=np.int8)
signs = (many & 2) - np.int8(1)

def z3(x):
    x[x > 1] -= 3
    x[x < -1] += 3
    return x

def plurality():
    counts = np.stack([(many == v).sum(0, dtype=np.int32) for v in (-1, 0, 1)])
    return (counts.argmax(0) - 1).astype(np.int8)

cases = {
    "bind z3": lambda: z3(a + b),
    "unbind z3": lambda: z3(a - b),
    "bind ternary": lambda: a * b,
    "dot": lambda: np.dot(a.astype(np.int32), b),
    "hamming": lambda: np.count_nonzero(a != b),
    "matches": lambda: np.count_nonzero(a == b),
    "permute": lambda: np.roll(a, 777),
    "bundle of 500 z3": plurality,
    "bundle of 500 ternary": lambda: np.sign(many.sum(0, dtype=np.int32)).astype(np.int8),
    "bundle of 500 bipolar": lambda: np.where(signs.sum(0, dtype=np.int32) > 0, 1, -1).astype(np.int8),
    "top-1 of 2000": lambda: (stored == a).sum(1, dtype=np.int32).argmax(),
}
"#;

/// Common end of both scripts: prints the median time of each case.
const TIMES: &str = r#"
for name, call in cases.items():
    call()
    times = []
    while len(times) < 9 or (sum(times) < 0.05 and len(times) < 2000):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    print(name + "\t" + repr(sorted(times)[len(times) // 2]))
"#;

/// The same operations with torch-hd's MAP vectors (f32, its default), on one thread.
const TORCHHD: &str = r#"
import sys, time
import torch, torchhd

D, K, N = (int(a) for a in sys.argv[1:4])
torch.manual_seed(1)
torch.set_num_threads(1)
a, b = torchhd.random(2, D, vsa="MAP")
many = torchhd.random(K, D, vsa="MAP")
stored = torchhd.random(N, D, vsa="MAP")

cases = {
    "bind ternary": lambda: torchhd.bind(a, b),
    "dot": lambda: torchhd.dot_similarity(a, b),
    "hamming": lambda: torchhd.hamming_similarity(a, b),
    "permute": lambda: torchhd.permute(a, shifts=777),
    "bundle of 500 bipolar": lambda: torchhd.hard_quantize(torchhd.multiset(many)),
    "top-1 of 2000": lambda: torchhd.dot_similarity(a, stored).argmax(),
}
"#;

/// A row of the report.
struct Line {
    what: String,
    seconds: f64,
    /// Case name in the rivals' scripts.
    rival: Option<&'static str>,
    note: String,
}

fn main() -> Outcome<()> {
    let mut c = common::criterion();
    let mut lines = Vec::new();
    pairs::<Z3>(&mut c, &mut lines)?;
    pairs::<Bipolar>(&mut c, &mut lines)?;
    pairs::<Ternary>(&mut c, &mut lines)?;
    bundles::<Z3>(&mut c, "bundle of 500 z3", &mut lines)?;
    bundles::<Bipolar>(&mut c, "bundle of 500 bipolar", &mut lines)?;
    bundles::<Ternary>(&mut c, "bundle of 500 ternary", &mut lines)?;
    search(&mut c, &mut lines)?;
    trytes(&mut c, &mut lines)?;
    let mut rivals = Vec::new();
    for (module, script) in [("numpy", NUMPY), ("torchhd", TORCHHD)] {
        rivals.push(if lines.is_empty() { HashMap::new() } else { rival_times(module, script)? });
    }
    println!("\nMedians.\n\n| operation | time | x numpy int8 | x torch-hd MAP | |\n|---|--:|--:|--:|---|");
    for Line { what, seconds, rival, note } in &lines {
        let times = |rivals: &HashMap<String, f64>| {
            let time = rival.and_then(|name| rivals.get(name));
            time.map_or(String::new(), |r| format!("{:.0} x", r / seconds))
        };
        let [numpy, torch] = [times(&rivals[0]), times(&rivals[1])];
        println!("| {what} | {} | {numpy} | {torch} | {note} |", time_text(*seconds));
    }
    if !lines.is_empty() {
        retrieval()?;
        plot()?;
    }
    c.final_summary();
    Ok(())
}

fn time_text(seconds: f64) -> String {
    match seconds {
        s if s < 1e-6 => format!("{:.1} ns", s * 1e9),
        s if s < 1e-3 => format!("{:.1} us", s * 1e6),
        s => format!("{:.2} ms", s * 1e3),
    }
}

/// Seconds per call of a rival's cases by name; empty if Python lacks the module.
fn rival_times(module: &str, script: &str) -> Outcome<HashMap<String, f64>> {
    let Some(mut python) = trike_testkit::python(module) else { return Ok(HashMap::new()) };
    let sizes = [DIM, ITEMS, STORED_NUMPY].map(|n| n.to_string());
    let out = python.arg("-c").arg(format!("{script}{TIMES}")).args(sizes).output()?;
    let text = String::from_utf8(out.stdout)?;
    let parse =
        |line: &str| line.split_once('\t').and_then(|(name, s)| Some((name.to_owned(), s.parse().ok()?)));
    Ok(text.lines().filter_map(parse).collect())
}

fn pairs<A: Algebra>(c: &mut Criterion, lines: &mut Vec<Line>) -> Outcome<()> {
    let [a, b] = [1, 2].map(|seed| PackedTritVec::<A>::random(DIM, seed));
    let (a, b) = (a?, b?);
    let mut out = a.clone();
    let mut group = common::group(c, &format!("vsa/pair/{}", A::KIND));
    let inputs = || (black_box(&a), black_box(&b));
    let z3 = A::KIND == Z3::KIND;
    let mut add = |what: &str, rival, seconds: Option<f64>| {
        lines.extend(seconds.map(|seconds| Line {
            what: format!("{}: {what}", A::KIND),
            seconds,
            rival,
            note: String::new(),
        }));
    };
    let id = |what: &str| BenchmarkId::from_parameter(what);
    let bind_rival = Some(if z3 { "bind z3" } else { "bind ternary" });
    let time = common::time(&mut group, id("bind into"), DIM as u64, || {
        let (a, b) = inputs();
        bind_into(a, b, &mut out)
    });
    add("bind, into an existing vector", bind_rival, time);
    let time = common::time(&mut group, id("unbind into"), DIM as u64, || {
        let (a, b) = inputs();
        unbind_into(a, b, &mut out)
    });
    add("unbind, into an existing vector", if z3 { Some("unbind z3") } else { bind_rival }, time);
    let time = common::time(&mut group, id("bind"), DIM as u64, || {
        let (a, b) = inputs();
        bind(a, b)
    });
    add("bind, into a new vector", bind_rival, time);
    let time = common::time(&mut group, id("dot"), DIM as u64, || {
        let (a, b) = inputs();
        dot(a, b)
    });
    add("dot", Some("dot"), time);
    let time = common::time(&mut group, id("hamming"), DIM as u64, || {
        let (a, b) = inputs();
        hamming_distance(a, b)
    });
    add("Hamming distance", Some("hamming"), time);
    let time = common::time(&mut group, id("matches"), DIM as u64, || {
        let (a, b) = inputs();
        matches(a, b)
    });
    add("matches", Some("matches"), time);
    let time = common::time(&mut group, id("permute"), DIM as u64, || {
        permute_into(black_box(&a), black_box(777), &mut out)
    });
    add("permute by 777", Some("permute"), time);
    group.finish();
    Ok(())
}

fn bundles<A: Algebra>(c: &mut Criterion, rival: &'static str, lines: &mut Vec<Line>) -> Outcome<()> {
    let vectors = PackedTritVec::<A>::random_set(DIM, ITEMS, 3)?;
    let mut group = common::group(c, &format!("vsa/bundle/{}", A::KIND));
    let id = BenchmarkId::from_parameter("bundle_many of 500");
    let time = common::time(&mut group, id, ITEMS as u64, || bundle_many(black_box(&vectors)));
    let what = format!("{}: bundle_many of {ITEMS}", A::KIND);
    lines.extend(time.map(|seconds| Line { what, seconds, rival: Some(rival), note: String::new() }));
    let id = BenchmarkId::from_parameter("balanced of 500");
    let time = common::time(&mut group, id, ITEMS as u64, || bundle_balanced(black_box(&vectors), 3));
    let what = format!("{}: bundle_balanced of {ITEMS}, 3 rounds", A::KIND);
    lines.extend(time.map(|seconds| Line { what, seconds, rival: None, note: String::new() }));
    group.finish();
    Ok(())
}

fn search(c: &mut Criterion, lines: &mut Vec<Line>) -> Outcome<()> {
    // Only 64 distinct vectors, because generating random ones takes longer than the search.
    let vectors = PackedTritVec::<Z3>::random_set(DIM, 64, 4)?;
    let query = PackedTritVec::random(DIM, 5)?;
    let mut group = common::group(c, "vsa/search");
    for (count, threads) in [(STORED_NUMPY, 1), (STORED, 1), (STORED, 2)] {
        let mut memory = ItemMemory::with_cpu(DIM, Cpu::new(threads)?)?;
        memory.reserve(count)?;
        for index in 0..count {
            memory.push(&vectors[index % vectors.len()])?;
        }
        let what = format!("z3: top-1 of {count}, {threads} threads");
        let id = BenchmarkId::from_parameter(&what);
        let Some(seconds) = common::time(&mut group, id, count as u64, || memory.nearest(black_box(&query)))
        else {
            continue;
        };
        let rate = memory.rows().bytes() as f64 / seconds;
        let ceiling = probe::memory_bandwidth(memory.cpu())?.best().figure;
        let note = if count == STORED {
            format!("{:.1} GB/s, {:.0} % of the read bandwidth", rate / 1e9, 100.0 * rate / ceiling)
        } else {
            String::new()
        };
        let rival = (count == STORED_NUMPY).then_some("top-1 of 2000");
        lines.push(Line { what, seconds, rival, note });
    }
    group.finish();
    Ok(())
}

/// Representation of a bundled record from which values are retrieved.
#[derive(Clone, Copy, PartialEq)]
enum Read {
    Trits,
    Balanced,
    Counts,
}

/// Fraction of the values of a record that are retrieved correctly among its `k` values, averaged over `records` records.
fn found<A: Algebra>(dim: usize, k: usize, records: u64, read: Read) -> Outcome<f64> {
    let mut all = 0;
    for record in 0..records {
        let keys = PackedTritVec::<A>::random_set(dim, k, 100 + record)?;
        let values = PackedTritVec::random_set(dim, k, 200 + record)?;
        let memory = ItemMemory::of(&values)?;
        let bound: Vec<_> = keys.iter().zip(&values).map(|(k, v)| bind(k, v)).collect::<Result<_, _>>()?;
        let bundle = Bundle::of(&bound)?;
        if read == Read::Counts {
            for (i, key) in keys.iter().enumerate() {
                let mut unbound = bundle.clone();
                unbound.unbind(key)?;
                all += usize::from(memory.nearest_in_bundle(&unbound)?.index == i);
            }
            continue;
        }
        let vector = if read == Read::Balanced { bundle_balanced(&bound, 3)? } else { bundle.to_vector()? };
        let noisy: Vec<_> = keys.iter().map(|key| unbind(&vector, key)).collect::<Result<_, _>>()?;
        let hits = memory.top_k_batch(&noisy, 1)?;
        all += hits.iter().enumerate().filter(|(i, hits)| hits[0].index == *i).count();
    }
    Ok(all as f64 / (records as usize * k) as f64)
}

/// Prints the fractions of values retrieved, measured and predicted by theory.
fn retrieval() -> Outcome<()> {
    println!(
        "\nOne record of {ITEMS} pairs in {DIM} dimensions, nearest of the {ITEMS} values, over four records.\n"
    );
    println!("| z3 | found | theory |\n|---|--:|--:|");
    let theory = |kept| retrieval_probability::<Z3>(kept, DIM, ITEMS, ITEMS);
    let percent = |share: f64| format!("{:.1} %", 100.0 * share);
    for (what, read, theory) in [
        ("two bits per dimension", Read::Trits, Some(theory(BundleForm::Trits)?)),
        ("two bits per dimension, balanced", Read::Balanced, None),
        ("counts", Read::Counts, Some(theory(BundleForm::Counts)?)),
    ] {
        let theory = theory.map_or(String::new(), percent);
        println!("| {what} | {} | {theory} |", percent(found::<Z3>(DIM, ITEMS, 4, read)?));
    }
    println!();
    Ok(())
}

/// Draws the book's chart of simulation and theory: 4000 dimensions, as many candidates as items.
fn plot() -> Outcome<()> {
    const PLOT_DIM: usize = 4000;
    fn lines<A: Algebra>(groups: &mut Vec<(String, Vec<Option<f64>>)>) -> Outcome<()> {
        for (kept, read) in [(BundleForm::Trits, Read::Trits), (BundleForm::Counts, Read::Counts)] {
            for k in [50, 100, 200, 400, 1000] {
                let share = found::<A>(PLOT_DIM, k, (1000 / k) as u64, read)?;
                let theory = retrieval_probability::<A>(kept, PLOT_DIM, k, k)?;
                let name = if read == Read::Trits { "trits" } else { "counts" };
                groups.push((format!("{}, {name}, k = {k}", A::KIND), vec![Some(share), Some(theory)]));
            }
        }
        Ok(())
    }
    let mut groups = Vec::new();
    lines::<Z3>(&mut groups)?;
    lines::<Bipolar>(&mut groups)?;
    lines::<Ternary>(&mut groups)?;
    let chart = Chart {
        title: format!("Values found among k in a record of k pairs, {PLOT_DIM} dimensions"),
        series: vec!["simulation".to_owned(), "theory".to_owned()],
        groups,
        scale: Scale::Percent,
    };
    std::fs::write(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/src/vsa-capacity.svg"), chart.to_svg())?;
    Ok(())
}

/// Ripple-carry addition, one trit at a time.
fn add_trits(a: &mut [[Trit; 3]], b: &[[Trit; 3]]) {
    for (a, b) in a.iter_mut().zip(b) {
        let mut carry = 0;
        for (a, b) in a.iter_mut().zip(b) {
            let sum = a.value() + b.value() + carry;
            carry = i8::from(sum > 1) - i8::from(sum < -1);
            *a = Trit::from_value(sum - 3 * carry).unwrap_or(Trit::Z);
        }
    }
}

/// Multiplication modulo 27, one trit at a time.
fn multiply_trits(a: &mut [[Trit; 3]], b: &[[Trit; 3]]) {
    for (a, b) in a.iter_mut().zip(b) {
        let factor = std::mem::replace(a, [Trit::Z; 3]);
        for (shift, digit) in factor.iter().enumerate() {
            let mut part = [[Trit::Z; 3]];
            for i in shift..3 {
                part[0][i] = Trit::from_value(digit.value() * b[i - shift].value()).unwrap_or(Trit::Z);
            }
            add_trits(std::slice::from_mut(a), &part);
        }
    }
}

/// Name, seconds per call of the scalar version, and the function to time.
type Case<'a> = (&'a str, Option<f64>, &'a mut dyn FnMut());

fn trytes(c: &mut Criterion, lines: &mut Vec<Line>) -> Outcome<()> {
    let mut rng = Rng::new(6);
    let mut values = || (0..TRYTES).map(|_| rng.below(27) as i8 - 13).collect::<Vec<_>>();
    let (a, b) = (TryteVec::from_values(&values())?, TryteVec::from_values(&values())?);
    let trits = |v: &TryteVec| (0..v.len()).filter_map(|i| v.get(i)).map(Tryte3::trits).collect::<Vec<_>>();
    let (mut a_trits, b_trits) = (trits(&a), trits(&b));
    let mut group = common::group(c, "vsa/trytes");
    let (mut sum, mut carry) = (a.clone(), TryteVec::zeros(TRYTES));
    let mut time = |what: &str, call: &mut dyn FnMut()| {
        common::time(&mut group, BenchmarkId::from_parameter(what), TRYTES as u64, call)
    };
    let slow = time("add, trit by trit", &mut || add_trits(black_box(&mut a_trits), black_box(&b_trits)));
    let slow_product =
        time("multiply, trit by trit", &mut || multiply_trits(black_box(&mut a_trits), black_box(&b_trits)));
    let cases: [Case<'_>; 5] = [
        ("add, wrapping", slow, &mut || sum.add_wrapping(black_box(&b)).unwrap_or_default()),
        ("subtract, saturating", slow, &mut {
            let (mut sum, b) = (a.clone(), b.clone());
            move || sum.sub_saturating(black_box(&b)).unwrap_or_default()
        }),
        ("add with carry", slow, &mut {
            let (mut sum, b) = (a.clone(), b.clone());
            move || sum.add_carry(black_box(&b), &mut carry).unwrap_or_default()
        }),
        ("multiply, wrapping", slow_product, &mut {
            let (mut product, b) = (a.clone(), b.clone());
            move || product.mul_wrapping(black_box(&b)).unwrap_or_default()
        }),
        ("compare", slow, &mut {
            let (mut compared, b) = (a.clone(), b.clone());
            move || compared.compare(black_box(&b)).unwrap_or_default()
        }),
    ];
    for (what, slow, call) in cases {
        if let (Some(slow), Some(seconds)) = (slow, time(what, call)) {
            let note = format!("{:.0} x as fast as trit by trit", slow / seconds);
            lines.push(Line { what: format!("{TRYTES} trytes: {what}"), seconds, rival: None, note });
        }
    }
    group.finish();
    Ok(())
}
