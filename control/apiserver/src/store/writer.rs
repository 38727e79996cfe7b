//! The writer thread, which makes all changes: decide, commit, publish, respond; many requests per batch.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::sync::{mpsc, oneshot, watch};

use super::change_event::ChangeEvent;
use super::database::ObjectDatabase;
use super::stored_object::SharedStrings;

use super::{MemoryIndex, ObjectKey, PreparedObject, StoreError, StoredObject, WriteOperation, WriteOutcome, read};

/// Requests that share one commit. More would not make a commit cheaper, only its callers slower.
const BATCH_WRITES_MAX: usize = 256;

/// After a failed commit for lack of space, the file is reopened and tried again after this.
const REOPEN_DELAY_MIN: Duration = Duration::from_millis(250);
/// ... and each time after twice as long, up to this.
const REOPEN_DELAY_MAX: Duration = Duration::from_secs(4);
/// How often rejected requests are answered while the disk is full.
const REJECT_INTERVAL: Duration = Duration::from_millis(20);

/// Decides against the view, and returns the response to send once the outcome of the commit is known; given an error
/// instead of the view, responds with that.
pub(super) type WriteJob = Box<dyn FnOnce(Result<&mut StagedView, StoreError>) -> Option<WriteReply> + Send>;
type WriteReply = Box<dyn FnOnce(Result<(), StoreError>) + Send>;

/// The newest state, changes that are about to be committed included.
#[derive(Debug)]
pub struct StagedView {
    memory: Arc<RwLock<MemoryIndex>>,
    /// Changes of this batch by key; `None` = deleted.
    staged: HashMap<ObjectKey, Option<Arc<StoredObject>>>,
    events: Vec<ChangeEvent>,
    /// The last resourceVersion assigned.
    revision: u64,
    shared: SharedStrings,
}

impl StagedView {
    pub(super) fn new(memory: Arc<RwLock<MemoryIndex>>, revision: u64, common: SharedStrings) -> Self {
        Self { memory, staged: HashMap::new(), events: Vec::new(), revision, shared: common }
    }

    #[must_use]
    pub fn get(&self, key: &ObjectKey) -> Option<Arc<StoredObject>> {
        match self.staged.get(key) {
            Some(staged) => staged.clone(),
            None => read(&self.memory).get(key),
        }
    }

    /// The object that carries this uid.
    #[must_use]
    pub fn by_uid(&self, uid: &str) -> Option<Arc<StoredObject>> {
        let staged = self.staged.values().flatten().find(|object| object.head.uid() == uid);
        if staged.is_some() {
            return staged.cloned();
        }
        read(&self.memory).by_uid(uid).filter(|object| !self.staged.contains_key(&object.key))
    }

    /// Whether `namespace` contains any object.
    #[must_use]
    pub fn namespace_is_empty(&self, namespace: &str) -> bool {
        let staged_in =
            |(key, object): (&ObjectKey, &Option<Arc<StoredObject>>)| &*key.namespace == namespace && object.is_some();
        !self.staged.iter().any(staged_in)
            && read(&self.memory).in_namespace(namespace).all(|o| self.staged.contains_key(&o.key))
    }

    /// Whether there is no object under `resource`.
    #[must_use]
    pub fn kind_is_empty(&self, resource: &Arc<str>) -> bool {
        let staged_of =
            |(key, object): (&ObjectKey, &Option<Arc<StoredObject>>)| key.resource == *resource && object.is_some();
        !self.staged.iter().any(staged_of)
            && read(&self.memory).list(resource, None).into_iter().all(|o| self.staged.contains_key(&o.key))
    }

    /// The objects with an ownerReference to `owner`.
    #[must_use]
    pub fn dependents(&self, owner: &str) -> Vec<Arc<StoredObject>> {
        let mut found: Vec<_> =
            read(&self.memory).dependents(owner).filter(|object| !self.staged.contains_key(&object.key)).collect();
        let owned = |object: &&Arc<StoredObject>| object.head.owners().any(|uid| uid == owner);
        found.extend(self.staged.values().flatten().filter(owned).cloned());
        found
    }

