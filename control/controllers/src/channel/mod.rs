//! Channel: keeps a backing channel of the same name, and shows how that one is.

pub mod reconcile;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::context::{ControllerContext, Error, now};
use crate::is_kind_not_found;
use crate::sender_policy::SenderPolicy;
use crate::service::apply;
use crate::service::reconcile::{decide, keep_foreign_metadata};
use crate::work_queue::{ControllerKind, WorkItem};
use reconcile::{BackingChannel, desired_backing, status};
use types::eventing::event_policy::PolicyTarget;
use types::eventing::stream_options::CHANNEL_KEYS;
use types::messaging::channel::Channel;
use types::messaging::in_memory_channel::InMemoryChannel;
use types::shared::{controller, name, namespace};

/// What is said where a cluster that is followed has no kind for what stands behind a Channel.
pub(crate) const KIND_NOT_SERVED: &str = "The cluster does not have the kind InMemoryChannel of messaging.knative.dev/v1: \
    install its CustomResourceDefinition; it needs no controller of its own.";

/// The Channel that a backing channel belongs to, or that may wait for its name.
pub fn owner_of(meta: &ObjectMeta) -> WorkItem {
    let owner = controller(meta).filter(|owner| owner.kind == "Channel");
    WorkItem::new(ControllerKind::Channel, namespace(meta), owner.map_or(name(meta), |owner| &owner.name))
}

pub async fn reconcile(context: &ControllerContext, item: &WorkItem) -> Result<(), Error> {
    let Some(channel) = context.channels.get(&item.namespace, &item.name) else { return Ok(()) };
    if channel.metadata.deletion_timestamp.is_some() {
        return Ok(());
    }
    // Said in the status, and tried again until the cluster has the kind.
    let mut missing = None;
    let backing = match desired_backing(&channel) {
        Ok(mut wanted) => {
            let existing = context.in_memory_channels.get(&item.namespace, &item.name);
            keep_foreign_metadata(
                &mut wanted.metadata,
                existing.as_ref().map(|existing| &existing.metadata),
                &CHANNEL_KEYS,
            );
            // The subscribers in the spec belong to the backing channel's own controller.
            let take = |to: &mut InMemoryChannel, from: InMemoryChannel| to.spec.delivery = from.spec.delivery;
            match apply(context, decide(&channel.metadata, existing.as_deref(), wanted, take)).await {
                Ok(Some(backing)) => BackingChannel::Owned(Box::new(backing)),
                Ok(None) => BackingChannel::NotOwned,
                // It stays so for as long as the Channel stays as it is: that is told, and no failure to try again.
                Err(Error::Api(kube::Error::Api(refused))) if refused.is_invalid() => {
                    BackingChannel::Rejected(refused.message)
                }
                Err(Error::Api(why)) if is_kind_not_found(&why) => {
                    missing = Some(why);
                    BackingChannel::Invalid(KIND_NOT_SERVED.into())
                }
                Err(why) => return Err(why),
            }
        }
        Err(why) => BackingChannel::Invalid(why),
    };
    let rules = SenderPolicy::for_object(context, &[PolicyTarget::of::<Channel>(&channel.metadata)]);
    let mut after = (*channel).clone();
    after.status = Some(status(&channel, &backing, &rules, now()));
    context.set_status(&*channel, &after).await?;
    missing.map_or(Ok(()), |why| Err(why.into()))
}
