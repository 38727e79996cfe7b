//! The index keys of the caches.

use k8s_openapi::api::core::v1::{Pod, Service as CoreService};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::names::service_host;
use types::eventing::trigger::Trigger;
use types::gateway_policies::security_policy::GatewaySecurityPolicy;
use types::gateway_policies::traffic_policy::GatewayTrafficPolicy;
use types::messaging::subscription::Subscription;
use types::networking::certificate::{Certificate, WILDCARD_LABEL};
use types::serving::annotations::{CLUSTER_LOCAL, REVISION, VISIBILITY};
use types::serving::revision::Revision;
use types::serving::route::{INGRESS_READY, Route};
use types::shared::{HasConditions as _, controller, label, name, namespace};

/// Revisions are indexed by the uid of their controller.
pub(crate) fn revision_keys(revision: &Revision) -> Vec<String> {
    controller(&revision.metadata).map(|owner| owner.uid.clone()).into_iter().collect()
}

/// Pods are found by the Revision that they run.
pub(crate) fn pod_keys(pod: &Pod) -> Vec<String> {
    let is_derived = controller(&pod.metadata).is_some_and(|owner| owner.kind == "Revision");
    label(&pod.metadata, REVISION).filter(|_| is_derived).map(str::to_owned).into_iter().collect()
}

/// Routes are found by what they ask for, and by what they are shown to send to.
pub(crate) fn route_keys(route: &Route) -> Vec<String> {
    let wanted = route.spec.traffic.iter().flat_map(|target| {
        [target.revision().map(spec_revision_key), target.configuration().map(spec_configuration_key)]
    });
    let shown = route.status.iter().flat_map(|status| &status.traffic).flat_map(|target| {
        [target.revision().map(status_revision_key), target.configuration().map(status_configuration_key)]
    });
    let is_refused = route.condition(INGRESS_READY).is_some_and(|c| c.reason == "NotOwned");
    wanted.chain(shown).flatten().chain(is_refused.then(|| HOST_CONFLICT.to_owned())).collect()
}

/// Another object owns one of its hosts.
pub(crate) const HOST_CONFLICT: &str = "refused";

pub(crate) fn spec_revision_key(name: &str) -> String {
    format!("wants revision {name}")
}

pub(crate) fn spec_configuration_key(name: &str) -> String {
    format!("wants configuration {name}")
}

pub(crate) fn status_revision_key(name: &str) -> String {
    format!("has revision {name}")
}

pub(crate) fn status_configuration_key(name: &str) -> String {
    format!("has configuration {name}")
}

/// Policies are found by their targets, and by the Secrets that they name.
pub(crate) fn security_policy_keys(policy: &GatewaySecurityPolicy) -> Vec<String> {
    let targets = policy.spec.target_refs.iter().map(|target| policy_target_key(&target.kind, &target.name));
    targets.chain(policy.spec.secrets().map(policy_secret_key)).collect()
}

pub(crate) fn traffic_policy_keys(policy: &GatewayTrafficPolicy) -> Vec<String> {
    policy.spec.target_refs.iter().map(|target| policy_target_key(&target.kind, &target.name)).collect()
}

pub(crate) fn policy_target_key(kind: &str, name: &str) -> String {
    format!("for {kind} {name}")
}

pub(crate) fn policy_secret_key(name: &str) -> String {
    format!("reads secret {name}")
}

/// Certificates are indexed by their owner, their Secret, and the solvers of their challenges.
pub(crate) fn certificate_keys(certificate: &Certificate) -> Vec<String> {
    let meta = &certificate.metadata;
    let owner = controller(meta).map(|owner| format!("owned by {}", owner.uid));
    let wildcard = label(meta, WILDCARD_LABEL).map(wildcard_key);
    let secret = secret_key(&certificate.spec.secret_name);
    let challenges = certificate.status.iter().flat_map(|status| &status.http01_challenges);
    let answered = challenges.map(|challenge| solver_key(&challenge.service_name));
    owner.into_iter().chain(wildcard).chain([secret]).chain(answered).collect()
}

pub(crate) fn solver_key(service: &str) -> String {
    format!("answered by {service}")
}

pub(crate) fn owner_key(owner: &ObjectMeta) -> String {
    format!("owned by {}", owner.uid.as_deref().unwrap_or_default())
}

pub(crate) fn secret_key(secret: &str) -> String {
    format!("kept in {secret}")
}

pub(crate) fn wildcard_key(domain: &str) -> String {
    format!("wildcard in {domain}")
}

/// The index of Triggers: namespace and name of the Broker; and their uid, by which the cores know them.
pub(crate) fn trigger_keys(trigger: &Trigger) -> Vec<String> {
    let (ns, name) = trigger.broker();
    std::iter::once(format!("{ns}/{name}")).chain(trigger.metadata.uid.clone()).collect()
}

/// The index of Subscriptions: namespace and name of the channel.
pub(crate) fn subscription_keys(subscription: &Subscription) -> Vec<String> {
    let (ns, channel) = subscription.channel();
    vec![format!("{ns}/{channel}")]
}

/// The index of Services: other than placeholders, and those whose visibility is [`CLUSTER_LOCAL`], by that.
pub(crate) fn core_service_keys(service: &CoreService) -> Vec<String> {
    let is_local = label(&service.metadata, VISIBILITY) == Some(CLUSTER_LOCAL);
    let others = (!is_placeholder(service)).then_some(NOT_PLACEHOLDER);
    others.into_iter().chain(is_local.then_some(CLUSTER_LOCAL)).map(str::to_owned).collect()
}

/// Services that are no Route's placeholder.
pub(crate) const NOT_PLACEHOLDER: &str = "others";

/// A Route's placeholder leads to the Route, whose hosts the table knows.
pub(crate) fn is_placeholder(service: &CoreService) -> bool {
    let (ns, name) = (namespace(&service.metadata), name(&service.metadata));
    let external = service.spec.as_ref().and_then(|spec| spec.external_name.as_deref());
    external.is_some_and(|external| external == service_host(name, ns))
}
