//! The garbage collector: deletes dependents whose owners are gone, and the content of deleted namespaces.
//!
//! Driven by the store's history. A change says where to check; the decision is made on
//! the writer's thread against the newest state, so a repeated or late check does no harm.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use serde_json::Value;
use tokio::sync::watch;
use tokio::time::Instant;

use types::kind_registry::KindRegistry;

use super::gc_rate_limiter::GcRateLimiter;
use super::lifecycle::{self, CUSTOM_RESOURCE_CLEANUP, DEFINITIONS, FOREGROUND, ORPHAN, PropagationPolicy};
use super::maintenance::{self, SkipReason};
use super::namespace_termination::{self, RemainingObjects};
use super::{
    ChangeEvent, DecodedObject, MemoryIndex, ObjectKey, ObjectStore, StagedView, StoreError, StoredObject,
    WriteOperation,
};

/// Concurrent deletions, so that they share commits.
const CONCURRENT_DELETES_MAX: usize = 64;
/// Pause while the disk is full.
const RETRY_AFTER: Duration = Duration::from_secs(2);

/// A target of the collector.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum GcTarget {
    /// An object with owners.
    Child(ObjectKey),
    /// An object that waits for its dependents.
    Owner(ObjectKey),
    /// A namespace that is being deleted.
    Namespace(ObjectKey),
    /// The definition of a client's kind that is being deleted.
    Definition(ObjectKey),
}

/// Records the manager and the time of a status write, in a change of an object, which is given as it was before.
pub type TrackStatusWriterFn = fn(WriteOperation, &DecodedObject, &str) -> WriteOperation;
/// Reports about an object in an Event, with a reason and a message.
pub type RecordEventFn = fn(&StagedView, &StoredObject, &str, &str) -> Result<WriteOperation, SkipReason>;

/// The texts of the collector's Events.
#[derive(Debug, Clone, Copy)]
pub struct GcCallbacks {
    pub track_status_writer: TrackStatusWriterFn,
    pub record_event: RecordEventFn,
}

/// Collects until the store is closed or fails. `registry` has the kinds that are not defined in the store.
pub async fn run(store: Arc<ObjectStore>, registry: Arc<KindRegistry>, words: GcCallbacks) {
    let mut news = store.revision();
    let weak = Arc::downgrade(&store);
    let (mut places, mut reached) = {
        let memory = store.read();
        (all_targets(&memory), memory.revision())
    };
    drop(store);
    let mut looks = GcRateLimiter::default();
    loop {
        match process(&weak, &registry, places, words).await {
            Ok(()) => {}
            Err(StoreError::Full { .. }) => {
                tokio::time::sleep(RETRY_AFTER).await;
                let Some(store) = weak.upgrade() else { return };
                news.mark_unchanged();
                let memory = store.read();
                (places, reached) = (all_targets(&memory), memory.revision());
                continue;
            }
            Err(why) => {
                tracing::error!(error = %why, "garbage collection ends");
                return;
            }
        }
        if !wait_for_change(&mut news, looks.next_at()).await {
            return;
        }
        let Some(store) = weak.upgrade() else { return };
        news.mark_unchanged();
        let memory = store.read();
        (places, reached) = match memory.changes(None, None, reached, usize::MAX) {
            Ok((events, reached)) => (changed_targets(&memory, &events), reached),
            Err(_) => (all_targets(&memory), memory.revision()),
        };
        requeue(&mut places, &mut looks, &memory);
    }
}

/// Waits for changes, or until `due`. `false`: the store is closed.
async fn wait_for_change(news: &mut watch::Receiver<u64>, due: Option<Instant>) -> bool {
    // A closed store may still be in use: an error is the end, and not reported.
    let changed = async {
        match news.has_changed() {
            Ok(true) => true,
            Ok(false) => news.changed().await.is_ok(),
            Err(_) => false,
        }
    };
    match due {
        Some(due) => tokio::time::timeout_at(due, changed).await.unwrap_or(true),
        None => changed.await,
    }
}

