//! Namespace: gets the Broker `default` (`config-sugar`, X-FEA-13) and wildcard certificates where the operator enables them.

use k8s_openapi::api::core::v1::Namespace;
use tokio::sync::Notify;

use crate::api::Error;
use crate::broker_injection::create_broker;
use crate::context::ControllerContext;
use crate::context_change::ContextChange;
use crate::controller::{Controller, ControllerFuture, Watches, newest};
use crate::host_certificates;
use crate::informer_cache::{InformerCache, follow};
use crate::work_queue::{ControllerKind, WorkItem};
use types::eventing::broker::Broker;
use types::shared::{name, namespace};

const KIND: ControllerKind = ControllerKind::new("Namespace");
/// The Broker of a namespace.
const DEFAULT: &str = "default";

#[derive(Debug, Default)]
pub struct NamespaceController {
    /// Empty while the settings want neither Brokers nor certificates for namespaces.
    namespaces: InformerCache<Namespace>,
    settings_changed: Notify,
}

impl Controller for NamespaceController {
    fn kind(&self) -> ControllerKind {
        KIND
    }

    fn watches<'a>(&'a self, context: &'a ControllerContext, watches: &mut Watches<'a>) {
        watches.enqueue::<Broker, _>(|change| {
            let gone = newest(change).filter(|_| change.1.is_none());
            gone.map(|broker| WorkItem::new(KIND, "", namespace(&broker.metadata)))
        });
        watches.on(ContextChange::Settings, || self.settings_changed.notify_one());
        watches.task(run(self, context));
    }

    fn reconcile<'a>(&'a self, context: &'a ControllerContext, item: &'a WorkItem) -> ControllerFuture<'a> {
        Box::pin(reconcile(self, context, item))
    }
}

/// Watches namespaces while the settings want something in them, forever.
async fn run(controller: &NamespaceController, context: &ControllerContext) {
    loop {
        let settings = context.settings();
        if settings.sugar.namespaces.is_none() && settings.network.namespace_wildcard_selector.is_none() {
            controller.settings_changed.notified().await;
            continue;
        }
        tokio::select! {
            () = follow(context.source(), &controller.namespaces, |(_, after)| {
                after.iter().for_each(|after| context.enqueue(WorkItem::new(KIND, "", name(&after.metadata))));
            }) => {}
            // A new watch lists all of them again.
            () = controller.settings_changed.notified() => {}
        }
    }
}

async fn reconcile(
    controller: &NamespaceController,
    context: &ControllerContext,
    item: &WorkItem,
) -> Result<(), Error> {
    let Some(namespace) = controller.namespaces.get("", &item.name) else { return Ok(()) };
    host_certificates::reconcile_for_namespace(context, &namespace).await?;
    let meta = &namespace.metadata;
    let is_wanted = context.settings().sugar.namespaces.as_ref().is_some_and(|wanted| wanted.matches(meta));
    if meta.deletion_timestamp.is_none() && is_wanted && context.caches.brokers.get(&item.name, DEFAULT).is_none() {
        create_broker(context, &item.name, DEFAULT).await?;
    }
    Ok(())
}
