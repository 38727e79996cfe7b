//! Sources: where their events go, and whether anybody sends them. PingSources are run here ([`ping`]), and SinkBindings are
//! followed ([`binding`]); of all other kinds the status says that nothing runs them, so that nobody waits for events that
//! never come.

pub mod binding;
pub mod ping;
mod send;
mod tally;
mod types;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dataplane::events::admission::Pass;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Namespace;

use super::cache::{Cache, follow};
use super::identity::{self, Identity};
use super::queue::{Item, Kind};
use super::resolve::{Address, Unresolved};
use super::world::{Error, Object, World, now};
use super::{Task, itself};
use crate::kind::Resource;
use crate::kinds::conditions::Conditions;
use crate::kinds::shared::Verdict;
use crate::kinds::sources::api_server::ApiServerSource;
use crate::kinds::sources::binding::SinkBinding;
use crate::kinds::sources::container::ContainerSource;
use crate::kinds::sources::ping::{self as ping_kind, PingSource};
use crate::kinds::sources::{EventAttributes, SINK_PROVIDED, Source, SourceStatus};
pub use tally::{SourceName, Tally};

/// The reason of a condition of what nothing here runs.
const NOT_RUN: &str = "NotRunHere";

/// Caches of the source kinds.
#[derive(Debug, Default)]
pub struct Sources {
    pub pings: Cache<PingSource>,
    pub api_servers: Cache<ApiServerSource>,
    pub containers: Cache<ContainerSource>,
    pub bindings: Cache<SinkBinding>,
    namespaces: Cache<Namespace>,
    /// Rung when a PingSource changed.
    pub bell: tokio::sync::Notify,
    /// Tokens of PingSources, held so that there is one for their next event.
    passes: Mutex<HashMap<SourceName, Arc<Pass>>>,
}

impl Sources {
    fn passes(&self) -> MutexGuard<'_, HashMap<SourceName, Arc<Pass>>> {
        self.passes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Of an API of our own: a cluster has controllers for them.
pub fn watches(world: &World) -> Vec<Task<'_>> {
    if world.config.holder.is_some() {
        return Vec::new();
    }
    let sources = &world.sources;
    vec![
        Box::pin(follow(world.all(), &sources.pings, |change| {
            world.look_at(itself(Kind::PingSource, change));
            sources.bell.notify_one();
        })),
        Box::pin(follow(world.all(), &sources.api_servers, |change| {
            world.look_at(itself(Kind::ApiServerSource, change));
        })),
        Box::pin(follow(world.all(), &sources.containers, |change| {
            world.look_at(itself(Kind::ContainerSource, change));
        })),
        Box::pin(follow(world.all(), &sources.bindings, |change| {
            world.look_at(itself(Kind::SinkBinding, change));
        })),
        Box::pin(follow(world.all(), &sources.namespaces, move |change| binding::hear_home(world, change))),
        Box::pin(ping::tend(world)),
    ]
}

pub async fn reconcile<S: Object + Resource + Source>(
    world: &World,
    cache: &Cache<S>,
    item: &Item,
) -> Result<(), Error> {
    world.resolver.forget(item);
    let Some(source) = cache.get(&item.namespace, &item.name) else { return Ok(()) };
    let sink = world.resolver.resolve(item, source.sink()).await?;
    let mut after = (*source).clone();
    let had = after.status_mut().auth.clone();
    let identity = match S::NOT_RUN {
        None => identity::keep(world, item, &*source, had.as_ref()).await?,
        Some(_) => Identity::Unasked,
    };
    let generation = after.meta().generation;
    let attributes = EventAttributes {
        kind: ping_kind::TYPE.into(),
        source: ping::source_of(&item.namespace, &item.name),
    };
    conclude::<S>(after.status_mut(), generation, sink, &identity, attributes, now());
    world.set_status(&*source, &after).await?;
    types::keep(world, &*source, &after.status_mut().ce_attributes).await
}