/// Leaves out the namespaces and definitions that are not due yet, and adds those that are.
fn requeue(places: &mut BTreeSet<GcTarget>, looks: &mut GcRateLimiter, memory: &MemoryIndex) {
    let now = Instant::now();
    let of = |key: ObjectKey| {
        if lifecycle::is_namespace(&key) { GcTarget::Namespace(key) } else { GcTarget::Definition(key) }
    };
    places.extend(looks.take_due(now).into_iter().map(of));
    places.retain(|place| match place {
        GcTarget::Namespace(key) => looks.allow(key, memory.in_namespace(&key.name).next().is_none(), now),
        GcTarget::Definition(key) => {
            let resource = lifecycle::resource_of_definition(&key.name);
            looks.allow(key, memory.list(&resource, None).into_iter().next().is_none(), now)
        }
        GcTarget::Child(_) | GcTarget::Owner(_) => true,
    });
}

/// All possible targets, when nothing is known of the changes.
fn all_targets(memory: &MemoryIndex) -> BTreeSet<GcTarget> {
    // Reading each owner would decompress a block for each compressed object.
    let there = memory.all().into_iter().filter(|object| !object.head.deleting);
    let staying: HashMap<String, Arc<str>> =
        there.map(|object| (object.head.uid().to_owned(), Arc::clone(&object.key.namespace))).collect();
    let places = |object: Arc<StoredObject>| {
        targets_of(&object, |owner| staying.get(owner).is_some_and(|home| may_own(home, &object.key)))
    };
    memory.all().into_iter().flat_map(places).collect()
}

/// The targets for one object.
fn targets_in(memory: &MemoryIndex, object: &StoredObject) -> Vec<GcTarget> {
    let stays = |owner: &StoredObject| !owner.head.deleting && may_own(&owner.key.namespace, &object.key);
    targets_of(object, |owner| memory.by_uid(owner).is_some_and(|owner| stays(&owner)))
}

/// An object whose owners exist and stay is no target: when one of them is deleted, that leads here again.
fn targets_of(object: &StoredObject, stays: impl Fn(&str) -> bool) -> Vec<GcTarget> {
    let head = &object.head;
    let waits = head.deleting && (head.has_finalizer(FOREGROUND) || head.has_finalizer(ORPHAN));
    let key = &object.key;
    let child = (!head.owners().all(stays)).then(|| GcTarget::Child(key.clone()));
    let owner = waits.then(|| GcTarget::Owner(key.clone()));
    let namespace = (head.deleting && lifecycle::is_namespace(key)).then(|| GcTarget::Namespace(key.clone()));
    let definition =
        (head.deleting && head.has_finalizer(CUSTOM_RESOURCE_CLEANUP)).then(|| GcTarget::Definition(key.clone()));
    [child, owner, namespace, definition].into_iter().flatten().collect()
}

/// The targets of changes.
fn changed_targets(memory: &MemoryIndex, events: &[ChangeEvent]) -> BTreeSet<GcTarget> {
    if events.iter().any(|event| &*event.object.key.resource == DEFINITIONS && event.before.is_none()) {
        return all_targets(memory); // the kind of an owner may have been unknown before
    }
    let (mut places, mut around) = (BTreeSet::new(), BTreeSet::new());
    for event in events {
        places.extend(targets_of_event(memory, event));
        let object = &event.object;
        // A deleted object may be the last of its namespace; a new one may come from a restore.
        if event.deleted || !object.head.deleting {
            around.insert(lifecycle::namespace_key(&object.key.namespace));
        }
        if event.deleted {
            around.insert(lifecycle::definition_key(&object.key.resource));
        }
    }
    // Each once: thousands deleted together have one namespace, which may be compressed.
    let around = around.iter().filter_map(|key| memory.get(key)).filter(|one| one.head.deleting);
    places.extend(around.flat_map(|one| targets_in(memory, &one)));
    places
}

fn targets_of_event(memory: &MemoryIndex, event: &ChangeEvent) -> Vec<GcTarget> {
    let object = &event.object;
    let mut places = Vec::new();
    // A restore may replace it by another object of the same name.
    let replaced = event.before.as_ref().map(|before| before.head.uid()).filter(|uid| *uid != object.head.uid());
    if let Some(uid) = replaced {
        places.extend(memory.dependents(uid).map(|child| GcTarget::Child(child.key.clone())));
    }
    if event.deleted {
        places.extend(memory.dependents(object.head.uid()).map(|child| GcTarget::Child(child.key.clone())));
    } else {
        places.extend(targets_in(memory, object));
    }
    // An owner may have waited for exactly this dependent.
    if let Some(before) = &event.before {
        let waiting = before.head.owners().filter_map(|uid| memory.by_uid(uid));
        places.extend(waiting.flat_map(|owner| targets_in(memory, &owner)));
    }
    places
}

