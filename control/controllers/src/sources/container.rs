//! ContainerSources: the template's containers run all the time, and are told where to send.

mod template;

use crate::adapter_service::{
    Deployment, apply_service, owner_item, remove_state, remove_unused_state, service_name, service_of,
};
use crate::api::{Error, now};
use crate::context::ControllerContext;
use crate::controller::{Controller, ControllerFuture, RestoreFuture, Watches, newest};
use crate::destination_resolver::{DestinationAddress, ResolveError};
use crate::informer_cache::InformerCache;
use crate::oidc_identity::{self, OidcIdentity};
use crate::work_queue::{ControllerKind, WorkItem};
use types::serving::service::Service;
use types::sources::SourceKind as _;
use types::sources::container::{ADAPTER_READY, BINDING_READY, ContainerSource};

const NAME: &str = "ContainerSource";
const KIND: ControllerKind = ControllerKind::new(NAME);
const SUFFIX: &str = "-containersource";

#[derive(Debug, Default)]
pub struct ContainerController {
    sources: InformerCache<ContainerSource>,
}

impl Controller for ContainerController {
    fn kind(&self) -> ControllerKind {
        KIND
    }

    fn watches<'a>(&'a self, _: &'a ControllerContext, watches: &mut Watches<'a>) {
        watches.own_primary(KIND, &self.sources);
        watches.enqueue::<Service, _>(|change| owner_item(newest(change)?, NAME));
    }

    fn restore<'a>(&'a self, context: &'a ControllerContext) -> RestoreFuture<'a> {
        Box::pin(async { remove_unused_state(context) })
    }

    fn reconcile<'a>(&'a self, context: &'a ControllerContext, item: &'a WorkItem) -> ControllerFuture<'a> {
        Box::pin(reconcile(&self.sources, context, item))
    }
}

async fn reconcile(
    sources: &InformerCache<ContainerSource>,
    context: &ControllerContext,
    item: &WorkItem,
) -> Result<(), Error> {
    context.resolver.forget(item);
    let service = service_name(&item.name, SUFFIX);
    let Some(source) = sources.get(&item.namespace, &item.name) else {
        remove_state(context, item, &service);
        return Ok(());
    };
    if source.metadata.deletion_timestamp.is_some() {
        return Ok(()); // garbage collection deletes the Service
    }
    let sink = context.resolver.resolve(item, &source.spec.sink).await?;
    let identity = identity(context, item, &source).await?;
    let deployed = match &sink {
        Ok(sink) => start(context, item, &source, (sink, &identity)).await?,
        Err(_) => Deployment::Waiting("SinkNotResolved", "the containers start once their sink is known".to_owned()),
    };
    let mut after = (*source).clone();
    set_status(&mut after, sink, &identity, &deployed);
    context.set_status(&*source, &after).await
}

/// The account of the template, if it names one, else one of the source's own.
async fn identity(
    context: &ControllerContext,
    item: &WorkItem,
    source: &ContainerSource,
) -> Result<OidcIdentity, Error> {
    if context.settings().event_features.authenticates()
        && let Some(account) = own_account(source)
    {
        return Ok(OidcIdentity::Created(account.to_owned()));
    }
    let had = source.status.as_ref().and_then(|status| status.auth.as_ref());
    oidc_identity::reconcile_account(context, item, source, had).await
}

fn own_account(source: &ContainerSource) -> Option<&str> {
    source.spec.template["spec"]["serviceAccountName"].as_str().filter(|account| !account.is_empty())
}

/// Starts the containers of a source, or changes them.
async fn start(
    context: &ControllerContext,
    item: &WorkItem,
    source: &ContainerSource,
    (sink, identity): (&DestinationAddress, &OidcIdentity),
) -> Result<Deployment, Error> {
    let service = service_name(&item.name, SUFFIX);
    let mut template = template::template(source, sink, &service);
    match (identity.account_for(sink), &sink.audience) {
        (Ok(Some(account)), Some(audience)) => template::add_token(&mut template["spec"], account, audience),
        (Ok(_), _) => {}
        (Err(why), _) => return Ok(Deployment::failed("ServiceAccountNotOwned", why)),
    }
    match service_of(source, &service, template, 1) {
        Ok(wanted) => apply_service(context, item, source, wanted).await,
        Err(why) => Ok(Deployment::failed("TemplateInvalid", why)),
    }
}

fn set_status(
    source: &mut ContainerSource,
    sink: Result<DestinationAddress, ResolveError>,
    identity: &OidcIdentity,
    deployed: &Deployment,
) {
    let generation = source.metadata.generation;
    let status = source.status.get_or_insert_default();
    let before = std::mem::take(&mut status.base.conditions);
    let mut conditions = ContainerSource::CONDITIONS.manage(&before, now());
    (status.sink_uri, status.sink_ca_certs, status.sink_audience) = (None, None, None);
    status.auth = identity.status();
    match sink {
        Ok(found) => {
            match identity.account_for(&found) {
                Ok(_) => conditions.mark_true(BINDING_READY),
                Err(why) => conditions.mark_false(BINDING_READY, "ServiceAccountNotOwned", &why),
            }
            (status.sink_uri, status.sink_ca_certs, status.sink_audience) =
                (Some(found.url), found.ca_certs, found.audience);
        }
        Err(ResolveError(why)) => conditions.mark_false(BINDING_READY, "NotFound", &why),
    }
    deployed.mark(&mut conditions, ADAPTER_READY);
    conditions.finish_into(&mut status.base, generation);
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use types::shared::ConditionStatus;

    fn source() -> ContainerSource {
        serde_json::from_value(json!({ "metadata": { "name": "heartbeats", "namespace": "ns" } })).unwrap()
    }

    #[test]
    fn status_has_upstreams_conditions() {
        let concluded = |sink: Result<DestinationAddress, ResolveError>, deployed: Deployment, identity| {
            let mut source = source();
            set_status(&mut source, sink, &identity, &deployed);
            let conditions = source.status.unwrap().base.conditions;
            conditions.into_iter().map(|one| (one.kind, one.status)).collect::<Vec<_>>()
        };
        let all = |adapter, ready, binding| {
            [("Ready", ready), (ADAPTER_READY, adapter), (BINDING_READY, binding)]
                .map(|(kind, status)| (kind.to_owned(), status))
        };
        let sort = |mut list: Vec<(String, ConditionStatus)>| {
            list.sort_by(|a, b| a.0.cmp(&b.0));
            list
        };
        use ConditionStatus::{False, True, Unknown};
        let sink = || Ok(DestinationAddress::from("http://s"));
        let disabled = || OidcIdentity::Disabled;
        assert_eq!(concluded(sink(), Deployment::Ready, disabled()), sort(all(True, True, True).to_vec()));
        let failed = || Deployment::failed("ExitCode1", "gone".to_owned());
        assert_eq!(concluded(sink(), failed(), disabled()), sort(all(False, False, True).to_vec()));
        let nowhere = Err(ResolveError("no such Service".to_owned()));
        let waits = Deployment::Waiting("SinkNotResolved", String::new());
        assert_eq!(concluded(nowhere, waits, disabled()), sort(all(Unknown, False, False).to_vec()));
        let strict =
            || Ok(DestinationAddress { audience: Some("a".to_owned()), ..DestinationAddress::from("http://s") });
        let created = OidcIdentity::Created("own".to_owned());
        assert_eq!(concluded(strict(), Deployment::Ready, created), sort(all(True, True, True).to_vec()));
        let taken = OidcIdentity::Conflict("own".to_owned());
        assert_eq!(concluded(strict(), failed(), taken), sort(all(False, False, False).to_vec()));
    }
}
