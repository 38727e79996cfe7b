//! Releases memory that reconciles use when there was nothing to reconcile for a while.

use std::time::Duration;

use tokio::time::timeout;

use crate::context::ControllerContext;

/// Nothing was checked for so long: shorter than it takes until the heap's empty pages are given back (5 s), so that they
/// are more by then; and longer than the steps of a start or a rollout are apart, which need their objects again.
const QUIET_AFTER: Duration = Duration::from_secs(3);

/// Trims whenever work is finished, forever.
pub(crate) async fn run(context: &ControllerContext) {
    loop {
        context.queue.activity().await;
        while timeout(QUIET_AFTER, context.queue.activity()).await.is_ok() {}
        trim_memory(context);
    }
}

/// 64 objects of each kind take 2.5 MB with their fields open.
fn trim_memory(context: &ControllerContext) {
    context.queue.shrink();
    context.caches.compress();
}
