//! When there is nothing to look at, what is held for those who look is let go.

use std::time::Duration;

use tokio::time::timeout;

use super::world::World;

/// Nothing was looked at for so long: shorter than it takes until the heap's empty pages are given back (5 s), so that they
/// are more by then; and longer than the steps of a start or a rollout are apart, which need their objects again.
const QUIET_AFTER: Duration = Duration::from_secs(3);

/// Lets go whenever work is over, for ever.
pub(super) async fn tend(world: &World) {
    loop {
        world.queue.worked().await;
        while timeout(QUIET_AFTER, world.queue.worked()).await.is_ok() {}
        let_go(world);
    }
}

/// 64 objects of each kind take 2.5 MB with their fields open.
fn let_go(world: &World) {
    world.queue.rest();
    world.services.rest();
    world.configurations.rest();
    world.revisions.rest();
    world.deployments.rest();
    world.pods.rest();
    world.routes.rest();
    world.certificates.rest();
    world.pod_autoscalers.rest();
    world.metrics.rest();
    world.triggers.rest();
    world.core_names.services().rest();
}
