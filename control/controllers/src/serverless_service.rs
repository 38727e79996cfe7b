//! The addresses of a Revision's gateway and of its instances: a ServerlessService and two EndpointSlices, for
//! clients that read them. They route nothing.
//!
//! The cores always accept the requests, so both slices for clients name their listener: that of
//! `activator-service` once, and the public one once as well while the mode is `Proxy`. While instances have room for the
//! Revision's burst the mode is `Serve`, and the public slice names the listener once for each of them. The private one has an endpoint for each ready instance. All of them have the host's
//! address and each has its own port, which one slice cannot express, so it names none.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointConditions, EndpointPort, EndpointSlice};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::api::DeleteParams;

use crate::api::{Error, now};
use crate::context::ControllerContext;
use crate::names::{DERIVED_LABEL, SERVICE_NAME, revision_key};
use autoscaler::{InstancePhase, InstanceStatus};
use runtime::{deployment_name, pod_name};
use support::child_name::child_name;
use types::autoscaling::pod_autoscaler::ScaleTarget;
use types::networking::serverless_service::{
    ACTIVATOR_ENDPOINTS_POPULATED, CONDITIONS, ENDPOINTS_POPULATED, ServerlessService, ServerlessServiceSpec,
    ServerlessServiceStatus,
};
use types::serving::annotations::{REVISION, REVISION_UID, ROUTING_STATE, inherited};
use types::serving::revision::Revision;
use types::settings::SERVING;
use types::shared::{Condition, ConditionStatus, Status, name, namespace};

/// Upstream's name of the component that accepts requests.
const ACTIVATOR: &str = "activator-service";
const PORT_NAME: &str = "http";

/// Brings them to what `seen` says. An instance that comes or goes costs one write, the first and the last one more.
pub(crate) async fn reconcile(
    context: &ControllerContext,
    revision: &Revision,
    seen: &[InstanceStatus],
) -> Result<(), Error> {
    let meta = &revision.metadata;
    let (ns, own) = (namespace(meta), name(meta));
    let serves = context.autoscaler.status(&format!("{ns}/{own}")).has_burst_capacity;
    let backends = ready_pods(ns, own, seen);
    let wanted = desired_service(revision, serves, !backends.is_empty());
    match context.api::<ServerlessService>(ns).get_opt(own).await? {
        None => drop(context.create(&wanted).await?),
        Some(there) if !is_up_to_date(&there, &wanted) => drop(context.replace(&with_mode(there, wanted)).await?),
        Some(_) => {}
    }
    let mut public = listener_slice(context, metadata(revision, "-public", own));
    if serves {
        public.endpoints = proxy_endpoints(&public.endpoints, &backends);
    }
    apply_slice(context, public).await?;
    reconcile_ready(context, revision, seen).await
}

/// Copies from `seen` only the fields that change with readiness.
pub(crate) async fn reconcile_ready(
    context: &ControllerContext,
    revision: &Revision,
    seen: &[InstanceStatus],
) -> Result<(), Error> {
    let own = name(&revision.metadata);
    apply_slice(context, ready_slice(metadata(revision, "-private", &private_name(own)), own, seen)).await
}

/// The slice of the gateway's listeners, shared by all Revisions.
pub(crate) async fn publish_activator_slice(context: &ControllerContext) -> Result<(), Error> {
    let metadata = ObjectMeta {
        name: Some(ACTIVATOR.to_owned()),
        namespace: Some(SERVING.to_owned()),
        labels: Some([(SERVICE_NAME.into(), ACTIVATOR.into()), derived_label()].into()),
        ..ObjectMeta::default()
    };
    apply_slice(context, listener_slice(context, metadata)).await
}

/// The name of the slice of `service`.
fn metadata(revision: &Revision, suffix: &str, service: &str) -> ObjectMeta {
    let own = [(SERVICE_NAME.to_owned(), service.to_owned()), derived_label()];
    ObjectMeta {
        name: Some(child_name(name(&revision.metadata), suffix)),
        namespace: revision.metadata.namespace.clone(),
        labels: Some(labels(revision).into_iter().chain(own).collect()),
        owner_references: Some(vec![owner(revision)]),
        ..ObjectMeta::default()
    }
}

/// The name by which instances of `revision` are found.
fn private_name(revision: &str) -> String {
    child_name(revision, "-private")
}

fn derived_label() -> (String, String) {
    (DERIVED_LABEL.to_owned(), "true".to_owned())
}

/// Not out of a cache: it would hold two more objects for every Revision, and a look in this process costs microseconds.
async fn apply_slice(context: &ControllerContext, wanted: EndpointSlice) -> Result<(), Error> {
    let api = context.api::<EndpointSlice>(namespace(&wanted.metadata));
    match api.get_opt(name(&wanted.metadata)).await? {
        None => drop(context.create(&wanted).await?),
        // A slice is of one family of addresses for good, and the listener has moved to the other.
        Some(there) if there.address_type != wanted.address_type => {
            api.delete(name(&wanted.metadata), &DeleteParams::default()).await?;
            drop(context.create(&wanted).await?);
        }
        Some(there) if there.endpoints != wanted.endpoints || there.ports != wanted.ports => {
            let repaired = EndpointSlice { endpoints: wanted.endpoints, ports: wanted.ports, ..there };
            context.replace(&repaired).await?;
        }
        Some(_) => {}
    }
    Ok(())
}

