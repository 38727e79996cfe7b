//! The content of a cache: decoded, compressed, and as references to the store.

use std::time::Duration;

use serde_json::{Value, json};

use super::state::DECODED_MAX;
use super::*;
use apiserver::store::{self, ObjectStore};
use types::eventing::broker::{Broker, BrokerSpec};

fn broker(name: &str) -> Broker {
    Broker::new("ns", name, BrokerSpec::default())
}

#[test]
fn what_a_new_list_lacks_was_deleted() {
    let cache = InformerCache::default();
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
    let cache = InformerCache::with_index(|broker: &Broker| {
        broker.metadata.labels.iter().flat_map(|labels| labels.values().cloned()).collect()
    });
    let found = |ns: &str, word: &str| {
        let all = cache.by_index(ns, word);
        all.iter().filter_map(|one| one.metadata.name.clone()).collect::<Vec<_>>()
    };
    cache.replace(vec![labelled("a", "x"), labelled("b", "x"), labelled("c", "y")], |_| {});
    assert_eq!((found("ns", "x"), found("n", "x")), (vec!["a".into(), "b".into()], vec![]));
    cache.apply(Arc::new(labelled("a", "y")), |_| {});
    cache.delete(Arc::new(labelled("c", "whatever")), |_| {});
    assert_eq!((found("ns", "x"), found("ns", "y")), (vec!["b".into()], vec!["a".into()]));
    cache.replace(vec![labelled("b", "y")], |_| {});
    assert_eq!((found("ns", "x"), found("ns", "y")), (vec![], vec!["b".into()]));
    assert_eq!(cache.lock().index.len(), 1, "words without an object are kept");
}

/// A store with a client that is not called: the cache reads from the store itself.
struct CacheFixture {
    store: Arc<ObjectStore>,
    _folder: tempfile::TempDir,
}

const BROKERS: &str = "eventing.knative.dev/brokers";

impl CacheFixture {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        Self { store: Arc::new(ObjectStore::open(folder.path()).unwrap()), _folder: folder }
    }

    async fn write(&self, name: &str, value: Value, deleted: bool) {
        let key = store::ObjectKey { resource: BROKERS.into(), namespace: "ns".into(), name: name.into() };
        let change = match deleted {
            true => store::WriteOperation::Delete(key, value),
            false => store::WriteOperation::Put(key, value),
        };
        self.store.write(move |_| Ok::<_, store::StoreError>(change)).await.unwrap();
    }

    async fn put(&self, broker: &Broker) {
        let name = broker.metadata.name.as_deref().unwrap();
        self.write(name, serde_json::to_value(broker).unwrap(), false).await;
    }

    async fn delete(&self, broker: &Broker) {
        let name = broker.metadata.name.as_deref().unwrap();
        self.write(name, serde_json::to_value(broker).unwrap(), true).await;
    }

    fn source(&self) -> ObjectSource<Broker> {
        let nobody = axum::Router::new().fallback(|| async { http::StatusCode::INTERNAL_SERVER_ERROR });
        let api = kube::Api::all(kube::Client::new(nobody, "default"));
        ObjectSource::new(api, Arc::downgrade(&self.store), None)
    }
}

fn labelled(name: &str, label: &str) -> Broker {
    let mut broker = broker(name);
    broker.metadata.labels = Some([("l".to_owned(), label.to_owned())].into());
    broker
}

fn labels(broker: &Broker) -> Vec<String> {
    broker.metadata.labels.iter().flat_map(|labels| labels.values().cloned()).collect()
}

