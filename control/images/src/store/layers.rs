//! Adds a layer to the store: downloads it once for all images that have it, unpacks it, flushes it and renames it into place.

use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, PoisonError};

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, Shared};

use super::Inner;
use super::layout::{StagedFolder, sync_parent};
use super::pins::{LayerRecord, Pin};
use crate::digest::Digest;
use crate::error::Error;
use crate::manifest::Descriptor;
use crate::progress::{Progress, ProgressEvent};
use crate::registry::Repository;
use crate::unpack::UnpackError;

/// A pull of one layer that any number of images wait for.
pub(super) type SharedPull = Shared<BoxFuture<'static, Result<Pin, Error>>>;

/// One layer of one image.
#[derive(Debug, Clone)]
pub(super) struct LayerRequest {
    pub(super) image: String,
    pub(super) descriptor: Descriptor,
    pub(super) diff_id: Digest,
}

/// Stops the unpacking thread when the pull is dropped.
struct CancelOnDrop(Arc<AtomicBool>);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

impl Inner {
    /// Pins the layer, after pulling it if it is missing. Of all calls for one layer only one pulls.
    pub(super) async fn layer(
        self: &Arc<Self>,
        repository: &Arc<Repository>,
        request: LayerRequest,
        progress: &Arc<dyn Progress>,
    ) -> Result<Pin, Error> {
        loop {
            let (pull, is_mine) = self.join_pull(repository, &request, progress);
            match pull.await {
                // Another image's pull may have failed for its own reasons, such as its login.
                Err(_) if !is_mine => {}
                Err(error) => return Err(error),
                Ok(pin) => {
                    progress.event(&ProgressEvent::LayerReady { layer: request.descriptor.digest.clone() });
                    return Ok(pin);
                }
            }
        }
    }

    fn join_pull(
        self: &Arc<Self>,
        repository: &Arc<Repository>,
        request: &LayerRequest,
        progress: &Arc<dyn Progress>,
    ) -> (SharedPull, bool) {
        let mut pulls = self.pulls.lock().unwrap_or_else(PoisonError::into_inner);
        let running = pulls.get(&request.diff_id).and_then(|pull| pull.upgrade()).filter(|pull| pull.peek().is_none());
        if let Some(pull) = running {
            return (pull, false);
        }
        pulls.retain(|_, pull| pull.upgrade().is_some());
        let (inner, repository, progress) = (Arc::clone(self), Arc::clone(repository), Arc::clone(progress));
        let (request, diff_id) = (request.clone(), request.diff_id.clone());
        let pull = async move { inner.pull_layer(&repository, &request, &progress).await }.boxed().shared();
        if let Some(weak) = pull.downgrade() {
            pulls.insert(diff_id, weak);
        }
        (pull, true)
    }

    async fn pull_layer(
        self: &Arc<Self>,
        repository: &Repository,
        request: &LayerRequest,
        progress: &Arc<dyn Progress>,
    ) -> Result<Pin, Error> {
        if let Some(pin) = self.pin_one(&request.diff_id)? {
            return Ok(pin);
        }
        let staged = self.layout.stage()?;
        let path = staged.path.join("blob");
        let file = self.client.blob(repository, &request.descriptor, &path, &**progress).await?;
        progress.event(&ProgressEvent::Unpacking { layer: request.descriptor.digest.clone() });
        self.add_layer(staged, file, request).await
    }

    pub(super) fn pin_one(&self, diff_id: &Digest) -> Result<Option<Pin>, Error> {
        let pinned = self.pins.pin(&self.layout, std::slice::from_ref(diff_id));
        let pinned = pinned.map_err(|why| Error::storage(&self.layout.layer(diff_id), "a layer", &why))?;
        Ok(pinned.map(|(pin, _)| pin))
    }

