//! EventTypes of what sources send to Brokers, so that who looks for events finds them before the first has come.

use kube::ResourceExt;

use crate::controllers::event_type::auto_create::named;
use crate::controllers::managers;
use crate::controllers::service::children::owner;
use crate::controllers::world::{Error, Object, World};
use crate::kinds::eventing::event_type::{EventType, EventTypeSpec};
use crate::kinds::shared::{is_controlled_by, namespace};
use crate::kinds::sources::{EventAttributes, Source};

/// Makes the EventTypes of a source those that it sends `now` to a Broker. They go with it, by their owner.
pub(super) async fn keep<S: Object + Source>(
    world: &World,
    source: &S,
    now: &[EventAttributes],
) -> Result<(), Error> {
    let home = namespace(source.meta());
    let wanted: Vec<EventType> = now.iter().filter_map(|one| event_type(source, one)).collect();
    let mut there = world.event_types.list(home);
    there.retain(|known| is_controlled_by(&known.metadata, source.meta()));
    for old in &there {
        let name = old.name_any();
        if !wanted.iter().any(|new| new.metadata.name.as_ref() == Some(&name)) {
            world.api::<EventType>(home).delete(&name, &kube::api::DeleteParams::default()).await?;
        }
    }
    for new in wanted {
        if !there.iter().any(|known| known.metadata.name == new.metadata.name) {
            world.api::<EventType>(home).create(&managers::objects::<EventType>(), &new).await?;
        }
    }
    Ok(())
}

/// `None` for events that go to no Broker.
fn event_type<S: Object + Source>(source: &S, sent: &EventAttributes) -> Option<EventType> {
    let broker = source.sink().reference.as_ref().filter(|found| found.kind == "Broker")?;
    let (name, uid) = (source.name_any(), source.uid().unwrap_or_default());
    let place = broker.namespace.as_deref().unwrap_or_default();
    let parts = [&*sent.kind, &*sent.source, &*uid, place, &*broker.name];
    let spec = EventTypeSpec {
        kind: sent.kind.clone(),
        source: Some(sent.source.clone()),
        reference: Some(broker.clone()),
        description: Some(format!("sent by {} {name}", S::kind(&()))),
        ..EventTypeSpec::default()
    };
    let mut made = EventType::new(namespace(source.meta()), &named(&name, parts.into_iter()), spec);
    made.metadata.owner_references = owner(source);
    Some(made)
}
