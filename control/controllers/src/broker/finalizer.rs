//! The finalizers of Brokers: one that drains, and one whose stream is in an external store.

use kube::api::Patch;
use serde_json::json;

use crate::api::Error;
use crate::context::ControllerContext;
use crate::field_managers;
use types::eventing::broker::Broker;
use types::shared::{name, namespace};

pub(super) fn has(broker: &Broker, finalizer: &str) -> bool {
    broker.metadata.finalizers.iter().flatten().any(|one| one == finalizer)
}

/// Adds or removes a finalizer.
pub(super) async fn write(
    context: &ControllerContext,
    broker: &Broker,
    finalizer: &str,
    held: bool,
) -> Result<Broker, Error> {
    let meta = &broker.metadata;
    let others = meta.finalizers.iter().flatten().filter(|one| *one != finalizer).cloned();
    let finalizers: Vec<String> = others.chain(held.then(|| finalizer.to_owned())).collect();
    // The version makes a crossing write a conflict, and that another look.
    let patch = json!({ "metadata": { "resourceVersion": meta.resource_version, "finalizers": finalizers } });
    let api = context.api::<Broker>(namespace(meta));
    Ok(api.patch(name(meta), &field_managers::patch_params(), &Patch::Merge(patch)).await?)
}
