//! Sources: where their events go, and what sends them. The controllers themselves send the events of PingSources ([`ping`]) and
//! ApiServerSources ([`api_server`]). Programs of the user send those of ContainerSources ([`container`]), adapters those of
//! all other kinds ([`adapter`]). SinkBindings tell the programs of other objects where to send ([`binding`]).

pub mod adapter;
pub mod api_server;
pub mod binding;
mod binding_tokens;
mod consumer_scaling;
pub mod container;
mod event_poster;
mod event_sender;
mod event_types;
pub mod ping;
mod ping_outcomes;

use jiff::Timestamp;

use crate::api::{Error, NamespacedObject, now};
use crate::context::ControllerContext;
use crate::destination_resolver::{DestinationAddress, ResolveError};
use crate::informer_cache::InformerCache;
use crate::oidc_identity::{self, OidcIdentity};
use crate::work_queue::WorkItem;
pub use ping_outcomes::{PingOutcomes, SourceName};
use types::conditions::ConditionManager;
use types::kind_registry::ResourceStrategy;
use types::shared::ConditionStatus;
use types::sources::ping as ping_kind;
use types::sources::{CloudEventAttributes, SINK_PROVIDED, SourceKind, SourceStatus};

/// The reason of a condition of what nothing here runs.
const NOT_RUN_HERE: &str = "KindNotSupported";

async fn reconcile<S: NamespacedObject + ResourceStrategy + SourceKind>(
    context: &ControllerContext,
    cache: &InformerCache<S>,
    item: &WorkItem,
) -> Result<(), Error> {
    context.resolver.forget(item);
    let Some(source) = cache.get(&item.namespace, &item.name) else { return Ok(()) };
    let sink = context.resolver.resolve(item, source.sink()).await?;
    let mut after = (*source).clone();
    let had = after.status_mut().auth.clone();
    let identity = oidc_identity::reconcile_account(context, item, &*source, had.as_ref()).await?;
    let generation = after.meta().generation;
    let attributes =
        CloudEventAttributes { kind: ping_kind::TYPE.into(), source: ping::source_of(&item.namespace, &item.name) };
    set_status::<S>(after.status_mut(), generation, sink, &identity, attributes, now());
    context.set_status(&*source, &after).await?;
    event_types::reconcile(context, &*source, &after.status_mut().ce_attributes).await
}

fn set_status<S: SourceKind>(
    status: &mut SourceStatus,
    generation: Option<i64>,
    sink: Result<DestinationAddress, ResolveError>,
    identity: &OidcIdentity,
    attributes: CloudEventAttributes,
    now: Timestamp,
) {
    let before = std::mem::take(&mut status.base.conditions);
    let mut conditions = S::CONDITIONS.manage(&before, now);
    set_sink(status, &mut conditions, sink);
    status.ce_attributes.clear();
    conditions.mark_true(ping_kind::DEPLOYED);
    identity.mark(&mut conditions, ping_kind::OIDC_IDENTITY_CREATED);
    status.auth = identity.status();
    if conditions.status_of(SINK_PROVIDED) == ConditionStatus::True {
        status.ce_attributes.push(attributes);
    }
    conditions.finish_into(&mut status.base, generation);
}

/// Resolves the sink, or returns the reason why it is missing.
fn set_sink(
    status: &mut SourceStatus,
    conditions: &mut ConditionManager<'_>,
    sink: Result<DestinationAddress, ResolveError>,
) {
    (status.sink_uri, status.sink_ca_certs, status.sink_audience) = (None, None, None);
    match sink {
        Ok(found) => {
            conditions.mark_true(SINK_PROVIDED);
            (status.sink_uri, status.sink_ca_certs, status.sink_audience) =
                (Some(found.url), found.ca_certs, found.audience);
        }
        Err(ResolveError(why)) => conditions.mark_false(SINK_PROVIDED, "NotFound", &why),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::shared::{AuthStatus, Condition};
    use types::sources::ping::PingSource;

    fn concluded<S: SourceKind>(sink: Result<DestinationAddress, ResolveError>) -> (SourceStatus, Condition) {
        concluded_as::<S>(sink, &OidcIdentity::Disabled)
    }

    fn concluded_as<S: SourceKind>(
        sink: Result<DestinationAddress, ResolveError>,
        identity: &OidcIdentity,
    ) -> (SourceStatus, Condition) {
        let mut status = SourceStatus::default();
        let attributes = CloudEventAttributes { kind: "t".into(), source: "/s".into() };
        set_status::<S>(&mut status, Some(1), sink, identity, attributes, Timestamp::from_second(1).unwrap());
        let ready = status.base.conditions.iter().find(|one| one.kind == "Ready").unwrap().clone();
        (status, ready)
    }

    fn found() -> Result<DestinationAddress, ResolveError> {
        Ok(DestinationAddress { url: "http://sink".into(), audience: None, ca_certs: None })
    }

    /// SRC-11: a source is Ready once its sink is known.
    #[test]
    fn a_status_says_whether_events_come() {
        let (status, ready) = concluded::<PingSource>(found());
        assert_eq!((ready.status, status.sink_uri.as_deref()), (ConditionStatus::True, Some("http://sink")));
        assert_eq!(status.ce_attributes.len(), 1);
        let by_tls =
            Ok(DestinationAddress { url: "https://sink".into(), ca_certs: Some("pem".into()), audience: None });
        let (status, ready) = concluded::<PingSource>(by_tls);
        assert_eq!((ready.status, status.sink_ca_certs.as_deref()), (ConditionStatus::True, Some("pem")));
        let wants_token =
            || Ok(DestinationAddress { url: "http://sink".into(), audience: Some("a".into()), ca_certs: None });
        let (status, ready) = concluded_as::<PingSource>(wants_token(), &OidcIdentity::Created("me".into()));
        assert_eq!((ready.status, status.auth), (ConditionStatus::True, Some(AuthStatus::of("me".into()))));
        assert_eq!(status.sink_audience.as_deref(), Some("a"));
        let (_, ready) = concluded_as::<PingSource>(wants_token(), &OidcIdentity::Conflict("me".into()));
        assert_eq!(ready.reason, "ServiceAccountNotOwned");
        let (status, ready) = concluded::<PingSource>(Err(ResolveError("no such Broker".into())));
        assert_eq!((ready.status, ready.reason.as_str()), (ConditionStatus::False, "NotFound"));
        assert!(status.sink_uri.is_none() && status.ce_attributes.is_empty());
    }
}
