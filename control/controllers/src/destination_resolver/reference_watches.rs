//! Watches: one for each kind with references to it, and one for the definitions of kinds.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use kube::api::{ApiResource, DynamicObject};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::task::{AbortHandle, JoinSet};

use super::reference_tracker::{ReferenceTracker, TrackedReference};
use crate::informer_cache::watch_config;
use crate::work_queue::WorkQueue;

/// A cluster serves a kind some moments after it says so.
const REQUEUE_AFTER: Duration = Duration::from_secs(5);

/// Group and kind.
type GroupKind = (String, String);

pub(super) struct ReferenceWatches {
    client: Client,
    queue: Arc<WorkQueue>,
    interests: Arc<Mutex<ReferenceTracker>>,
    kinds: WatchedKinds,
    /// Ended with the resolver.
    tasks: Mutex<WatchTasks>,
}

#[derive(Default)]
struct WatchTasks {
    all: JoinSet<()>,
    watches_definitions: bool,
}

/// The kinds that are watched: as what, and by which task.
#[derive(Clone, Default)]
struct WatchedKinds(Arc<Mutex<HashMap<GroupKind, (ApiResource, AbortHandle)>>>);

impl ReferenceWatches {
    pub(super) fn new(client: Client, queue: Arc<WorkQueue>, interests: Arc<Mutex<ReferenceTracker>>) -> Self {
        Self { client, queue, interests, kinds: WatchedKinds::default(), tasks: Mutex::default() }
    }

    /// Reconciles objects that refer to an object of this kind whenever it changes. Any version will do: objects
    /// change in all of them at once, and two references by two versions must not end each other's watch forever.
    pub(super) fn watch_kind(&self, resource: &ApiResource) {
        let name = (resource.group.clone(), resource.kind.clone());
        let mut kinds = self.kinds.lock();
        if kinds.get(&name).is_some_and(|(watched, _)| watched.plural == resource.plural) {
            return;
        }
        let api: Api<DynamicObject> = Api::all_with(self.client.clone(), resource);
        let (interests, queue) = (Arc::clone(&self.interests), Arc::clone(&self.queue));
        let task = self.spawn(watch_objects(api, name.clone(), interests, queue));
        if let Some((_, before)) = kinds.insert(name, (resource.clone(), task)) {
            before.abort();
        }
    }

    /// Reconciles objects that refer to a kind when that is defined, changed or removed.
    pub(super) fn watch_definitions(&self) {
        if std::mem::replace(&mut self.lock().watches_definitions, true) {
            return;
        }
        let gvk = kube::core::GroupVersionKind::gvk("apiextensions.k8s.io", "v1", "CustomResourceDefinition");
        let resource = ApiResource::from_gvk_with_plural(&gvk, "customresourcedefinitions");
        let api: Api<DynamicObject> = Api::all_with(self.client.clone(), &resource);
        let (interests, queue) = (Arc::clone(&self.interests), Arc::clone(&self.queue));
        self.spawn(watch_crds(api, self.kinds.clone(), interests, queue));
    }

    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) -> AbortHandle {
        let mut tasks = self.lock();
        while tasks.all.try_join_next().is_some() {} // those that were ended
        tasks.all.spawn(task)
    }

    fn lock(&self) -> MutexGuard<'_, WatchTasks> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl WatchedKinds {
    fn lock(&self) -> MutexGuard<'_, HashMap<GroupKind, (ApiResource, AbortHandle)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn watch_objects(
    api: Api<DynamicObject>,
    (group, kind): GroupKind,
    interests: Arc<Mutex<ReferenceTracker>>,
    queue: Arc<WorkQueue>,
) {
    let mut events = watcher::watcher(api, watch_config()).default_backoff().boxed();
    while let Some(event) = events.next().await {
        let concerned = match event {
            Ok(Event::Apply(object) | Event::InitApply(object) | Event::Delete(object)) => {
                let referent = TrackedReference {
                    group: group.clone(),
                    kind: kind.clone(),
                    namespace: object.metadata.namespace.unwrap_or_default(),
                    name: object.metadata.name.unwrap_or_default(),
                };
                super::lock(&interests).items_for(&referent)
            }
            // What was deleted while the watch was down shows only now.
            Ok(Event::InitDone) => super::lock(&interests).items_for_kind(&group, &kind),
            Ok(Event::Init) => continue,
            Err(why) => {
                tracing::warn!(kind, %why, "watch broke; it starts again");
                continue;
            }
        };
        concerned.into_iter().for_each(|item| queue.add(item));
    }
}

