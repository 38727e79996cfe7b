//! Changes of Revisions' instances, for the controllers that report them.

use std::time::Duration;

use tokio::sync::broadcast::error::RecvError;

use crate::context::ControllerContext;
use crate::work_queue::{ControllerKind, WorkItem};
use types::shared::HasConditions as _;

/// Delay before the instances of a ready Revision are written to its status: a request that starts one has its
/// response by then, if the program starts quickly; two processors are not kept busy, and the status is written once
/// instead of twice.
const POD_UPDATE_DELAY: Duration = Duration::from_millis(25);

/// Enqueues each Revision whose instances have changed for the controller `kind`, forever.
pub(crate) async fn follow(context: &ControllerContext, kind: ControllerKind) {
    let mut changes = context.autoscaler.changes();
    loop {
        match changes.recv().await {
            Ok(key) => {
                if let Some((ns, name)) = key.split_once('/') {
                    enqueue(context, WorkItem::new(kind, ns, name));
                }
            }
            Err(RecvError::Lagged(_)) => {
                let all = context.caches.revisions.keys();
                all.iter().for_each(|(ns, name)| enqueue(context, WorkItem::new(kind, ns, name)));
            }
            // The autoscaler has ended; the controllers end soon.
            Err(RecvError::Closed) => std::future::pending().await,
        }
    }
}

/// Only the instance count of a ready Revision changes, which is not urgent: it is written when the request that
/// started an instance is on its way.
fn enqueue(context: &ControllerContext, item: WorkItem) {
    let revision = context.caches.revisions.get(&item.namespace, &item.name);
    if revision.is_some_and(|revision| revision.is_ready()) {
        context.queue.add_after(item, POD_UPDATE_DELAY);
    } else {
        context.enqueue(item);
    }
}
