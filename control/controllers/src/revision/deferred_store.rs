//! The image store of the appliance, which may not be there yet.

use std::path::PathBuf;
use std::sync::OnceLock;

use images::{ImageStore, StoreOptions};

/// The image store of a folder, opened as soon as it can be: a full disk at the start must not keep the appliance from
/// starting. Until then each pull fails with the reason.
#[derive(Debug)]
pub struct DeferredStore {
    folder: PathBuf,
    options: StoreOptions,
    opened: OnceLock<ImageStore>,
}

impl DeferredStore {
    /// Tries to open the store, and logs a warning if that fails.
    #[must_use]
    pub fn new(folder: PathBuf, options: StoreOptions) -> Self {
        let store = Self { folder, options, opened: OnceLock::new() };
        if let Err(why) = store.get() {
            tracing::warn!(%why, "the image store cannot be opened; each pull tries again");
        }
        store
    }

    pub(super) fn get(&self) -> Result<ImageStore, images::Error> {
        if let Some(store) = self.opened.get() {
            return Ok(store.clone());
        }
        let store = ImageStore::open(&self.folder, self.options.clone())?;
        Ok(self.opened.get_or_init(|| store).clone())
    }
}
