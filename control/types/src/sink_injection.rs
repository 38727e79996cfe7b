//! Injects the sinks of SinkBindings into the containers of Services, Configurations and workloads.
//!
//! Admission injects into a template that is written, so that its first Revision has it; the controller injects into existing
//! ones.

use k8s_openapi::api::core::v1::{Container, EnvVar, PodTemplateSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta, Time};
use kube::core::{Selector, SelectorExt};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::shared::{group_of, name};

/// The group of the kinds that can be bound.
const SERVING: &str = "serving.knative.dev";

/// The label of objects that no binding changes, and of namespaces where none does.
pub(crate) const EXCLUDE: &str = "bindings.knative.dev/exclude";

/// The sink's URL, the attributes to add to each event, and the CA certificates of the sink.
pub(crate) const SINK: &str = "K_SINK";
pub(crate) const OVERRIDES: &str = "K_CE_OVERRIDES";
pub(crate) const CA_CERTS: &str = "K_CA_CERTS";

/// Kinds with programs here that can get a sink.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BindableKind {
    Service,
    Configuration,
    Deployment,
    ReplicaSet,
    /// When it is created: the template of a Job stays as it is.
    Job,
}

/// Objects of a kind, by name or by labels.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct BindingSubject {
    pub api_version: String,
    pub kind: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<LabelSelector>,
}

impl BindingSubject {
    /// Which of the kinds with programs it is of, if any.
    #[must_use]
    pub fn bindable_kind(&self) -> Option<BindableKind> {
        match (group_of(&self.api_version), &*self.kind) {
            (SERVING, "Service") => Some(BindableKind::Service),
            (SERVING, "Configuration") => Some(BindableKind::Configuration),
            ("apps", "Deployment") => Some(BindableKind::Deployment),
            ("apps", "ReplicaSet") => Some(BindableKind::ReplicaSet),
            ("batch", "Job") => Some(BindableKind::Job),
            _ => None,
        }
    }
}

/// The injection of one SinkBinding.
#[derive(Debug, Clone, PartialEq)]
pub struct SinkInjection {
    pub kind: BindableKind,
    pub subject: BindingSubject,
    pub created: Option<Time>,
    pub name: String,
    /// Nothing as long as its sink has no address that programs can send to.
    pub environment: Option<Vec<EnvVar>>,
}

impl SinkInjection {
    /// The environment for an object of that kind: that of its oldest binding, if it has one.
    pub(crate) fn environment<'a>(all: &'a [Self], kind: BindableKind, object: &ObjectMeta) -> Option<&'a [EnvVar]> {
        let mine = all.iter().filter(|one| one.kind == kind && applies_to(&one.subject, object));
        mine.min_by_key(|one| (one.created.as_ref(), one.name.as_str()))?.environment.as_deref()
    }
}

/// Whether a binding of that subject injects into the object, or would if no older one did.
pub(crate) fn applies_to(subject: &BindingSubject, object: &ObjectMeta) -> bool {
    !is_excluded(object) && selects(subject, object)
}

/// Whether its author keeps it from being bound (X-SRC-04).
#[must_use]
pub fn is_excluded(object: &ObjectMeta) -> bool {
    object.labels.as_ref().and_then(|labels| labels.get(EXCLUDE)).is_some_and(|value| value == "true")
}

fn selects(subject: &BindingSubject, object: &ObjectMeta) -> bool {
    if let Some(named) = &subject.name {
        return named == name(object);
    }
    let selector = Selector::try_from(subject.selector.clone().unwrap_or_default());
    selector.is_ok_and(|selector| selector.matches(object.labels.as_ref().unwrap_or(&Default::default())))
}

/// Tells the containers of a template for Pods where to send, as the oldest binding of the object around it says.
pub(crate) fn inject_into_pods(
    template: &mut PodTemplateSpec,
    injections: &[SinkInjection],
    kind: BindableKind,
    object: &ObjectMeta,
) {
    if let Some(injected) = SinkInjection::environment(injections, kind, object) {
        set_pod_environment(template, injected);
    }
}

/// Sets the injected variables of all containers of a template for Pods to exactly these.
pub fn set_pod_environment(template: &mut PodTemplateSpec, injected: &[EnvVar]) {
    let spec = template.spec.get_or_insert_default();
    set_environment(spec.containers.iter_mut().chain(spec.init_containers.iter_mut().flatten()), injected);
}

/// Sets the injected variables of all containers to exactly these. An existing entry keeps its position.
pub(crate) fn set_environment<'a>(containers: impl Iterator<Item = &'a mut Container>, injected: &[EnvVar]) {
    for container in containers {
        let mut env = container.env.take().unwrap_or_default();
        env.retain(|one| {
            let is_ours = [SINK, OVERRIDES, CA_CERTS].contains(&one.name.as_str());
            !is_ours || injected.iter().any(|new| new.name == one.name)
        });
        for new in injected {
            match env.iter_mut().find(|one| one.name == new.name) {
                Some(there) => there.clone_from(new),
                None => env.push(new.clone()),
            }
        }
        container.env = (!env.is_empty()).then_some(env);
    }
}
