//! EventTypes of published events and of subscribers' replies (`eventtype-auto-create` in ConfigMap
//! `config-features`, X-FEA-06).
//!
//! The cores record each new type once ([`contract::event_types`]); this task fetches them periodically, so
//! that no event waits for an object.

use std::sync::Arc;
use std::time::Duration;

use contract::event_types::EventTypeKey;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{Resource, ResourceExt};

use crate::api::Error;
use crate::context::ControllerContext;
use crate::event_type_names::event_type_name;
use crate::field_managers;
use crate::names::{broker_path, channel_path};
use crate::owned_child::owner_references;
use types::eventing::event_type::{EventType, EventTypeSpec};
use types::shared::{KReference, namespace};

/// How often new types are fetched: a user looks for the type of an event soon after sending it.
const FETCH_INTERVAL: Duration = Duration::from_secs(1);

/// Runs forever.
pub async fn run(context: &ControllerContext) {
    loop {
        tokio::time::sleep(FETCH_INTERVAL).await;
        for (path, seen) in context.publisher.new_event_types() {
            let Err(why) = create(context, &path, &seen).await else { continue };
            if !why.is_conflict() {
                tracing::warn!(path, kind = &*seen.kind, %why, "an EventType is not made; tried again when one comes");
                context.publisher.reset_event_types(&path);
            }
        }
    }
}

/// An EventType was deleted: it is created again with the next such event.
pub fn on_deleted(context: &ControllerContext, event_type: &EventType) {
    let Some(reference) = &event_type.spec.reference else { return };
    let (ns, name) = (namespace(&event_type.metadata), &reference.name);
    let path = match reference.kind.as_str() {
        "Broker" => broker_path(ns, name),
        "Trigger" => match context.caches.triggers.get(ns, name) {
            Some(trigger) => {
                let (ns, broker) = trigger.broker();
                broker_path(ns, broker)
            }
            None => return, // it took its EventTypes along
        },
        "Subscription" => match context.caches.subscriptions.get(ns, name) {
            Some(subscription) => {
                let (ns, channel) = subscription.channel();
                channel_path(ns, channel)
            }
            None => return,
        },
        _ => channel_path(ns, name),
    };
    context.publisher.reset_event_types(&path);
}

async fn create(context: &ControllerContext, path: &str, seen: &EventTypeKey) -> Result<(), Error> {
    let Some((reference, owner)) = origin(context, path, &seen.by) else { return Ok(()) }; // it went meanwhile
    let wanted = event_type(reference, owner, seen);
    let ns = namespace(&wanted.metadata);
    let is_known = |known: &EventType| {
        let (known, wanted) = (&known.spec, &wanted.spec);
        (&known.kind, &known.source, &known.schema) == (&wanted.kind, &wanted.source, &wanted.schema)
            && known.reference == wanted.reference
    };
    if context.caches.event_types.list(ns).iter().any(|known| is_known(known)) {
        return Ok(());
    }
    // Written without leadership: only the appliance that received the event knows its type, and all of them give it
    // the same name.
    context.api::<EventType>(ns).create(&field_managers::object_params::<EventType>(), &wanted).await?;
    Ok(())
}

/// The object that the events come from, as a reference: the stream's, or the subscriber that answered.
fn origin(context: &ControllerContext, path: &str, by: &str) -> Option<(KReference, Vec<OwnerReference>)> {
    let (kind, rest) = path.strip_prefix('/')?.split_once('/')?;
    let (ns, named) = rest.split_once('/')?;
    match (kind, by) {
        ("brokers", "") => context.caches.brokers.get(ns, named).map(|broker| reference_and_owner(&*broker)),
        // By the uid: to read all of a Broker's takes a tenth of a second if there are many.
        ("brokers", uid) => {
            context.caches.triggers.all_by_index(uid).pop().map(|trigger| reference_and_owner(&*trigger))
        }
        (_, "") => context.caches.in_memory_channels.get(ns, named).map(|channel| reference_and_owner(&*channel)),
        (_, uid) => subscriber_by_uid(context.caches.subscriptions.all_by_index(rest), uid)
            .map(|subscription| reference_and_owner(&*subscription)),
    }
}

