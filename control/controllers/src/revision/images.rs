//! Images of a Revision's containers: the needed ones, and their state on this host.
//!
//! Mapped images and containers of `class: process` are programs of this host, and need none.

use std::collections::BTreeMap;
use std::fmt;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;
use std::time::Duration;

use container::process_config::{self, ImageProcess};
use images::{Credentials, PullPolicy, Reference};
use k8s_openapi::api::core::v1::{Container, Secret, ServiceAccount};

use super::error::RevisionError;
use crate::api::Error;
use crate::context::ControllerContext;
use crate::event_recorder::EventMessage;
use crate::names::{revision_key, service_account};
use crate::work_queue::WorkItem;
use runtime::ContainerImage;
use types::serving::annotations::RUNTIME_CLASS;
use types::serving::revision::{Revision, RevisionStatus};
use types::shared::{KReference, annotation, name, namespace};

/// Requeue delay of a Revision whose images are being pulled: no event reports the end of a pull.
pub(super) const PULL_LOOKED_FOR_AFTER: Duration = Duration::from_millis(100);
/// Requeue delay of a Revision whose pull failed: the pull is retried automatically.
pub(super) const FAILED_PULL_LOOKED_FOR_AFTER: Duration = Duration::from_secs(2);
/// Knative's reason for a Revision whose images are being pulled.
pub(super) const RESOLVING: &str = "ResolvingDigests";

/// Where images of containers come from.
pub trait ImageProvider: fmt::Debug + Send + Sync {
    /// The state of an image. Returns at once; starts the pull of an image that is not on this host.
    fn get(&self, request: &ImageRequest<'_>) -> ImageState;
    /// Events of a Revision's images since the last call.
    fn take_events(&self, revision: &str) -> Vec<EventMessage>;
    /// The Revision is gone: ends its pulls and releases its images.
    fn forget(&self, revision: &str);
}

/// Which image, and for which Revision.
#[derive(Debug, Clone, Copy)]
pub struct ImageRequest<'a> {
    /// `NAMESPACE/NAME`
    pub revision: &'a str,
    pub reference: &'a str,
    /// The digest of the tag when it was resolved for this Revision: a moved tag changes nothing.
    pub resolved: Option<&'a str>,
    /// The logins of its pull Secrets.
    pub credentials: &'a Credentials,
    /// Another one when a Secret has changed.
    pub credentials_hash: u64,
    /// The registry's tags are left as they are.
    pub skips_resolving: bool,
    pub resolution_timeout: Duration,
    /// When the registry is asked for a Pod of a client. `None`: once for each Revision.
    pub pull_policy: Option<PullPolicy>,
}

#[derive(Debug, Clone)]
pub enum ImageState {
    Present(Arc<LocalImage>),
    /// The pull is in progress; the text is its progress.
    Pulling(String),
    Failed {
        reason: &'static str,
        message: String,
    },
}

/// An image on this host.
#[derive(Debug)]
pub struct LocalImage {
    pub image: ContainerImage,
    pub config: ImageProcess,
    /// `REPOSITORY@sha256:…`
    pub digest: String,
}

/// The state of each image that a Revision needs, by reference.
pub type ImageStates = BTreeMap<String, ImageState>;

/// The states of all images that `revision` needs. `None`: containers cannot run here.
pub(super) async fn states(
    context: &ControllerContext,
    provider: Option<&dyn ImageProvider>,
    mapped: &[(String, Vec<String>)],
    item: &WorkItem,
    revision: &Revision,
) -> Result<Option<ImageStates>, Error> {
    let Some(provider) = provider else { return Ok(None) };
    let spec = &revision.spec;
    let containers = spec.containers.iter().chain(&spec.init_containers);
    let needed: Vec<&Container> = containers.filter(|container| runs_image(revision, container, mapped)).collect();
    if needed.is_empty() {
        return Ok(Some(ImageStates::new()));
    }
    let (credentials, credentials_hash) = pull_credentials(context, item, revision).await?;
    let deployment = &context.settings().deployment;
    let owner = revision_key(namespace(&revision.metadata), name(&revision.metadata));
    let ask = |container: &Container| {
        let reference = container.image.as_deref().unwrap_or_default();
        let registry = reference.parse::<Reference>().map(|parsed| parsed.registry().to_owned());
        let skipped = &deployment.registries_skipping_tag_resolving;
        let request = ImageRequest {
            revision: &owner,
            reference,
            resolved: resolved(revision, container),
            credentials: &credentials,
            credentials_hash,
            skips_resolving: registry.is_ok_and(|registry| skipped.contains(&registry)),
            resolution_timeout: deployment.digest_resolution_timeout,
            pull_policy: pull_policy(revision, container),
        };
        (reference.to_owned(), provider.get(&request))
    };
    Ok(Some(needed.into_iter().map(ask).collect()))
}

/// Knative asks the registry once for each Revision, whatever its containers say.
fn pull_policy(revision: &Revision, container: &Container) -> Option<PullPolicy> {
    let policy = match container.image_pull_policy.as_deref() {
        Some("Always") => PullPolicy::Always,
        Some("Never") => PullPolicy::Never,
        _ => PullPolicy::IfNotPresent,
    };
    (revision.kind == "Pod").then_some(policy)
}

