//! Gradients over the wire.

use trike_comm::codec::{Ternary, TopK};
use trike_comm::{Codec, CodecConfig, CommError, Communicator, Threads};
use trike_testkit::{Rng, assert_all_near};

/// Lengths at and around the ends of bytes and chunks.
const LENGTHS: [usize; 8] = [0, 1, 4, 5, 6, 4095, 4096, 10_000];

fn normals(seed: u64, len: usize) -> Vec<f32> {
    Rng::new(seed).normals(len)
}

fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

/// What a codec has sent in five steps and what it keeps, its state number `kept`, are the gradients.
fn loses_nothing(codec: &mut dyn Codec, kept: usize) {
    let len = codec.len();
    let (mut sent, mut given) = (vec![0.0; len], vec![0.0; len]);
    for step in 0..5 {
        let gradient = normals(step, len);
        given.iter_mut().zip(&gradient).for_each(|(sum, g)| *sum += g);
        let message = codec.encode(&gradient).expect("a message");
        assert_eq!(message.len(), codec.bytes());
        codec.add(0, &message, 1.0, &mut sent).expect("a gradient");
    }
    sent.iter_mut().zip(codec.state()[kept]).for_each(|(sum, rest)| *sum += rest);
    assert_all_near!(&sent, &given, abs = 1e-5, "{len} elements");
}

#[test]
fn what_is_sent_and_what_is_kept_are_the_gradients() {
    for len in LENGTHS {
        loses_nothing(&mut Ternary::new(len), 0);
    }
}

#[test]
fn the_largest_elements_are_sent_and_the_others_wait() {
    for (len, share) in [(0, 0.5), (1, 0.01), (10, 0.2), (4096, 0.02), (10_000, 0.02), (5000, 1.0)] {
        loses_nothing(&mut TopK::new(len, share, 0.0).expect("a codec"), 1);
    }
    let mut codec = TopK::new(6, 0.34, 0.0).expect("a codec");
    let message = codec.encode(&[1.0, -8.0, 0.5, 3.0, 5.0, -0.25]).expect("a message");
    let mut sum = [0.0; 6];
    codec.add(0, &message, 1.0, &mut sum).expect("a gradient");
    assert_all_near!(&sum, &[0.0, -8.0, 0.0, 0.0, 8.0 * 0.5f32.sqrt(), 0.0], abs = 1e-6);
    for (share, momentum) in
        [(0.0, 0.0), (1.1, 0.0), (f32::NAN, 0.0), (0.1, 1.0), (0.1, -0.1), (0.1, f32::NAN)]
    {
        assert!(matches!(TopK::new(6, share, momentum), Err(CommError::Range { .. })));
    }
}

/// With momentum a gradient pushes on until its element is sent.
#[test]
fn the_velocity_of_what_is_sent_is_cleared() {
    let mut codec = TopK::new(2, 0.5, 0.5).expect("a codec");
    let mut step = |gradient: [f32; 2]| {
        let message = codec.encode(&gradient).expect("a message");
        let mut sum = [0.0; 2];
        codec.add(0, &message, 1.0, &mut sum).expect("a gradient");
        sum
    };
    assert_eq!(step([4.0, 1.0]), [4.0, 0.0]);
    // 1 + 0.5 + 0.25 waits, and the first has no velocity left.
    assert_eq!(step([0.0, 0.0]), [0.0, 1.5]);
    assert_eq!(step([0.0, 0.0]), [0.0, 0.0]);
}

/// The direction of one step, and the bytes.
#[test]
fn trits_keep_nine_tenths_of_the_direction_in_a_twentieth_of_the_bytes() {
    let gradient = normals(1, 100_000);
    let mut codec = Ternary::new(gradient.len());
    let message = codec.encode(&gradient).expect("a message");
    let mut sum = vec![0.0; gradient.len()];
    codec.add(0, &message, 1.0, &mut sum).expect("a gradient");
    // The best three values have 0.900.
    let cosine = cosine(&gradient, &sum);
    assert!((0.89..0.901).contains(&cosine), "{cosine}");
    let ratio = 4.0 * gradient.len() as f64 / message.len() as f64;
    assert!((19.8..20.0).contains(&ratio), "{ratio}");
}

#[test]
fn all_ranks_get_the_same_mean() {
    for ranks in [1, 2, 3] {
        for len in LENGTHS {
            let all: Vec<Vec<f32>> = std::thread::scope(|scope| {
                let running: Vec<_> = Threads::new(ranks)
                    .into_iter()
                    .map(|comm| {
                        scope.spawn(move || {
                            let mut gradient = normals(comm.rank() as u64, len);
                            let mut codec = CodecConfig::Ternary.build(len).expect("a codec");
                            codec.exchange(&comm, &mut gradient).expect("a mean");
                            gradient
                        })
                    })
                    .collect();
                running.into_iter().map(|rank| rank.join().expect("no panic")).collect()
            });
            assert!(all.iter().all(|mean| *mean == all[0]), "{ranks} ranks, {len} elements");
            let mut want = vec![0.0; len];
            for rank in 0..ranks {
                let mut codec = Ternary::new(len);
                let message = codec.encode(&normals(rank as u64, len)).expect("a message");
                codec.add(rank, &message, 1.0 / ranks as f32, &mut want).expect("a gradient");
            }
            assert_eq!(all[0], want);
        }
    }
}

#[test]
fn wrong_gradients_and_messages_are_refused() {
    let comm = &Threads::new(1)[0];
    let mut codec = Ternary::new(6);
    for wrong in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut gradient = [1.0, 2.0, wrong, 0.0, 0.0, 0.0];
        assert_eq!(codec.exchange(comm, &mut gradient), Err(CommError::NonFinite { rank: 0 }));
        assert_eq!(codec.state(), [&[0.0; 6]], "the residual is what it was");
    }
    assert!(matches!(
        codec.exchange(comm, &mut [0.0; 5]),
        Err(CommError::Length { expected: 6, got: 5, .. })
    ));
    let mut top = TopK::new(6, 0.34, 0.0).expect("a codec");
    let codecs: [(&mut dyn Codec, &[u8]); 2] = [(&mut codec, &[243]), (&mut top, &[0x70])];
    for (codec, not_sent) in codecs {
        let message = codec.encode(&[1.0, -2.0, 3.0, 0.0, 0.5, -1.0]).expect("a message");
        let mut sum = [0.0; 6];
        for len in (0..message.len()).chain([message.len() + 1]) {
            let mut cut = message.clone();
            cut.resize(len, 0);
            let cut = codec.add(3, &cut, 1.0, &mut sum);
            assert!(matches!(cut, Err(CommError::Cut { rank: 3, .. })), "{codec:?} {len}");
        }
        let mut other = message.clone();
        other[4..4 + not_sent.len()].copy_from_slice(not_sent);
        assert!(matches!(codec.add(3, &other, 1.0, &mut sum), Err(CommError::Damaged { rank: 3, .. })));
        other[..4].copy_from_slice(&f32::NAN.to_le_bytes());
        assert!(matches!(codec.add(3, &other, 1.0, &mut sum), Err(CommError::Damaged { rank: 3, .. })));
        assert!(matches!(codec.add(3, &message, 1.0, &mut sum[..5]), Err(CommError::Length { .. })));
        assert!(matches!(codec.encode(&[1.0; 7]), Err(CommError::Length { .. })));
    }
}
