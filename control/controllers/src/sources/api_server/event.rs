//! The event of a change of an object, as upstream's ApiServerSource makes it: values in, values out.

use codec::cloudevent::structured;
use codec::record::{self, EventRecord};
use contract::filter::matches;
use contract::filter::steps::Steps;
use contract::table::EventFilter;
use kube::api::DynamicObject;
use serde_json::{Map, Value, json};

use super::plan::{WatchPlan, WatchedKind};
use crate::sources::SourceName;
use crate::sources::event_sender::OutgoingEvent;
use types::shared::{controller, name, namespace};
use types::sources::api_server::ApiVersionKind;

/// The source of all events: the API, by the name that it has in a cluster.
pub(super) const SOURCE: &str = "https://kubernetes.default.svc";
const JSON: &str = "application/json";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    Add,
    Update,
    Delete,
}

impl Change {
    fn word(self) -> &'static str {
        match self {
            Self::Add => "add",
            Self::Update => "update",
            Self::Delete => "delete",
        }
    }
}

/// `what` is `ref` or `resource`.
pub(super) fn type_of(what: &str, change: &str) -> String {
    format!("dev.knative.apiserver.{what}.{change}")
}

/// The event of a change; `None` if the source does not want it.
pub(super) fn outgoing(
    source: &SourceName,
    plan: &WatchPlan,
    kind: &WatchedKind,
    change: Change,
    object: &DynamicObject,
) -> Option<OutgoingEvent> {
    if !has_owner(plan.owner.as_ref(), kind, object) {
        return None;
    }
    let attributes = attributes(plan, kind, change, object);
    if !passes(&plan.filter, &attributes) {
        return None;
    }
    let body = if plan.has_objects { whole(kind, object) } else { reference(kind, object) };
    // In binary mode the media type is a header of its own.
    let (media, attributes): (Vec<_>, Vec<_>) = attributes.into_iter().partition(|(name, _)| name == "datacontenttype");
    Some(OutgoingEvent {
        from: source.clone(),
        sink: plan.sink.clone(),
        account: plan.account.clone(),
        attributes,
        content_type: media.into_iter().next().map(|(_, media)| media),
        body: body.to_string().into_bytes(),
    })
}

/// Only objects that an object of the kind `owner` controls, and those of that kind themselves.
fn has_owner(owner: Option<&ApiVersionKind>, kind: &WatchedKind, object: &DynamicObject) -> bool {
    let Some(owner) = owner else { return true };
    let is = |version: &str, kind: &str| version == owner.api_version && kind == owner.kind;
    is(&kind.resource.api_version, &kind.resource.kind)
        || controller(&object.metadata).is_some_and(|found| is(&found.api_version, &found.kind))
}

fn attributes(plan: &WatchPlan, kind: &WatchedKind, change: Change, object: &DynamicObject) -> Vec<(String, String)> {
    let meta = &object.metadata;
    let what = if plan.has_objects { "resource" } else { "ref" };
    let collection = format!("{}s", kind.resource.kind.to_lowercase());
    let subject =
        format!("/apis/{}/namespaces/{}/{collection}/{}", kind.resource.api_version, namespace(meta), name(meta));
    // The same for each attempt, and after a restart of the watch.
    let version = meta.resource_version.as_deref().unwrap_or_default();
    let uid = meta.uid.as_deref().unwrap_or_default();
    let mut all: Vec<(String, String)> = [
        ("specversion", "1.0".to_owned()),
        ("id", format!("{uid}-{version}-{}", change.word())),
        ("source", SOURCE.to_owned()),
        ("type", type_of(what, change.word())),
        ("subject", subject),
        ("time", jiff::Timestamp::now().to_string()),
        ("datacontenttype", JSON.to_owned()),
        ("apiversion", kind.resource.api_version.clone()),
        ("kind", kind.resource.kind.clone()),
        ("name", name(meta).to_owned()),
        ("namespace", namespace(meta).to_owned()),
    ]
    .into_iter()
    .filter(|(_, value)| !value.is_empty())
    .map(|(name, value)| (name.to_owned(), value))
    .collect();
    for (key, value) in &plan.overrides.extensions {
        let key = key.to_ascii_lowercase(); // attributes have small letters alone
        all.retain(|(known, _)| *known != key);
        all.push((key, value.clone()));
    }
    all
}

