//! The object store: every object is in memory for readers, and on disk before its writer gets a response.
//!
//! One thread writes. It takes all requests queued during the last commit, lets each decide against the newest state
//! (so no read-modify-write can lose a race), commits them together and only then updates memory, wakes the watchers
//! and responds. A reader never touches the disk, and no client sees an object that a crash could take back.
//!
//! Objects that are not written are compacted ([`run_compaction`]): neighbours become one block, which a reader
//! decompresses while it reads.

mod block;
mod change_event;
mod cold_objects;
mod compaction;
mod compaction_runs;
mod database;
pub mod event_retention;
mod fault_tracking;
pub mod gc;
mod gc_rate_limiter;
mod history;
mod history_chunk;
pub mod lifecycle;
pub mod maintenance;
mod memory_index;
mod namespace_termination;
mod object_head;
mod object_list;
mod pod_deletion;
mod prepared;
mod stored_object;
mod tombstones;
mod uid_index;
mod writer;

#[cfg(test)]
mod compaction_tests;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard};
use std::thread::JoinHandle;

use contract::allocator;
use serde_json::Value;
use tokio::sync::{mpsc, oneshot, watch};

pub use change_event::{ChangeEvent, HISTORY_EVENTS_MAX};
pub use compaction::run_compaction;
pub use history::{
    HISTORY_AGE_MIN, HISTORY_BURST_AGE_MIN, HISTORY_BYTES_MAX, HISTORY_OLD_EVENTS_MAX, RevisionExpired,
    run_history_expiry,
};
pub use memory_index::MemoryIndex;
pub use object_head::ObjectHead;
pub use object_list::{ObjectList, ObjectListIter};
pub use prepared::PreparedObject;
pub use stored_object::{DecodedObject, StoredObject};
pub use tombstones::ChangeReader;
pub use writer::StagedView;

use database::{DatabaseContents, ObjectDatabase};
use writer::{WriteJob, WriterFailure};

/// Writes that may wait for the writer; the next one waits for a place. At some 2,000 durable
/// writes a second this is half a second of work.
pub const QUEUED_WRITES_MAX: usize = 1024;

pub use types::limits::OBJECT_BYTES_MAX;

/// Levels of nesting of a stored object, its list of field owners included, which is a little deeper than what it
/// is about. JSON is read back up to 127 levels, and a backup adds one.
pub const OBJECT_DEPTH_MAX: usize = 120;

/// Names an object. The order is the order of lists: namespace, then name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectKey {
    /// `GROUP/PLURAL`; the core group is empty.
    pub resource: Arc<str>,
    /// Empty for cluster-wide kinds.
    pub namespace: Arc<str>,
    /// Shared by the versions of an object, as the namespace is.
    pub name: Arc<str>,
}

impl ObjectKey {
    /// Comes before all others.
    fn lowest() -> Self {
        Self { resource: "".into(), namespace: "".into(), name: "".into() }
    }

    /// The same in pieces of its own.
    fn deep_clone(&self) -> Self {
        let [resource, namespace, name] = [&self.resource, &self.namespace, &self.name].map(|word| Arc::from(&**word));
        Self { resource, namespace, name }
    }
}

/// The action that a writer requests.
#[derive(Debug)]
pub enum WriteOperation {
    /// Nothing: the object already is as wanted, and watchers get no event.
    NoOp(Arc<StoredObject>),
    Put(ObjectKey, Value),
    /// The same, of a long object that is serialized already.
    PutPrepared(ObjectKey, Box<PreparedObject>),
    /// The value is what watchers see as the object's last state.
    Delete(ObjectKey, Value),
}

/// The result, once durable.
#[derive(Debug, Clone)]
pub enum WriteOutcome {
    Unchanged(Arc<StoredObject>),
    Put(Arc<StoredObject>),
    Deleted(Arc<StoredObject>),
}

impl WriteOutcome {
    #[must_use]
    pub fn object(&self) -> &Arc<StoredObject> {
        match self {
            Self::Unchanged(object) | Self::Put(object) | Self::Deleted(object) => object,
        }
    }
}

/// The world's failures.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    #[error("{0} is in use by another process")]
    InUse(PathBuf),
    #[error("{path} has format {found}, this program reads {known}")]
    Format { path: PathBuf, found: u64, known: u64 },
    #[error(
        "{path} is damaged ({what}); move it away to start empty, and bring a backup back with `sluicegate api restore FILE`"
    )]
    Damaged { path: PathBuf, what: String },
    #[error("cannot use {path}: {what}")]
    Unusable { path: PathBuf, what: String },
    /// The last commit is complete, and the next one that finds disk space continues from there.
    #[error("there is no room for {path}, and no writes are taken until there is; free some space there: {what}")]
    Full { path: PathBuf, what: String },
    /// After a failed commit the state on disk is unknown, so no more writes are accepted.
    #[error("the object store failed and takes no writes until a restart: {0}")]
    WriterFailed(String),
    #[error("the object store is shut")]
    Closed,
    #[error("a write was abandoned: it broke a rule of the store")]
    Canceled,
    #[error("the object is {bytes} bytes, limit {OBJECT_BYTES_MAX}")]
    TooLarge { bytes: usize },
    #[error("the object nests more than {OBJECT_DEPTH_MAX} levels")]
    TooDeep,
}

