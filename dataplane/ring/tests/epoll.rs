//! The promises of the loop, on epoll.

use sluicegate_ring::{Ring, RingOptions};

mod driver_cases;

fn open(options: RingOptions) -> Ring {
    Ring::epoll(options).expect("descriptors and memory")
}