/// Whether the filters of a source let an event with these attributes pass.
fn passes(filter: &EventFilter, attributes: &[(String, String)]) -> bool {
    if matches!(filter, EventFilter::Everything) {
        return true;
    }
    let envelope: Map<String, Value> =
        attributes.iter().map(|(name, value)| (name.clone(), Value::String(value.clone()))).collect();
    let envelope = Value::Object(envelope).to_string();
    let Ok(event) = structured::parse(envelope.as_bytes()) else { return false };
    let record = EventRecord::decode(record::encode_head(&event, &[], 0).into());
    record.is_ok_and(|record| matches(filter, &record, &Steps::default()))
}

fn reference(kind: &WatchedKind, object: &DynamicObject) -> Value {
    let meta = &object.metadata;
    let mut found = json!({ "kind": kind.resource.kind, "name": name(meta), "apiVersion": kind.resource.api_version });
    if !namespace(meta).is_empty() {
        found["namespace"] = namespace(meta).into();
    }
    found
}

fn whole(kind: &WatchedKind, object: &DynamicObject) -> Value {
    let mut found = json!(object);
    found["apiVersion"] = kind.resource.api_version.as_str().into();
    found["kind"] = kind.resource.kind.as_str().into();
    found
}

#[cfg(test)]
mod tests {
    use kube::api::ApiResource;
    use kube::core::GroupVersionKind;

    use super::super::plan::NamespaceScope;
    use super::*;
    use crate::destination_resolver::DestinationAddress;
    use crate::event_filters;

    fn kind() -> WatchedKind {
        let resource = ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk("", "v1", "Pod"), "pods");
        WatchedKind { resource, namespaced: true, selector: String::new() }
    }

    fn plan(has_objects: bool, filters: Value) -> WatchPlan {
        let filters = serde_json::from_value::<Vec<_>>(filters).unwrap();
        WatchPlan {
            kinds: vec![kind()],
            scope: NamespaceScope::All,
            has_objects,
            owner: None,
            overrides: serde_json::from_value(json!({ "extensions": { "Team": "a", "subject": "s" } })).unwrap(),
            filter: event_filters::compiled(&filters),
            filters,
            sink: DestinationAddress::from("http://sink"),
            account: None,
        }
    }

    fn pod() -> DynamicObject {
        serde_json::from_value(json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": "p", "namespace": "ns", "uid": "u", "resourceVersion": "7",
                "ownerReferences": [{ "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "x", "controller": true }] },
            "spec": { "nodeName": "n" },
        }))
        .unwrap()
    }

    fn made(plan: &WatchPlan, change: Change) -> Option<OutgoingEvent> {
        outgoing(&("ns".to_owned(), "s".to_owned()), plan, &kind(), change, &pod())
    }

    /// SRC-19, SRC-34: upstream's types and data in both modes, with the overrides.
    #[test]
    fn change_becomes_upstreams_event() {
        let event = made(&plan(false, json!([])), Change::Add).unwrap();
        assert_eq!(event.attribute("type"), "dev.knative.apiserver.ref.add");
        assert_eq!((event.attribute("subject"), event.attribute("team")), ("s", "a"));
        assert_eq!((event.attribute("id"), event.attribute("name")), ("u-7-add", "p"));
        let body: Value = serde_json::from_slice(&event.body).unwrap();
        assert_eq!(body, json!({ "kind": "Pod", "namespace": "ns", "name": "p", "apiVersion": "v1" }));
        let event = made(&plan(true, json!([])), Change::Delete).unwrap();
        assert_eq!(event.attribute("type"), "dev.knative.apiserver.resource.delete");
        let body: Value = serde_json::from_slice(&event.body).unwrap();
        assert_eq!((&body["spec"]["nodeName"], &body["kind"]), (&json!("n"), &json!("Pod")));
        assert_eq!(event.content_type.as_deref(), Some(JSON));
    }

    #[test]
    fn filters_and_owner_choose_events() {
        let only_updates = json!([{ "exact": { "type": "dev.knative.apiserver.ref.update" } }]);
        assert!(made(&plan(false, only_updates.clone()), Change::Add).is_none());
        assert!(made(&plan(false, only_updates), Change::Update).is_some());
        let mut owned = plan(false, json!([]));
        for (version, kind, wanted) in
            [("apps/v1", "ReplicaSet", true), ("apps/v1", "Deployment", false), ("v1", "Pod", true)]
        {
            owned.owner = Some(ApiVersionKind { api_version: version.to_owned(), kind: kind.to_owned() });
            assert_eq!(made(&owned, Change::Add).is_some(), wanted, "{kind}");
        }
    }
}
