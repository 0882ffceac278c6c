//! Messages, whole and damaged.

use trike_comm::codec::{Demo, MessageCodec, SparseLoCo, TopK};
use trike_comm::{CodecConfig, CommError, Communicator, Threads};
use trike_testkit::{Rng, assert_all_near};

use super::{all, normals};

/// All codecs with a single message.
fn of_one_message() -> Vec<CodecConfig> {
    let config = |config: &CodecConfig| !matches!(config, CodecConfig::LowRank { .. });
    all().into_iter().filter(config).collect()
}

fn decoded(codec: &dyn MessageCodec, message: &[u8]) -> Vec<f32> {
    let mut sum = vec![0.0; codec.len()];
    codec.add(0, message, 1.0, &mut sum).expect("a gradient");
    sum
}

#[test]
fn the_largest_elements_are_sent_and_the_others_wait() {
    let mut codec = TopK::new(6, 0.34, 0.0).expect("a codec");
    let message = codec.encode(&[1.0, -8.0, 0.5, 3.0, 5.0, -0.25]).expect("a message");
    let want = [0.0, -8.0, 0.0, 0.0, 8.0 * 0.5f32.sqrt(), 0.0];
    assert_all_near!(&decoded(&codec, &message), &want, abs = 1e-6);
}

/// With momentum a gradient keeps accumulating until its element is sent.
#[test]
fn the_velocity_of_what_is_sent_is_cleared() {
    let mut codec = TopK::new(2, 0.5, 0.5).expect("a codec");
    let mut step = |gradient: [f32; 2]| {
        let message = codec.encode(&gradient).expect("a message");
        decoded(&codec, &message)
    };
    assert_eq!(step([4.0, 1.0]), [4.0, 0.0]);
    // 1 + 0.5 + 0.25 is waiting, and the first element has no velocity left.
    assert_eq!(step([0.0, 0.0]), [0.0, 1.5]);
    assert_eq!(step([0.0, 0.0]), [0.0, 0.0]);
}

/// Two magnitudes fit two groups, and the residual decays.
#[test]
fn values_of_two_sizes_arrive_whole() {
    let mut codec = SparseLoCo::new(6, 0.67, 0.5).expect("a codec");
    let message = codec.encode(&[8.0, -1.0, 0.5, -8.0, 1.0, 0.25]).expect("a message");
    assert_eq!(decoded(&codec, &message), [8.0, -1.0, 0.0, -8.0, 1.0, 0.0]);
    let message = codec.encode(&[0.0; 6]).expect("a message");
    // 0.25 and 0.125 are left. With two zeros they are four values, and the least error has the mean of the two.
    assert_eq!(decoded(&codec, &message), [0.0, 0.0, 0.1875, 0.0, 0.0, 0.1875]);
}

/// A cosine is one coefficient, whatever its phase at the chunk boundaries.
#[test]
fn a_wave_is_one_coefficient() {
    let wave: Vec<f32> =
        (0..64).map(|n| (std::f32::consts::PI * (2 * n + 1) as f32 * 5.0 / 128.0).cos()).collect();
    let mut codec = Demo::new(64, 0.01, 0.9).expect("a codec");
    assert_eq!(codec.encode(&wave).map(|message| message.len()), Ok(4 + 2));
    let mut codec = Demo::new(64, 0.01, 0.9).expect("a codec");
    let message = codec.encode(&wave).expect("a message");
    assert_all_near!(&decoded(&codec, &message), &wave, abs = 1e-5);
    // Without new gradients the residual is zero, and so is its tenth.
    let message = codec.encode(&[0.0; 64]).expect("a message");
    assert_all_near!(&decoded(&codec, &message), &[0.0; 64], abs = 1e-5);
}

#[test]
fn cut_messages_are_refused() {
    for config in of_one_message() {
        let mut codec = config.build_message(&[[1, 100]]).expect("a codec");
        let message = codec.encode(&normals(1, 100)).expect("a message");
        assert_eq!(message.len(), codec.bytes());
        let mut sum = [0.0; 100];
        for len in (0..message.len()).chain([message.len() + 1]) {
            let mut cut = message.clone();
            cut.resize(len, 0);
            let expected = message.len();
            let error = CommError::Cut { rank: 3, expected, got: len };
            assert_eq!(codec.add(3, &cut, 1.0, &mut sum), Err(error), "{config:?}");
        }
        assert!(matches!(codec.add(3, &message, 1.0, &mut sum[1..]), Err(CommError::Length { .. })));
        assert!(matches!(codec.encode(&[1.0; 99]), Err(CommError::Length { .. })), "{config:?}");
    }
}

