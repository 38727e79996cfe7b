//! Caches: what the API has of one kind, kept current by a watch.
//!
//! A change calls back with the object before and after it, so that a deletion that happened while the
//! watch was down is noticed as well: the list after a reconnect is compared with what was known.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Debug};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use kube::runtime::WatchStreamExt;
use kube::runtime::utils::{Backoff, ResetTimerBackoff};
use kube::runtime::watcher::{self, Event};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;

use crate::kinds::shared::{name, namespace};

type Key = (String, String);
/// What some objects of a namespace are found by, beside their names.
type Words<K> = fn(&K) -> Vec<String>;

#[derive(Debug)]
pub struct Cache<K> {
    kept: Mutex<Kept<K>>,
    dress: OnceLock<Dress<K>>,
}

#[derive(Debug)]
struct Kept<K> {
    objects: BTreeMap<Key, Arc<K>>,
    words: Words<K>,
    /// Names by namespace and word: a look at one object must not go through all the others.
    names: BTreeMap<Key, BTreeSet<String>>,
}

/// What is done to each object that comes in.
struct Dress<K>(Box<dyn Fn(&mut K) + Send + Sync>);

impl<K> Debug for Dress<K> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Dress")
    }
}

/// An object before and after; never both `None`.
pub type Change<'a, K> = (Option<&'a Arc<K>>, Option<&'a Arc<K>>);

impl<K> Default for Cache<K> {
    fn default() -> Self {
        Self::found_by(|_| Vec::new())
    }
}

impl<K> Cache<K> {
    /// Objects are also found by these ([`Cache::having`]).
    #[must_use]
    pub fn found_by(words: Words<K>) -> Self {
        let kept = Kept { objects: BTreeMap::new(), words, names: BTreeMap::new() };
        Self { kept: Mutex::new(kept), dress: OnceLock::new() }
    }
}

impl<K: Resource> Cache<K> {
    #[must_use]
    pub fn get(&self, namespace: &str, name: &str) -> Option<Arc<K>> {
        self.lock().objects.get(&(namespace.to_owned(), name.to_owned())).cloned()
    }

    /// All objects of a namespace, by name.
    #[must_use]
    pub fn list(&self, namespace: &str) -> Vec<Arc<K>> {
        let first = (namespace.to_owned(), String::new());
        self.lock()
            .objects
            .range(first..)
            .take_while(|((ns, _), _)| ns == namespace)
            .map(|(_, o)| Arc::clone(o))
            .collect()
    }

    /// The objects of a namespace that are found by `word`, by name.
    #[must_use]
    pub fn having(&self, namespace: &str, word: &str) -> Vec<Arc<K>> {
        let kept = self.lock();
        let names = kept.names.get(&(namespace.to_owned(), word.to_owned()));
        let of = |name: &String| kept.objects.get(&(namespace.to_owned(), name.clone())).cloned();
        names.into_iter().flatten().filter_map(of).collect()
    }

    #[must_use]
    pub fn all(&self) -> Vec<Arc<K>> {
        self.lock().objects.values().cloned().collect()
    }

    /// Does this to each object that comes in from now on. The first to say so is heard.
    pub fn dress_by(&self, dress: impl Fn(&mut K) + Send + Sync + 'static) {
        let _ = self.dress.set(Dress(Box::new(dress)));
    }

    /// An object as it is kept.
    fn taken_in(&self, object: K) -> Arc<K> {
        let mut object = without_owners(object);
        if let Some(Dress(dress)) = self.dress.get() {
            dress(&mut object);
        }
        Arc::new(object)
    }

