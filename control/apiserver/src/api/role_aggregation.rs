//! Writes the combined rules into aggregated ClusterRoles, for clients that read them (`kubectl describe clusterrole
//! view`). Authorization does not wait for it.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::rbac::v1::ClusterRole;
use serde_json::Value;

use crate::access::rbac;
use crate::store::maintenance::{self, SkipReason};
use crate::store::{ObjectKey, ObjectStore, StagedView, StoreError, WriteOperation};
use types::kind_registry::ResourceStrategy as _;

use super::prepare;

/// Pause while the disk is full.
const RETRY_AFTER: Duration = Duration::from_secs(2);

/// Keeps them right until the store is shut or fails.
pub async fn aggregate(store: Arc<ObjectStore>) {
    let mut news = store.revision();
    let weak = Arc::downgrade(&store);
    drop(store);
    // Of what was there at the start the store counts no change.
    let mut settled = None;
    let resource = prepare::resource_of(&ClusterRole::META);
    loop {
        news.mark_unchanged();
        let Some(store) = weak.upgrade() else { return };
        let changed = store.read().last_change(&resource);
        if settled != Some(changed) {
            match reconcile_roles(&store, &resource).await {
                Ok(()) => settled = Some(changed),
                Err(StoreError::Full { .. }) => {
                    drop(store);
                    tokio::time::sleep(RETRY_AFTER).await;
                    continue;
                }
                Err(why) => {
                    tracing::error!(error = %why, "ClusterRoles are no longer aggregated");
                    return;
                }
            }
        }
        drop(store);
        if news.changed().await.is_err() {
            return;
        }
    }
}

async fn reconcile_roles(store: &ObjectStore, resource: &Arc<str>) -> Result<(), StoreError> {
    for (key, rules) in outdated_roles(store, resource) {
        let write = move |view: &StagedView| {
            let mut role = view.get(&key).ok_or(SkipReason::UpToDate)?.value();
            role["rules"] = rules;
            Ok(WriteOperation::Put(key, role))
        };
        maintenance::write(store, write).await?;
    }
    Ok(())
}

/// Aggregated roles that say something else than what they add up to, and that.
fn outdated_roles(store: &ObjectStore, resource: &Arc<str>) -> Vec<(ObjectKey, Value)> {
    let memory = store.read();
    let roles = memory.list(resource, None).items();
    let wanted = roles.iter().filter_map(|role| {
        let value = role.value();
        let rules = Value::from(rbac::aggregated(&memory, &role.key.name, &value)?);
        (value["rules"] != rules).then(|| (role.key.clone(), rules))
    });
    wanted.collect()
}