#[tokio::test]
async fn a_cache_that_is_filled_from_a_store_has_all_and_holds_sleepers_as_the_store_does() {
    let kept = CacheFixture::new();
    let names: Vec<String> = (0..BATCH_OBJECTS * 3 + 1).map(|n| format!("b{n:04}")).collect();
    for name in &names {
        kept.put(&labelled(name, if name.ends_with('7') { "seven" } else { "other" })).await;
    }
    // What an earlier version let in, and this one cannot read.
    kept.write("odd", json!({ "metadata": { "name": "odd", "namespace": "ns" }, "spec": 3 }), false).await;
    let caches =
        [InformerCache::with_index(labels), InformerCache::compressed(), InformerCache::compressed_with_index(labels)];
    for (cache, sleeps) in caches.iter().zip([false, true, true]) {
        kept.source().fill(cache).await.unwrap();
        let all = cache.all();
        assert_eq!(all.iter().filter_map(|one| one.metadata.name.clone()).collect::<Vec<_>>(), names);
        assert_eq!(cache.lock().slots.is_empty(), sleeps, "it keeps what the store has");
        assert_eq!(cache.get("ns", &names[3]).as_deref(), Some(&*all[3]));
        assert!(cache.get("ns", "odd").is_none());
        cache.compress_all();
        assert_eq!(cache.lock().slots.is_empty(), sleeps);
    }
    let sevens: Vec<&String> = names.iter().filter(|name| name.ends_with('7')).collect();
    assert_eq!(caches[0].names_by_index("ns", "seven").iter().collect::<Vec<_>>(), sevens);
    assert_eq!(caches[2].names_by_index("ns", "seven").iter().collect::<Vec<_>>(), sevens);
}

/// The reported changes: the label before and after.
type ObservedChanges = Vec<(String, Option<String>, Option<String>)>;

/// Runs `follow` until it has nothing more to report.
async fn reported(
    follow: &mut (impl Future<Output = ()> + Unpin),
    reported: &Mutex<ObservedChanges>,
) -> ObservedChanges {
    // Changes are there when it looks; a turn without any is one that it waits in.
    let (count, mut before) = (|| reported.lock().unwrap().len(), usize::MAX);
    while before != count() {
        before = count();
        for _ in 0..3 {
            let turn = tokio::time::timeout(Duration::from_millis(1), &mut *follow);
            assert!(turn.await.is_err(), "it ends never");
        }
    }
    std::mem::take(&mut reported.lock().unwrap())
}

#[tokio::test]
async fn store_watch_reports_list_and_then_changes() {
    let kept = CacheFixture::new();
    let (cache, observed) = (InformerCache::compressed_with_index(labels), Mutex::new(ObservedChanges::new()));
    let source = kept.source().without_label("hidden");
    let hidden = |name: &str| {
        let mut broker = labelled(name, "h");
        broker.metadata.labels.as_mut().unwrap().insert("hidden".to_owned(), String::new());
        broker
    };
    let row = |name: &str, before: &str, after: &str| {
        let said = |label: &str| Some(label.to_owned()).filter(|label| !label.is_empty());
        (name.to_owned(), said(before), said(after))
    };
    for broker in [labelled("a", "1"), labelled("b", "1"), hidden("c")] {
        kept.put(&broker).await;
    }
    source.fill(&cache).await.unwrap();
    kept.put(&labelled("b", "2")).await;
    let mut following = Box::pin(follow(source, &cache, |(before, after)| {
        let label = |one: Option<&Arc<Broker>>| one.and_then(|one| one.metadata.labels.as_ref()?.get("l").cloned());
        let name = before.or(after).and_then(|one| one.metadata.name.clone()).unwrap();
        observed.lock().unwrap().push((name, label(before), label(after)));
    }));
    // As they are, and what has happened since the cache was filled.
    let first = [row("a", "1", "1"), row("b", "2", "2"), row("b", "1", "2")];
    assert_eq!(reported(&mut following, &observed).await, first);

    for broker in [labelled("c", "3"), hidden("a"), hidden("d"), labelled("b", "3")] {
        kept.put(&broker).await;
    }
    kept.delete(&labelled("b", "last")).await;
    kept.delete(&hidden("d")).await;
    let then = [row("c", "", "3"), row("a", "1", ""), row("b", "2", "3"), row("b", "3", "")];
    assert_eq!(reported(&mut following, &observed).await, then);
    assert_eq!((cache.keys().len(), cache.names_by_index("ns", "3")), (1, vec!["c".to_owned()]));
    assert!(cache.is_indexed("ns", "c", "3") && !cache.is_indexed("ns", "b", "3") && !cache.is_indexed("n", "c", "3"));

    // More than is processed in one turn, and in order.
    let many: Vec<String> = (0..200).map(|n| format!("m{n:03}")).collect();
    for name in &many {
        kept.put(&labelled(name, "m")).await;
    }
    let rows: Vec<_> = many.iter().map(|name| row(name, "", "m")).collect();
    assert_eq!(reported(&mut following, &observed).await, rows);

    // What the store does not remember is found out by what it has.
    for name in &many[1..] {
        kept.delete(&labelled(name, "m")).await;
    }
    kept.put(&labelled("m000", "n")).await;
    kept.store.trim_history(*kept.store.revision().borrow(), 0);
    let rest = reported(&mut following, &observed).await;
    let gone: Vec<_> = many[1..].iter().map(|name| row(name, "m", "")).collect();
    assert_eq!(rest[..gone.len()], gone);
    // Those that it does not follow may have been followed before.
    let hidden = row("a", "h", "");
    assert_eq!(rest[gone.len()..], [hidden, row("c", "", "3"), row("m000", "", "n")]);
    kept.store.close();
    assert_eq!(reported(&mut following, &observed).await, []);
}

