//! Writes by the server itself that keep objects consistent, and are skipped if they already are.

use super::{ObjectStore, StagedView, StoreError, WriteOperation};

/// Why nothing was written.
pub enum SkipReason {
    /// All is as it should be.
    UpToDate,
    Store(StoreError),
}

impl From<StoreError> for SkipReason {
    fn from(why: StoreError) -> Self {
        Self::Store(why)
    }
}

/// An error about one object must not stop the maintenance of all others.
///
/// # Errors
/// The store takes no writes.
pub async fn write(
    store: &ObjectStore,
    decide: impl FnOnce(&StagedView) -> Result<WriteOperation, SkipReason> + Send + 'static,
) -> Result<(), StoreError> {
    match store.write(decide).await {
        Ok(_) | Err(SkipReason::UpToDate) => Ok(()),
        Err(SkipReason::Store(why @ (StoreError::TooLarge { .. } | StoreError::TooDeep | StoreError::Canceled))) => {
            tracing::warn!(%why, "an object could not be maintained");
            Ok(())
        }
        Err(SkipReason::Store(why)) => Err(why),
    }
}