/// Whether there are instances behind it, as it says itself.
fn has_backends(service: &ServerlessService) -> bool {
    let conditions = service.status.iter().flat_map(|status| &status.base.conditions);
    conditions.into_iter().any(|one| one.kind == ENDPOINTS_POPULATED && one.status == ConditionStatus::True)
}

fn is_up_to_date(there: &ServerlessService, wanted: &ServerlessService) -> bool {
    there.spec.mode == wanted.spec.mode && has_backends(there) == has_backends(wanted)
}

/// With the mode that is wanted, and a status that says so.
fn with_mode(there: ServerlessService, wanted: ServerlessService) -> ServerlessService {
    let has_backends = has_backends(&wanted);
    let mut status = there.status.or(wanted.status);
    if let Some(Status { observed_generation, conditions, .. }) = status.as_mut().map(|all| &mut all.base) {
        let steps = i64::from(there.spec.mode != wanted.spec.mode);
        *observed_generation = there.metadata.generation.map(|before| before + steps);
        *conditions = service_conditions(conditions, has_backends);
    }
    let spec = ServerlessServiceSpec { mode: wanted.spec.mode, ..there.spec };
    ServerlessService { spec, status, ..there }
}

/// As upstream has it, one without instances is not ready, though requests wait for it anyway.
fn service_conditions(before: &[Condition], has_backends: bool) -> Vec<Condition> {
    let mut conditions = CONDITIONS.manage(before, now());
    if has_backends {
        conditions.mark_true(ENDPOINTS_POPULATED);
    } else {
        conditions.mark_unknown(ENDPOINTS_POPULATED, "NoHealthyBackends", "K8s Service is not ready");
    }
    conditions.mark_true(ACTIVATOR_ENDPOINTS_POPULATED);
    conditions.finish()
}

fn desired_service(revision: &Revision, serves: bool, has_backends: bool) -> ServerlessService {
    let meta = &revision.metadata;
    let own = name(meta);
    let spec = ServerlessServiceSpec {
        mode: if serves { "Serve" } else { "Proxy" }.to_owned(),
        object_ref: ScaleTarget {
            api_version: "apps/v1".to_owned(),
            kind: "Deployment".to_owned(),
            name: deployment_name(own),
        },
        protocol_type: if revision.spec.uses_h2c() { "h2c" } else { "http1" }.to_owned(),
        num_activators: 1,
    };
    let conditions = service_conditions(&[], has_backends);
    let status = ServerlessServiceStatus {
        base: Status { observed_generation: Some(1), conditions, ..Status::default() },
        service_name: own.to_owned(),
        private_service_name: private_name(own),
    };
    let mut made = ServerlessService::new(namespace(meta), own, spec);
    made.metadata.labels = Some(labels(revision));
    made.metadata.owner_references = Some(vec![owner(revision)]);
    made.status = Some(status);
    made
}

/// Endpoints as the API gives them back, so that they can be compared.
fn endpoint(address: IpAddr, pod: Option<ObjectReference>) -> Endpoint {
    Endpoint {
        addresses: vec![address.to_string()],
        conditions: Some(EndpointConditions { ready: Some(true), ..EndpointConditions::default() }),
        target_ref: pod,
        ..Endpoint::default()
    }
}

fn slice(metadata: ObjectMeta, address: IpAddr) -> EndpointSlice {
    let address_type = if address.is_ipv4() { "IPv4" } else { "IPv6" };
    EndpointSlice { metadata, address_type: address_type.to_owned(), ..EndpointSlice::default() }
}

/// The port of the cores' listener.
fn listener_slice(context: &ControllerContext, metadata: ObjectMeta) -> EndpointSlice {
    let public = context.config.listeners.public;
    let ip = public.map_or(IpAddr::V4(Ipv4Addr::LOCALHOST), |at| at.ip());
    let ip = if ip.is_unspecified() { IpAddr::V4(Ipv4Addr::LOCALHOST) } else { ip };
    let port = EndpointPort {
        name: Some(PORT_NAME.to_owned()),
        port: Some(context.config.http_port.into()),
        protocol: Some("TCP".to_owned()),
        ..EndpointPort::default()
    };
    EndpointSlice { endpoints: vec![endpoint(ip, None)], ports: Some(vec![port]), ..slice(metadata, ip) }
}

/// The instances that are ready, and where they are.
fn ready_pods(ns: &str, revision: &str, seen: &[InstanceStatus]) -> Vec<(IpAddr, ObjectReference)> {
    let pod = |one: &InstanceStatus| ObjectReference {
        kind: Some("Pod".to_owned()),
        name: Some(pod_name(revision, one.lineage)),
        namespace: Some(ns.to_owned()),
        ..ObjectReference::default()
    };
    let ready = seen.iter().filter(|one| one.phase == InstancePhase::Ready);
    ready.filter_map(|one| Some((one.address?.ip(), pod(one)))).collect()
}

