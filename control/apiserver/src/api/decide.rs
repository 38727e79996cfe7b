//! Writes are judged before they reach the store's thread.
//!
//! Defaults, validation, merging and the owners of fields take time in proportion to a body; the store's thread has none
//! to spare, because every other write waits for it. So a write is judged against the version that is stored now, and
//! the store's thread only looks whether that is still the newest. If it is not, the write is judged again.

use std::sync::Arc;

use crate::store::lifecycle::DEFINITIONS;
use crate::store::{
    DecodedObject, ObjectKey, ObjectStore, PreparedObject, StagedView, StoreError, WriteOperation, WriteOutcome,
};

use super::errors::StatusError;

/// Times that a write is judged again because another one came first; Kubernetes' figure.
const TRIES_MAX: usize = 5;
/// A write of an object that is short, in bytes, is judged on the store's thread when it has met others so often: it
/// takes less than a millisecond, and comes through however many write the same object.
const SHORT_BYTES_MAX: usize = 16 * 1024;

/// Why a write was not carried out.
#[derive(Debug)]
enum DecideError {
    /// Another version than the one that it was judged against is the newest.
    Superseded,
    Refused(StatusError),
}

impl From<StoreError> for DecideError {
    fn from(why: StoreError) -> Self {
        Self::Refused(why.into())
    }
}

impl From<StatusError> for DecideError {
    fn from(why: StatusError) -> Self {
        Self::Refused(why)
    }
}

/// The two steps of a write: what is expensive and depends on the object alone, and what depends on others and is quick.
pub(super) struct Write<Judge, Settle> {
    pub(super) key: ObjectKey,
    /// Bytes of what the client sent.
    pub(super) bytes: usize,
    pub(super) dry_run: bool,
    /// Says what the write makes of the object as it is stored; of none if there is none.
    pub(super) judge: Judge,
    /// Has the last word, on the store's thread. Whether the object is new is told.
    pub(super) settle: Settle,
}

/// The change, written out as far as that can be done before it has its version. A definition gets its names later, and a
/// rehearsal is not stored.
pub(super) fn prepared(change: WriteOperation, dry_run: bool) -> Result<WriteOperation, StatusError> {
    match change {
        WriteOperation::Put(key, value) if !dry_run && &*key.resource != DEFINITIONS => {
            Ok(WriteOperation::PutPrepared(key, Box::new(PreparedObject::of(value)?)))
        }
        other => Ok(other),
    }
}

impl<Judge, Settle> Write<Judge, Settle>
where
    Judge: Fn(Option<&DecodedObject>) -> Result<WriteOperation, StatusError> + Send + Sync + 'static,
    Settle: Fn(&StagedView, WriteOperation, bool) -> Result<WriteOperation, StatusError> + Send + Sync + 'static,
{
    pub(super) async fn run(self, store: &ObjectStore) -> Result<WriteOutcome, StatusError> {
        let this = Arc::new(self);
        for _ in 0..TRIES_MAX {
            let seen = store.read().get(&this.key);
            let version = seen.as_ref().map(|seen| seen.resource_version);
            let before = seen.map(|seen| seen.decode());
            let change = prepared((this.judge)(before.as_ref())?, this.dry_run)?;
            // If the client has disconnected, this future is not polled again, so nothing is written for it.
            tokio::task::yield_now().await;
            let last = Arc::clone(&this);
            let written = store.write(move |view| {
                let newest = view.get(&last.key).map(|newest| newest.resource_version);
                if newest != version {
                    return Err(DecideError::Superseded);
                }
                Ok((last.settle)(view, change, newest.is_none())?)
            });
            match written.await {
                Ok(written) => return Ok(written),
                Err(DecideError::Refused(why)) => return Err(why),
                Err(DecideError::Superseded) => {}
            }
        }
        Self::run_there(this, store).await
    }

    /// Judges a short one on the store's thread.
    async fn run_there(this: Arc<Self>, store: &ObjectStore) -> Result<WriteOutcome, StatusError> {
        let written = store.write(move |view| {
            let before = view.get(&this.key);
            let bytes = before.as_ref().map_or(0, |before| before.json_bytes());
            if this.bytes + bytes > SHORT_BYTES_MAX {
                return Err(StatusError::busy("others change the object all the time, please try again later"));
            }
            let before = before.map(|before| before.decode());
            let change = (this.judge)(before.as_ref())?;
            (this.settle)(view, change, before.is_none())
        });
        written.await
    }
}
