//! Where objects live: every one in memory for readers, every one on disk before a writer hears of it.
//!
//! One thread writes. It takes whatever requests queued while the last commit ran, lets each decide
//! against the newest state (so nobody's read-modify-write can lose a race), commits them together
//! and only then changes memory, wakes the watchers and answers. A reader never touches the disk,
//! and nobody ever sees an object that a crash could take back.
//!
//! What nobody writes is folded ([`fold_settled`]): neighbours become one block, which a reader opens for as long as it looks.

mod backend;
mod block;
mod chapter;
mod cold;
mod deaths;
mod disk;
pub mod events;
mod fold;
pub mod gc;
mod head;
mod history;
pub mod lifecycle;
mod listing;
mod looks;
mod memory;
mod prepared;
mod runs;
mod stored;
mod sums;
mod terminating;
pub mod upkeep;
mod writer;

#[cfg(test)]
mod fold_tests;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard};
use std::thread::JoinHandle;

use dataplane::heap;
use serde_json::Value;
use tokio::sync::{mpsc, oneshot, watch};

pub use deaths::Reader;
pub use fold::fold_settled;
pub use head::Head;
pub use history::{
    Event, Expired, HISTORY_BURST_TIME_MIN, HISTORY_BYTES_MAX, HISTORY_EVENTS_MAX, HISTORY_OLD_MAX,
    HISTORY_TIME_MIN, forget_old,
};
pub use listing::{Items, Listing};
pub use memory::Memory;
pub use prepared::Prepared;
pub use stored::{Opened, Stored};
pub use writer::View;

use disk::{Contents, Disk};
use writer::{Failure, Job};

/// Writes that may wait for the writer; the next one waits for a place. At some 2,000 durable
/// writes a second this is half a second of work.
pub const WRITES_WAITING_MAX: usize = 1024;

/// Largest stored object as JSON, in bytes. What one request may carry, so that an object cannot be
/// patched beyond what could be sent back.
pub const OBJECT_BYTES_MAX: usize = 3 * 1024 * 1024;

/// Levels of nesting of a stored object, its list of field owners included, which is a little deeper than what it
/// is about. JSON is read back up to 127 levels, and a backup adds one.
pub const OBJECT_DEPTH_MAX: usize = 120;

/// Names an object. The order is the order of lists: namespace, then name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// `GROUP/PLURAL`; the core group is empty.
    pub resource: Arc<str>,
    /// Empty for cluster-wide kinds.
    pub namespace: Arc<str>,
    /// Shared by the versions of an object, as the namespace is.
    pub name: Arc<str>,
}

impl Key {
    /// Comes before all others.
    fn lowest() -> Self {
        Self { resource: "".into(), namespace: "".into(), name: "".into() }
    }

    /// The same in pieces of its own.
    fn anew(&self) -> Self {
        let [resource, namespace, name] =
            [&self.resource, &self.namespace, &self.name].map(|word| Arc::from(&**word));
        Self { resource, namespace, name }
    }
}

/// What a writer wants done.
#[derive(Debug)]
pub enum Change {
    /// Nothing: the object already is as wanted, and nobody is told anything.
    Keep(Arc<Stored>),
    Put(Key, Value),
    /// The same, of a long object that is written out already.
    PutPrepared(Key, Box<Prepared>),
    /// The value is what watchers see as the object's last state.
    Delete(Key, Value),
}

/// What became of it, once durable.
#[derive(Debug, Clone)]
pub enum Written {
    Kept(Arc<Stored>),
    Put(Arc<Stored>),
    Deleted(Arc<Stored>),
}

impl Written {
    #[must_use]
    pub fn object(&self) -> &Arc<Stored> {
        match self {
            Self::Kept(object) | Self::Put(object) | Self::Deleted(object) => object,
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
    /// The last commit is whole, and the next one that finds room goes on from there.
    #[error(
        "there is no room for {path}, and no writes are taken until there is; free some space there: {what}"
    )]
    Full { path: PathBuf, what: String },
    /// After a failed commit nobody knows what is on disk, so nothing more is taken.
    #[error("the object store failed and takes no writes until a restart: {0}")]
    Failed(String),
    #[error("the object store is shut")]
    Shut,
    #[error("a write was abandoned: it broke a rule of the store")]
    Abandoned,
    #[error("the object is {bytes} bytes, limit {OBJECT_BYTES_MAX}")]
    TooLarge { bytes: usize },
    #[error("the object nests more than {OBJECT_DEPTH_MAX} levels")]
    TooDeep,
}

/// All objects.
#[derive(Debug)]
pub struct Store {
    memory: Arc<RwLock<Memory>>,
    /// `None` once the store is shut.
    jobs: RwLock<Option<mpsc::Sender<Job>>>,
    revision: watch::Receiver<u64>,
    writer: Mutex<Option<JoinHandle<()>>>,
    failure: Arc<Failure>,
    /// Held by who folds: there is one at a time.
    folding: Mutex<()>,
}

