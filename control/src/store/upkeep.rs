//! Writes that keep objects in order, and may find that they are.

use super::{Change, Store, StoreError, View};

/// Why nothing was written.
pub enum Skip {
    /// All is as it should be.
    Fine,
    Store(StoreError),
}

impl From<StoreError> for Skip {
    fn from(why: StoreError) -> Self {
        Self::Store(why)
    }
}

/// A refusal that is about one object must not stop the upkeep of all others.
///
/// # Errors
/// The store takes no writes.
pub async fn write(
    store: &Store,
    decide: impl FnOnce(&View) -> Result<Change, Skip> + Send + 'static,
) -> Result<(), StoreError> {
    match store.write(decide).await {
        Ok(_) | Err(Skip::Fine) => Ok(()),
        Err(Skip::Store(
            why @ (StoreError::TooLarge { .. } | StoreError::TooDeep | StoreError::Abandoned),
        )) => {
            tracing::warn!(%why, "an object is not kept in order");
            Ok(())
        }
        Err(Skip::Store(why)) => Err(why),
    }
}
