//! Who is looked at when what changes.

use std::time::Duration;

use k8s_openapi::api::core::v1::Service;

use crate::context::{ControllerContext, Error};
use crate::informer_cache::{ObjectChange, follow};
use crate::work_queue::{ControllerKind, WorkItem};
use crate::{ControllerTask, fill_cache, item_of, newest};
use crate::{certificate, domain_mapping, service_names};
use types::networking::ingress::Ingress;
use types::shared::{label, name, namespace};

use super::{SERVICE_LABEL, item, splits, system_internal_tls};

/// Between two looks at what leads to names outside: their addresses change without telling anybody.
const POLL_INTERVAL: Duration = Duration::from_secs(30);

pub async fn list_all(context: &ControllerContext) -> Result<(), Error> {
    let capacity = &context.ingress;
    fill_cache(context, &capacity.endpoints).await?;
    service_names::external_slices(context).fill(&capacity.slices).await?;
    fill_cache(context, &capacity.secrets).await?;
    fill_cache(context, &capacity.ingresses).await
}

pub fn watches(context: &ControllerContext) -> Vec<ControllerTask<'_>> {
    let look = |items: Vec<WorkItem>| items.into_iter().for_each(|item| context.enqueue(item));
    vec![
        Box::pin(follow(context.source(), &context.ingress.ingresses, move |change| {
            if let (before, Some(after)) = change
                && (after.is_ours() || before.is_some_and(|before| before.is_ours()))
            {
                look(vec![item(after)]);
            } else if change.1.is_none() {
                look(vec![item_of(ControllerKind::Ingress, change)]);
            }
        })),
        Box::pin(follow(context.source(), &context.ingress.endpoints, move |change| {
            let meta = newest(change).map(|endpoints| &endpoints.metadata);
            look(meta.map(|meta| ingresses_of_service(context, namespace(meta), name(meta))).unwrap_or_default());
        })),
        Box::pin(follow(service_names::external_slices(context), &context.ingress.slices, move |change| {
            // A slice that changes its label leaves one Service and comes to another.
            for slice in [change.0, change.1].into_iter().flatten() {
                if let Some(service) = label(&slice.metadata, SERVICE_LABEL) {
                    look(ingresses_of_service(context, namespace(&slice.metadata), service));
                }
            }
        })),
        Box::pin(follow(context.source(), &context.ingress.secrets, move |change| {
            let meta = newest(change).map(|secret| &secret.metadata);
            let Some(meta) = meta else { return };
            if change.1.is_none() {
                context.ingress.forget_identity(namespace(meta), name(meta), &context.config.expiries);
            }
            look(ingresses_of_secret(context, namespace(meta), name(meta)));
            if system_internal_tls::is_authority_secret(namespace(meta), name(meta)) {
                system_internal_tls::requeue_all(context);
            }
            look(domain_mapping::affected_by_secret(context, namespace(meta), name(meta)));
            look(certificate::affected_by_secret(context, namespace(meta), name(meta)));
        })),
        Box::pin(async move {
            loop {
                tokio::time::sleep(POLL_INTERVAL).await;
                requeue_polled(context);
            }
        }),
    ]
}

/// Ingresses may send to this Service.
pub fn on_service_change(context: &ControllerContext, change: ObjectChange<'_, Service>) {
    if let Some(Service { metadata, .. }) = newest(change).map(|service| &**service) {
        let items = ingresses_of_service(context, namespace(metadata), name(metadata));
        items.into_iter().for_each(|item| context.enqueue(item));
    }
}

/// Something changed that Ingresses lead to without a Service between.
pub fn requeue_polled(context: &ControllerContext) {
    context.ingress.polled_items().into_iter().for_each(|item| context.enqueue(item));
}

/// The Ingresses that send to a Service: of its namespace, for they may send nowhere else. And whose challenges it answers.
fn ingresses_of_service(context: &ControllerContext, ns: &str, service: &str) -> Vec<WorkItem> {
    let sends =
        |ingress: &Ingress| splits(ingress).any(|split| split.service_namespace == ns && split.service_name == service);
    let ingresses = context.ingress.ingresses.list(ns);
    let ours = ingresses.iter().filter(|ingress| ingress.is_ours() && sends(ingress)).map(|i| item(i));
    ours.chain(certificate::affected_by_service(context, ns, service)).collect()
}

fn ingresses_of_secret(context: &ControllerContext, ns: &str, secret: &str) -> Vec<WorkItem> {
    let shows = |ingress: &Ingress| {
        let mut tls = ingress.spec.tls.iter();
        tls.any(|tls| tls.secret_namespace == ns && tls.secret_name == secret)
    };
    let ingresses = context.ingress.ingresses.all();
    ingresses.iter().filter(|ingress| ingress.is_ours() && shows(ingress)).map(|i| item(i)).collect()
}