/// A reference to an object, and the same as an owner reference for objects of its namespace.
fn reference_and_owner<K: Resource<DynamicType = ()>>(object: &K) -> (KReference, Vec<OwnerReference>) {
    let reference = KReference {
        api_version: K::api_version(&()).into_owned(),
        kind: K::kind(&()).into_owned(),
        name: object.name_any(),
        namespace: object.namespace(),
        ..KReference::default()
    };
    (reference, owner_references(object).unwrap_or_default())
}

fn subscriber_by_uid<K: ResourceExt>(all: Vec<Arc<K>>, uid: &str) -> Option<Arc<K>> {
    all.into_iter().find(|one| one.meta().uid.as_deref() == Some(uid))
}

/// In the namespace of its object: a Trigger may be in another namespace than its Broker, and cannot own objects
/// there.
fn event_type(reference: KReference, owner: Vec<OwnerReference>, seen: &EventTypeKey) -> EventType {
    let ns = reference.namespace.clone().unwrap_or_default();
    // A Trigger may have the name of its Broker.
    let kind = if seen.by.is_empty() { None } else { Some(&*reference.kind) };
    let parts = [&*seen.kind, &*seen.source, &*seen.schema, &*ns, &*reference.name].into_iter().chain(kind);
    let name = event_type_name(&reference.name, parts);
    let given = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    let spec = EventTypeSpec {
        kind: seen.kind.to_string(),
        source: given(&seen.source),
        schema: given(&seen.schema),
        reference: Some(reference),
        description: Some("Event Type auto-created by controller".to_owned()),
        ..EventTypeSpec::default()
    };
    let mut made = EventType::new(&ns, &name, spec);
    made.metadata.owner_references = Some(owner);
    made
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use types::eventing::trigger::Trigger;
    use types::kind_registry::{KindEntry, RequestContext};
    use types::shared::name;

    #[test]
    fn what_came_becomes_an_event_type_that_is_admitted() {
        let reference = || KReference {
            kind: "Broker".into(),
            name: "b".into(),
            namespace: Some("ns".into()),
            ..KReference::default()
        };
        let seen = |kind: &str, source: &str| EventTypeKey {
            kind: kind.into(),
            source: source.into(),
            schema: "".into(),
            by: "".into(),
        };
        let made = |seen: &EventTypeKey| event_type(reference(), Vec::new(), seen);
        let one = made(&seen("t", "urn:x:y"));
        assert_eq!(name(&one.metadata), name(&made(&seen("t", "urn:x:y")).metadata));
        let answered = EventTypeKey { by: "uid".into(), ..seen("t", "urn:x:y") };
        for other in [seen("t", "urn:x:z"), seen("turn:", "x:y"), seen("u", "urn:x:y"), answered] {
            assert_ne!(name(&one.metadata), name(&made(&other).metadata), "{other:?}");
        }
        assert!(name(&one.metadata).starts_with("et-b-") && name(&one.metadata).len() == 5 + 32);
        let mut object = json!(one);
        object["spec"]["reference"]["apiVersion"] = json!("eventing.knative.dev/v1");
        let admitted = (KindEntry::of::<EventType>().admit)(object, None, &RequestContext::default()).unwrap();
        assert_eq!(admitted["spec"]["source"], "urn:x:y");
    }

    /// X-FEA-06: a Trigger may read a Broker of another namespace, and owns nothing there.
    #[test]
    fn reply_event_type_refers_to_trigger() {
        let trigger = json!({ "metadata": { "name": "t", "namespace": "here", "uid": "1" }, "spec": {} });
        let (reference, owner) = reference_and_owner(&serde_json::from_value::<Trigger>(trigger).unwrap());
        let seen = EventTypeKey { kind: "k".into(), source: "s".into(), schema: "".into(), by: "1".into() };
        let made = event_type(reference, owner, &seen);
        assert_eq!(namespace(&made.metadata), "here");
        assert_eq!(made.metadata.owner_references.unwrap()[0].uid, "1");
        assert_eq!(made.spec.reference.unwrap().namespace.as_deref(), Some("here"));
    }
}