impl Store {
    /// Whether the folder `dir` has one.
    #[must_use]
    pub fn is_in(dir: &Path) -> bool {
        Disk::file_in(dir).exists()
    }

    /// Opens the store of the folder `dir`, or makes an empty one. Only one process may have it open.
    pub fn open(dir: &Path) -> Result<Self, StoreError> {
        let (disk, contents) = Disk::open(dir)?;
        Self::start(disk, contents)
    }

    fn start(disk: Disk, contents: Contents) -> Result<Self, StoreError> {
        let Contents { revision, objects, rows, sums, common } = contents;
        let memory = Arc::new(RwLock::new(Memory::new(revision, objects, rows, sums)));
        let (jobs, waiting) = mpsc::channel(WRITES_WAITING_MAX);
        let view = View::new(Arc::clone(&memory), revision, common);
        let (announce, revision) = watch::channel(revision);
        let failure = Arc::new(Failure::default());
        let told = Arc::clone(&failure);
        let writer = std::thread::Builder::new()
            .name("store".into())
            .spawn(move || writer::run(disk, view, waiting, &announce, &told))
            .map_err(|why| StoreError::Failed(format!("no thread for it: {why}")))?;
        Ok(Self {
            memory,
            jobs: RwLock::new(Some(jobs)),
            revision,
            writer: Mutex::new(Some(writer)),
            failure,
            folding: Mutex::default(),
        })
    }

    /// Everything as of one moment: hold it briefly, commits wait for it.
    pub fn read(&self) -> RwLockReadGuard<'_, Memory> {
        read(&self.memory)
    }

    /// Nobody can go on from before `revision` any more, nor from before the last `kept` changes if those reach further back; and the
    /// old versions go. Returns how many changes that were.
    pub fn forget(&self, revision: u64, kept: usize) -> usize {
        let mut memory = self.memory.write().unwrap_or_else(PoisonError::into_inner);
        let forgotten = memory.forget(revision, kept);
        drop(memory); // those go after it, because there may be thousands
        forgotten.count
    }

    /// Somebody who goes on from change to change, from the beginning.
    #[must_use]
    pub fn reader(&self) -> Reader {
        let reader = Reader::default();
        let mut memory = self.memory.write().unwrap_or_else(PoisonError::into_inner);
        memory.history.deaths.listen(&reader);
        reader
    }

    /// Changes whenever something was committed; the value is the newest resourceVersion.
    #[must_use]
    pub fn revision(&self) -> watch::Receiver<u64> {
        self.revision.clone()
    }

    /// Why no writes are taken at the moment, if so.
    pub fn health(&self) -> Result<(), StoreError> {
        self.failure.now().map_or(Ok(()), Err)
    }

    /// What the writer's thread has of freed pieces.
    pub(super) async fn cached(&self) -> heap::Cached {
        let jobs = self.jobs.read().unwrap_or_else(PoisonError::into_inner).clone();
        let Some(jobs) = jobs else { return heap::Cached::default() };
        let (answer, answered) = oneshot::channel();
        let job: Job = Box::new(|_| {
            let _ = answer.send(heap::cached()); // whoever asked may have gone
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
        decide: impl FnOnce(&View) -> Result<Change, E> + Send + 'static,
    ) -> Result<Written, E>
    where
        E: From<StoreError> + Send + 'static,
    {
        let jobs = self.jobs.read().unwrap_or_else(PoisonError::into_inner).clone();
        let Some(jobs) = jobs else { return Err(StoreError::Shut.into()) };
        let (answer, answered) = oneshot::channel();
        let job = writer::job(decide, answer);
        jobs.send(job).await.map_err(|_| StoreError::Shut)?;
        drop(jobs); // the writer ends with the last of them
        match answered.await {
            Ok(outcome) => outcome,
            Err(_) => Err(StoreError::Abandoned.into()),
        }
    }
}

impl Store {
    /// Ends the writer after the writes that it has, so that the folder is free when this returns; every watch ends
    /// too. Reads go on from memory, writes are refused. Blocks.
    pub fn shut(&self) {
        *self.jobs.write().unwrap_or_else(PoisonError::into_inner) = None;
        let writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(writer) = writer
            && writer.join().is_err()
        {
            tracing::error!("the store's writer ended by a panic");
        }
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.shut();
    }
}

/// A reader that panicked has changed nothing, so its poison says nothing.
fn read(memory: &RwLock<Memory>) -> RwLockReadGuard<'_, Memory> {
    memory.read().unwrap_or_else(PoisonError::into_inner)
}