#[test]
fn messages_that_no_gradient_has_are_refused() {
    let top = CodecConfig::TopK { share: 0.34, momentum: 0.0 };
    let loco = CodecConfig::SparseLoCo { share: 0.34, decay: 1.0 };
    let demo = CodecConfig::Demo { share: 0.34, momentum: 1.0 };
    let (nan, minus) = (f32::NAN.to_le_bytes(), (-1f32).to_le_bytes());
    // Bytes written into the message of six elements, and their offsets.
    let damages: [(CodecConfig, usize, &[u8]); 19] = [
        (CodecConfig::Ternary, 0, &nan),
        (CodecConfig::Ternary, 0, &minus),
        (CodecConfig::Ternary, 5, &[243]),
        (CodecConfig::Sign, 0, &nan),
        (CodecConfig::Sign, 0, &minus),
        // A padding bit after the sixth element.
        (CodecConfig::Sign, 4, &[0x40]),
        (top, 0, &nan),
        (top, 0, &minus),
        // Index 7 of 6, and indices that do not ascend.
        (top, 4, &[0x70, 0]),
        (top, 4, &[0x40, 0, 0x40, 0]),
        (top, 4, &[0x40, 0, 0x30, 0]),
        (demo, 0, &nan),
        (demo, 4, &[0x70, 0]),
        (loco, 0, &nan),
        (loco, 4, &nan),
        (loco, 4, &minus),
        (loco, 8, &[7 << 2, 0]),
        // A padding bit after the second entry of 14 bits.
        (loco, 11, &[0x10]),
        (CodecConfig::SKETCH, 4, &nan),
    ];
    for (config, at, bytes) in damages {
        let mut codec = config.build_message(&[[2, 3]]).expect("a codec");
        let mut message = codec.encode(&[1.0, -2.0, 3.0, 0.0, 0.5, -1.0]).expect("a message");
        message[at..at + bytes.len()].copy_from_slice(bytes);
        let result = codec.add(3, &message, 1.0, &mut [0.0; 6]);
        assert!(matches!(result, Err(CommError::Damaged { rank: 3, .. })), "{config:?} {at}: {result:?}");
    }
}

/// Arbitrary bytes are refused or decode to finite numbers.
#[test]
fn no_message_panics() {
    let mut rng = Rng::new(1);
    for config in of_one_message() {
        let mut codec = config.build_message(&[[1, 5000]]).expect("a codec");
        let whole = codec.encode(&normals(1, 5000)).expect("a message");
        for _ in 0..200 {
            let mut message = whole.clone();
            for _ in 0..1 + rng.below(3) {
                message[rng.below(whole.len())] = rng.next_u64() as u8;
            }
            let mut sum = vec![0.0; 5000];
            if codec.add(0, &message, 1.0, &mut sum).is_ok() {
                assert!(sum.iter().all(|x| !x.is_nan()), "{config:?}");
            }
        }
    }
}

/// A rank whose messages are too short, too long, or not finite.
#[test]
fn an_exchange_refuses_wrong_messages() {
    for config in all() {
        // The first message: half of the numbers of a factor, the step of a sketch, the message of half of the elements or of all.
        let first = match config {
            CodecConfig::LowRank { rank } => 4 * 15 * rank,
            CodecConfig::Sketch { .. } => 4,
            CodecConfig::Ternary | CodecConfig::Sign => {
                config.build_message(&[[1, 600]]).expect("a codec").bytes()
            }
            _ => config.build_message(&[[1, 1200]]).expect("a codec").bytes(),
        };
        for message in [vec![0; first - 1], vec![0; first + 1], vec![0xff; first]] {
            let results = Threads::run(2, |comm| {
                if comm.rank() == 1 {
                    return comm.all_gather(&message, usize::MAX).map(drop);
                }
                let mut codec = config.build(&[[30, 40]]).expect("a codec");
                codec.exchange(&comm, &mut normals(1, 1200))
            });
            let is_refused = matches!(
                results[0],
                Err(CommError::Cut { rank: 1, .. }
                    | CommError::TooLong { rank: 1, .. }
                    | CommError::NonFinite { rank: 1 }
                    | CommError::Damaged { rank: 1, .. })
            );
            assert!(is_refused, "{config:?}: {results:?}");
        }
    }
}

#[test]
fn low_rank_has_no_message() {
    let error = CodecConfig::LOW_RANK.build_message(&[[30, 40]]).expect_err("two rounds");
    assert_eq!(error.to_string(), "codec low rank takes 2 rounds of messages, expected 1");
}
