//! Validates and prepares writes before they reach the store's thread.
//!
//! Defaults, validation, merging and the owners of fields take time in proportion to a body; the store's thread has none
//! to spare, because every other write waits for it. So a write is prepared against the version that is stored now, and
//! the store's thread only checks that it is still the newest. If it is not, the write is prepared again.

use std::sync::Arc;

use crate::store::lifecycle::DEFINITIONS;
use crate::store::{
    DecodedObject, ObjectKey, ObjectStore, PreparedObject, StagedView, StoreError, WriteOperation, WriteOutcome,
};

use super::errors::StatusError;

/// Attempts to prepare a write again because another one came first; Kubernetes' figure.
const TRIES_MAX: usize = 5;
/// A write of a short object, in bytes, is prepared on the store's thread after so many conflicts: it
/// takes less than a millisecond, and succeeds however many clients write the same object.
const SHORT_BYTES_MAX: usize = 16 * 1024;

/// Why a write was not carried out.
#[derive(Debug)]
enum DecideError {
    /// The version that it was prepared against is no longer the newest.
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

/// The two steps of a write: the expensive one that depends only on the object, and the quick one that depends on others.
pub(super) struct Write<Judge, Settle> {
    pub(super) key: ObjectKey,
    /// Size of the client's body.
    pub(super) bytes: usize,
    pub(super) dry_run: bool,
    /// Computes the result of the write from the stored object, if there is one.
    pub(super) judge: Judge,
    /// Makes the final decision, on the store's thread, and gets whether the object is new.
    pub(super) settle: Settle,
}

/// The change, serialized as far as that can be done before it has its version. A definition gets its names later, and a
/// dry run is not stored.
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

    /// Prepares a short one on the store's thread.
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