async fn process(
    store: &Weak<ObjectStore>,
    registry: &Arc<KindRegistry>,
    places: BTreeSet<GcTarget>,
    words: GcCallbacks,
) -> Result<(), StoreError> {
    let now = now();
    let visits = stream::iter(places).map(|place| {
        let (now, registry) = (now.clone(), Arc::clone(registry));
        async move {
            let Some(store) = store.upgrade() else { return Ok(()) };
            match place {
                GcTarget::Child(key) => process_child(&store, registry, key, now, words.record_event).await,
                GcTarget::Owner(key) => process_owner(&store, &registry, key, now).await,
                GcTarget::Namespace(key) => process_namespace(&store, key, now, words.track_status_writer).await,
                GcTarget::Definition(key) => process_definition(&store, key, now).await,
            }
        }
    });
    let mut visits = std::pin::pin!(visits.buffer_unordered(CONCURRENT_DELETES_MAX));
    while let Some(outcome) = visits.next().await {
        outcome?;
    }
    Ok(())
}

async fn process_child(
    store: &ObjectStore,
    registry: Arc<KindRegistry>,
    key: ObjectKey,
    now: String,
    tell: RecordEventFn,
) -> Result<(), StoreError> {
    let far = owner_in_other_namespace(&store.read(), &key);
    if let Some((child, owner)) = far {
        let place = format!("does not exist in namespace {:?}", &*key.namespace);
        let reference_text = format!("ownerRef {owner} {place}");
        maintenance::write(store, move |view| tell(view, &child, "OwnerRefInvalidNamespace", &reference_text)).await?;
    }
    maintenance::write(store, move |view| decide_child(view, &registry, &key, &now)).await
}

/// The dependent, and an owner in another namespace, formatted like Kubernetes' references.
fn owner_in_other_namespace(memory: &MemoryIndex, key: &ObjectKey) -> Option<(Arc<StoredObject>, String)> {
    let child = memory.get(key)?;
    let is_far = |uid: &str| memory.by_uid(uid).is_some_and(|owner| !may_own(&owner.key.namespace, key));
    let uid = child.head.owners().find(|uid| is_far(uid))?.to_owned();
    let value = child.value();
    let reference = value["metadata"]["ownerReferences"].as_array()?.iter().find(|one| one["uid"] == *uid)?;
    let text = |field: &str| reference[field].as_str().unwrap_or_default();
    let (version, kind, name, home) = (text("apiVersion"), text("kind"), text("name"), &key.namespace);
    Some((child, format!("[{version}/{kind}, namespace: {home}, name: {name}, uid: {uid}]")))
}

async fn process_owner(
    store: &ObjectStore,
    registry: &Arc<KindRegistry>,
    key: ObjectKey,
    now: String,
) -> Result<(), StoreError> {
    let children: Vec<Arc<StoredObject>> = {
        let memory = store.read();
        let Some(owner) = memory.get(&key) else { return Ok(()) };
        memory.dependents(owner.head.uid()).collect()
    };
    for child in children {
        let (now, key, registry) = (now.clone(), child.key.clone(), Arc::clone(registry));
        maintenance::write(store, move |view| decide_child(view, &registry, &key, &now)).await?;
    }
    maintenance::write(store, move |view| decide_owner(view, &key)).await
}

async fn process_namespace(
    store: &ObjectStore,
    key: ObjectKey,
    now: String,
    sign: TrackStatusWriterFn,
) -> Result<(), StoreError> {
    let inside: Vec<ObjectKey> = {
        let memory = store.read();
        let stays = memory.in_namespace(&key.name).filter(|object| !object.head.deleting);
        stays.map(|object| object.key.clone()).collect()
    };
    delete_all(store, inside, &now).await?;
    let left = RemainingObjects::of(store.read().in_namespace(&key.name));
    let now = now.clone();
    maintenance::write(store, move |view| decide_namespace(view, &key, &left, &now, sign)).await
}

