//! Injects the sinks of SinkBindings into the containers of Services, Configurations and workloads.
//!
//! Admission injects into a template that is written, so that its first Revision has it; the controller injects into existing
//! ones.

use k8s_openapi::api::core::v1::{Container, EnvVar, PodTemplateSpec, SecretVolumeSource, Volume, VolumeMount};
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
pub const SINK: &str = "K_SINK";
pub const OVERRIDES: &str = "K_CE_OVERRIDES";
pub const CA_CERTS: &str = "K_CA_CERTS";

/// The volume with the token for a sink that authenticates senders, and where each container finds it, as upstream.
const TOKEN_VOLUME: &str = "oidc-token";
const TOKEN_DIRECTORY: &str = "/oidc";
/// The key of the Secret with the token.
pub const TOKEN_KEY: &str = "token";
/// What the name of that Secret ends with.
const TOKEN_SECRET_SUFFIX: &str = "-oidc-token";

/// The name of the Secret with the token of a SinkBinding.
#[must_use]
pub fn token_secret(binding: &str) -> String {
    support::child_name::child_name(binding, TOKEN_SECRET_SUFFIX)
}

/// What the containers of a subject get.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct InjectedSink {
    pub variables: Vec<EnvVar>,
    /// The Secret with a token for the sink, if that authenticates senders.
    pub token_secret: Option<String>,
}

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
    pub sink: Option<InjectedSink>,
}

impl SinkInjection {
    /// What an object of that kind gets: the sink of its oldest binding, if it has one.
    pub(crate) fn sink_of<'a>(all: &'a [Self], kind: BindableKind, object: &ObjectMeta) -> Option<&'a InjectedSink> {
        let mine = all.iter().filter(|one| one.kind == kind && applies_to(&one.subject, object));
        mine.min_by_key(|one| (one.created.as_ref(), one.name.as_str()))?.sink.as_ref()
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
    if let Some(injected) = SinkInjection::sink_of(injections, kind, object) {
        set_pod_sink(template, injected);
    }
}

/// Gives all containers of a template for Pods exactly this.
pub fn set_pod_sink(template: &mut PodTemplateSpec, injected: &InjectedSink) {
    let spec = template.spec.get_or_insert_default();
    let mut volumes = spec.volumes.take().unwrap_or_default();
    let containers = spec.containers.iter_mut().chain(spec.init_containers.iter_mut().flatten());
    set_sink(containers, &mut volumes, injected);
    spec.volumes = (!volumes.is_empty()).then_some(volumes);
}

/// The same for containers and the volumes around them.
pub(crate) fn set_sink<'a>(
    containers: impl Iterator<Item = &'a mut Container>,
    volumes: &mut Vec<Volume>,
    injected: &InjectedSink,
) {
    let secret_of = |volume: &Volume| volume.secret.as_ref().and_then(|secret| secret.secret_name.clone());
    let has_ours = |volume: &Volume| {
        volume.name == TOKEN_VOLUME && secret_of(volume).is_some_and(|name| name.ends_with(TOKEN_SECRET_SUFFIX))
    };
    let had_token = volumes.iter().any(has_ours);
    // One that is right stays as it is, with what the API has filled in.
    volumes.retain(|volume| !has_ours(volume) || secret_of(volume) == injected.token_secret);
    if let Some(secret) = &injected.token_secret
        && !volumes.iter().any(|volume| volume.name == TOKEN_VOLUME)
    {
        let secret = SecretVolumeSource { secret_name: Some(secret.clone()), ..SecretVolumeSource::default() };
        volumes.push(Volume { name: TOKEN_VOLUME.to_owned(), secret: Some(secret), ..Volume::default() });
    }
    let mut all: Vec<&mut Container> = containers.collect();
    for container in &mut all {
        set_token_mount(container, injected.token_secret.is_some(), had_token);
    }
    set_environment(all.into_iter(), &injected.variables);
}

fn set_token_mount(container: &mut Container, has_token: bool, had_token: bool) {
    let mut mounts = container.volume_mounts.take().unwrap_or_default();
    if has_token && !mounts.iter().any(|mount| mount.name == TOKEN_VOLUME) {
        mounts.push(VolumeMount {
            name: TOKEN_VOLUME.to_owned(),
            mount_path: TOKEN_DIRECTORY.to_owned(),
            read_only: Some(true),
            ..VolumeMount::default()
        });
    }
    if had_token && !has_token {
        mounts.retain(|mount| mount.name != TOKEN_VOLUME);
    }
    container.volume_mounts = (!mounts.is_empty()).then_some(mounts);
}

/// Sets the injected variables of all containers to exactly these. An existing entry keeps its position.
fn set_environment<'a>(containers: impl Iterator<Item = &'a mut Container>, injected: &[EnvVar]) {
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
