//! A watch that keeps a cache current, and comes back when it broke.

use std::fmt::Debug;
use std::time::Duration;

use futures_util::StreamExt;
use kube::runtime::WatchStreamExt;
use kube::runtime::utils::{Backoff, ResetTimerBackoff};
use kube::runtime::watcher::{self, Event};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;

use super::{Cache, Change};
use crate::controllers::is_absent;

/// Keeps `cache` current for ever, and tells of each change.
pub async fn follow<K>(api: Api<K>, cache: &Cache<K>, told: impl FnMut(Change<'_, K>))
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
{
    follow_some(api, watcher::Config::default(), cache, told).await;
}

/// The same of those that `config` selects.
pub async fn follow_some<K>(
    api: Api<K>,
    config: watcher::Config,
    cache: &Cache<K>,
    mut told: impl FnMut(Change<'_, K>),
) where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let mut events = watcher::watcher(api, config).backoff(retries()).boxed();
    let mut listed = Vec::new();
    // Told once: a cluster without a kind may be without it for ever.
    let mut is_missed = false;
    while let Some(event) = events.next().await {
        is_missed &= !matches!(event, Ok(Event::InitDone));
        match event {
            Ok(Event::Init) => listed.clear(),
            Ok(Event::InitApply(object)) => listed.push(object),
            Ok(Event::InitDone) => cache.replace(std::mem::take(&mut listed), &mut told),
            Ok(Event::Apply(object)) => cache.apply(object, &mut told),
            Ok(Event::Delete(object)) => cache.delete(object, &mut told),
            Err(watcher::Error::InitialListFailed(why)) if is_absent(&why) => {
                if !std::mem::replace(&mut is_missed, true) {
                    let (group, kind) = (K::group(&()), K::kind(&()));
                    tracing::info!(%group, %kind, "the server does not have this kind; it is asked again and again");
                }
                tokio::time::sleep(ABSENT_LOOK_EVERY).await;
            }
            Err(why) => tracing::warn!(kind = %K::kind(&()), %why, "watch broke; it starts again"),
        }
    }
}

/// How often a server is asked for a kind that it does not have.
const ABSENT_LOOK_EVERY: Duration = Duration::from_secs(10);
/// First wait after a list or a watch failed.
const RETRY_AFTER_MIN: Duration = Duration::from_millis(800);
/// Longest wait, before jitter: a server that comes back is noticed within seconds, and asked a few times a
/// second by all kinds together.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(5);
/// A watch that went well for so long starts over with the first wait.
const RETRY_FORGET: Duration = Duration::from_secs(60);

/// The next wait, before jitter.
struct Waits(Duration);

fn retries() -> ResetTimerBackoff<Waits> {
    ResetTimerBackoff::new(Waits(RETRY_AFTER_MIN), RETRY_FORGET)
}

impl Iterator for Waits {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        let wait = self.0;
        self.0 = (wait * 2).min(RETRY_AFTER_MAX);
        Some(wait.mul_f64(1.0 + fastrand::f64() / 2.0))
    }
}

impl Backoff for Waits {
    fn reset(&mut self) {
        self.0 = RETRY_AFTER_MIN;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_seconds_and_start_over() {
        let mut waits = Waits(RETRY_AFTER_MIN);
        assert!(waits.by_ref().take(20).all(|wait| wait < RETRY_AFTER_MAX * 2));
        assert!(waits.next().is_some_and(|wait| wait >= RETRY_AFTER_MAX));
        waits.reset();
        assert!(waits.next().is_some_and(|wait| wait < RETRY_AFTER_MIN * 2));
    }
}
