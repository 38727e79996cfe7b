//! Channel: maintains a backing channel of the same name, and reports its state.

pub mod reconcile;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::api::is_kind_not_found;
use crate::api::{Error, now};
use crate::backing_channel::KIND_NOT_SERVED;
use crate::context::ControllerContext;
use crate::controller::{Controller, ControllerFuture, Watches, newest};
use crate::owned_child::apply;
use crate::owned_child::{decide, keep_foreign_metadata};
use crate::sender_policy::{self, SenderPolicy};
use crate::work_queue::{ControllerKind, WorkItem};
use reconcile::{BackingChannel, desired_backing, status};
use types::eventing::event_policy::PolicyTarget;
use types::eventing::stream_options::CHANNEL_KEYS;
use types::messaging::channel::Channel;
use types::messaging::in_memory_channel::InMemoryChannel;
use types::shared::{controller, name, namespace};

const KIND: ControllerKind = ControllerKind::new("Channel");

#[derive(Debug)]
pub struct ChannelController;

impl Controller for ChannelController {
    fn kind(&self) -> ControllerKind {
        KIND
    }

    fn watches<'a>(&'a self, context: &'a ControllerContext, watches: &mut Watches<'a>) {
        watches.primary::<Channel>(KIND);
        watches.enqueue::<InMemoryChannel, _>(|change| newest(change).map(|channel| owner_of(&channel.metadata)));
        sender_policy::watch::<Channel>(context, watches, KIND);
    }

    fn reconcile<'a>(&'a self, context: &'a ControllerContext, item: &'a WorkItem) -> ControllerFuture<'a> {
        Box::pin(reconcile(context, item))
    }
}

/// The Channel that a backing channel belongs to, or that may wait for its name.
fn owner_of(meta: &ObjectMeta) -> WorkItem {
    let owner = controller(meta).filter(|owner| owner.kind == "Channel");
    WorkItem::new(KIND, namespace(meta), owner.map_or(name(meta), |owner| &owner.name))
}

async fn reconcile(context: &ControllerContext, item: &WorkItem) -> Result<(), Error> {
    let Some(channel) = context.caches.channels.get(&item.namespace, &item.name) else { return Ok(()) };
    if channel.metadata.deletion_timestamp.is_some() {
        return Ok(());
    }
    // Said in the status, and tried again until the cluster has the kind.
    let mut missing = None;
    let backing = match desired_backing(&channel) {
        Ok(mut wanted) => {
            let existing = context.caches.in_memory_channels.get(&item.namespace, &item.name);
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
                // It stays so as long as the Channel is unchanged: that is reported, and not retried as a failure.
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