/// Deletes the objects of a deleted definition's kind, and removes its finalizer if none are left.
///
/// # Errors
/// The store's.
pub async fn delete_custom_objects(store: &ObjectStore, definition: ObjectKey) -> Result<(), StoreError> {
    process_definition(store, definition, now()).await
}

fn now() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

async fn process_definition(store: &ObjectStore, key: ObjectKey, now: String) -> Result<(), StoreError> {
    let resource = lifecycle::resource_of_definition(&key.name);
    let objects: Vec<ObjectKey> = {
        let memory = store.read();
        let stay = memory.list(&resource, None).into_iter().filter(|object| !object.head.deleting);
        stay.map(|object| object.key.clone()).collect()
    };
    delete_all(store, objects, &now).await?;
    maintenance::write(store, move |view| {
        let definition = view.get(&key).filter(|found| found.head.deleting).ok_or(SkipReason::UpToDate)?.decode();
        if !view.kind_is_empty(&resource) {
            return Err(SkipReason::UpToDate);
        }
        Ok(lifecycle::finish_update(
            &definition,
            lifecycle::without_finalizer(&definition.value, CUSTOM_RESOURCE_CLEANUP),
        ))
    })
    .await
}

async fn delete_all(store: &ObjectStore, keys: Vec<ObjectKey>, now: &str) -> Result<(), StoreError> {
    let deletions = stream::iter(keys).map(|key| {
        let now = now.to_owned();
        maintenance::write(store, move |view| {
            let object = view.get(&key).ok_or(SkipReason::UpToDate)?.decode();
            Ok(lifecycle::start_delete(&object, PropagationPolicy::Background, &now))
        })
    });
    let mut deletions = std::pin::pin!(deletions.buffer_unordered(CONCURRENT_DELETES_MAX));
    while let Some(outcome) = deletions.next().await {
        outcome?;
    }
    Ok(())
}

/// Whether an owner in `home` may own the dependent: a cluster-scoped one, or one in the same namespace.
fn may_own(home: &str, child: &ObjectKey) -> bool {
    home.is_empty() || *home == *child.namespace
}

/// Whether objects of the owner's kind live in namespaces; `None`: no such kind is stored here. Then it is unknown whether one
/// is gone: an object restored from a cluster, or created before its owner's definition, must not be lost because of that.
fn is_namespaced(view: &StagedView, registry: &KindRegistry, owner: &Value) -> Option<bool> {
    let (version, kind) = (owner["apiVersion"].as_str().unwrap_or(""), &owner["kind"]);
    let group = version.split_once('/').map_or("", |(group, _)| group);
    let ours = registry.entries.iter().find(|entry| entry.meta.group == group && *kind == entry.meta.kind);
    ours.map(|entry| entry.meta.namespaced).or_else(|| view.is_namespaced(DEFINITIONS, group, kind))
}

