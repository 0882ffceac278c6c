//! Classification of real text by its source, out of three.

use trike_testkit::shared;
use trike_vsa::{CentroidClassifier, PackedTritVec, TextEncoder, Z3};

/// Bytes per piece: one or two sentences.
const PIECE: usize = 120;
/// Training pieces and test pieces per source.
const LEARNT: usize = 300;
const JUDGED: usize = 200;

/// Pieces of a file: whole words, normalized white space; `None` without the shared data.
fn pieces(rel: &str) -> Option<Vec<String>> {
    let text = std::fs::read_to_string(shared(rel)?).expect("text");
    let mut pieces = vec![String::new()];
    // Characters that occur in only one of the files would make the task too easy.
    let mut words =
        text.split_whitespace().filter(|w| w.chars().all(|c| c.is_ascii_alphabetic() || ".,!?'".contains(c)));
    while pieces.len() <= LEARNT + JUDGED {
        let piece = pieces.last_mut()?;
        if piece.len() >= PIECE {
            pieces.push(String::new());
        } else {
            let word = words.next().expect("enough text").to_ascii_lowercase();
            piece.push_str(&word);
            piece.push(' ');
        }
    }
    pieces.truncate(LEARNT + JUDGED);
    Some(pieces)
}

#[test]
fn the_source_of_a_piece_of_text() {
    let files = ["tinyshakespeare.txt", "tinystories_train.txt", "wikitext-2/valid.txt"];
    let Some(sources) =
        files.iter().map(|f| pieces(&format!("data/corpora/{f}"))).collect::<Option<Vec<_>>>()
    else {
        return;
    };
    let encoder = TextEncoder::<Z3>::new(4096, 4, 1).unwrap();
    let vector = |text: &str| -> PackedTritVec<Z3> { encoder.encode(text).unwrap().to_vector().unwrap() };
    let vectors: Vec<Vec<_>> =
        sources.iter().map(|s| s.iter().map(|piece| vector(piece)).collect()).collect();
    let mut classifier = CentroidClassifier::new(4096, 3).unwrap();
    let judge = |classifier: &CentroidClassifier<Z3>| {
        let judged = vectors
            .iter()
            .enumerate()
            .flat_map(|(class, v)| v[LEARNT..LEARNT + JUDGED].iter().map(move |piece| (class, piece)));
        let right =
            judged.filter(|(class, piece)| classifier.classify(piece).unwrap().index == *class).count();
        right as f64 / (3 * JUDGED) as f64
    };
    for (class, vectors) in vectors.iter().enumerate() {
        vectors[..LEARNT].iter().for_each(|example| classifier.add(class, example).unwrap());
    }
    let centroids = judge(&classifier);
    for _ in 0..3 {
        for piece in 0..LEARNT {
            for (class, vectors) in vectors.iter().enumerate() {
                classifier.correct(class, &vectors[piece]).unwrap();
            }
        }
    }
    let corrected = judge(&classifier);
    println!("of three sources, {PIECE} bytes: centroids {centroids:.3}, corrected {corrected:.3}");
    assert!(centroids > 0.8 && corrected > 0.85, "{centroids} {corrected}");
}
