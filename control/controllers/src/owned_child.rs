//! The child objects of a controller's object: decides about one and carries it out.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::Resource;

use crate::api::{Error, NamespacedObject};
use crate::context::ControllerContext;
use types::shared::is_controlled_by;

/// The action for one child.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum ChildAction<K> {
    Create(K),
    /// It drifted; this is what it should be.
    Replace(K),
    Keep(K),
    /// One of that name exists and has another owner; it stays untouched (SRV-OWN-02).
    NotOwned,
}

/// Compares a child with what it should be. Only labels, annotations and spec are the owner's; `take`
/// moves them over.
pub(crate) fn decide<K: kube::Resource + Clone + PartialEq>(
    owner: &ObjectMeta,
    existing: Option<&K>,
    wanted: K,
    take: impl FnOnce(&mut K, K),
) -> ChildAction<K> {
    let Some(existing) = existing else { return ChildAction::Create(wanted) };
    if !is_controlled_by(existing.meta(), owner) {
        return ChildAction::NotOwned;
    }
    let mut adjusted = existing.clone();
    // An empty map is stored as none.
    adjusted.meta_mut().labels = wanted.meta().labels.clone().filter(|map| !map.is_empty());
    adjusted.meta_mut().annotations = wanted.meta().annotations.clone().filter(|map| !map.is_empty());
    take(&mut adjusted, wanted);
    if adjusted == *existing { ChildAction::Keep(adjusted) } else { ChildAction::Replace(adjusted) }
}

/// Has a child keep the labels and annotations that others put there: all but those in `own`, which its owner alone gives and
/// removes.
pub(crate) fn keep_foreign_metadata(wanted: &mut ObjectMeta, existing: Option<&ObjectMeta>, own: &[&str]) {
    let Some(existing) = existing else { return };
    let pairs = [(&mut wanted.labels, &existing.labels), (&mut wanted.annotations, &existing.annotations)];
    for (wanted, existing) in pairs {
        let others = existing.iter().flatten().filter(|(key, _)| !own.contains(&key.as_str()));
        let wanted = wanted.get_or_insert_default();
        others.for_each(|(key, value)| {
            wanted.entry(key.clone()).or_insert_with(|| value.clone());
        });
    }
}

/// Carries out the decision; `None` for a child that has another owner.
pub(crate) async fn apply<K: NamespacedObject>(
    context: &ControllerContext,
    child: ChildAction<K>,
) -> Result<Option<K>, Error> {
    Ok(match child {
        ChildAction::Create(wanted) => Some(context.create(&wanted).await?),
        ChildAction::Replace(wanted) => Some(context.replace(&wanted).await?),
        ChildAction::Keep(existing) => Some(existing),
        ChildAction::NotOwned => None,
    })
}

/// The reference that makes `owner` the controller of a child.
#[must_use]
pub(crate) fn owner_references<K: Resource<DynamicType = ()>>(owner: &K) -> Option<Vec<OwnerReference>> {
    let mut reference = owner.controller_owner_ref(&())?;
    reference.block_owner_deletion = Some(true);
    Some(vec![reference])
}