async fn watch_crds(
    api: Api<DynamicObject>,
    kinds: WatchedKinds,
    interests: Arc<Mutex<ReferenceTracker>>,
    queue: Arc<WorkQueue>,
) {
    let mut known: HashMap<GroupKind, Value> = HashMap::new();
    // What was known before the watch restarted, without what still exists.
    let mut missing: HashMap<GroupKind, Value> = HashMap::new();
    let tell = |name: &GroupKind| {
        // How its objects are reached may be another by now, and a watch of what is gone would ask forever.
        if let Some((_, task)) = kinds.lock().remove(name) {
            task.abort();
        }
        for item in super::lock(&interests).items_for_kind(&name.0, &name.1) {
            queue.add_after(item.clone(), REQUEUE_AFTER);
            queue.add(item);
        }
    };
    let mut events = watcher::watcher(api, watch_config()).default_backoff().boxed();
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Init) => missing.extend(known.drain()),
            Ok(Event::Apply(definition) | Event::InitApply(definition)) => {
                let (name, says) = read(&definition);
                let said = missing.remove(&name);
                if known.insert(name.clone(), says.clone()).or(said) != Some(says) {
                    tell(&name);
                }
            }
            Ok(Event::InitDone) => missing.drain().for_each(|(name, _)| tell(&name)),
            Ok(Event::Delete(definition)) => {
                let (name, _) = read(&definition);
                known.remove(&name);
                tell(&name);
            }
            Err(why) => tracing::warn!(%why, "the watch of definitions broke; it starts again"),
        }
    }
}

/// Which kind it defines, and all of it on which depends whether and how its objects are reached.
fn read(definition: &DynamicObject) -> (GroupKind, Value) {
    let (spec, status) = (&definition.data["spec"], &definition.data["status"]);
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let versions = spec["versions"].as_array().into_iter().flatten();
    let served: Vec<&Value> =
        versions.filter(|version| version["served"] == true).map(|version| &version["name"]).collect();
    let conditions = status["conditions"].as_array().into_iter().flatten();
    let established: Vec<&Value> = conditions
        .filter(|condition| condition["type"] == "Established")
        .map(|condition| &condition["status"])
        .collect();
    let says = json!([definition.metadata.uid, spec["names"]["plural"], served, established]);
    ((text(&spec["group"]), text(&spec["names"]["kind"])), says)
}

#[cfg(test)]
mod tests {
    use kube::core::GroupVersionKind;

    use super::*;

    #[tokio::test]
    async fn a_kind_has_one_watch_whatever_its_versions_until_it_moves() {
        let unresponsive = axum::Router::new().fallback(std::future::pending::<http::StatusCode>);
        let watches = ReferenceWatches::new(Client::new(unresponsive, "ns"), Arc::default(), Arc::default());
        let resource = |version: &str, plural: &str| {
            let gvk = GroupVersionKind::gvk("x.example", version, "X");
            ApiResource::from_gvk_with_plural(&gvk, plural)
        };
        let watched = || {
            let watch_id = |(as_what, task): &(ApiResource, AbortHandle)| (as_what.clone(), task.id());
            watches.kinds.lock().values().map(watch_id).collect::<Vec<_>>()
        };
        watches.watch_kind(&resource("v1", "xs"));
        let first = watched();
        watches.watch_kind(&resource("v2", "xs"));
        assert_eq!(watched(), first);
        watches.watch_kind(&resource("v2", "xes"));
        assert_eq!(watched().len(), 1);
        assert_eq!(watched()[0].0, resource("v2", "xes"));
    }

    #[test]
    fn a_definition_says_something_new_when_its_objects_are_reached_otherwise() {
        let says = |changed: Value| {
            let mut definition = json!({ "metadata": { "name": "xs.x.example", "uid": "1" },
                "spec": { "group": "x.example", "names": { "kind": "X", "plural": "xs" },
                    "versions": [{ "name": "v1", "served": true }, { "name": "v2", "served": false }] } });
            for (at, value) in changed.as_object().into_iter().flatten() {
                definition["spec"][at] = value.clone();
            }
            read(&serde_json::from_value(definition).unwrap())
        };
        let (name, before) = says(json!({}));
        assert_eq!(name, ("x.example".to_owned(), "X".to_owned()));
        assert_eq!(says(json!({ "conversion": { "strategy": "None" } })).1, before);
        for changed in [
            json!({ "names": { "kind": "X", "plural": "xes" } }),
            json!({ "versions": [{ "name": "v2", "served": true }] }),
        ] {
            assert_ne!(says(changed.clone()).1, before, "{changed}");
        }
    }
}
