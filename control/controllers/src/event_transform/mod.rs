//! EventTransforms: an adapter evaluates the JSONata expression, in a process of its own. Its Service's address is the
//! transform's, as of a sink that an adapter runs.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::adapter_service::{
    AdapterRequest, AdapterSections, Deployment, TOKEN_FILE, deploy, owner_item, remove_state, remove_unused_state,
    service_name,
};
use crate::api::{Error, now};
use crate::context::ControllerContext;
use crate::controller::{Controller, ControllerFuture, RestoreFuture, Watches, newest};
use crate::destination_resolver::{DestinationAddress, ResolveError};
use crate::informer_cache::InformerCache;
use crate::oidc_identity::{self, OidcIdentity};
use crate::sender_policy;
use crate::sink_admission::{self, SinkAdmission, SinkReach};
use crate::work_queue::{ControllerKind, WorkItem};
use types::conditions::ConditionManager;
use types::eventing::event_transform::{
    CONDITIONS, EventTransform, JSONATA_DEPLOYMENT_READY, JSONATA_SINK_BINDING_READY, JsonataDeploymentStatus,
    JsonataStatus, TRANSFORMATION_READY,
};
use types::serving::service::Service;
use types::shared::{ConditionStatus, name, namespace};
use types::sources::adapter::AdapterProgram;

const NAME: &str = "EventTransform";
const KIND: ControllerKind = ControllerKind::new(NAME);
const SUFFIX: &str = "-eventtransform";
const TRANSPORT: &str = "jsonata";
/// The memory of the adapter: an expression can make large values, and the program itself needs a few megabytes.
const MEMORY_MAX: &str = "256Mi";

#[derive(Debug, Default)]
pub(crate) struct EventTransformController {
    cache: InformerCache<EventTransform>,
}

impl Controller for EventTransformController {
    fn kind(&self) -> ControllerKind {
        KIND
    }

    fn watches<'a>(&'a self, _: &'a ControllerContext, watches: &mut Watches<'a>) {
        watches.own_primary(KIND, &self.cache);
        sender_policy::watch_cache(watches, KIND, &self.cache);
        watches.enqueue::<Service, _>(|change| owner_item(newest(change)?, NAME));
    }

    fn restore<'a>(&'a self, context: &'a ControllerContext) -> RestoreFuture<'a> {
        Box::pin(async {
            remove_unused_state(context);
            sink_admission::restore_adapter_sinks::<EventTransform>(context, SUFFIX).await;
        })
    }

    fn reconcile<'a>(&'a self, context: &'a ControllerContext, item: &'a WorkItem) -> ControllerFuture<'a> {
        Box::pin(reconcile(&self.cache, context, item))
    }
}

type SinkResult = Option<Result<DestinationAddress, ResolveError>>;

async fn reconcile(
    cache: &InformerCache<EventTransform>,
    context: &ControllerContext,
    item: &WorkItem,
) -> Result<(), Error> {
    context.resolver.forget(item);
    let service = service_name(&item.name, SUFFIX);
    let Some(transform) = cache.get(&item.namespace, &item.name) else {
        let route = format!("{}/{service}", item.namespace);
        sink_admission::remove::<EventTransform>(context, (&item.namespace, &item.name), &route);
        remove_state(context, item, &service);
        return Ok(());
    };
    if transform.metadata.deletion_timestamp.is_some() {
        return Ok(()); // garbage collection deletes the Service
    }
    let admission = SinkAdmission::of::<EventTransform>(context, &transform.metadata);
    admission.publish_adapter(context, &transform.metadata, &service);
    let sink = match &transform.spec.sink {
        Some(sink) => Some(context.resolver.resolve(item, sink).await?),
        None => None,
    };
    let had = transform.status.as_ref().and_then(|status| status.auth.as_ref());
    let identity = oidc_identity::reconcile_account(context, item, &*transform, had).await?;
    let deployed = match &sink {
        Some(Err(_)) => {
            Deployment::Waiting("SinkNotResolved", "the adapter is started once its sink is known".to_owned())
        }
        Some(Ok(sink)) => start(context, item, &transform, &service, Some((sink, &identity))).await?,
        None => start(context, item, &transform, &service, None).await?,
    };
    let address = context.caches.services.get(&item.namespace, &service);
    let address = address.and_then(|service| service.status.as_ref()?.address.clone());
    let reach = address.map(|own| admission.reach(context, own));
    context.publisher.flush().await;
    let mut after = (*transform).clone();
    set_status(&mut after, sink, reach, &identity, &deployed);
    context.set_status(&*transform, &after).await
}

