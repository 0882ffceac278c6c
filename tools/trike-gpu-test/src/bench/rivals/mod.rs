//! Other implementations at the same problems in the same run: cuBLAS and cubek, in f16.
//!
//! Their weights are rotated as Trike's are and the device's clock is read as for Trike. A rival that computes something else
//! is none: some of its outputs are compared with a loop over f64 before its figure counts. One that cannot run leaves a line
//! with the reason, and is no failure of the run.
//!
//! Only with the feature `rivals`: cubek takes longer to compile than everything else here.

#[cfg(feature = "rivals")]
mod cubek;
#[cfg(feature = "rivals")]
mod cublas;
#[cfg(any(test, feature = "rivals"))]
#[cfg_attr(not(feature = "rivals"), allow(dead_code, reason = "its tests need no rivals"))]
mod oracle;

use super::catalogue::Catalogue;
use super::timer::Timer;
use super::{Options, Record};

/// cuBLAS in records.
pub(super) const CUBLAS: &str = "cuBLAS f16";
/// cubek in records.
pub(super) const CUBEK: &str = "cubek f16";

/// Says that nobody else is in this binary.
#[cfg(not(feature = "rivals"))]
pub(super) fn all(_: &Timer<'_>, _: &Options, _: &Catalogue, record: &mut Record<'_>) {
    for rival in [CUBLAS, CUBEK] {
        record.not_run(rival, None, "built without the feature `rivals`");
    }
}

/// Times the rivals at every product with the usual zeros, which are nothing special to them, and cubek at attention of
/// prompts.
#[cfg(feature = "rivals")]
pub(super) fn all(timer: &Timer<'_>, options: &Options, catalogue: &Catalogue, record: &mut Record<'_>) {
    use super::catalogue::{Product, Zeros};

    let mut products: Vec<Product> = Vec::new();
    for (product, _) in &catalogue.products {
        let same = |other: &Product| other.name() == product.name();
        if product.zeros == Zeros::Usual && options.wants(&product.name()) && !products.iter().any(same) {
            products.push(*product);
        }
    }
    let by_shape = |a: &Product, b: &Product| (a.rows, a.cols) == (b.rows, b.cols);
    let rotate = options.rotate_mib << 20;
    match caught(|| cublas::Library::open(timer.device())) {
        Ok(library) => {
            for group in products.chunk_by(by_shape) {
                library.products(timer, group, rotate, record);
            }
        }
        Err(e) => record.not_run(CUBLAS, None, &reason(&e)),
    }
    match caught(|| cubek::Cubek::open(timer.device())) {
        Ok(cubek) => {
            for group in products.chunk_by(by_shape) {
                cubek.products(timer, group, rotate, record);
            }
            let prompts = |a: &&super::Attention| a.tokens > 1 && options.wants(&a.name());
            for case in catalogue.attention.iter().filter(prompts) {
                cubek.attention(timer, case, record);
            }
        }
        Err(e) => record.not_run(CUBEK, None, &reason(&e)),
    }
}

/// A library that cannot be loaded panics, and so does a kernel that its author did not think of.
#[cfg(feature = "rivals")]
fn caught<T>(run: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<T> {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    catch_unwind(AssertUnwindSafe(run))
        .unwrap_or_else(|panic| Err(anyhow::anyhow!("{}", crate::session::panic_message(panic.as_ref()))))
}

/// An error on one line, without what follows a backtrace.
#[cfg(feature = "rivals")]
fn reason(error: &anyhow::Error) -> String {
    const LONGEST: usize = 300;
    let text = format!("{error:#}");
    let text = text.split("Backtrace").next().unwrap_or(&text);
    text.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(LONGEST).collect()
}

#[cfg(all(test, feature = "rivals"))]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_a_reason() {
        let panics = caught::<()>(|| panic!("no  library\nhere"));
        assert_eq!(reason(&panics.unwrap_err()), "no library here");
        assert_eq!(caught(|| Ok(3)).unwrap(), 3);
    }
}
