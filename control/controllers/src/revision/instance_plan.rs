//! Plans of instances that are no Revision's: Pods that clients wrote. They pass the same checks, by the same rules.

use std::sync::Arc;
use std::time::Duration;

use super::images::{self, ImageStates};
use super::plan::plan;
use super::plan_inputs::PlanInputs;
use super::projected_tokens::ProjectedTokenCache;
use super::{GRANT_LOOKED_FOR_AFTER, RevisionConfig, data_sources, policy};
use crate::api::Error;
use crate::context::ControllerContext;
use crate::work_queue::WorkItem;
use runtime::{InstanceSpec, may_mount};
use types::serving::revision::Revision;
use types::shared::namespace;

/// Why an instance cannot be started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NotRunnable {
    pub(crate) reason: &'static str,
    pub(crate) message: String,
    /// An image of it is being pulled.
    pub(crate) is_pulling: bool,
    /// When it is to be tried again, if no watch tells.
    pub(crate) retry_after: Option<Duration>,
}

/// The instance that a Revision of this spec would have, or why it would have none.
pub(crate) async fn plan_instance(
    context: &ControllerContext,
    config: &RevisionConfig,
    tokens: &ProjectedTokenCache,
    item: &WorkItem,
    revision: &Revision,
) -> Result<Result<(Arc<InstanceSpec>, Option<ImageStates>), NotRunnable>, Error> {
    let sources = data_sources::load(context, tokens, item, &revision.spec).await?;
    let is_root = may_mount();
    let provider = config.containers.as_deref().filter(|_| is_root);
    let states = images::states(context, provider, &config.images, item, revision).await?;
    let allowed = policy::check(context, config.instances, &config.images, revision, is_root).await?;
    let settings = context.settings();
    let planned = allowed.and_then(|()| {
        let given = PlanInputs {
            images: &config.images,
            containers: states.as_ref(),
            sources: &sources,
            reachable: true,
            can_mount: is_root,
            // What it keeps is a Revision's.
            state_root: None,
            host_devices: config.host_devices,
            detect_http2: false,
            progress_deadline: settings.deployment.progress_deadline,
            default_user: config.instances.usual(namespace(&revision.metadata), is_root),
            guarded: config.instances.guarded,
            autoscaler: &settings.autoscaler,
        };
        plan(revision, &given)
    });
    Ok(match planned {
        Ok(plan) => Ok((plan.instance, states)),
        Err(why) => Err(NotRunnable {
            retry_after: match () {
                () if why.reason == images::RESOLVING => Some(images::PULL_LOOKED_FOR_AFTER),
                () if images::is_image_error(&why) => Some(images::FAILED_PULL_LOOKED_FOR_AFTER),
                () if policy::may_be_granted(&why) => Some(GRANT_LOOKED_FOR_AFTER),
                () => None,
            },
            is_pulling: why.reason == images::RESOLVING,
            reason: why.reason,
            message: why.message,
        }),
    })
}