/// Starts the adapter, or changes it.
async fn start(
    context: &ControllerContext,
    item: &WorkItem,
    transform: &EventTransform,
    service: &str,
    sink: Option<(&DestinationAddress, &OidcIdentity)>,
) -> Result<Deployment, Error> {
    let account = match sink.map(|(sink, identity)| identity.account_for(sink)).transpose() {
        Ok(account) => account.flatten(),
        Err(why) => return Ok(Deployment::failed("ServiceAccountNotOwned", why)),
    };
    let sink = sink.map(|(sink, _)| sink);
    let mut sender = sink.map_or(Value::Null, |sink| json!({ "sinkUri": sink.url }));
    if sink.is_some_and(|sink| sink.audience.is_some()) {
        sender["token"] = TOKEN_FILE.into();
    }
    let (meta, program) = (&transform.metadata, AdapterProgram::transport(TRANSPORT));
    let request = AdapterRequest {
        owner: transform,
        service,
        program: &program,
        sections: AdapterSections { receiver: Some(transform.spec.section()), sender },
        variables: vec![
            ("K_CA_CERTS", sink.and_then(|sink| sink.ca_certs.clone()).unwrap_or_default()),
            ("NAMESPACE", namespace(meta).to_owned()),
            ("NAME", name(meta).to_owned()),
        ],
        service_account_name: account,
        token_audience: sink.and_then(|sink| sink.audience.as_deref()),
        memory_max: Some(MEMORY_MAX),
        is_public: false,
        instances: 1,
    };
    deploy(context, item, request, |_: &mut AdapterSections, _: &BTreeMap<_, _>| Ok(())).await
}

fn set_status(
    transform: &mut EventTransform,
    sink: SinkResult,
    reach: Option<SinkReach>,
    identity: &OidcIdentity,
    deployed: &Deployment,
) {
    let generation = transform.metadata.generation;
    let status = transform.status.get_or_insert_default();
    let before = std::mem::take(&mut status.base.conditions);
    let mut conditions = CONDITIONS.manage(&before, now());
    let (addresses, policies) = SinkReach::mark_optional(reach, &mut conditions);
    (status.address, status.addresses, status.policies) = (addresses.primary, addresses.all, policies);
    (status.sink_uri, status.sink_ca_certs, status.sink_audience) = (None, None, None);
    match &sink {
        Some(Err(ResolveError(why))) => conditions.mark_false(JSONATA_SINK_BINDING_READY, "NotFound", why),
        Some(Ok(_)) | None => conditions.mark_true(JSONATA_SINK_BINDING_READY),
    }
    if let Some(Ok(found)) = sink {
        (status.sink_uri, status.sink_ca_certs, status.sink_audience) =
            (Some(found.url), found.ca_certs, found.audience);
    }
    status.auth = identity.status();
    deployed.mark(&mut conditions, JSONATA_DEPLOYMENT_READY);
    mark_transformation(&mut conditions, deployed);
    let ready = i32::from(*deployed == Deployment::Ready);
    let deployment =
        JsonataDeploymentStatus { replicas: 1, ready_replicas: Some(ready), available_replicas: Some(ready) };
    status.jsonata = Some(JsonataStatus { deployment });
    conditions.finish_into(&mut status.base, generation);
}

/// `TransformationReady` has the state of the sink, then that of the adapter.
fn mark_transformation(conditions: &mut ConditionManager<'_>, deployed: &Deployment) {
    if conditions.status_of(JSONATA_SINK_BINDING_READY) == ConditionStatus::True {
        deployed.mark(conditions, TRANSFORMATION_READY);
    } else {
        conditions.mark_false(TRANSFORMATION_READY, "NotFound", "the sink is not resolved");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sender_policy::SenderPolicy;
    use types::shared::Condition;

    fn concluded(sink: SinkResult, deployed: &Deployment) -> Vec<Condition> {
        let mut transform = EventTransform::default();
        let reach = SinkReach { addresses: Ok("http://t".into()), policy: SenderPolicy::default() };
        set_status(&mut transform, sink, Some(reach), &OidcIdentity::Disabled, deployed);
        transform.status.unwrap().base.conditions
    }

    #[test]
    fn transform_is_ready_with_sink_and_adapter() {
        let status = |conditions: &[Condition], kind: &str| {
            let found = conditions.iter().find(|one| one.kind == kind).unwrap();
            (found.status, found.reason.clone())
        };
        let ready = concluded(None, &Deployment::Ready);
        assert_eq!(status(&ready, "Ready").0, ConditionStatus::True);
        assert_eq!(status(&ready, "EventPoliciesReady").1, "OIDCDisabled");
        let lost = concluded(Some(Err(ResolveError("no such Service".to_owned()))), &Deployment::Ready);
        assert_eq!(status(&lost, "Ready").0, ConditionStatus::False);
        let wrong = Deployment::failed("ExitCode1", "spec.jsonata.expression: wrong".to_owned());
        let failed = concluded(None, &wrong);
        assert_eq!(status(&failed, "Ready"), (ConditionStatus::False, "ExitCode1".to_owned()));
        assert_eq!(status(&failed, "JsonataDeploymentReady").0, ConditionStatus::False);
    }
}
