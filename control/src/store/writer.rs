//! The one thread that changes anything: decide, commit, show, answer; many requests at a time.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use bytes::Bytes;
use serde_json::Value;
use tokio::sync::{mpsc, oneshot, watch};

use super::disk::Disk;
use super::history::Event;
use super::{Change, Key, Memory, OBJECT_BYTES_MAX, StoreError, Stored, Written, read};

/// Requests that share one commit. More would not make a commit cheaper, only its callers slower.
const BATCH_WRITES_MAX: usize = 256;

/// Decides against the view, and returns how to answer once the outcome of the commit is known.
pub(super) type Job = Box<dyn FnOnce(&mut View) -> Answer + Send>;
type Answer = Box<dyn FnOnce(Result<(), StoreError>) + Send>;

/// The newest state, changes that are about to be committed included.
#[derive(Debug)]
pub struct View {
    memory: Arc<RwLock<Memory>>,
    /// Changes of this batch by key; `None` = deleted.
    staged: HashMap<Key, Option<Arc<Stored>>>,
    events: Vec<Arc<Event>>,
    /// The last resourceVersion given out.
    revision: u64,
}

impl View {
    pub(super) fn new(memory: Arc<RwLock<Memory>>, revision: u64) -> Self {
        Self { memory, staged: HashMap::new(), events: Vec::new(), revision }
    }

    #[must_use]
    pub fn get(&self, key: &Key) -> Option<Arc<Stored>> {
        match self.staged.get(key) {
            Some(staged) => staged.clone(),
            None => read(&self.memory).get(key).cloned(),
        }
    }

    /// The object that carries this uid.
    #[must_use]
    pub fn by_uid(&self, uid: &str) -> Option<Arc<Stored>> {
        let staged = self.staged.values().flatten().find(|object| object.value["metadata"]["uid"] == uid);
        if staged.is_some() {
            return staged.cloned();
        }
        read(&self.memory).by_uid(uid).filter(|object| !self.staged.contains_key(&object.key)).cloned()
    }

    /// Whether any object lives in `namespace`. Looks at every object: for terminating namespaces.
    #[must_use]
    pub fn namespace_is_empty(&self, namespace: &str) -> bool {
        let staged_in =
            |(key, object): (&Key, &Option<Arc<Stored>>)| &*key.namespace == namespace && object.is_some();
        !self.staged.iter().any(staged_in)
            && read(&self.memory).in_namespace(namespace).all(|o| self.staged.contains_key(&o.key))
    }

    /// The objects whose ownerReferences name `owner`.
    #[must_use]
    pub fn dependents(&self, owner: &str) -> Vec<Arc<Stored>> {
        let mut found: Vec<_> = read(&self.memory)
            .dependents(owner)
            .filter(|object| !self.staged.contains_key(&object.key))
            .cloned()
            .collect();
        let owned = |object: &&Arc<Stored>| super::memory::owners(&object.value).any(|uid| uid == owner);
        found.extend(self.staged.values().flatten().filter(owned).cloned());
        found
    }

    fn stage(&mut self, change: Change) -> Result<Written, StoreError> {
        let (key, mut value, deleted) = match change {
            Change::Keep(object) => return Ok(Written::Kept(object)),
            Change::Put(key, value) => (key, value, false),
            Change::Delete(key, value) => (key, value, true),
        };
        let revision = self.revision + 1;
        value["metadata"]["resourceVersion"] = Value::String(revision.to_string());
        let json = Bytes::from(value.to_string());
        if json.len() > OBJECT_BYTES_MAX {
            return Err(StoreError::TooLarge { bytes: json.len() });
        }

        self.revision = revision;
        let before = self.get(&key);
        let object = Arc::new(Stored { key, resource_version: revision, value, json });
        let after = (!deleted).then(|| Arc::clone(&object));
        self.staged.insert(object.key.clone(), after);
        self.events.push(Arc::new(Event { revision, before, object: Arc::clone(&object), deleted }));
        Ok(if deleted { Written::Deleted(object) } else { Written::Put(object) })
    }

    /// Forgets what was staged; numbers given out are not given out again.
    fn discard(&mut self) {
        self.staged.clear();
        self.events.clear();
    }

    fn show(&mut self, announce: &watch::Sender<u64>) {
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
pub(super) fn job<E>(
    decide: impl FnOnce(&View) -> Result<Change, E> + Send + 'static,
    answer: oneshot::Sender<Result<Written, E>>,
) -> Job
where
    E: From<StoreError> + Send + 'static,
{
    Box::new(move |view| {
        let outcome = decide(view).and_then(|change| view.stage(change).map_err(E::from));
        Box::new(move |committed| {
            let outcome = match committed {
                Ok(()) => outcome,
                Err(why) => Err(why.into()),
            };
            // Whoever asked may have hung up; the write stands.
            let _ = answer.send(outcome);
        })
    })
}

/// The thread's life: until the last [`super::Store`] is gone, or a commit fails.
pub(super) fn run(
    disk: &Disk,
    mut view: View,
    mut jobs: mpsc::Receiver<Job>,
    announce: &watch::Sender<u64>,
    failure: &OnceLock<StoreError>,
) {
    while let Some(first) = jobs.blocking_recv() {
        let mut answers = Vec::new();
        let mut next = Some(first);
        while let Some(job) = next {
            // A decision that panics costs its own caller an error (its channel closes) and nobody
            // else anything: it changes nothing before its last step, `stage`. After a failed commit
            // all callers are answered that way.
            if failure.get().is_none()
                && let Ok(answer) = catch_unwind(AssertUnwindSafe(|| job(&mut view)))
            {
                answers.push(answer);
            }
            next = if answers.len() < BATCH_WRITES_MAX { jobs.try_recv().ok() } else { None };
        }

        let outcome = if view.events.is_empty() { Ok(()) } else { disk.commit(view.revision, &view.events) };
        match outcome {
            Ok(()) if view.events.is_empty() => {}
            Ok(()) => view.show(announce),
            Err(ref why) => {
                tracing::error!(error = %why, "the object store failed; writes are refused until a restart");
                view.discard();
                failure.get_or_init(|| why.clone());
            }
        }
        for answer in answers {
            answer(outcome.clone());
        }
    }
}