    /// All objects under `resource`.
    #[must_use]
    pub fn list(&self, resource: &Arc<str>) -> Vec<Arc<StoredObject>> {
        let stored = read(&self.memory).list(resource, None).into_iter();
        let stored = stored.filter(|object| !self.staged.contains_key(&object.key));
        let staged = self.staged.values().flatten().filter(|object| object.key.resource == *resource);
        stored.chain(staged.cloned()).collect()
    }

    /// Whether objects of this kind are namespaced, if one of the definitions stored under `resource` defines it.
    pub(super) fn is_namespaced(&self, resource: &str, group: &str, kind: &Value) -> Option<bool> {
        let of_group = |key: &ObjectKey| key.name.split_once('.').is_some_and(|(_, rest)| rest == group);
        let scope = |object: &StoredObject| {
            let spec = of_group(&object.key).then(|| object.value()["spec"].take())?;
            (spec["names"]["kind"] == *kind).then(|| spec["scope"] == "Namespaced")
        };
        let staged = self.staged.values().flatten().filter(|object| &*object.key.resource == resource);
        staged
            .into_iter()
            .find_map(|object| scope(object))
            .or_else(|| read(&self.memory).list(&resource.into(), None).into_iter().find_map(|object| scope(&object)))
    }

    fn stage(&mut self, change: WriteOperation) -> Result<WriteOutcome, StoreError> {
        let (key, prepared, deleted) = match change {
            WriteOperation::NoOp(object) => return Ok(WriteOutcome::Unchanged(object)),
            WriteOperation::Put(key, value) => (key, PreparedObject::of(value)?, false),
            WriteOperation::PutPrepared(key, prepared) => (key, *prepared, false),
            WriteOperation::Delete(key, value) => (key, PreparedObject::of(value)?, true),
        };
        let revision = self.revision + 1;
        let (head, json) = prepared.with_version(revision);
        // The history keeps it.
        let before = self.get(&key).map(|before| before.compress(&self.shared));
        // Versions of an object share its name.
        let key = match &before {
            Some(before) => before.key.clone(),
            None => read(&self.memory).share_key(key),
        };
        let object = StoredObject::compressed(key, revision, head, &json, &self.shared, before.as_deref());
        let object = Arc::new(object);

        self.revision = revision;
        let after = (!deleted).then(|| Arc::clone(&object));
        self.staged.insert(object.key.clone(), after);
        self.events.push(ChangeEvent { before, object: Arc::clone(&object), deleted });
        Ok(if deleted { WriteOutcome::Deleted(object) } else { WriteOutcome::Put(object) })
    }

    /// Forgets what was staged; numbers assigned are not reused.
    fn discard(&mut self) {
        self.staged.clear();
        self.events.clear();
    }

    fn publish(&mut self, announce: &watch::Sender<u64>) {
        let mut memory = self.memory.write().unwrap_or_else(PoisonError::into_inner);
        for event in self.events.drain(..) {
            memory.apply(event);
        }
        drop(memory);
        self.staged.clear();
        announce.send_replace(self.revision);
    }
}

/// Wraps a decision and the channel of its answer.
pub(super) fn write_job<E>(
    decide: impl FnOnce(&StagedView) -> Result<WriteOperation, E> + Send + 'static,
    answer: oneshot::Sender<Result<WriteOutcome, E>>,
) -> WriteJob
where
    E: From<StoreError> + Send + 'static,
{
    Box::new(move |view| {
        let view = match view {
            Ok(view) => view,
            Err(why) => {
                let _ = answer.send(Err(why.into())); // the caller may have gone
                return None;
            }
        };
        let outcome = decide(view).and_then(|change| view.stage(change).map_err(E::from));
        Some(Box::new(move |committed: Result<(), StoreError>| {
            let outcome = match committed {
                Ok(()) => outcome,
                Err(why) => Err(why.into()),
            };
            // The caller may have gone; the write stands.
            let _ = answer.send(outcome);
        }))
    })
}

/// Why no writes are accepted, for all threads to read.
#[derive(Debug, Default)]
pub(super) struct WriterFailure(RwLock<Option<StoreError>>);

impl WriterFailure {
    pub(super) fn current(&self) -> Option<StoreError> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, why: Option<StoreError>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = why;
    }
}

