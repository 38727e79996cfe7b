//! Images of a Revision's containers: which it needs, and what is known of them on this host.
//!
//! Mapped images and containers of `class: process` are programs of this host, and need none.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use container::process_config::{self, ImageConfig};
use k8s_openapi::api::core::v1::Container;

use super::plan::RevisionError;
use crate::context::ControllerContext;
use crate::kinds::serving::annotations::RUNTIME_CLASS;
use crate::kinds::serving::revision::{Revision, RevisionStatus};
use crate::kinds::shared::{annotation, namespace};
use runtime::ContainerImage;

/// A Revision whose images are on their way is looked at again after this: nothing else tells that they came.
pub(super) const PULL_LOOKED_FOR_AFTER: Duration = Duration::from_millis(100);
/// One whose pull failed: it is tried again by itself.
pub(super) const FAILED_PULL_LOOKED_FOR_AFTER: Duration = Duration::from_secs(2);
/// The reason of a Revision whose images are on their way, as upstream has it.
pub(super) const RESOLVING: &str = "ResolvingDigests";

/// Where images of containers come from.
pub trait ImageProvider: fmt::Debug + Send + Sync {
    /// What is known of an image, at once. One that is not on this host is pulled from now on; it is asked for again.
    fn get(&self, request: &ImageRequest<'_>) -> ImageState;
}

/// Which image, and for whom: that says whose credentials are shown to its registry.
#[derive(Debug, Clone, Copy)]
pub struct ImageRequest<'a> {
    pub reference: &'a str,
    pub namespace: &'a str,
    pub service_account: Option<&'a str>,
    /// Names of Secrets.
    pub pull_secrets: &'a [String],
}

#[derive(Debug, Clone)]
pub enum ImageState {
    Present(Arc<LocalImage>),
    /// It is on its way, and so far.
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
    pub config: ImageConfig,
    /// `REPOSITORY@sha256:…`
    pub digest: String,
}

/// What is known of each image that a Revision needs, by reference.
pub type ImageStates = BTreeMap<String, ImageState>;

/// Asks for all images that `revision` needs. `None`: containers cannot run here.
pub(super) fn states(world: &ControllerContext, revision: &Revision, is_root: bool) -> Option<ImageStates> {
    let provider = world.config.containers.as_ref().filter(|_| is_root)?;
    let spec = &revision.spec;
    let secrets: Vec<String> = spec.image_pull_secrets.iter().map(|secret| secret.name.clone()).collect();
    let containers = spec.containers.iter().chain(&spec.init_containers);
    let needed = containers.filter(|container| runs_image(revision, container, &world.config.images));
    let ask = |container: &Container| {
        let reference = container.image.as_deref().unwrap_or_default();
        let request = ImageRequest {
            reference,
            namespace: namespace(&revision.metadata),
            service_account: spec.service_account_name.as_deref(),
            pull_secrets: &secrets,
        };
        (reference.to_owned(), provider.get(&request))
    };
    Some(needed.map(ask).collect())
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
        None => Err(RevisionError { reason: RESOLVING, message: format!("{reference} is being looked for.") }),
    }
}

/// What keeps a Revision from running is one of its images, and may pass.
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
pub(super) fn command(image: &ImageConfig, container: &Container) -> Result<Vec<String>, RevisionError> {
    let literal = |words: &[String]| words.iter().map(|word| word.replace('$', "$$")).collect::<Vec<_>>();
    let image =
        ImageConfig { entrypoint: literal(&image.entrypoint), cmd: literal(&image.cmd), ..ImageConfig::default() };
    let own = |words: &Option<Vec<String>>| words.clone().unwrap_or_default();
    process_config::command_line(&image, &own(&container.command), &own(&container.args))
        .map_err(|why| RevisionError { reason: "CommandMissing", message: format!("{why}.") })
}

/// SRV-REV-22: which image a tag stood for.
pub(super) fn tell_digests(status: &mut RevisionStatus, revision: &Revision, states: &ImageStates) {
    let pairs = status.container_statuses.iter_mut().zip(&revision.spec.containers);
    let others = status.init_container_statuses.iter_mut().zip(&revision.spec.init_containers);
    for (told, container) in pairs.chain(others) {
        if let Some(ImageState::Present(image)) = container.image.as_ref().and_then(|image| states.get(image)) {
            told.image_digest.clone_from(&image.digest);
        }
    }
}
