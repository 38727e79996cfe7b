//! Sinks that an adapter runs: the adapter is an instance of a Service that belongs to the sink, and the Service's address is
//! the sink's. The adapter answers an event with a 2xx once the other system has confirmed it. JobSinks have no adapter
//! ([`job_sink`]).

pub mod job_sink;

use std::collections::BTreeMap;

use crate::adapter_service::{
    AdapterRequest, AdapterSections, Deployment, deploy, owner_item, remove_state, remove_unused_state, service_name,
    watch_revisions, watch_types,
};
use crate::api::{Error, NamespacedObject, now};
use crate::context::ControllerContext;
use crate::controller::{Controller, ControllerFuture, RestoreFuture, Watches, newest};
use crate::informer_cache::InformerCache;
use crate::sender_policy;
use crate::sink_admission::{self, SinkAdmission, SinkReach};
use crate::work_queue::{ControllerKind, WorkItem};
use types::kind_registry::ResourceStrategy;
use types::serving::service::Service;
use types::shared::{name, namespace};
use types::sinks::AdapterSinkKind;
use types::sources::adapter::SecretData;

/// Sinks of one kind that an adapter runs.
#[derive(Debug, Default)]
pub struct AdapterSinkController<A: kube::Resource + serde::de::DeserializeOwned> {
    cache: InformerCache<A>,
}

impl<A: NamespacedObject + ResourceStrategy + AdapterSinkKind> Controller for AdapterSinkController<A> {
    fn kind(&self) -> ControllerKind {
        ControllerKind::new(A::META.kind)
    }

    fn watches<'a>(&'a self, context: &'a ControllerContext, watches: &mut Watches<'a>) {
        watches.own_primary(self.kind(), &self.cache);
        watch_types(watches, self.kind(), &self.cache);
        watch_revisions(watches, context, A::META.kind);
        sender_policy::watch_cache(watches, self.kind(), &self.cache);
        watches.enqueue::<Service, _>(|change| owner_item(newest(change)?, A::META.kind));
    }

    fn restore<'a>(&'a self, context: &'a ControllerContext) -> RestoreFuture<'a> {
        Box::pin(async {
            remove_unused_state(context);
            sink_admission::restore_adapter_sinks::<A>(context, A::SERVICE_SUFFIX).await;
        })
    }

    fn reconcile<'a>(&'a self, context: &'a ControllerContext, item: &'a WorkItem) -> ControllerFuture<'a> {
        Box::pin(reconcile(context, &self.cache, item))
    }
}

async fn reconcile<A: NamespacedObject + ResourceStrategy + AdapterSinkKind>(
    context: &ControllerContext,
    cache: &InformerCache<A>,
    item: &WorkItem,
) -> Result<(), Error> {
    let service = service_name(&item.name, A::SERVICE_SUFFIX);
    let Some(sink) = cache.get(&item.namespace, &item.name) else {
        let route = format!("{}/{service}", item.namespace);
        sink_admission::remove::<A>(context, (&item.namespace, &item.name), &route);
        remove_state(context, item, &service);
        return Ok(());
    };
    if sink.meta().deletion_timestamp.is_some() {
        return Ok(()); // garbage collection deletes the Service
    }
    let admission = SinkAdmission::of::<A>(context, sink.meta());
    admission.publish_adapter(context, sink.meta(), &service);
    let plan = sink.plan();
    let request = AdapterRequest {
        owner: &*sink,
        service: &service,
        program: &plan.program,
        sections: AdapterSections { receiver: None, sender: plan.sink.clone() },
        variables: vec![("NAMESPACE", namespace(sink.meta()).to_owned()), ("NAME", name(sink.meta()).to_owned())],
        service_account_name: plan.service_account_name.as_deref(),
        token_audience: None,
        memory_max: None,
        is_public: false,
        instances: 1,
    };
    let finish = |sections: &mut AdapterSections, found: &BTreeMap<String, SecretData>| {
        A::read_secrets(&mut sections.sender, found)
    };
    let deployed = deploy(context, item, request, finish).await?;
    let address = context.caches.services.get(&item.namespace, &service);
    let address = address.and_then(|service| service.status.as_ref()?.address.clone());
    let reach = address.map(|own| admission.reach(context, own));
    context.publisher.flush().await;
    let mut after = (*sink).clone();
    set_status(&mut after, reach, &deployed);
    context.set_status(&*sink, &after).await
}

fn set_status<A: NamespacedObject + AdapterSinkKind>(sink: &mut A, reach: Option<SinkReach>, deployed: &Deployment) {
    let generation = sink.meta().generation;
    let status = sink.status_mut();
    let before = std::mem::take(&mut status.base.conditions);
    let mut conditions = A::CONDITIONS.manage(&before, now());
    let (addresses, policies) = SinkReach::mark_optional(reach, &mut conditions);
    deployed.mark(&mut conditions, A::DEPLOYED_CONDITION);
    for kind in A::READY_CONDITIONS {
        match deployed {
            Deployment::Ready => conditions.mark_true(kind),
            _ => conditions.mark_unknown(kind, "AdapterNotReady", "the adapter is not connected yet"),
        }
    }
    A::INDEPENDENT_CONDITIONS.iter().for_each(|kind| conditions.mark_true(kind));
    (status.address, status.addresses, status.policies) = (addresses.primary, addresses.all, policies);
    conditions.finish_into(&mut status.base, generation);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sender_policy::SenderPolicy;
    use crate::stream_addresses::StatusAddresses;
    use serde_json::json;
    use types::shared::{Addressable, ConditionStatus};
    use types::sinks::kafka::KafkaSink;

    /// TRN-29: a sink is Ready once it has an address and its adapter is connected.
    #[test]
    fn sink_is_ready_with_address_and_adapter() {
        let concluded = |address: Option<Addressable>, deployed: Deployment| {
            let mut sink: KafkaSink = serde_json::from_value(json!({ "metadata": {}, "spec": {} })).unwrap();
            let addresses = |own: Addressable| StatusAddresses { all: vec![own.clone()], primary: Some(own) };
            let policy = SenderPolicy::default();
            let reach = address.map(|own| SinkReach { addresses: Ok(addresses(own)), policy });
            set_status(&mut sink, reach, &deployed);
            let status = sink.status.unwrap();
            let ready = status.base.conditions.iter().find(|one| one.kind == "Ready").unwrap().status;
            (ready, status.addresses.len())
        };
        let address = || Some(Addressable { url: Some("http://s".to_owned()), ..Addressable::default() });
        let failed = || Deployment::failed("ExitCode1", "gone".to_owned());
        assert_eq!(concluded(address(), Deployment::Ready), (ConditionStatus::True, 1));
        assert_eq!(concluded(None, Deployment::Ready), (ConditionStatus::Unknown, 0));
        assert_eq!(concluded(address(), failed()), (ConditionStatus::False, 1));
    }
}
