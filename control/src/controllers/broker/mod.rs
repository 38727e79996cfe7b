//! Broker: an address whose events the Triggers read.

pub mod drain;
pub mod reconcile;

use super::addresses;
use super::policies::Rules;
use super::queue::{Item, Kind};
use super::resolve::{Address, Unresolved, described};
use super::trigger;
use super::world::{Error, World, now};
use crate::controllers::event_type::AUTO_CREATE;
use crate::kinds::eventing::broker::Broker;
use crate::kinds::eventing::event_policy::Protected;
use crate::kinds::eventing::keeping::{Config, check_config, options};
use crate::kinds::shared::{DeliveryStatus, Destination, name};
use crate::publish::StreamSpec;
use reconcile::{Found, status};

/// The path of a Broker on the events listener.
#[must_use]
pub fn path(namespace: &str, name: &str) -> String {
    format!("/brokers/{namespace}/{name}")
}

pub async fn reconcile(world: &World, item: &Item) -> Result<(), Error> {
    let path = path(&item.namespace, &item.name);
    world.resolver.forget(item);
    let Some(broker) = world.brokers.get(&item.namespace, &item.name).filter(|broker| broker.is_ours())
    else {
        world.publisher.remove_stream(&path);
        world.publisher.flow().await;
        return Ok(());
    };
    let sink = broker.spec.delivery.as_ref().and_then(|delivery| delivery.dead_letter_sink.as_ref());
    let sink = match sink {
        Some(destination) => Some(deliverable(world, item, destination).await?),
        None => None,
    };
    let config = config(world, item, &broker).await?;
    let said = config.clone().unwrap_or_default();
    let broker = drain::hold(world, &broker, options(&broker.metadata, &said).drains).await?;
    let rules = rules(world, &broker);
    serve(world, &broker, &said, &rules);
    let mut after = broker.clone();
    let reach = addresses::of(world, &path);
    let found = Found { sink, config: config.map(drop), is_leaving: drain::is_leaving(&broker), rules };
    after.status = Some(status(&broker, reach, found, now()));
    if told(&after) != told(&broker) {
        trigger::inherit(world, &after).await; // before anybody sees that it is so
    }
    world.publisher.flow().await;
    world.set_status(&broker, &after).await
}

/// What a Broker's Triggers may have of it: from which spec, and where the dead letter sink is.
fn told(broker: &Broker) -> Option<(Option<i64>, &DeliveryStatus)> {
    broker.status.as_ref().map(|status| (status.base.observed_generation, &status.delivery))
}

/// What `spec.config` names; or why that cannot be taken.
async fn config(world: &World, item: &Item, broker: &Broker) -> Result<Result<Config, String>, Error> {
    let Some(reference) = &broker.spec.config else { return Ok(Ok(Config::new())) };
    if (reference.api_version.as_str(), reference.kind.as_str()) != ("v1", "ConfigMap") {
        let (version, kind) = (&reference.api_version, &reference.kind);
        let why = format!("spec.config: only a v1 ConfigMap is read here, and not a {version} {kind}");
        return Ok(Err(why));
    }
    let object = match world.resolver.read(item, reference).await? {
        Ok(object) => object,
        Err(Unresolved(why)) => return Ok(Err(why)),
    };
    let data = object["data"].as_object().into_iter().flatten();
    let config: Config =
        data.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned()))).collect();
    let named = |why| format!("ConfigMap \"{}\": {why}", reference.name);
    Ok(check_config(&config).map(|()| config).map_err(named))
}

/// Serves all of them by what the last statuses say: how things were before a restart. One whose config cannot be read
/// now keeps everything that it was not told to drop, until it is looked at.
pub async fn restore(world: &World) {
    for broker in world.brokers.all().iter().filter(|broker| broker.is_ours()) {
        let ns = crate::kinds::shared::namespace(&broker.metadata);
        let item = Item::new(Kind::Broker, ns, name(&broker.metadata));
        let read = config(world, &item, broker).await;
        let read = read.inspect_err(|why| tracing::warn!(%item, %why, "its config cannot be read"));
        let said = read.ok().and_then(Result::ok).unwrap_or_default();
        serve(world, broker, &said, &rules(world, broker));
    }
}

fn rules(world: &World, broker: &Broker) -> Rules {
    Rules::of(world, &[Protected::of::<Broker>(&broker.metadata)])
}

/// Tells the cores of the Broker's stream.
fn serve(world: &World, broker: &Broker, config: &Config, rules: &Rules) {
    let (ns, name) = (crate::kinds::shared::namespace(&broker.metadata), name(&broker.metadata));
    let uid = broker.metadata.uid.as_deref().unwrap_or_default();
    // The uid makes a recreated Broker start empty.
    let name_in_log = format!("broker/{ns}/{name}/{uid}");
    let options = options(&broker.metadata, config);
    let spec = StreamSpec {
        name: name_in_log,
        event_bytes_max: options.event_bytes_max,
        keeping: options.keeping,
        quota: world.quotas.of(ns),
        is_closed: drain::is_leaving(broker),
        admission: rules.admission(world, ns, &[]),
        tells_types: world.settings().event_features.is_enabled(AUTO_CREATE),
    };
    world.publisher.set_stream(&path(ns, name), spec);
}

/// A destination's address, if it exists and the data plane can speak to it.
pub async fn deliverable(
    world: &World,
    item: &Item,
    destination: &Destination,
) -> Result<Result<Address, Unresolved>, Error> {
    let resolved = world.resolver.resolve(item, destination).await?;
    Ok(resolved.and_then(|found| match world.trusts.target(&found) {
        Ok(_) => Ok(found),
        // Whose fault it is, unless it is in the destination itself (EV-ADR-06).
        Err(why) => Err(Unresolved(match &destination.reference {
            Some(reference) => format!("{}: {why}", described(item, reference)),
            None => why,
        })),
    }))
}