/// All objects.
#[derive(Debug)]
pub struct ObjectStore {
    memory: Arc<RwLock<MemoryIndex>>,
    /// `None` once the store is shut.
    jobs: RwLock<Option<mpsc::Sender<WriteJob>>>,
    revision: watch::Receiver<u64>,
    writer: Mutex<Option<JoinHandle<()>>>,
    failure: Arc<WriterFailure>,
    /// Held during a compaction: there is one at a time.
    compaction_lock: Mutex<()>,
}

impl ObjectStore {
    /// Whether the folder `dir` has one.
    #[must_use]
    pub fn exists(dir: &Path) -> bool {
        ObjectDatabase::file_in(dir).exists()
    }

    /// Opens the store of the folder `dir`, or makes an empty one. Only one process may have it open.
    pub fn open(dir: &Path) -> Result<Self, StoreError> {
        let (disk, contents) = ObjectDatabase::open(dir)?;
        Self::start(disk, contents)
    }

    fn start(disk: ObjectDatabase, contents: DatabaseContents) -> Result<Self, StoreError> {
        let DatabaseContents { revision, objects, rows, hasher: sums, shared: common } = contents;
        let memory = Arc::new(RwLock::new(MemoryIndex::new(revision, objects, rows, sums)));
        let (jobs, waiting) = mpsc::channel(QUEUED_WRITES_MAX);
        let view = StagedView::new(Arc::clone(&memory), revision, common);
        let (announce, revision) = watch::channel(revision);
        let failure = Arc::new(WriterFailure::default());
        let failure_report = Arc::clone(&failure);
        let writer = std::thread::Builder::new()
            .name("store".into())
            .spawn(move || writer::run(disk, view, waiting, &announce, &failure_report))
            .map_err(|why| StoreError::WriterFailed(format!("no thread for it: {why}")))?;
        Ok(Self {
            memory,
            jobs: RwLock::new(Some(jobs)),
            revision,
            writer: Mutex::new(Some(writer)),
            failure,
            compaction_lock: Mutex::default(),
        })
    }

    /// Everything as of one moment: hold it briefly, commits wait for it.
    pub fn read(&self) -> RwLockReadGuard<'_, MemoryIndex> {
        read(&self.memory)
    }

    /// No watch can resume from before `revision` any more, nor from before the last `kept` changes if those reach
    /// further back; the old versions are freed. Returns the number of changes removed.
    pub fn trim_history(&self, revision: u64, kept: usize) -> usize {
        let mut memory = self.memory.write().unwrap_or_else(PoisonError::into_inner);
        let forgotten = memory.trim_history(revision, kept);
        drop(memory); // those go after it, because there may be thousands
        forgotten.count
    }

    /// A reader that follows all changes from the beginning.
    #[must_use]
    pub fn new_reader(&self) -> ChangeReader {
        let reader = ChangeReader::default();
        let mut memory = self.memory.write().unwrap_or_else(PoisonError::into_inner);
        memory.history.tombstones.add_reader(&reader);
        reader
    }

    /// Changes whenever something was committed; the value is the newest resourceVersion.
    #[must_use]
    pub fn revision(&self) -> watch::Receiver<u64> {
        self.revision.clone()
    }

    /// Why no writes are taken at the moment, if so.
    pub fn health(&self) -> Result<(), StoreError> {
        self.failure.current().map_or(Ok(()), Err)
    }

    /// The writer thread's list of freed pieces.
    pub(super) async fn cached(&self) -> allocator::CachedChunks {
        let jobs = self.jobs.read().unwrap_or_else(PoisonError::into_inner).clone();
        let Some(jobs) = jobs else { return allocator::CachedChunks::default() };
        let (answer, answered) = oneshot::channel();
        let job: WriteJob = Box::new(|_| {
            let _ = answer.send(allocator::cached()); // the caller may have gone
            None
        });
        let _ = jobs.send(job).await; // a writer that has ended has no cache
        drop(jobs); // the writer ends with the last of them
        answered.await.unwrap_or_default()
    }

    /// Lets `decide` choose a change on the writer's thread, against the newest state, and returns
    /// when the change is durable. `decide` must be quick: every other write waits for it.
    pub async fn write<E>(
        &self,
        decide: impl FnOnce(&StagedView) -> Result<WriteOperation, E> + Send + 'static,
    ) -> Result<WriteOutcome, E>
    where
        E: From<StoreError> + Send + 'static,
    {
        let jobs = self.jobs.read().unwrap_or_else(PoisonError::into_inner).clone();
        let Some(jobs) = jobs else { return Err(StoreError::Closed.into()) };
        let (answer, answered) = oneshot::channel();
        let job = writer::write_job(decide, answer);
        jobs.send(job).await.map_err(|_| StoreError::Closed)?;
        drop(jobs); // the writer ends with the last of them
        match answered.await {
            Ok(outcome) => outcome,
            Err(_) => Err(StoreError::Canceled.into()),
        }
    }
}

impl ObjectStore {
    /// Stops the writer after the writes in its queue, so that the folder is free when this returns; every watch ends
    /// too. Reads continue from memory, writes are refused. Blocks.
    pub fn close(&self) {
        *self.jobs.write().unwrap_or_else(PoisonError::into_inner) = None;
        let writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(writer) = writer
            && writer.join().is_err()
        {
            tracing::error!("the store's writer ended by a panic");
        }
    }
}

impl Drop for ObjectStore {
    fn drop(&mut self) {
        self.close();
    }
}

/// A reader that panicked has changed nothing, so its poison says nothing.
fn read(memory: &RwLock<MemoryIndex>) -> RwLockReadGuard<'_, MemoryIndex> {
    memory.read().unwrap_or_else(PoisonError::into_inner)
}
