//! Results, traffic and residuals of exchanges.

use trike_comm::codec::{LocalExchange, LowRank};
use trike_comm::{Codec, CodecConfig, CommError, Communicator, Threads};
use trike_testkit::{assert_all_near, assert_near};

use super::{LOSSLESS, SHAPES, add, all, cosine, gradient, kept, length, normals, saved};

/// Bytes of the header of a message.
const HEADER: u64 = 20;

/// The sum of the means of five steps on a rank, and its residual.
fn five_steps(config: CodecConfig, shapes: &[[usize; 2]], comm: &Threads) -> (Vec<f32>, Vec<f32>) {
    let mut codec = config.build(shapes).expect("a codec");
    let len = codec.len();
    assert_eq!(len, shapes.iter().map(|[rows, cols]| rows * cols).sum::<usize>());
    let mut sum = vec![0.0; len];
    for step in 0..5 {
        let before = comm.traffic();
        let mut mean = gradient(comm.rank(), step, len);
        codec.exchange(comm, &mut mean).expect("a mean");
        add(&mut sum, 1.0, &mean);
        let after = comm.traffic();
        let bytes = after.sent - before.sent - HEADER * (after.messages - before.messages);
        assert_eq!(bytes, codec.sent_bytes(comm.rank(), comm.size()) as u64, "{config:?} {shapes:?}");
    }
    (sum, kept(&*codec))
}

#[test]
fn all_ranks_get_the_same_bits() {
    for config in all() {
        for shapes in SHAPES {
            for ranks in [1, 2, 3] {
                let sums = Threads::run(ranks, |comm| five_steps(config, shapes, &comm).0);
                assert!(sums.iter().all(|sum| *sum == sums[0]), "{config:?} {shapes:?}, {ranks} ranks");
                assert!(sums[0].iter().all(|x| x.is_finite()), "{config:?} {shapes:?}, {ranks} ranks");
            }
        }
    }
}

#[test]
fn what_is_sent_and_what_is_kept_are_the_gradients() {
    for config in LOSSLESS {
        for shapes in SHAPES {
            for ranks in [1, 2, 3] {
                let all = Threads::run(ranks, |comm| five_steps(config, shapes, &comm));
                let (mut got, len) = (all[0].0.clone(), all[0].0.len());
                let mut given = vec![0.0; len];
                for (rank, (_, kept)) in all.iter().enumerate() {
                    add(&mut got, 1.0 / ranks as f32, kept);
                    for step in 0..5 {
                        add(&mut given, 1.0 / ranks as f32, &gradient(rank, step, len));
                    }
                }
                assert_all_near!(&got, &given, abs = 1e-4, "{config:?} {shapes:?}, {ranks} ranks");
            }
        }
    }
}

#[test]
fn wrong_gradients_change_nothing() {
    let comm = &Threads::new(1)[0];
    for config in all() {
        let mut codec = config.build(&[[30, 40]]).expect("a codec");
        codec.exchange(comm, &mut normals(1, 1200)).expect("a mean");
        let before = saved(&*codec);
        for wrong in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for place in [0, 617, 1199] {
                let mut gradient = normals(2, 1200);
                gradient[place] = wrong;
                assert_eq!(codec.exchange(comm, &mut gradient), Err(CommError::NonFinite { rank: 0 }));
            }
        }
        for len in [0, 1199, 1201] {
            let wrong = CommError::Length { what: "gradient", expected: 1200, got: len };
            assert_eq!(codec.exchange(comm, &mut vec![0.0; len]), Err(wrong));
        }
        assert_eq!(saved(&*codec), before, "{config:?}");
    }
}

/// Gradients of zeros, of equal elements, and of tiny and huge ones.
#[test]
fn the_mean_is_finite_for_gradients_of_any_size() {
    let comm = &Threads::new(1)[0];
    for config in all() {
        let mut codec = config.build(&[[30, 40], [1, 40]]).expect("a codec");
        for size in [0.0, 1.0, 0.0, 1e-30, 0.0, 1e-42, 1e15, 0.0] {
            for alike in [true, false] {
                let mut gradient = if alike { vec![1.0; 1240] } else { normals(1, 1240) };
                gradient.iter_mut().for_each(|x| *x *= size);
                codec.exchange(comm, &mut gradient).expect("a mean");
                assert!(gradient.iter().all(|x| x.is_finite()), "{config:?} {size}");
                let state = saved(&*codec).concat();
                assert!(state.iter().all(|x| x.is_finite()), "{config:?} {size}");
            }
        }
    }
}

