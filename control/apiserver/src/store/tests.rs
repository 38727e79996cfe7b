//! The store over a disk that can fail.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redb::{Database, StorageBackend};
use serde_json::json;

use super::database::ObjectDatabase;
use super::fault_tracking::{DiskFaults, FaultTrackingBackend};
use super::{
    HISTORY_AGE_MIN, HISTORY_BURST_AGE_MIN, HISTORY_BYTES_MAX, HISTORY_OLD_EVENTS_MAX, ObjectKey, ObjectStore,
    StoreError, WriteOperation, WriteOutcome, gc, maintenance,
};

/// A disk in memory whose syncs fail from some moment on, and that may be full.
#[derive(Debug, Clone)]
struct FaultyDisk {
    bytes: Arc<Mutex<Vec<u8>>>,
    broken: Arc<AtomicBool>,
    /// Writes that still find room.
    capacity: Arc<AtomicI64>,
}

impl Default for FaultyDisk {
    fn default() -> Self {
        Self { bytes: Arc::default(), broken: Arc::default(), capacity: Arc::new(AtomicI64::new(i64::MAX)) }
    }
}

impl StorageBackend for FaultyDisk {
    fn len(&self) -> io::Result<u64> {
        Ok(self.bytes.lock().unwrap().len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let start = offset as usize;
        out.copy_from_slice(&self.bytes.lock().unwrap()[start..start + out.len()]);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.bytes.lock().unwrap().resize(len as usize, 0);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        if self.broken.load(SeqCst) { Err(io::Error::other("the disk is gone")) } else { Ok(()) }
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        if self.capacity.fetch_sub(1, SeqCst) <= 0 {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let start = offset as usize;
        self.bytes.lock().unwrap()[start..start + data.len()].copy_from_slice(data);
        Ok(())
    }
}

fn open(disk: &FaultyDisk) -> ObjectStore {
    let disk = disk.clone();
    let database = move |faults: &DiskFaults| {
        let disk = FaultTrackingBackend::wrap(disk.clone(), faults);
        Database::builder().create_with_backend(disk).map_err(|why| StoreError::WriterFailed(why.to_string()))
    };
    let (disk, contents) = ObjectDatabase::load_from(Box::new(database), "memory".into()).unwrap();
    ObjectStore::start(disk, contents).unwrap()
}

fn key(name: &str) -> ObjectKey {
    ObjectKey { resource: "example.com/things".into(), namespace: "n".into(), name: name.into() }
}

async fn put(store: &ObjectStore, name: &str, bytes: usize) -> Result<WriteOutcome, StoreError> {
    let key = key(name);
    let value = json!({ "metadata": { "name": name }, "data": "x".repeat(bytes) });
    store.write(move |_| Ok(WriteOperation::Put(key, value))).await
}

#[tokio::test]
async fn after_a_failed_commit_nothing_is_shown_and_nothing_more_is_taken() {
    let disk = FaultyDisk::default();
    let store = open(&disk);
    put(&store, "before", 1).await.unwrap();
    let revision = store.read().revision();
    assert!(store.health().is_ok());

    disk.broken.store(true, SeqCst);
    assert!(matches!(put(&store, "lost", 1).await, Err(StoreError::WriterFailed(_))));
    disk.broken.store(false, SeqCst);
    assert!(matches!(put(&store, "late", 1).await, Err(StoreError::WriterFailed(_))), "even if the disk is well again");
    assert!(store.health().is_err());
    let memory = store.read();
    assert_eq!(memory.revision(), revision);
    assert!(memory.get(&key("before")).is_some() && memory.get(&key("lost")).is_none());
}

/// Writes until it is taken; answers the version it got.
async fn insist(store: &ObjectStore, name: &str) -> u64 {
    for _ in 0..1000 {
        match put(store, name, 1).await {
            Ok(written) => return written.object().resource_version,
            Err(StoreError::Full { .. }) => tokio::time::sleep(Duration::from_millis(20)).await,
            Err(why) => panic!("{why}"),
        }
    }
    panic!("the store does not recover");
}

/// APP-39: wherever in a commit the room ends, what was acknowledged stays, what was refused is not there,
/// writes go on by themselves once there is room, and no version is assigned twice or goes back.
#[tokio::test]
async fn a_full_disk_refuses_and_recovers_by_itself() {
    let mut refused = 0;
    for capacity in 0..12 {
        let disk = FaultyDisk::default();
        let store = open(&disk);
        let mut versions = vec![insist(&store, "before").await];
        disk.capacity.store(capacity, SeqCst);
        match put(&store, "torn", 100_000).await {
            Err(StoreError::Full { .. }) => {
                refused += 1;
                assert!(matches!(store.health(), Err(StoreError::Full { .. })));
                assert!(store.read().get(&key("torn")).is_none());
                assert!(matches!(put(&store, "early", 1).await, Err(StoreError::Full { .. })));
            }
            Ok(written) => versions.push(written.object().resource_version),
            Err(why) => panic!("after {capacity} writes: {why}"),
        }
        let torn = store.read().get(&key("torn")).is_some();
        disk.capacity.store(i64::MAX, SeqCst);
        versions.extend([insist(&store, "after").await, insist(&store, "later").await]);
        assert!(store.health().is_ok());
        assert!(versions.is_sorted_by(|one, next| one < next), "{versions:?}");
        assert_eq!(store.read().get(&key("torn")).is_some(), torn);
        assert!(store.read().get(&key("early")).is_none());
        drop(store);

        let store = open(&disk);
        assert_eq!(store.read().get(&key("torn")).is_some(), torn, "after {capacity} writes");
        assert!(store.read().get(&key("before")).is_some() && store.read().get(&key("later")).is_some());
        assert!(insist(&store, "last").await > versions[versions.len() - 1]);
    }
    assert!(refused > 3, "the commits found room {refused} times");
}

/// Every stored object can be read again, also by the next start: deeper objects are rejected.
#[tokio::test]
async fn an_object_that_nests_too_deep_is_refused() {
    let disk = FaultyDisk::default();
    let store = open(&disk);
    let nested = |levels: usize| (0..levels).fold(json!(1), |inner, _| json!({ "a": inner }));
    let put = |levels: usize| {
        let value = json!({ "metadata": { "name": "deep" }, "spec": nested(levels) });
        store.write::<StoreError>(move |_| Ok(WriteOperation::Put(key("deep"), value)))
    };
    let deepest = super::OBJECT_DEPTH_MAX - 1; // around it is the object itself
    put(deepest).await.unwrap();
    assert!(matches!(put(deepest + 1).await, Err(StoreError::TooDeep)));
    assert_eq!(store.read().get(&key("deep")).unwrap().value()["spec"], nested(deepest));
    drop(store);
    assert_eq!(open(&disk).read().get(&key("deep")).unwrap().value()["spec"], nested(deepest));
}

#[tokio::test]
async fn history_lets_go_of_its_oldest_changes_when_they_are_too_many_bytes() {
    let store = open(&FaultyDisk::default());
    let first = put(&store, "first", 1).await.unwrap().object().resource_version;
    let half = 2 * 1024 * 1024;
    for _ in 0..=HISTORY_BYTES_MAX / half {
        put(&store, "big", half).await.unwrap();
    }
    let memory = store.read();
    let expired = memory.changes(None, None, first, 10).unwrap_err();
    assert_eq!(expired.requested, first);
    assert!(expired.oldest > first);
    assert!(memory.changes(None, None, expired.oldest, 10).is_ok());
}

#[tokio::test]
async fn history_drops_only_requested_changes() {
    let store = open(&FaultyDisk::default());
    let versions = [put(&store, "a", 1).await, put(&store, "a", 2).await, put(&store, "b", 3).await];
    let [first, second, third] = versions.map(|written| written.unwrap().object().resource_version);
    assert_eq!(store.trim_history(third, 2), 1, "the last two are kept");
    assert_eq!((store.trim_history(third, 2), store.trim_history(second, 0)), (0, 1));
    let changes = |after: u64| {
        let found = store.read().changes(None, None, after, 10)?.0;
        Ok(found.iter().map(super::ChangeEvent::revision).collect::<Vec<_>>())
    };
    assert_eq!(changes(second), Ok(vec![third]));
    assert_eq!(changes(first), Err(super::RevisionExpired { requested: first, oldest: second }));
    store.trim_history(first, 0);
    assert_eq!(changes(second), Ok(vec![third]), "what is gone is gone once");
    store.trim_history(u64::MAX, 0);
    assert_eq!((changes(third), changes(second).is_err()), (Ok(Vec::new()), true));
    assert_eq!(store.read().list(&key("").resource, None).items().len(), 2);
    let next = put(&store, "b", 4).await.unwrap().object().resource_version;
    assert_eq!(changes(third), Ok(vec![next]));
}

#[tokio::test(start_paused = true)]
async fn changes_are_forgotten_when_they_are_old() {
    let store = Arc::new(open(&FaultyDisk::default()));
    let first = put(&store, "a", 1).await.unwrap().object().resource_version;
    let second = put(&store, "a", 2).await.unwrap().object().resource_version;
    tokio::spawn(super::run_history_expiry(Arc::clone(&store)));
    let is_there = || store.read().changes(None, None, first, 10).is_ok();
    tokio::time::sleep(HISTORY_AGE_MIN - Duration::from_secs(1)).await;
    assert!(is_there());
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(!is_there() && store.read().changes(None, None, second, 10).is_ok());
}

#[tokio::test(start_paused = true)]
async fn many_changes_are_forgotten_sooner_but_for_the_last() {
    let store = Arc::new(open(&FaultyDisk::default()));
    let mut versions = Vec::new();
    for n in 0..HISTORY_OLD_EVENTS_MAX + 2 {
        versions.push(put(&store, "a", n).await.unwrap().object().resource_version);
    }
    tokio::spawn(super::run_history_expiry(Arc::clone(&store)));
    let is_there = |at: usize| store.read().changes(None, None, versions[at], 1).is_ok();
    tokio::time::sleep(HISTORY_BURST_AGE_MIN - Duration::from_secs(1)).await;
    assert!(is_there(0));
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!([0, 1, HISTORY_OLD_EVENTS_MAX].map(is_there), [false, true, true]);
    tokio::time::sleep(HISTORY_AGE_MIN).await;
    assert!(!is_there(HISTORY_OLD_EVENTS_MAX) && is_there(HISTORY_OLD_EVENTS_MAX + 1));
}

/// Compaction holds no store while it waits for the next change, whether there was little to compact or much.
#[tokio::test(start_paused = true)]
async fn who_folds_keeps_no_store_open() {
    for objects in [1, 100] {
        let store = Arc::new(open(&FaultyDisk::default()));
        for n in 0..objects {
            put(&store, &format!("a{n}"), n).await.unwrap();
        }
        let folding = tokio::spawn(super::run_compaction(Arc::clone(&store)));
        tokio::time::sleep(Duration::from_secs(60)).await;
        // The writer's thread may be asked just now, and the clock that stands still passes no time for it.
        let begun = std::time::Instant::now();
        while Arc::strong_count(&store) > 1 {
            assert!(begun.elapsed() < Duration::from_secs(30), "{objects} objects");
            tokio::task::yield_now().await;
        }
        drop(store);
        folding.await.unwrap();
    }
}

#[tokio::test]
async fn a_list_of_a_past_moment_undoes_what_came_after() {
    let store = open(&FaultyDisk::default());
    put(&store, "kept", 1).await.unwrap();
    let then = put(&store, "gone", 1).await.unwrap().object().resource_version;
    put(&store, "kept", 2).await.unwrap();
    put(&store, "new", 1).await.unwrap();
    let gone = key("gone");
    let removed: Result<WriteOutcome, StoreError> =
        store.write(move |view| Ok(WriteOperation::Delete(gone.clone(), view.get(&gone).unwrap().value()))).await;
    removed.unwrap();
    let memory = store.read();
    let resource = key("").resource;
    let sizes = |listing: super::ObjectList| -> Vec<(String, usize)> {
        let items = listing.iter();
        items.map(|o| (o.key.name.to_string(), o.value()["data"].as_str().unwrap().len())).collect()
    };
    let past = sizes(memory.list_at(&resource, Some("n"), then).unwrap());
    assert_eq!(past, [("gone".into(), 1), ("kept".into(), 1)]);
    assert_eq!(sizes(memory.list(&resource, None)), [("kept".into(), 2), ("new".into(), 1)]);
    assert!(memory.list(&resource, Some("other")).items().is_empty());
}

/// Many writers, one commit: each sees what those before it in the same batch decided.
#[tokio::test]
async fn decisions_of_one_batch_see_each_other() {
    let store = open(&FaultyDisk::default());
    let add = || {
        store.write::<StoreError>(|view| {
            let count = view.get(&key("count")).map_or(0, |found| found.value()["count"].as_u64().unwrap());
            Ok(WriteOperation::Put(key("count"), json!({ "metadata": {}, "count": count + 1 })))
        })
    };
    futures_util::future::join_all((0..500).map(|_| add())).await;
    assert_eq!(store.read().get(&key("count")).unwrap().value()["count"], 500);
}

/// Wherever the disk turns bits over or ends early, the objects that were written are served, or the file is reported
/// to be damaged with what to do: never other objects, and never a panic.
#[tokio::test]
async fn corrupted_objects_are_reported() {
    let folder = tempfile::tempdir().unwrap();
    let store = ObjectStore::open(folder.path()).unwrap();
    for (nth, bytes) in [10, 100, 1000, 5000, 300].into_iter().enumerate() {
        put(&store, &format!("object-{nth}"), bytes).await.unwrap();
    }
    let all = |store: &ObjectStore| -> Vec<bytes::Bytes> {
        store.read().all().into_iter().map(|object| object.json()).collect()
    };
    let written = all(&store);
    drop(store);
    let file = folder.path().join("objects.redb");
    let whole = std::fs::read(&file).unwrap();
    let mut rng = fastrand::Rng::with_seed(7);
    let (mut reported, mut silent) = (0, 0);
    for round in 0..200 {
        let mut bytes = whole.clone();
        match round % 4 {
            0 => bytes.truncate(rng.usize(..whole.len())),
            1 => {
                // In the text of an object: the database itself does not notice.
                let places: Vec<usize> =
                    bytes.windows(8).enumerate().filter(|(_, text)| *text == b"xxxxxxxx").map(|(at, _)| at).collect();
                bytes[places[rng.usize(..places.len())]] = b'y';
            }
            2 => bytes[rng.usize(..whole.len())] ^= 1 << rng.u32(..8),
            _ => {
                let from = rng.usize(..whole.len() - 4096);
                bytes[from..from + 4096].fill(0);
            }
        }
        std::fs::write(&file, &bytes).unwrap();
        match ObjectStore::open(folder.path()) {
            Ok(store) => {
                silent += 1;
                assert_eq!(all(&store), written, "round {round}");
            }
            Err(why) => {
                reported += 1;
                assert!(matches!(why, StoreError::Damaged { .. } | StoreError::Format { .. }), "{round}: {why:?}");
            }
        }
    }
    assert!(reported > 50 && silent > 0, "{reported} told, {silent} silent");
}

/// APP-16: a new file gets its name when it is a database, so an empty one is damage. Starting again with it would lose
/// everything silently.
#[tokio::test]
async fn an_empty_file_is_damaged_and_a_start_that_was_cut_short_is_none() {
    let folder = tempfile::tempdir().unwrap();
    let (file, begun) = (folder.path().join("objects.redb"), folder.path().join("objects.begun"));
    std::fs::write(&begun, "half of a").unwrap();
    let store = ObjectStore::open(folder.path()).unwrap();
    put(&store, "kept", 10).await.unwrap();
    drop(store);
    assert!(!begun.exists());
    let whole = std::fs::read(&file).unwrap();
    for left in [0, 100, 4096, whole.len() / 2] {
        std::fs::write(&file, &whole[..left]).unwrap();
        let why = ObjectStore::open(folder.path()).unwrap_err();
        assert!(matches!(why, StoreError::Damaged { .. }), "{left} bytes: {why}");
    }
    std::fs::write(&file, &whole).unwrap();
    assert!(ObjectStore::open(folder.path()).unwrap().read().get(&key("kept")).is_some());
}

#[tokio::test]
async fn a_file_of_the_first_format_gets_its_print() {
    let folder = tempfile::tempdir().unwrap();
    let store = ObjectStore::open(folder.path()).unwrap();
    put(&store, "kept", 10).await.unwrap();
    drop(store);
    let facts: redb::TableDefinition<'_, &str, u64> = redb::TableDefinition::new("facts");
    let file = folder.path().join("objects.redb");
    {
        let database = Database::create(&file).unwrap();
        let transaction = database.begin_write().unwrap();
        {
            let mut facts = transaction.open_table(facts).unwrap();
            facts.remove("print").unwrap();
            facts.insert("format", 1).unwrap();
        }
        transaction.commit().unwrap();
    }
    for _ in 0..2 {
        let store = ObjectStore::open(folder.path()).unwrap();
        assert!(store.read().get(&key("kept")).is_some());
        put(&store, "more", 10).await.unwrap();
    }
}

/// It would turn forever and keep everything else on its thread from ending, if the end came while it was at work.
#[test]
fn collector_ends_with_a_store_that_is_still_in_use() {
    let folder = tempfile::tempdir().unwrap();
    let store = Arc::new(ObjectStore::open(folder.path()).unwrap());
    store.close();
    let (tell, ended) = std::sync::mpsc::channel();
    let held = Arc::clone(&store);
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let silent = gc::GcCallbacks {
            track_status_writer: |change, _, _| change,
            record_event: |_, _, _, _| Err(maintenance::SkipReason::UpToDate),
        };
        runtime.block_on(gc::run(held, Arc::default(), silent));
        tell.send(()).unwrap();
    });
    assert!(ended.recv_timeout(Duration::from_secs(30)).is_ok(), "the collector goes on");
}
