//! Writes into aggregated ClusterRoles what they add up to, for whoever reads them (`kubectl describe clusterrole
//! view`). Who may do what is judged without waiting for it.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::rbac::v1::ClusterRole;
use serde_json::Value;

use crate::access::rbac;
use crate::kind::Resource as _;
use crate::store::upkeep::{self, Skip};
use crate::store::{Change, Key, Store, StoreError, View};

use super::object;

/// Pause while the disk is full.
const TRY_AGAIN_AFTER: Duration = Duration::from_secs(2);

/// Keeps them right until the store is shut or fails.
pub async fn aggregate(store: Arc<Store>) {
    let mut news = store.revision();
    let weak = Arc::downgrade(&store);
    drop(store);
    // Of what was there at the start the store counts no change.
    let mut settled = None;
    let resource = object::resource_of(&ClusterRole::META);
    loop {
        news.mark_unchanged();
        let Some(store) = weak.upgrade() else { return };
        let changed = store.read().last_change(&resource);
        if settled != Some(changed) {
            match settle(&store, &resource).await {
                Ok(()) => settled = Some(changed),
                Err(StoreError::Full { .. }) => {
                    drop(store);
                    tokio::time::sleep(TRY_AGAIN_AFTER).await;
                    continue;
                }
                Err(why) => {
                    tracing::error!(error = %why, "ClusterRoles are aggregated no more");
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

async fn settle(store: &Store, resource: &Arc<str>) -> Result<(), StoreError> {
    for (key, rules) in unsettled(store, resource) {
        let write = move |view: &View| {
            let mut role = view.get(&key).ok_or(Skip::Fine)?.value();
            role["rules"] = rules;
            Ok(Change::Put(key, role))
        };
        upkeep::write(store, write).await?;
    }
    Ok(())
}

/// Aggregated roles that say something else than what they add up to, and that.
fn unsettled(store: &Store, resource: &Arc<str>) -> Vec<(Key, Value)> {
    let memory = store.read();
    let roles = memory.list(resource, None).items();
    let wanted = roles.iter().filter_map(|role| {
        let value = role.value();
        let rules = Value::from(rbac::aggregated(&memory, &role.key.name, &value)?);
        (value["rules"] != rules).then(|| (role.key.clone(), rules))
    });
    wanted.collect()
}