    /// Takes in a whole list; what is not in it is gone.
    pub fn replace(&self, list: Vec<K>, mut told: impl FnMut(Change<'_, K>)) {
        let fresh: BTreeMap<Key, Arc<K>> =
            list.into_iter().map(|object| (key(&object), self.taken_in(object))).collect();
        let before = self.lock().take_all(fresh.clone());
        for (key, object) in &fresh {
            told((before.get(key), Some(object)));
        }
        for (_, object) in before.iter().filter(|(key, _)| !fresh.contains_key(*key)) {
            told((Some(object), None));
        }
    }

    fn apply(&self, object: K, mut told: impl FnMut(Change<'_, K>)) {
        let object = self.taken_in(object);
        let before = self.lock().insert(key(&*object), Arc::clone(&object));
        told((before.as_ref(), Some(&object)));
    }

    fn delete(&self, object: K, mut told: impl FnMut(Change<'_, K>)) {
        let before = self.lock().remove(&key(&object));
        let last = before.unwrap_or_else(|| Arc::new(object));
        told((Some(&last), None));
    }

    fn lock(&self) -> MutexGuard<'_, Kept<K>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K> Kept<K> {
    fn take_all(&mut self, fresh: BTreeMap<Key, Arc<K>>) -> BTreeMap<Key, Arc<K>> {
        let before = std::mem::take(&mut self.objects);
        self.names.clear();
        for (key, object) in fresh {
            self.insert(key, object);
        }
        before
    }

    fn insert(&mut self, key: Key, object: Arc<K>) -> Option<Arc<K>> {
        let words = (self.words)(&object);
        let before = self.objects.insert(key.clone(), object);
        if let Some(before) = &before {
            self.unlist(&key, before);
        }
        for word in words {
            self.names.entry((key.0.clone(), word)).or_default().insert(key.1.clone());
        }
        before
    }

    fn remove(&mut self, key: &Key) -> Option<Arc<K>> {
        let before = self.objects.remove(key)?;
        self.unlist(key, &before);
        Some(before)
    }

    fn unlist(&mut self, (namespace, name): &Key, object: &K) {
        for word in (self.words)(object) {
            let place = (namespace.clone(), word);
            if let Some(names) = self.names.get_mut(&place) {
                names.remove(name);
                if names.is_empty() {
                    self.names.remove(&place);
                }
            }
        }
    }
}

/// Who owns which field is the API server's to keep: no controller reads it, it is a third of what an object
/// weighs, and a write without it leaves it as it is.
pub fn without_owners<K: Resource>(mut object: K) -> K {
    object.meta_mut().managed_fields = None;
    object
}

fn key<K: Resource>(object: &K) -> Key {
    (namespace(object.meta()).to_owned(), name(object.meta()).to_owned())
}

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
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Init) => listed.clear(),
            Ok(Event::InitApply(object)) => listed.push(object),
            Ok(Event::InitDone) => cache.replace(std::mem::take(&mut listed), &mut told),
            Ok(Event::Apply(object)) => cache.apply(object, &mut told),
            Ok(Event::Delete(object)) => cache.delete(object, &mut told),
            Err(why) => tracing::warn!(kind = %K::kind(&()), %why, "watch broke; it starts again"),
        }
    }
}

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
    use crate::kinds::eventing::broker::{Broker, BrokerSpec};

    fn broker(name: &str) -> Broker {
        Broker::new("ns", name, BrokerSpec::default())
    }

    #[test]
    fn waits_grow_to_seconds_and_start_over() {
        let mut waits = Waits(RETRY_AFTER_MIN);
        assert!(waits.by_ref().take(20).all(|wait| wait < RETRY_AFTER_MAX * 2));
        assert!(waits.next().is_some_and(|wait| wait >= RETRY_AFTER_MAX));
        waits.reset();
        assert!(waits.next().is_some_and(|wait| wait < RETRY_AFTER_MIN * 2));
    }

    #[test]
    fn what_a_new_list_lacks_was_deleted() {
        let cache = Cache::default();
        cache.replace(vec![broker("a"), broker("b")], |_| {});
        let mut gone = Vec::new();
        cache.replace(vec![broker("b"), broker("c")], |(before, after)| {
            if after.is_none() {
                gone.extend(before.map(|b| b.metadata.name.clone()));
            }
        });
        assert_eq!(gone, [Some("a".to_owned())]);
        assert!(cache.get("ns", "a").is_none());
        assert_eq!(cache.list("ns").len(), 2);
        assert!(cache.list("n").is_empty());
    }

    #[test]
    fn objects_are_found_by_what_they_say_now() {
        let labelled = |name: &str, label: &str| {
            let mut broker = broker(name);
            broker.metadata.labels = Some([("l".to_owned(), label.to_owned())].into());
            broker
        };
        let cache = Cache::found_by(|broker: &Broker| {
            broker.metadata.labels.iter().flat_map(|labels| labels.values().cloned()).collect()
        });
        let found = |ns: &str, word: &str| {
            let all = cache.having(ns, word);
            all.iter().filter_map(|one| one.metadata.name.clone()).collect::<Vec<_>>()
        };
        cache.replace(vec![labelled("a", "x"), labelled("b", "x"), labelled("c", "y")], |_| {});
        assert_eq!((found("ns", "x"), found("n", "x")), (vec!["a".into(), "b".into()], vec![]));
        cache.apply(labelled("a", "y"), |_| {});
        cache.delete(labelled("c", "whatever"), |_| {});
        assert_eq!((found("ns", "x"), found("ns", "y")), (vec!["b".into()], vec!["a".into()]));
        cache.replace(vec![labelled("b", "y")], |_| {});
        assert_eq!((found("ns", "x"), found("ns", "y")), (vec![], vec!["b".into()]));
        assert_eq!(cache.lock().names.len(), 1, "words of nobody are kept");
    }
}
