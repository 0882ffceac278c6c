//! Gradients of tables.

use trike_cube::CubeError;
use trike_cube::grad::Lookups;

use crate::testing::devices;

#[test]
fn tokens_are_listed_by_their_rows() {
    for device in devices() {
        let found = Lookups::upload(&device, &[7, 2, 7, 0, 2, 7], 8).expect("rows");
        let read = |buffer| device.read(buffer).expect("a device");
        let [distinct, starts, order] = found.lists();
        assert_eq!(read(distinct), [0, 2, 7]);
        assert_eq!(read(starts), [0, 1, 3, 6]);
        assert_eq!(read(order), [3, 1, 4, 0, 2, 5]);
        assert!(matches!(Lookups::upload(&device, &[8], 8), Err(CubeError::Range { got: 8, .. })));
        assert!(Lookups::upload(&device, &[], 8).is_err());
    }
}