/// Deletes it when its last owner is gone or is deleted in the foreground; removes references to owners that are gone. One in another
/// namespace counts as gone, as in Kubernetes, where owners have no namespace.
fn decide_child(
    view: &StagedView,
    registry: &KindRegistry,
    key: &ObjectKey,
    now: &str,
) -> Result<WriteOperation, SkipReason> {
    let child: DecodedObject = view.get(key).ok_or(SkipReason::UpToDate)?.decode();
    let references = child.value["metadata"]["ownerReferences"].as_array().ok_or(SkipReason::UpToDate)?;
    let owner = |reference: &Value| {
        let found = view.by_uid(reference["uid"].as_str().unwrap_or(""));
        found.filter(|owner| may_own(&owner.key.namespace, key))
    };
    // The owner of a cluster-scoped dependent is ambiguous, if its owner has to be in one.
    let unclear = |reference: &Value| {
        let is_nowhere = key.namespace.is_empty();
        owner(reference).is_none()
            && is_namespaced(view, registry, reference).is_none_or(|lives_in_one| lives_in_one && is_nowhere)
    };
    if references.iter().any(unclear) {
        return Err(SkipReason::UpToDate);
    }
    let leaves_it = |owner: &StoredObject| owner.head.deleting && owner.head.has_finalizer(ORPHAN);
    let goes_with_it = |owner: &StoredObject| owner.head.deleting && owner.head.has_finalizer(FOREGROUND);
    let kept: Vec<Value> = references
        .iter()
        .filter(|reference| owner(reference).is_some_and(|owner| !leaves_it(&owner)))
        .cloned()
        .collect();
    let orphaned = references.iter().any(|reference| owner(reference).is_some_and(|owner| leaves_it(&owner)));
    let stays = kept.iter().any(|reference| owner(reference).is_some_and(|owner| !goes_with_it(&owner)));
    if !stays && !orphaned && !references.is_empty() {
        // A dependent that blocks its owner waits for its own dependents.
        let in_order = !kept.is_empty() && !view.dependents(child.head.uid()).is_empty();
        let policy = if in_order { PropagationPolicy::Foreground } else { PropagationPolicy::Background };
        return Ok(lifecycle::start_delete(&child, policy, now));
    }
    if kept.len() == references.len() {
        return Err(SkipReason::UpToDate);
    }
    let mut object = child.value.clone();
    if kept.is_empty() {
        object["metadata"].as_object_mut().map(|fields| fields.remove("ownerReferences"));
    } else {
        object["metadata"]["ownerReferences"] = kept.into();
    }
    Ok(lifecycle::finish_update(&child, object))
}

/// Removes the finalizer of an owner when it has no dependents left.
fn decide_owner(view: &StagedView, key: &ObjectKey) -> Result<WriteOperation, SkipReason> {
    let owner = view.get(key).filter(|owner| owner.head.deleting).ok_or(SkipReason::UpToDate)?.decode();
    let uid = owner.head.uid();
    let children = view.dependents(uid);
    let above = ancestors(view, &owner);
    let blocks = |child: &Arc<StoredObject>| {
        // In a cycle each would wait for the next; no owner comes first.
        let waits = child.head.deleting && child.head.has_finalizer(FOREGROUND);
        if waits && above.contains(child.head.uid()) {
            return false;
        }
        let child = child.value();
        let mut references = child["metadata"]["ownerReferences"].as_array().into_iter().flatten();
        references.any(|reference| reference["uid"] == uid && reference["blockOwnerDeletion"] == true)
    };
    if owner.head.has_finalizer(ORPHAN) && children.is_empty() {
        return Ok(lifecycle::finish_update(&owner, lifecycle::without_finalizer(&owner.value, ORPHAN)));
    }
    if owner.head.has_finalizer(FOREGROUND) && !children.iter().any(blocks) {
        return Ok(lifecycle::finish_update(&owner, lifecycle::without_finalizer(&owner.value, FOREGROUND)));
    }
    Err(SkipReason::UpToDate)
}

/// The uids of an object's owners, their owners, and so on, up to the limit.
fn ancestors(view: &StagedView, object: &StoredObject) -> HashSet<String> {
    let mut found = HashSet::new();
    let mut next: Vec<String> = object.head.owners().map(str::to_owned).collect();
    while let Some(uid) = next.pop() {
        if !found.insert(uid.clone()) {
            continue;
        }
        if let Some(owner) = view.by_uid(&uid) {
            next.extend(owner.head.owners().map(str::to_owned));
        }
    }
    found
}

/// Removes the finalizer of an empty namespace; other finalizers may remain. No new objects can be created: creation checks the same view.
/// Until then its status reports what is `left`.
fn decide_namespace(
    view: &StagedView,
    key: &ObjectKey,
    left: &RemainingObjects,
    now: &str,
    sign: TrackStatusWriterFn,
) -> Result<WriteOperation, SkipReason> {
    let namespace = view.get(key).filter(|found| found.head.deleting).ok_or(SkipReason::UpToDate)?.decode();
    let mut object = namespace.value.clone();
    if view.namespace_is_empty(&key.name) {
        object = lifecycle::without_namespace_finalizer(&object);
        namespace_termination::set_conditions(&mut object, &RemainingObjects::default(), now);
    } else {
        namespace_termination::set_conditions(&mut object, left, now);
    }
    Ok(sign(lifecycle::finish_update(&namespace, object), &namespace, now))
}
