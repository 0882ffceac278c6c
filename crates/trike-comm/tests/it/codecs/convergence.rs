//! The final loss of a run.

use trike_comm::{Codec, CodecConfig, Communicator, Threads};
use trike_testkit::Rng;

const SHAPES: [[usize; 2]; 2] = [[48, 40], [1, 40]];
const LEN: usize = 1960;
const RANKS: usize = 4;
const STEPS: usize = 2000;
const RATE: f32 = 0.02;

/// The mean over ranks by the codec, or the exact one.
fn mean(codec: &mut Option<Box<dyn Codec>>, comm: &Threads, gradient: &mut [f32]) {
    if let Some(codec) = codec {
        return codec.exchange(comm, gradient).expect("a mean");
    }
    let bytes: Vec<u8> = gradient.iter().flat_map(|x| x.to_le_bytes()).collect();
    gradient.fill(0.0);
    for message in comm.all_gather(&bytes, bytes.len()).expect("messages") {
        for (sum, bytes) in gradient.iter_mut().zip(message.chunks_exact(4)) {
            *sum += f32::from_le_bytes(bytes.try_into().expect("four bytes")) / RANKS as f32;
        }
    }
}

/// The mean loss of the last tenth of a run: weights with curvatures of 0.2 to 1, with independent gradient noise on each rank.
/// Each rank takes `local` steps before each exchange of differences.
fn loss(config: Option<CodecConfig>, local: usize) -> f64 {
    let losses = Threads::run(RANKS, |comm| {
        let mut rng = Rng::new(1);
        let curvature: Vec<f32> = (0..LEN).map(|_| 0.2 + 0.8 * rng.f32_unit()).collect();
        let best = rng.normals(LEN);
        let mut noise = Rng::new(100 + comm.rank() as u64);
        let mut codec = config.map(|config| config.build(&SHAPES).expect("a codec"));
        let (mut weights, mut sum, mut count) = (vec![0f32; LEN], 0.0, 0);
        for exchange in 0..STEPS / local {
            let mut own = weights.clone();
            for _ in 0..local {
                for ((w, best), curvature) in own.iter_mut().zip(&best).zip(&curvature) {
                    *w -= RATE * (curvature * (*w - best) + 2.0 * (noise.f32_unit() - 0.5));
                }
            }
            let mut difference: Vec<f32> = weights.iter().zip(&own).map(|(w, own)| w - own).collect();
            mean(&mut codec, &comm, &mut difference);
            weights.iter_mut().zip(&difference).for_each(|(w, d)| *w -= d);
            if exchange >= STEPS / local * 9 / 10 {
                let terms = weights.iter().zip(&best).zip(&curvature);
                sum += terms.map(|((w, best), c)| f64::from(0.5 * c * (w - best) * (w - best))).sum::<f64>();
                count += 1;
            }
        }
        sum / f64::from(count)
    });
    assert!(losses.iter().all(|loss| *loss == losses[0]), "{config:?}");
    losses[0]
}

/// Each codec ends within a factor of the exact mean's loss, which starts more than 100 times higher. The decay of SparseLoCo
/// reduces the noise of single steps, and with it the loss.
#[test]
fn codecs_end_near_the_loss_without_one() {
    let exact = [loss(None, 1), loss(None, 10)];
    for (config, local, factor) in [
        (CodecConfig::Ternary, 1, 1.05),
        (CodecConfig::Sign, 1, 1.1),
        (CodecConfig::TOP_K, 1, 1.3),
        (CodecConfig::DEMO, 1, 1.2),
        (CodecConfig::LOW_RANK, 1, 1.2),
        (CodecConfig::SKETCH, 1, 1.5),
        (CodecConfig::SPARSE_LOCO, 1, 1.0),
        (CodecConfig::SPARSE_LOCO, 10, 1.4),
    ] {
        let exact = exact[usize::from(local == 10)];
        let coded = loss(Some(config), local);
        println!(
            "{config:?}, {local} local steps: {coded:.4}, without a codec {exact:.4}, {:.3}",
            coded / exact
        );
        assert!(coded < factor * exact, "{config:?}: {coded}, without a codec {exact}");
    }
}