fn conclude<S: Source>(
    status: &mut SourceStatus,
    generation: Option<i64>,
    sink: Result<Address, Unresolved>,
    identity: &Identity,
    attributes: EventAttributes,
    now: Timestamp,
) {
    let before = std::mem::take(&mut status.base.conditions);
    let mut conditions = S::CONDITIONS.manage(&before, now);
    show_sink(status, &mut conditions, sink);
    status.ce_attributes.clear();
    match S::NOT_RUN {
        Some((kind, why)) => conditions.mark_false(kind, NOT_RUN, why),
        None => {
            conditions.mark_true(ping_kind::DEPLOYED);
            identity.mark(&mut conditions, ping_kind::OIDC_IDENTITY_CREATED);
            status.auth = identity.status();
            if conditions.verdict(SINK_PROVIDED) == Verdict::True {
                status.ce_attributes.push(attributes);
            }
        }
    }
    conditions.conclude(&mut status.base, generation);
}

/// Says where events go, or why nowhere.
fn show_sink(status: &mut SourceStatus, conditions: &mut Conditions<'_>, sink: Result<Address, Unresolved>) {
    (status.sink_uri, status.sink_ca_certs, status.sink_audience) = (None, None, None);
    match sink {
        Ok(found) => {
            conditions.mark_true(SINK_PROVIDED);
            (status.sink_uri, status.sink_ca_certs, status.sink_audience) =
                (Some(found.url), found.ca_certs, found.audience);
        }
        Err(Unresolved(why)) => conditions.mark_false(SINK_PROVIDED, "NotFound", &why),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::shared::{AuthStatus, Condition};

    fn concluded<S: Source>(sink: Result<Address, Unresolved>) -> (SourceStatus, Condition) {
        concluded_as::<S>(sink, &Identity::Unasked)
    }

    fn concluded_as<S: Source>(
        sink: Result<Address, Unresolved>,
        identity: &Identity,
    ) -> (SourceStatus, Condition) {
        let mut status = SourceStatus::default();
        let attributes = EventAttributes { kind: "t".into(), source: "/s".into() };
        conclude::<S>(&mut status, Some(1), sink, identity, attributes, Timestamp::from_second(1).unwrap());
        let ready = status.base.conditions.iter().find(|one| one.kind == "Ready").unwrap().clone();
        (status, ready)
    }

    fn found() -> Result<Address, Unresolved> {
        Ok(Address { url: "http://sink".into(), audience: None, ca_certs: None })
    }

    /// SRC-11: a source that is run is Ready once its sink is known; one that is not says so.
    #[test]
    fn a_status_says_whether_events_come() {
        let (status, ready) = concluded::<PingSource>(found());
        assert_eq!((ready.status, status.sink_uri.as_deref()), (Verdict::True, Some("http://sink")));
        assert_eq!(status.ce_attributes.len(), 1);
        let by_tls = Ok(Address { url: "https://sink".into(), ca_certs: Some("pem".into()), audience: None });
        let (status, ready) = concluded::<PingSource>(by_tls);
        assert_eq!((ready.status, status.sink_ca_certs.as_deref()), (Verdict::True, Some("pem")));
        let wants_token =
            || Ok(Address { url: "http://sink".into(), audience: Some("a".into()), ca_certs: None });
        let (status, ready) = concluded_as::<PingSource>(wants_token(), &Identity::Made("me".into()));
        assert_eq!((ready.status, status.auth), (Verdict::True, Some(AuthStatus::of("me".into()))));
        assert_eq!(status.sink_audience.as_deref(), Some("a"));
        let (_, ready) = concluded_as::<PingSource>(wants_token(), &Identity::Taken("me".into()));
        assert_eq!(ready.reason, "ServiceAccountNotOwned");
        let (status, ready) = concluded::<PingSource>(Err(Unresolved("no such Broker".into())));
        assert_eq!((ready.status, ready.reason.as_str()), (Verdict::False, "NotFound"));
        assert!(status.sink_uri.is_none() && status.ce_attributes.is_empty());
        let (status, _) = concluded::<ApiServerSource>(found());
        let kinds: Vec<_> = status.base.conditions.iter().map(|one| one.kind.as_str()).collect();
        assert_eq!(
            kinds,
            ["Deployed", "OIDCIdentityCreated", "Ready", "SinkProvided", "SufficientPermissions"],
            "upstream's"
        );
        for ready in [concluded::<ApiServerSource>(found()).1, concluded::<ContainerSource>(found()).1] {
            assert_eq!((ready.status, ready.reason.as_str()), (Verdict::False, NOT_RUN));
            assert!(ready.message.starts_with("nothing here runs"), "{}", ready.message);
        }
    }
}
