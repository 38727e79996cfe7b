//! When there is nothing to look at, what is held for those who look is let go.

use std::time::Duration;

use tokio::time::timeout;

use super::context::ControllerContext;

/// Nothing was looked at for so long: shorter than it takes until the heap's empty pages are given back (5 s), so that they
/// are more by then; and longer than the steps of a start or a rollout are apart, which need their objects again.
const QUIET_AFTER: Duration = Duration::from_secs(3);

/// Lets go whenever work is over, for ever.
pub(super) async fn run(world: &ControllerContext) {
    loop {
        world.queue.activity().await;
        while timeout(QUIET_AFTER, world.queue.activity()).await.is_ok() {}
        trim_memory(world);
    }
}

/// 64 objects of each kind take 2.5 MB with their fields open.
fn trim_memory(world: &ControllerContext) {
    world.queue.shrink();
    world.services.compress_all();
    world.configurations.compress_all();
    world.revisions.compress_all();
    world.deployments.compress_all();
    world.pods.compress_all();
    world.routes.compress_all();
    world.certificates.compress_all();
    world.pod_autoscalers.compress_all();
    world.metrics.compress_all();
    world.triggers.compress_all();
    world.service_names.services().compress_all();
}