#[test]
fn sleepers_are_packed_and_found_as_before() {
    let labelled = |name: usize, label: &str| {
        let mut broker = broker(&format!("b{name:03}"));
        broker.metadata.labels = Some([("l".to_owned(), label.to_owned())].into());
        broker
    };
    let words = |broker: &Broker| broker.metadata.labels.iter().flat_map(|labels| labels.values().cloned()).collect();
    let cache = InformerCache::compressed_with_index(words);
    let many = DECODED_MAX * 3;
    cache.replace((0..many).map(|n| labelled(n, if n == 0 { "x" } else { "y" })).collect(), |_| {});
    let open = || {
        let kept = cache.lock();
        kept.slots.values().filter(|slot| matches!(slot, CacheSlot::Decoded(..))).count()
    };
    assert_eq!(open(), DECODED_MAX);

    let first = cache.get("ns", "b000").unwrap();
    assert_eq!(*first, labelled(0, "x"));
    assert!(Arc::ptr_eq(&first, &cache.get("ns", "b000").unwrap()), "it is opened once");
    assert_eq!((open(), cache.all().len(), cache.list("ns").len()), (DECODED_MAX, many, many));
    assert_eq!((cache.by_index("ns", "x").len(), cache.all_by_index("y").len()), (1, many - 1));
    assert_eq!(cache.one_per_shared_key().len(), 1);

    let mut reported = Vec::new();
    let last = many - 1;
    for n in [last, 0, 1] {
        cache.apply(Arc::new(labelled(n, "z")), |(before, after)| reported.push((before.cloned(), after.cloned())));
    }
    let expected = |n, label: &str| (Some(Arc::new(labelled(n, label))), Some(Arc::new(labelled(n, "z"))));
    assert_eq!(reported, [expected(last, "y"), expected(0, "x"), expected(1, "y")]);
    cache.delete(Arc::new(labelled(2, "")), |(before, _)| assert_eq!(before.unwrap().as_ref(), &labelled(2, "y")));
    assert!(cache.get("ns", "b002").is_none());
    assert_eq!(cache.names_by_index("ns", "z"), ["b000", "b001", &format!("b{last:03}")]);
    cache.compress_all();
    assert_eq!((open(), cache.get("ns", "b000").as_deref()), (0, Some(&labelled(0, "z"))));
    assert_eq!(open(), 1);
}