    /// Unpacks `file` in `staged`, verifies its DiffID, and puts it in its place.
    pub(super) async fn add_layer(
        self: &Arc<Self>,
        staged: StagedFolder,
        file: File,
        request: &LayerRequest,
    ) -> Result<Pin, Error> {
        let permit = self.unpackers.acquire().await.map_err(|_| Error::Cancelled(request.image.clone()))?;
        let cancelled = Arc::new(AtomicBool::new(false));
        let guard = CancelOnDrop(Arc::clone(&cancelled));
        let (inner, for_thread) = (Arc::clone(self), request.clone());
        // The thread owns the folder, so that it is not removed while a child writes to it.
        let unpack = move || inner.unpack(staged, file, &for_thread, &cancelled);
        let staged = tokio::task::spawn_blocking(unpack).await;
        let staged = staged.map_err(|_| Error::Cancelled(request.image.clone()))??;
        drop((guard, permit));
        self.sync.sync(&self.layout.root).await?;
        let (inner, diff_id) = (Arc::clone(self), request.diff_id.clone());
        let commit = move || inner.commit(&staged, &diff_id);
        tokio::task::spawn_blocking(commit).await.map_err(|_| Error::Cancelled(request.image.clone()))?
    }

    fn unpack(
        &self,
        staged: StagedFolder,
        file: File,
        request: &LayerRequest,
        cancelled: &AtomicBool,
    ) -> Result<StagedFolder, Error> {
        let target = staged.path.join("layer");
        let failed = |path: &Path, why: io::Error| Error::storage(path, "an unpacked layer", &why);
        fs::create_dir_all(target.join("fs")).map_err(|why| failed(&target, why))?;
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(target.join("fs"), mode).map_err(|why| failed(&target, why))?;
        let (limits, media_type) = (&self.options.layer_limits, &request.descriptor.media_type);
        let summary = self.options.unpacker.unpack(file, media_type, &target.join("fs"), limits, cancelled);
        let summary = summary.map_err(|why| self.unpack_error(request, why))?;
        if summary.diff_id != request.diff_id {
            let detail = format!("its content is {}, its image says {}", summary.diff_id, request.diff_id);
            return Err(self.unpack_error(request, UnpackError::Corrupt { detail }));
        }
        let _ = fs::remove_file(staged.path.join("blob")); // goes with the folder otherwise
        let record = serde_json::to_vec(&LayerRecord { summary }).map_err(|why| failed(&target, why.into()))?;
        fs::write(target.join("layer.json"), record).map_err(|why| failed(&target, why))?;
        Ok(staged)
    }

    fn unpack_error(&self, request: &LayerRequest, error: UnpackError) -> Error {
        let (image, digest) = (request.image.clone(), request.descriptor.digest.clone());
        let path = self.layout.root.display().to_string();
        match error {
            UnpackError::Corrupt { detail } => Error::Corrupt { image, part: "layer", digest, detail },
            UnpackError::TooLarge { what, limit } => {
                Error::TooLarge { image, what: format!("layer {digest}: {what}"), limit }
            }
            UnpackError::DiskFull { what } => Error::DiskFull { path, what: format!("{image}, {what}") },
            UnpackError::Storage { what, detail } => {
                Error::Storage { what: format!("{path}: {image}, {what}"), detail }
            }
        }
    }

    /// Renames a flushed layer into place. It is pinned before, so that garbage collection never finds it unused.
    fn commit(&self, staged: &StagedFolder, diff_id: &Digest) -> Result<Pin, Error> {
        let place = self.layout.layer(diff_id);
        let failed = |why: io::Error| Error::storage(&place, "a layer", &why);
        let record = File::open(staged.path.join("layer/layer.json")).map_err(failed)?;
        rustix::fs::flock(&record, rustix::fs::FlockOperation::LockShared).map_err(|why| failed(why.into()))?;
        match fs::rename(staged.path.join("layer"), &place) {
            // Another process was faster; its layer has the same content.
            Err(why) if matches!(why.kind(), io::ErrorKind::AlreadyExists | io::ErrorKind::DirectoryNotEmpty) => {}
            renamed => renamed.map_err(failed)?,
        }
        sync_parent(&place).map_err(failed)?;
        self.pin_one(diff_id)?.ok_or_else(|| failed(io::Error::other("it was removed by another process; pull again")))
    }
}