/// Finite gradients whose sums would overflow are refused by name, and the state is unchanged.
#[test]
fn gradients_at_the_end_of_the_range_change_nothing() {
    let comm = &Threads::new(1)[0];
    let sized = |size: f32, is_alike: bool| -> Vec<f32> {
        let signs = if is_alike { vec![1.0; 1240] } else { normals(1, 1240) };
        signs.iter().map(|x| size.copysign(*x)).collect()
    };
    for config in all() {
        let mut codec = config.build(&[[30, 40], [1, 40]]).expect("a codec");
        codec.exchange(comm, &mut normals(2, 1240)).expect("a mean");
        let before = saved(&*codec);
        for (size, is_alike) in [f32::MAX, 3e38, 1e33, 2.1e31].into_iter().zip([true, false, true, false]) {
            let mut gradient = sized(size, is_alike);
            let refused = codec.exchange(comm, &mut gradient).expect_err("it is too large");
            let CommError::TooLarge { what: "gradient", rank: 0, got, .. } = refused else {
                panic!("{config:?}: {refused}")
            };
            assert_eq!((got, gradient), (size, sized(size, is_alike)), "{config:?}");
            if let Ok(mut codec) = config.build_message(&[[30, 40], [1, 40]]) {
                let fresh = saved(&*codec);
                assert!(matches!(codec.encode(&sized(size, is_alike)), Err(CommError::TooLarge { .. })));
                assert_eq!(saved(&*codec), fresh, "{config:?}");
            }
        }
        assert_eq!(saved(&*codec), before, "{config:?}");
        // The largest accepted gradients give finite results, and so do small ones after them.
        for size in [2e31, 2e31, 1.0] {
            for is_alike in [true, false] {
                let mut gradient = sized(size, is_alike);
                codec.exchange(comm, &mut gradient).expect("a mean");
                let all = [gradient, saved(&*codec).concat()].concat();
                assert!(all.iter().all(|x| x.is_finite()), "{config:?} {size}");
            }
        }
    }
}

/// The residual counts too: each gradient alone is small enough.
#[test]
fn residuals_do_not_overflow() {
    let comm = &Threads::new(1)[0];
    // Almost all of it stays in the residual.
    let mut codec =
        CodecConfig::SparseLoCo { share: 0.001, decay: 1.0 }.build(&[[1, 1240]]).expect("a codec");
    let mut refused = Ok(());
    for _ in 0..100 {
        let before = saved(&*codec);
        refused = codec.exchange(comm, &mut vec![2e31; 1240]);
        if refused.is_err() {
            assert_eq!(saved(&*codec), before);
            break;
        }
    }
    let Err(CommError::TooLarge { what: "gradient with its residual", rank: 0, .. }) = refused else {
        panic!("{refused:?}")
    };
    codec.exchange(comm, &mut vec![-1e31; 1240]).expect("it goes on");
}

/// One of two ranks has a gradient that is too large: no rank changes its state.
#[test]
fn a_gradient_that_is_too_large_is_refused_before_any_rank_sends() {
    for config in CodecConfig::DEFAULTS {
        let [mut ranks, mut others] =
            [(); 2].map(|()| LocalExchange::new(config, &[[1, 64]], 2).expect("codecs"));
        let (one, two) = (normals(1, 64), normals(2, 64));
        let refused = ranks.exchange(&[&one, &[3e38; 64]]);
        assert!(matches!(refused, Err(CommError::TooLarge { rank: 1, .. })), "{config:?}: {refused:?}");
        assert_eq!(ranks.exchange(&[&one, &two]), others.exchange(&[&one, &two]), "{config:?}");
    }
}