/// The state of the writer thread.
struct StoreWriter<'a> {
    disk: ObjectDatabase,
    view: StagedView,
    jobs: mpsc::Receiver<WriteJob>,
    committed_revision: &'a watch::Sender<u64>,
    failure: &'a WriterFailure,
    /// The content of the file, as far as known.
    committed: u64,
}

/// The thread's loop: until the last [`super::Store`] is dropped.
pub(super) fn run(
    disk: ObjectDatabase,
    view: StagedView,
    jobs: mpsc::Receiver<WriteJob>,
    announce: &watch::Sender<u64>,
    failure: &WriterFailure,
) {
    let committed = view.revision;
    let mut writer = StoreWriter { disk, view, jobs, committed_revision: announce, failure, committed };
    while let Some(first) = writer.jobs.blocking_recv() {
        match failure.current() {
            None => writer.batch(first),
            Some(why) => drop(first(Err(why))),
        }
        if let Some(StoreError::Full { .. }) = failure.current() {
            writer.wait_for_disk_space();
        }
    }
}

impl StoreWriter<'_> {
    fn batch(&mut self, first: WriteJob) {
        let mut answers = Vec::new();
        let mut next = Some(first);
        // Refused ones count too, so that they cannot delay the others' commit indefinitely.
        for taken in 1.. {
            let Some(job) = next else { break };
            // A decision that panics returns an error to its own caller only (its channel closes): it changes nothing
            // before its last step, `stage`.
            if let Ok(Some(answer)) = catch_unwind(AssertUnwindSafe(|| job(Ok(&mut self.view)))) {
                answers.push(answer);
            }
            next = if taken < BATCH_WRITES_MAX { self.jobs.try_recv().ok() } else { None };
        }

        let outcome = if self.view.events.is_empty() { Ok(()) } else { self.commit() };
        match &outcome {
            Ok(()) if self.view.events.is_empty() => {}
            Ok(()) => self.view.publish(self.committed_revision),
            Err(why) => {
                tracing::error!(error = %why, "the object store takes no writes");
                self.failure.set(Some(why.clone()));
            }
        }
        for answer in answers {
            answer(outcome.clone());
        }
    }

    fn commit(&mut self) -> Result<(), StoreError> {
        self.disk.commit(self.view.revision, &self.view.events)?;
        self.committed = self.view.revision;
        Ok(())
    }

    /// Rejects writes and retries the file from time to time, until a commit succeeds or no caller is left.
    fn wait_for_disk_space(&mut self) {
        let mut pause = REOPEN_DELAY_MIN;
        while let Some(why @ StoreError::Full { .. }) = self.failure.current() {
            let until = Instant::now() + pause;
            while Instant::now() < until {
                match self.jobs.try_recv() {
                    Ok(job) => drop(job(Err(why.clone()))),
                    Err(mpsc::error::TryRecvError::Disconnected) => return,
                    #[allow(clippy::disallowed_methods, reason = "this thread has nothing else to do")]
                    Err(mpsc::error::TryRecvError::Empty) => std::thread::sleep(REJECT_INTERVAL),
                }
            }
            pause = (pause * 2).min(REOPEN_DELAY_MAX);
            let outcome = self.recover();
            match &outcome {
                Ok(()) => tracing::info!("the object store has room again and takes writes"),
                Err(StoreError::Full { .. }) => {}
                Err(why) => tracing::error!(error = %why, "the object store takes no writes"),
            }
            self.failure.set(outcome.err());
        }
    }

    /// Continues from the file's content: with the changes in progress, if they did get there, and else without. The
    /// revisions assigned to them are used up either way.
    fn recover(&mut self) -> Result<(), StoreError> {
        let found = self.disk.reopen()?;
        if found == self.view.revision {
            self.view.publish(self.committed_revision);
        } else if found == self.committed {
            self.view.discard();
        } else {
            let (committed, asked) = (self.committed, self.view.revision);
            let why = format!("it holds version {found}, neither {committed} nor {asked}");
            return Err(StoreError::WriterFailed(why));
        }
        self.committed = found;
        // Shows whether there is disk space again.
        self.commit()
    }
}
