//! The loop that fixtures and load generators run on: monoio's, so that the product is never tested by its own.

use monoio::time::TimeDriver;
use monoio::{IoUringDriver, Runtime, RuntimeBuilder};

/// A loop for this thread.
///
/// Completions wait until the thread enters the kernel anyway. By io_uring's default each arrival interrupts the
/// processor that the fixture runs on, and it is the sender, the product under measure, that pays for the interrupt:
/// 15 % of its time when it fans out events.
pub(crate) fn runtime() -> Runtime<TimeDriver<IoUringDriver>> {
    let mut ring = io_uring::IoUring::builder();
    ring.setup_coop_taskrun();
    RuntimeBuilder::<IoUringDriver>::new().uring_builder(ring).enable_timer().build().expect("an io_uring")
}
