//! The promises of the loop, on io_uring.

use sluicegate_ring::{Ring, RingOptions};

mod driver_cases;

fn open(options: RingOptions) -> Ring {
    Ring::kernel(options).expect("this kernel has io_uring")
}
