//! Brokers that somebody only names, where the operator wants them made (`config-sugar`, X-FEA-13): the Broker of a
//! Trigger, and `default` in a namespace. They stay when nobody names them any more.

use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use tokio::sync::Notify;

use super::cache::{Cache, follow};
use super::certificate;
use super::queue::{Item, Kind};
use super::world::{Error, World};
use crate::kinds::eventing::broker::{Broker, BrokerSpec};
use crate::kinds::eventing::trigger::Trigger;
use crate::kinds::names::{is_dns1123_label, is_path_segment};
use crate::kinds::shared::{name, namespace};

/// The Broker of a namespace.
const DEFAULT: &str = "default";
/// Upstream's mark on those that are made so.
const INJECTED_LABEL: &str = "eventing.knative.dev/injected";

#[derive(Debug, Default)]
pub struct Sugar {
    /// Empty while nobody wants Brokers in namespaces, or certificates for them.
    namespaces: Cache<Namespace>,
    /// The settings have changed.
    bell: Notify,
}

impl Sugar {
    pub(super) fn settings_changed(&self) {
        self.bell.notify_one();
    }
}

/// Watches namespaces while the settings want Brokers in them, for ever.
pub(super) async fn tend(world: &World) {
    loop {
        let settings = world.settings();
        if settings.sugar.namespaces.is_none() && settings.network.wildcards_for.is_none() {
            world.sugar.bell.notified().await;
            continue;
        }
        let look = |namespace: &ObjectMeta| look_at(world, name(namespace));
        tokio::select! {
            () = follow(world.all(), &world.sugar.namespaces, |(_, after)| {
                after.iter().for_each(|namespace| look(&namespace.metadata));
            }) => {}
            // Begun anew, it tells of all of them again.
            () = world.sugar.bell.notified() => {}
        }
    }
}

/// The namespace may need its Broker.
pub(super) fn look_at(world: &World, namespace: &str) {
    world.look_at(Item::new(Kind::Namespace, "", namespace));
}

pub(super) async fn reconcile(world: &World, item: &Item) -> Result<(), Error> {
    let Some(namespace) = world.sugar.namespaces.get("", &item.name) else { return Ok(()) };
    certificate::ask_for_namespace(world, &namespace).await?;
    let meta = &namespace.metadata;
    let is_wanted = world.settings().sugar.namespaces.as_ref().is_some_and(|wanted| wanted.takes(meta));
    if meta.deletion_timestamp.is_none() && is_wanted && world.brokers.get(&item.name, DEFAULT).is_none() {
        make(world, &item.name, DEFAULT).await?;
    }
    Ok(())
}

/// Makes the Broker that a Trigger names, if the settings want that and there can be one; the Trigger is looked at again
/// when it is there.
pub(super) async fn for_trigger(world: &World, trigger: &Trigger) -> Result<(), Error> {
    let (meta, (ns, broker)) = (&trigger.metadata, trigger.broker());
    let is_wanted = world.settings().sugar.triggers.as_ref().is_some_and(|wanted| wanted.takes(meta));
    let can_be = is_dns1123_label(ns) && is_path_segment(broker);
    if meta.deletion_timestamp.is_none() && is_wanted && can_be && world.may_read(namespace(meta), ns) {
        match make(world, ns, broker).await {
            // Asked again, it would be refused again.
            Err(Error::Api(kube::Error::Api(status))) if status.is_invalid() => {}
            other => other?,
        }
    }
    Ok(())
}

async fn make(world: &World, namespace: &str, broker: &str) -> Result<(), Error> {
    let mut wanted = Broker::new(namespace, broker, BrokerSpec::default());
    wanted.metadata.labels = Some([(INJECTED_LABEL.to_owned(), "true".to_owned())].into());
    match world.create(&wanted).await {
        Err(Error::Api(kube::Error::Api(status))) if status.is_already_exists() => Ok(()),
        other => other.map(drop),
    }
}
