//! Creates Brokers that are only referred to, where the operator enables it (`config-sugar`, X-FEA-13). They stay when nothing
//! refers to them any more.

use crate::api::Error;
use crate::context::ControllerContext;
use support::names::{is_dns1123_label, is_path_segment};
use types::eventing::broker::{Broker, BrokerSpec};
use types::eventing::trigger::Trigger;
use types::shared::namespace;

/// Upstream's mark on those that are made so.
const INJECTED_LABEL: &str = "eventing.knative.dev/injected";

/// Makes the Broker that a Trigger names, if the settings want that and there can be one; the Trigger is checked again
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

pub(crate) async fn create_broker(context: &ControllerContext, namespace: &str, broker: &str) -> Result<(), Error> {
    let mut wanted = Broker::new(namespace, broker, BrokerSpec::default());
    wanted.metadata.labels = Some([(INJECTED_LABEL.to_owned(), "true".to_owned())].into());
    match context.create(&wanted).await {
        Err(Error::Api(kube::Error::Api(status))) if status.is_already_exists() => Ok(()),
        other => other.map(drop),
    }
}
