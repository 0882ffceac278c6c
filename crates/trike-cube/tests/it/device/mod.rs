//! Devices: memory, launches, recordings.

mod graph;
mod launch;
mod memory;
mod open;
mod transfer;

use trike_cube::internals::guarded;

#[test]
fn panics_of_calls_become_their_message() {
    assert_eq!(guarded(|| 5), Ok(5));
    assert_eq!(
        guarded(|| panic!("no memory for {} bytes", 7)),
        Err::<(), _>("no memory for 7 bytes".to_owned())
    );
    assert_eq!(guarded(|| panic!("lost")), Err::<(), _>("lost".to_owned()));
    let other = guarded(|| std::panic::panic_any(5));
    assert_eq!(other, Err::<(), _>("a panic without a message".to_owned()));
}
