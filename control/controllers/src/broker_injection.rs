//! Brokers that somebody only names, where the operator wants them made (`config-sugar`, X-FEA-13): the Broker of a
//! Trigger, and `default` in a namespace. They stay when nobody names them any more.

use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use tokio::sync::Notify;

use crate::certificate;
use crate::context::{ControllerContext, Error};
use crate::informer_cache::{InformerCache, follow};
use crate::work_queue::{ControllerKind, WorkItem};
use types::eventing::broker::{Broker, BrokerSpec};
use types::eventing::trigger::Trigger;
use types::names::{is_dns1123_label, is_path_segment};
use types::shared::{name, namespace};

/// The Broker of a namespace.
const DEFAULT: &str = "default";
/// Upstream's mark on those that are made so.
const INJECTED_LABEL: &str = "eventing.knative.dev/injected";

#[derive(Debug, Default)]
pub struct BrokerInjection {
    /// Empty while nobody wants Brokers in namespaces, or certificates for them.
    namespaces: InformerCache<Namespace>,
    /// The settings have changed.
    settings_changed: Notify,
}

impl BrokerInjection {
    pub(crate) fn settings_changed(&self) {
        self.settings_changed.notify_one();
    }
}

/// Watches namespaces while the settings want Brokers in them, for ever.
pub(crate) async fn run(context: &ControllerContext) {
    loop {
        let settings = context.settings();
        if settings.sugar.namespaces.is_none() && settings.network.namespace_wildcard_selector.is_none() {
            context.broker_injection.settings_changed.notified().await;
            continue;
        }
        let look = |namespace: &ObjectMeta| enqueue_namespace(context, name(namespace));
        tokio::select! {
            () = follow(context.source(), &context.broker_injection.namespaces, |(_, after)| {
                after.iter().for_each(|namespace| look(&namespace.metadata));
            }) => {}
            // Begun anew, it tells of all of them again.
            () = context.broker_injection.settings_changed.notified() => {}
        }
    }
}

/// The namespace may need its Broker.
pub(crate) fn enqueue_namespace(context: &ControllerContext, namespace: &str) {
    context.enqueue(WorkItem::new(ControllerKind::Namespace, "", namespace));
}

pub(crate) async fn reconcile(context: &ControllerContext, item: &WorkItem) -> Result<(), Error> {
    let Some(namespace) = context.broker_injection.namespaces.get("", &item.name) else { return Ok(()) };
    certificate::reconcile_for_namespace(context, &namespace).await?;
    let meta = &namespace.metadata;
    let is_wanted = context.settings().sugar.namespaces.as_ref().is_some_and(|wanted| wanted.matches(meta));
    if meta.deletion_timestamp.is_none() && is_wanted && context.brokers.get(&item.name, DEFAULT).is_none() {
        create_broker(context, &item.name, DEFAULT).await?;
    }
    Ok(())
}

/// Makes the Broker that a Trigger names, if the settings want that and there can be one; the Trigger is looked at again
/// when it is there.
pub(crate) async fn ensure_for_trigger(context: &ControllerContext, trigger: &Trigger) -> Result<(), Error> {
    let (meta, (ns, broker)) = (&trigger.metadata, trigger.broker());
    let is_wanted = context.settings().sugar.triggers.as_ref().is_some_and(|wanted| wanted.matches(meta));
    let can_be = is_dns1123_label(ns) && is_path_segment(broker);
    if meta.deletion_timestamp.is_none() && is_wanted && can_be && context.can_read_namespace(namespace(meta), ns) {
        match create_broker(context, ns, broker).await {
            // Asked again, it would be refused again.
            Err(Error::Api(kube::Error::Api(status))) if status.is_invalid() => {}
            other => other?,
        }
    }
    Ok(())
}

async fn create_broker(context: &ControllerContext, namespace: &str, broker: &str) -> Result<(), Error> {
    let mut wanted = Broker::new(namespace, broker, BrokerSpec::default());
    wanted.metadata.labels = Some([(INJECTED_LABEL.to_owned(), "true".to_owned())].into());
    match context.create(&wanted).await {
        Err(Error::Api(kube::Error::Api(status))) if status.is_already_exists() => Ok(()),
        other => other.map(drop),
    }
}