/// The listener's endpoints, once for each instance behind them.
fn proxy_endpoints(listeners: &[Endpoint], pods: &[(IpAddr, ObjectReference)]) -> Vec<Endpoint> {
    let of = |pod: &ObjectReference| {
        let pod = pod.clone();
        move |one: &Endpoint| Endpoint { target_ref: Some(pod.clone()), ..one.clone() }
    };
    pods.iter().flat_map(|(_, pod)| listeners.iter().map(of(pod))).collect()
}

/// The endpoints of ready instances.
fn ready_slice(metadata: ObjectMeta, revision: &str, seen: &[InstanceStatus]) -> EndpointSlice {
    let pods = ready_pods(metadata.namespace.as_deref().unwrap_or_default(), revision, seen);
    let endpoints = pods.into_iter().map(|(ip, pod)| endpoint(ip, Some(pod))).collect();
    EndpointSlice { endpoints, ..slice(metadata, IpAddr::V4(Ipv4Addr::LOCALHOST)) }
}

/// The labels of everything that runs for `revision`: its own, which include those of its template, and its owner's.
pub(crate) fn labels(revision: &Revision) -> BTreeMap<String, String> {
    let meta = &revision.metadata;
    let mut labels = inherited(meta.labels.as_ref(), &[ROUTING_STATE]);
    labels.insert(REVISION.into(), name(meta).into());
    labels.insert(REVISION_UID.into(), meta.uid.clone().unwrap_or_default());
    labels.entry("app".into()).or_insert_with(|| name(meta).into()); // its author may call it otherwise
    labels
}

pub(crate) fn owner(revision: &Revision) -> OwnerReference {
    OwnerReference {
        api_version: revision.api_version.clone(),
        kind: revision.kind.clone(),
        name: name(&revision.metadata).into(),
        uid: revision.metadata.uid.clone().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

/// Writes the ready Pods of a Revision that is about to become Ready, because clients that waited for that read them
/// next. What fails is done by the next reconcile of its Pods.
pub(crate) async fn publish_ready(context: &ControllerContext, revision: &Revision) {
    if context.config.publishes_pods && context.leadership.is_leader() {
        let key = revision_key(namespace(&revision.metadata), name(&revision.metadata));
        let seen = context.autoscaler.instances(&key);
        let _ = reconcile_ready(context, revision, &seen).await;
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use types::serving::revision_spec::RevisionSpec;

    #[test]
    fn the_private_slice_has_an_endpoint_for_each_ready_instance() {
        let at = Timestamp::UNIX_EPOCH;
        let seen = |id: u64, stage| InstanceStatus {
            id,
            lineage: id,
            created_at: at,
            restarts: 0,
            phase: stage,
            address: "127.0.0.1:20001".parse().ok(),
            started_at: at,
            last_termination: None,
            sidecars: Vec::new(),
            not_ready_reason: None,
        };
        let stages = [
            InstancePhase::Ready,
            InstancePhase::Starting,
            InstancePhase::Ready,
            InstancePhase::Frozen,
            InstancePhase::Terminating,
        ];
        let all: Vec<_> = (1..).zip(stages).map(|(id, stage)| seen(id, stage)).collect();
        let made = ready_slice(ObjectMeta::default(), "hello-00001", &all);
        let pods: Vec<_> = made.endpoints.iter().filter_map(|one| one.target_ref.clone()?.name).collect();
        assert_eq!(pods, ["hello-00001-deployment-1", "hello-00001-deployment-3"]);
        assert!(made.endpoints.iter().all(|one| one.addresses == ["127.0.0.1"]));
    }

    #[test]
    fn it_says_by_which_name_instances_are_found() {
        let status = made(false).status.unwrap();
        assert_eq!((&*status.service_name, &*status.private_service_name), ("hello-00001", "hello-00001-private"));
    }

    fn made(has_backends: bool) -> ServerlessService {
        desired_service(&Revision::new("ns", "hello-00001", RevisionSpec::default()), false, has_backends)
    }

    fn ready_of(service: &ServerlessService) -> (ConditionStatus, String) {
        let status = service.status.as_ref().unwrap();
        let ready = status.base.conditions.iter().find(|one| one.kind == "Ready").unwrap();
        (ready.status, ready.reason.clone())
    }

    /// Upstream's words: of a Revision that is at zero, or never came up, `kubectl get sks` says so.
    #[test]
    fn one_without_instances_is_not_ready() {
        let (asleep, awake) =
            ((ConditionStatus::Unknown, "NoHealthyBackends".to_owned()), (ConditionStatus::True, String::new()));
        assert_eq!(ready_of(&made(false)), asleep);
        let mut there = made(true);
        there.metadata.generation = Some(4);
        assert_eq!(ready_of(&there), awake);
        assert!(is_up_to_date(&there, &made(true)) && !is_up_to_date(&there, &made(false)));

        let there = with_mode(there, made(false));
        assert_eq!(ready_of(&there), asleep);
        assert_eq!(there.status.as_ref().unwrap().base.observed_generation, Some(4), "its spec stayed");
        assert_eq!(ready_of(&with_mode(there, made(true))), awake);
    }
}
