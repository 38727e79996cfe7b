//! EventTypes of the events of sources with a sink reference, so that they can be found before the first event was sent.

use kube::ResourceExt;

use crate::api::{Error, NamespacedObject};
use crate::context::ControllerContext;
use crate::event_type_names::event_type_name;
use crate::field_managers;
use crate::owned_child::owner_references;
use types::eventing::event_type::{EventType, EventTypeSpec};
use types::shared::{is_controlled_by, namespace};
use types::sources::{CloudEventAttributes, SourceKind};

/// Makes the EventTypes of a source those that it sends `now` to what it refers to. They go with it, by their owner.
pub(super) async fn reconcile<S: NamespacedObject + SourceKind>(
    context: &ControllerContext,
    source: &S,
    now: &[CloudEventAttributes],
) -> Result<(), Error> {
    let home = namespace(source.meta());
    let wanted: Vec<EventType> = now.iter().filter_map(|one| event_type(source, one)).collect();
    let mut there = context.caches.event_types.list(home);
    there.retain(|known| is_controlled_by(&known.metadata, source.meta()));
    for old in &there {
        let name = old.name_any();
        if !wanted.iter().any(|new| new.metadata.name.as_ref() == Some(&name)) {
            context.api::<EventType>(home).delete(&name, &kube::api::DeleteParams::default()).await?;
        }
    }
    for new in wanted {
        if !there.iter().any(|known| known.metadata.name == new.metadata.name) {
            context.api::<EventType>(home).create(&field_managers::object_params::<EventType>(), &new).await?;
        }
    }
    Ok(())
}

/// `None` for events that go to a plain URL (AMB-54).
fn event_type<S: NamespacedObject + SourceKind>(source: &S, sent: &CloudEventAttributes) -> Option<EventType> {
    let sink = source.sink().reference.as_ref()?;
    let (name, uid) = (source.name_any(), source.uid().unwrap_or_default());
    let place = sink.namespace.as_deref().unwrap_or_default();
    // A Broker's have the names that they had when there were no others.
    let of_others = (sink.kind != "Broker").then_some([sink.group(), &*sink.kind]);
    let parts = [&*sent.kind, &*sent.source, &*uid, place, &*sink.name].into_iter();
    let parts = parts.chain(of_others.into_iter().flatten());
    let spec = EventTypeSpec {
        kind: sent.kind.clone(),
        source: Some(sent.source.clone()),
        reference: Some(sink.clone()),
        description: Some(format!("sent by {} {name}", S::kind(&()))),
        ..EventTypeSpec::default()
    };
    let mut made = EventType::new(namespace(source.meta()), &event_type_name(&name, parts), spec);
    made.metadata.owner_references = owner_references(source);
    Some(made)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use types::sources::ping::PingSource;

    /// SRC-33, AMB-54, X-SRC-06: whatever kind the sink is of, and nothing for a plain URL.
    #[test]
    fn event_type_of_object_sink_names_it() {
        let made = |sink: Value| {
            let source: PingSource = serde_json::from_value(json!({
                "metadata": { "name": "p", "namespace": "ns", "uid": "u" },
                "spec": { "schedule": "* * * * *", "sink": sink },
            }))
            .unwrap();
            event_type(&source, &CloudEventAttributes { kind: "t".into(), source: "/s".into() })
        };
        let of = |kind: &str, version: &str| {
            let sink = json!({ "apiVersion": version, "kind": kind, "name": "x", "namespace": "ns" });
            let made = made(json!({ "ref": sink })).unwrap();
            assert_eq!(json!(made.spec.reference), sink);
            made.metadata.name.unwrap()
        };
        let names =
            [of("Broker", "eventing.knative.dev/v1"), of("Service", "v1"), of("Service", "serving.knative.dev/v1")];
        assert!(names[0] != names[1] && names[1] != names[2], "{names:?}");
        assert_eq!(made(json!({ "uri": "http://s/" })), None);
    }
}