#[test]
fn settings_out_of_range_are_refused() {
    use CodecConfig::{Demo, LowRank, Sketch, SparseLoCo, TopK};
    let nan = f32::NAN;
    let mut wrong = vec![LowRank { rank: 0 }];
    for share in [0.0, -0.1, 1.000_001, f32::INFINITY, nan] {
        wrong.extend([TopK { share, momentum: 0.5 }, Demo { share, momentum: 0.5 }]);
        wrong.extend([SparseLoCo { share, decay: 0.5 }, Sketch { share }]);
    }
    for factor in [-0.1, 1.000_001, nan] {
        wrong.extend([TopK { share: 0.5, momentum: factor }, Demo { share: 0.5, momentum: factor }]);
        wrong.push(SparseLoCo { share: 0.5, decay: factor });
    }
    wrong.push(TopK { share: 0.5, momentum: 1.0 });
    for config in wrong {
        let result = config.build(&[[8, 8]]);
        assert!(matches!(result, Err(CommError::Range { .. })), "{config:?}: {result:?}");
    }
    let share = f32::MIN_POSITIVE;
    assert_eq!(Sketch { share }.build_message(&[[8, 8]]).map(|codec| codec.bytes()), Ok(8));
}

#[test]
fn tensors_that_no_memory_holds_are_refused() {
    for config in CodecConfig::DEFAULTS {
        for shapes in [[[usize::MAX, 2], [1, 1]], [[1, 1], [1 << 31, 1 << 31]], [[1, 2], [1, usize::MAX]]] {
            let result = config.build(&shapes);
            assert!(matches!(result, Err(CommError::Shape { .. })), "{config:?}: {result:?}");
        }
    }
    let error = CodecConfig::Ternary.build(&[[1, 3], [usize::MAX, 2]]).expect_err("too many");
    let text = "tensor 1 of 18446744073709551615 x 2 elements after 3 others does not fit in memory";
    assert_eq!(error.to_string(), text);
}

/// Bytes of the default settings, as documented.
#[test]
fn exchanges_have_their_bytes() {
    let matrix = [[4096, 4096]];
    let ratio = |config: CodecConfig| {
        let codec = config.build(&matrix).expect("a codec");
        let of = |ranks: usize| {
            let exact = 2 * (ranks - 1) * 4 * (4096 * 4096 / ranks);
            exact as f64 / codec.sent_bytes(0, ranks) as f64
        };
        for ranks in [4, 64] {
            // Messages of all elements to all ranks, instead of to their owners.
            let more = match config {
                CodecConfig::TopK { .. } | CodecConfig::Demo { .. } | CodecConfig::SparseLoCo { .. } => {
                    ranks / 2
                }
                _ => 1,
            };
            assert_near!(of(2) / of(ranks), more as f64, rel = 0.005, "{config:?} {ranks}");
        }
        of(2)
    };
    assert_near!(ratio(CodecConfig::Ternary), 19.9, abs = 0.05);
    assert_near!(ratio(CodecConfig::Sign), 31.75, abs = 0.05);
    assert_near!(ratio(CodecConfig::TOP_K), 97.5, abs = 0.05);
    assert_near!(ratio(CodecConfig::DEMO), 89.0, abs = 0.05);
    assert_near!(ratio(CodecConfig::SPARSE_LOCO), 136.5, abs = 0.05);
    assert_near!(ratio(CodecConfig::LOW_RANK), 512.0, abs = 0.05);
    assert_near!(ratio(CodecConfig::SKETCH), 20.0, abs = 0.05);
    // 64 entries of 14 bits and two scales; 17 entries end within a byte.
    let bytes = |len| CodecConfig::SPARSE_LOCO.build_message(&[[1, len]]).expect("a codec").bytes();
    assert_eq!((bytes(4096), bytes(17 * 64), bytes(1)), (64 * 14 / 8 + 8, 30 + 8, 2 + 8));
}