/// The digest that the Revision's status has for a container.
fn resolved<'r>(revision: &'r Revision, container: &Container) -> Option<&'r str> {
    let status = revision.status.as_ref()?;
    let mut statuses = status.container_statuses.iter().chain(&status.init_container_statuses);
    let own = statuses.find(|status| status.name == container.name)?;
    Some(own.image_digest.as_str()).filter(|digest| !digest.is_empty())
}

/// The logins that the Revision names, then those of its account. The Revision is checked again when one of them changes.
async fn pull_credentials(
    context: &ControllerContext,
    item: &WorkItem,
    revision: &Revision,
) -> Result<(Credentials, u64), Error> {
    let core = |kind: &str, name: &str| KReference {
        kind: kind.to_owned(),
        api_version: "v1".to_owned(),
        name: name.to_owned(),
        ..KReference::default()
    };
    let mut secrets: Vec<String> = revision.spec.image_pull_secrets.iter().map(|own| own.name.clone()).collect();
    let account = core("ServiceAccount", service_account(&revision.spec));
    if let Ok(account) = context.resolver.read(item, &account).await? {
        let account: ServiceAccount = serde_json::from_value(account).unwrap_or_default();
        secrets.extend(account.image_pull_secrets.into_iter().flatten().map(|own| own.name));
    }
    let (mut credentials, mut hash) = (Credentials::anonymous(), DefaultHasher::new());
    for secret in secrets.iter().filter(|name| !name.is_empty()) {
        // As with a kubelet, one that is not there is as if it were not named; the pull says what it lacks.
        let Ok(object) = context.resolver.read(item, &core("Secret", secret)).await? else { continue };
        let object: Secret = serde_json::from_value(object).unwrap_or_default();
        let data = object.data.unwrap_or_default();
        let payload = data.get(".dockerconfigjson").or(data.get(".dockercfg")).map_or(&[][..], |bytes| &bytes.0);
        payload.hash(&mut hash);
        if let Err(why) = credentials.add_secret(secret, object.type_.as_deref().unwrap_or_default(), payload) {
            tracing::warn!(%item, %why, "a pull secret is left out");
        }
    }
    Ok((credentials, hash.finish()))
}

/// It is neither a mapped command nor a process of this host.
pub(super) fn runs_image(revision: &Revision, container: &Container, images: &[(String, Vec<String>)]) -> bool {
    let is_mapped = images.iter().any(|(reference, _)| Some(reference) == container.image.as_ref());
    let is_process = annotation(&revision.metadata, RUNTIME_CLASS) == Some("process");
    !is_mapped && !is_process && container.image.as_deref().is_some_and(|image| !image.is_empty())
}

/// The image of `container`, or why it is not there.
pub(super) fn local(states: &ImageStates, container: &Container) -> Result<Arc<LocalImage>, RevisionError> {
    let reference = container.image.as_deref().unwrap_or_default();
    match states.get(reference) {
        Some(ImageState::Present(image)) => Ok(Arc::clone(image)),
        Some(ImageState::Failed { reason, message }) => Err(RevisionError { reason, message: message.clone() }),
        Some(ImageState::Pulling(message)) => Err(RevisionError { reason: RESOLVING, message: message.clone() }),
        None => Err(RevisionError { reason: RESOLVING, message: format!("Image \"{reference}\" is being pulled.") }),
    }
}

/// The Revision cannot run because of one of its images, possibly temporarily.
pub(super) fn is_image_error(why: &RevisionError) -> bool {
    IMAGE_REASONS.contains(&why.reason)
}

/// The reasons of Knative and the kubelet for an image that is not there.
const IMAGE_REASONS: [&str; 7] = [
    "ContainerMissing",
    "ErrImagePull",
    "ErrImageNeverPull",
    "ImagePullBackOff",
    "InvalidImageName",
    "RegistryUnavailable",
    "ErrImageInspect",
];

/// The words that `container` runs. Only a manifest's may refer to variables.
pub(super) fn command(image: &ImageProcess, container: &Container) -> Result<Vec<String>, RevisionError> {
    let literal = |words: &[String]| words.iter().map(|word| word.replace('$', "$$")).collect::<Vec<_>>();
    let image =
        ImageProcess { entrypoint: literal(&image.entrypoint), cmd: literal(&image.cmd), ..ImageProcess::default() };
    let own = |words: &Option<Vec<String>>| words.clone().unwrap_or_default();
    process_config::command_line(&image, &own(&container.command), &own(&container.args))
        .map_err(|why| RevisionError { reason: "CommandMissing", message: format!("{why}.") })
}

/// SRV-REV-22: the digest of each image. A resolved digest stays, also while the image is pulled again.
pub(super) fn set_image_digests(status: &mut RevisionStatus, revision: &Revision, states: &ImageStates) {
    let pairs = status.container_statuses.iter_mut().zip(&revision.spec.containers);
    let others = status.init_container_statuses.iter_mut().zip(&revision.spec.init_containers);
    for (status, container) in pairs.chain(others) {
        match container.image.as_ref().and_then(|image| states.get(image)) {
            Some(ImageState::Present(image)) => status.image_digest.clone_from(&image.digest),
            Some(_) => status.image_digest = resolved(revision, container).unwrap_or_default().to_owned(),
            None => {}
        }
    }
}
