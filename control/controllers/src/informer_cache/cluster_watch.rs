//! A watch of a remote API server, which updates a cache and reconnects after a failure.

use std::fmt::Debug;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use kube::Resource;
use kube::api::ListParams;
use kube::runtime::WatchStreamExt;
use kube::runtime::utils::{Backoff, ResetTimerBackoff};
use kube::runtime::watcher::{self, Event};
use serde::de::DeserializeOwned;

use super::{InformerCache, ObjectChange, ObjectSource};
use crate::api::is_not_found;

/// All that there are; none if the cluster does not have the kind.
pub(super) async fn list<K>(source: &ObjectSource<K>) -> Result<Vec<K>, kube::Error>
where
    K: Clone + Debug + DeserializeOwned,
{
    let mut parameters = ListParams::default();
    if let Some(label) = source.scope.excluded_label {
        parameters = parameters.labels(&without_label(label));
    }
    match source.api.list(&parameters).await {
        Ok(list) => Ok(list.items),
        Err(why) if is_not_found(&why) => Ok(Vec::new()),
        Err(why) => Err(why),
    }
}

/// Selects the objects that do not have the label.
fn without_label(label: &str) -> String {
    format!("!{label}")
}

/// Keeps `cache` current forever, and tells of each change.
pub(super) async fn follow<K>(
    source: ObjectSource<K>,
    cache: &InformerCache<K>,
    mut on_change: impl FnMut(ObjectChange<'_, K>),
) where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let config =
        source.scope.excluded_label.iter().fold(watch_config(), |config, label| config.labels(&without_label(label)));
    let mut events = watcher::watcher(source.api, config).backoff(retries()).boxed();
    let mut listed = Vec::new();
    // Logged once: a cluster without a kind may be without it forever.
    let mut is_missed = false;
    // Logged once, too: while a server is away each kind tries again and again.
    let mut is_broken = false;
    while let Some(event) = events.next().await {
        is_missed &= !matches!(event, Ok(Event::InitDone));
        if is_broken && matches!(event, Ok(Event::InitDone | Event::Apply(_) | Event::Delete(_))) {
            is_broken = false;
            tracing::info!(kind = %K::kind(&()), "the watch continues");
        }
        match event {
            Ok(Event::Init) => listed.clear(),
            Ok(Event::InitApply(object)) => listed.push(object),
            Ok(Event::InitDone) => cache.replace(std::mem::take(&mut listed), &mut on_change),
            Ok(Event::Apply(object)) => cache.apply(cache.transformed(object), &mut on_change),
            Ok(Event::Delete(object)) => cache.delete(Arc::new(object), &mut on_change),
            Err(watcher::Error::InitialListFailed(why)) if is_not_found(&why) => {
                if !std::mem::replace(&mut is_missed, true) {
                    let (group, kind) = (K::group(&()), K::kind(&()));
                    tracing::info!(%group, %kind, "the server does not have this kind; it is asked again and again");
                }
                tokio::time::sleep(MISSING_KIND_POLL_INTERVAL).await;
            }
            // History is limited, and a client that was away for long starts with a list; that is not logged.
            Err(watcher::Error::WatchError(why)) if why.code == 410 => {}
            Err(why) if !std::mem::replace(&mut is_broken, true) => {
                tracing::warn!(kind = %K::kind(&()), %why, "watch broke; it is tried again and again");
            }
            Err(why) => tracing::debug!(kind = %K::kind(&()), %why, "watch is still broken"),
        }
    }
}

/// How long the server keeps a watch open, in seconds. The watcher gives one up that is silent for five seconds more, so a
/// connection whose other end is gone is noticed within 30 s.
pub const WATCH_SECONDS: RangeInclusive<u32> = 20..=25;

/// The parameters of every watch. They do not all end at the same moment.
pub(crate) fn watch_config() -> watcher::Config {
    watcher::Config::default().timeout(fastrand::u32(WATCH_SECONDS))
}

/// How often a server is asked for a kind that it does not have.
const MISSING_KIND_POLL_INTERVAL: Duration = Duration::from_secs(10);
/// First wait after a list or a watch failed.
const RETRY_AFTER_MIN: Duration = Duration::from_millis(800);
/// Longest wait, before jitter: a server that comes back is noticed within seconds, and asked a few times a
/// second by all kinds together.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(5);
/// A watch that went well for so long starts over with the first wait.
const RETRY_RESET_AFTER: Duration = Duration::from_secs(60);

/// The next wait, before jitter.
struct WatchBackoff(Duration);

fn retries() -> ResetTimerBackoff<WatchBackoff> {
    ResetTimerBackoff::new(WatchBackoff(RETRY_AFTER_MIN), RETRY_RESET_AFTER)
}

impl Iterator for WatchBackoff {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        let wait = self.0;
        self.0 = (wait * 2).min(RETRY_AFTER_MAX);
        Some(wait.mul_f64(1.0 + fastrand::f64() / 2.0))
    }
}

impl Backoff for WatchBackoff {
    fn reset(&mut self) {
        self.0 = RETRY_AFTER_MIN;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Weak;

    use axum::Router;
    use http::StatusCode;
    use kube::{Api, Client};

    use super::*;
    use types::serving::service::Service;

    /// APP-12: a cluster with Serving alone has no Brokers, and says so in plain text. It is followed anyway.
    #[tokio::test]
    async fn a_kind_that_a_cluster_does_not_have_has_no_objects_and_is_no_fault() {
        let of = async |code: StatusCode| {
            let router = Router::new().fallback(move || async move { (code, "404 page not found\n") });
            let api: Api<Service> = Api::all(Client::new(router, "default"));
            list(&ObjectSource::new(api, Weak::new(), None)).await
        };
        assert_eq!(of(StatusCode::NOT_FOUND).await.unwrap().len(), 0);
        assert!(of(StatusCode::SERVICE_UNAVAILABLE).await.is_err());
    }

    /// A replica that reported them would say that it serves what it has not reconciled.
    #[tokio::test]
    async fn objects_of_the_first_list_are_not_seen_before_the_watch_brings_them() {
        let metadata = serde_json::json!({ "name": "a", "namespace": "ns", "resourceVersion": "7" });
        let service = serde_json::json!({ "metadata": metadata, "spec": {} });
        let list = serde_json::json!({ "metadata": {}, "items": [service.clone()] });
        let router = Router::new().fallback(move || async move { axum::Json(list) });
        let api: Api<Service> = Api::all(Client::new(router, "default"));
        let cache = InformerCache::default();
        assert_eq!(cache.revisions(), None);
        ObjectSource::new(api, Weak::new(), None).fill(&cache).await.unwrap();
        assert!(cache.get("ns", "a").is_some());
        assert_eq!(cache.revisions(), Some((0, 0)));
        cache.replace(vec![serde_json::from_value(service).unwrap()], |_| {});
        assert_eq!(cache.revisions(), Some((7, 7)));
    }

    #[test]
    fn waits_grow_to_seconds_and_start_over() {
        let mut waits = WatchBackoff(RETRY_AFTER_MIN);
        assert!(waits.by_ref().take(20).all(|wait| wait < RETRY_AFTER_MAX * 2));
        assert!(waits.next().is_some_and(|wait| wait >= RETRY_AFTER_MAX));
        waits.reset();
        assert!(waits.next().is_some_and(|wait| wait < RETRY_AFTER_MIN * 2));
    }
}