/// Over many steps the mean of the received values is the gradient: the error is the residual divided by the number of steps. If
/// the residual is bounded, eight times the steps have an eighth of the error; if it grew like a random walk, 0.35.
#[test]
fn a_constant_gradient_arrives() {
    let comm = &Threads::new(1)[0];
    for config in LOSSLESS {
        let constant = normals(5, 1200);
        let mut codec = config.build(&[[30, 40]]).expect("a codec");
        let mut sum = vec![0.0; 1200];
        let mut errors = Vec::new();
        for step in 1..=4000u16 {
            let mut gradient = constant.clone();
            codec.exchange(comm, &mut gradient).expect("a mean");
            add(&mut sum, 1.0, &gradient);
            if [500, 4000].contains(&step) {
                let mut error: Vec<f32> = sum.iter().map(|sum| sum / f32::from(step)).collect();
                add(&mut error, -1.0, &constant);
                errors.push(length(&error) / length(&constant));
            }
        }
        assert_near!(errors[0], 0.0, abs = 0.12, "{config:?}");
        assert!(errors[1] < 0.3 * errors[0] + 1e-5, "{config:?}: {errors:?}");
    }
}

/// Ranks whose gradients differ constantly: the mean hides the residuals, which must not grow with the steps either, fourfold from
/// 300 to 1,200. The residual of trits doubles at first: elements beyond the scale accumulate until they have raised it.
#[test]
fn ranks_do_not_drift_apart() {
    for config in LOSSLESS {
        let lengths = Threads::run(2, |comm| {
            let mut codec = config.build(&[[30, 40]]).expect("a codec");
            let mut after = |steps| {
                for _ in 0..steps {
                    codec.exchange(&comm, &mut normals(comm.rank() as u64, 1200)).expect("a mean");
                }
                length(&kept(&*codec))
            };
            [after(300), after(900)]
        });
        for [before, after] in lengths {
            assert!(after < 2.5 * before, "{config:?}: {before} after 300 steps, {after} after 1,200");
        }
    }
}

/// The cosine of one step for normally distributed gradients, from theory: three optimal levels have 0.900, `n` elements in `b`
/// buckets the square root of `b / (b + n)`.
#[test]
fn one_step_has_the_direction_that_is_possible() {
    let comm = &Threads::new(1)[0];
    for (config, want) in [
        (CodecConfig::Ternary, 0.899),
        // The mean magnitude, the square root of 2 / pi.
        (CodecConfig::Sign, 0.798),
        (CodecConfig::SKETCH, (0.05f64 / 1.05).sqrt()),
        (CodecConfig::Sketch { share: 0.5 }, (0.5f64 / 1.5).sqrt()),
    ] {
        let mut gradient = normals(1, 100_000);
        let mut codec = config.build(&[[1, 100_000]]).expect("a codec");
        codec.exchange(comm, &mut gradient).expect("a mean");
        assert_near!(cosine(&gradient, &normals(1, 100_000)), want, abs = 0.01, "{config:?}");
    }
}

/// A matrix of rank 2 is exact after a few steps of rank 2, even if earlier gradients had lower rank, so that a column of the
/// factors was lost.
#[test]
fn matrices_of_low_rank_arrive_whole() {
    let comm = &Threads::new(1)[0];
    let (a, b) = (normals(1, 60), normals(2, 50));
    let (c, d) = (normals(3, 60), normals(4, 50));
    let matrix = |of: &dyn Fn(usize) -> f32| (0..3000).map(of).collect::<Vec<f32>>();
    let one = matrix(&|i| a[i / 50] * b[i % 50]);
    let two = matrix(&|i| a[i / 50] * b[i % 50] + 0.1 * c[i / 50] * d[i % 50]);
    let none = vec![0.0; 3000];
    let mut codec = LowRank::new(&[[60, 50]], 2).expect("a codec");
    for matrix in [&none, &one, &two, &none, &two] {
        for _ in 0..3 {
            codec.exchange(comm, &mut matrix.clone()).expect("a mean");
        }
        let mut last = matrix.clone();
        codec.exchange(comm, &mut last).expect("a mean");
        assert_all_near!(&last, matrix, abs = 1e-4);
    }
    assert_all_near!(&kept(&codec), &none, abs = 1e-4);
}
