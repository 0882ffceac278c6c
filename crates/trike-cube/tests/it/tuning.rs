//! Kernel choices of a device.

use trike_cube::CubeError;
use trike_cube::internals::KernelChoices;

#[test]
fn a_plan_is_made_once_until_a_choice_is_added() {
    let tuning = KernelChoices::default();
    let plan = |problem: &str, made: u8| tuning.planned(&problem.to_owned(), || Ok(made)).expect("a plan");
    assert_eq!([plan("a", 1), plan("a", 2), plan("b", 3)], [1, 1, 3]);
    // The same key with another type is another problem.
    assert_eq!(tuning.planned(&7u32, || Ok(9u8)).expect("a plan"), 9);
    tuning.add([("x".to_owned(), "y".to_owned())]);
    assert_eq!([plan("a", 4), plan("a", 5)], [4, 4]);
    let refused = tuning.planned(&8u32, || {
        Err::<u8, _>(CubeError::NoKernel { operation: "test", device: "none".to_owned() })
    });
    assert!(refused.is_err());
    assert_eq!(tuning.planned(&8u32, || Ok(6u8)).expect("a plan"), 6);
}
