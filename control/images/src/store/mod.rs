//! The images of this host: one folder for each layer, shared by all images that have it.

mod garbage;
mod import;
mod layers;
mod layout;
mod pins;
mod pull;
mod records;
mod sync_group;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_util::future::WeakShared;
use tokio::sync::Semaphore;

use crate::Image;
use crate::credentials::Credentials;
use crate::digest::Digest;
use crate::error::Error;
use crate::limits::LayerLimits;
use crate::platform::Platform;
use crate::progress::{NoProgress, Progress, ProgressEvent};
use crate::reference::Reference;
use crate::registry::{RegistryClient, RegistrySettings};
use crate::unpack::Unpacker;

pub use garbage::{PrunePolicy, PruneReport};
use layers::SharedPull;
use layout::Layout;
pub use pins::Pin;
use pins::{LayerRecord, PinTable};
pub use records::{ImageOrigin, ImageRecord};
use sync_group::SyncGroup;

/// When the registry is contacted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum PullPolicy {
    /// If the image is not on this host.
    #[default]
    IfNotPresent,
    /// Each time, for the manifest; layers that are here are not pulled again.
    Always,
    Never,
}

#[derive(Debug, Clone)]
pub struct StoreOptions {
    pub registries: RegistrySettings,
    pub unpacker: Unpacker,
    pub layer_limits: LayerLimits,
    pub platform: Platform,
    /// If all layers have more bytes after a pull, the least recently used images are removed. None: no bound.
    pub quota_bytes: Option<u64>,
    /// How long after the store was opened the quota does not apply: Revisions must pin their images first.
    pub quota_grace: Duration,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self {
            registries: RegistrySettings::default(),
            unpacker: Unpacker::this_program(),
            layer_limits: LayerLimits::default(),
            platform: Platform::host(),
            quota_bytes: None,
            quota_grace: Duration::ZERO,
        }
    }
}

/// Open it once in a process; clones are the same store. Several processes may have it open.
#[derive(Debug, Clone)]
pub struct ImageStore(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    layout: Layout,
    client: RegistryClient,
    options: StoreOptions,
    pins: Arc<PinTable>,
    /// Pulls in progress, by DiffID.
    pulls: Mutex<HashMap<Digest, WeakShared<<SharedPull as Inside>::Future>>>,
    /// As many layers are unpacked at once as there are processors: the work is theirs.
    unpackers: Semaphore,
    sync: SyncGroup,
    opened: Instant,
}

/// Names the future inside a [`SharedPull`].
trait Inside {
    type Future: Future;
}

impl<F: Future> Inside for futures_util::future::Shared<F> {
    type Future = F;
}

impl ImageStore {
    /// Opens or makes the store in `folder`. Leftovers of processes that ended are removed.
    ///
    /// # Errors
    /// If the folder cannot be used, or a setting cannot be met.
    pub fn open(folder: &Path, options: StoreOptions) -> Result<Self, Error> {
        let setting = |detail| Error::Storage { what: "registry configuration".into(), detail };
        options.registries.check().map_err(setting)?;
        let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Ok(Self(Arc::new(Inner {
            layout: Layout::open(folder)?,
            client: RegistryClient::new(options.registries.clone()),
            options,
            pins: Arc::default(),
            pulls: Mutex::default(),
            unpackers: Semaphore::new(processors),
            sync: SyncGroup::default(),
            opened: Instant::now(),
        })))
    }

    /// The image, pulled if it is not on this host.
    ///
    /// # Errors
    /// Why it is not there; [`Error::reason`] is what conditions say.
    pub async fn ensure(&self, reference: &Reference, credentials: &Credentials) -> Result<Image, Error> {
        self.pull(reference, credentials, PullPolicy::IfNotPresent, Arc::new(NoProgress)).await
    }

    /// The image, with a policy and progress of the caller.
    ///
    /// # Errors
    /// As [`ImageStore::ensure`].
    pub async fn pull(
        &self,
        reference: &Reference,
        credentials: &Credentials,
        policy: PullPolicy,
        progress: Arc<dyn Progress>,
    ) -> Result<Image, Error> {
        if policy != PullPolicy::Always
            && let Some(image) = self.get(reference).await?
        {
            return Ok(image);
        }
        if policy == PullPolicy::Never {
            return Err(Error::Absent(reference.to_string()));
        }
        let image = self.0.pull(reference, credentials, &progress).await?;
        let is_settled = self.0.opened.elapsed() >= self.0.options.quota_grace;
        if let Some(quota) = self.0.options.quota_bytes.filter(|_| is_settled)
            && let Err(why) = self.prune(PrunePolicy::KeepBytes(quota)).await
        {
            // The image is here anyway; the next pull tries again.
            tracing::warn!(%why, "images past the quota cannot be removed");
        }
        Ok(image)
    }

    /// The image if all of it is on this host.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub async fn get(&self, reference: &Reference) -> Result<Option<Image>, Error> {
        let wanted = reference.clone();
        self.blocking(move |inner| {
            let failed = |why| Error::storage(&inner.layout.root, "an image's record", &why);
            let Some(mut record) = records::get(&inner.layout, &wanted).map_err(failed)? else { return Ok(None) };
            let pinned = inner.pins.pin(&inner.layout, &record.layers).map_err(failed)?;
            let Some((pin, layers)) = pinned else { return Ok(None) };
            if let Err(why) = record.touch(&inner.layout) {
                // A full disk must not keep an image from use that is here already.
                tracing::warn!(image = %record.reference, %why, "the time of an image's last use cannot be written");
            }
            Ok(Some(inner.image(&wanted, &record, pin, &layers)))
        })
        .await
    }

    /// Has `reference` name an image of this host, which was pulled by its digest.
    ///
    /// # Errors
    /// If the record cannot be written.
    pub async fn set_tag(&self, reference: &Reference, pulled: &Reference) -> Result<(), Error> {
        let (reference, pulled) = (reference.clone(), pulled.clone());
        self.blocking(move |inner| {
            let failed = |why| Error::storage(&inner.layout.root, "an image's record", &why);
            let Some(record) = records::get(&inner.layout, &pulled).map_err(failed)? else { return Ok(()) };
            let known = records::get(&inner.layout, &reference).map_err(failed)?;
            if known.is_some_and(|known| known.digest == record.digest) {
                return Ok(());
            }
            let tagged = ImageRecord { reference: reference.to_string(), ..record };
            records::write(&inner.layout, &tagged).map_err(failed)
        })
        .await
    }

    /// The digest that `reference` names now: by its registry, or by this host if it was imported here.
    ///
    /// # Errors
    /// If no registry knows it.
    pub async fn resolve(&self, reference: &Reference, credentials: &Credentials) -> Result<Digest, Error> {
        if let Some(digest) = reference.digest() {
            return Ok(digest.clone());
        }
        let wanted = reference.clone();
        let record = self.blocking(move |inner| {
            let found = records::get(&inner.layout, &wanted);
            found.map_err(|why| Error::storage(&inner.layout.root, "an image's record", &why))
        });
        if let Some(record) = record.await?.filter(|record| record.origin == ImageOrigin::Import) {
            return Ok(record.digest);
        }
        let repository = self.0.client.open(reference, credentials).await?;
        self.0.client.resolve(&repository, &NoProgress).await
    }

    /// All images, by reference.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub async fn list(&self) -> Result<Vec<ImageRecord>, Error> {
        self.blocking(|inner| {
            records::list(&inner.layout).map_err(|why| Error::storage(&inner.layout.root, "the images", &why))
        })
        .await
    }

    /// Bytes of all layers.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub async fn bytes(&self) -> Result<u64, Error> {
        self.blocking(|inner| {
            let sizes = garbage::layer_sizes(&inner.layout);
            let sizes = sizes.map_err(|why| Error::storage(&inner.layout.root, "the layers", &why))?;
            Ok(sizes.values().sum())
        })
        .await
    }

    /// Removes an image, and all layers that are unused and belong to no image. False if the image is missing.
    ///
    /// # Errors
    /// If the store cannot be written.
    pub async fn remove(&self, reference: &Reference) -> Result<bool, Error> {
        let name = reference.to_string();
        self.blocking(move |inner| {
            let failed = |why| Error::storage(&inner.layout.root, "an image's record", &why);
            let existed = records::remove(&inner.layout, &name).map_err(failed)?;
            garbage::prune(&inner.layout, PrunePolicy::UnusedLayers)?;
            Ok(existed)
        })
        .await
    }

    /// Removes what `policy` selects, except layers in use.
    ///
    /// # Errors
    /// If the store cannot be written.
    pub async fn prune(&self, policy: PrunePolicy) -> Result<PruneReport, Error> {
        self.blocking(move |inner| garbage::prune(&inner.layout, policy)).await
    }

    /// Adds the images of a `docker save` archive, an OCI archive or an OCI layout folder. `name` replaces the references in
    /// it, and must be given if it has none.
    ///
    /// # Errors
    /// If the archive has another format, or one of its images is unusable.
    pub async fn import(
        &self,
        path: &Path,
        name: Option<Reference>,
        progress: Arc<dyn Progress>,
    ) -> Result<Vec<Image>, Error> {
        self.0.import(path.to_owned(), name, progress).await
    }

    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Inner) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let inner = Arc::clone(&self.0);
        let done = tokio::task::spawn_blocking(move || work(&inner)).await;
        done.map_err(|why| Error::Storage { what: "the image store".into(), detail: why.to_string() })?
    }
}

impl Inner {
    fn image(&self, reference: &Reference, record: &ImageRecord, pin: Pin, layers: &[LayerRecord]) -> Image {
        // What an opaque root hides as a whole need not be mounted; overlayfs would not hide it.
        let first = layers.iter().rposition(|layer| layer.summary.hides_lower).unwrap_or(0);
        let folders: Vec<PathBuf> = record.layers[first..].iter().map(|layer| self.layout.layer_files(layer)).collect();
        Image {
            reference: reference.clone(),
            digest: record.digest.clone(),
            config: record.config.clone(),
            layers: folders,
            bytes: record.bytes,
            pin,
        }
    }
}

/// Passes on all but the bytes: a configuration is no layer.
#[derive(Debug)]
struct SilentDownload<'p>(&'p dyn Progress);

impl Progress for SilentDownload<'_> {
    fn event(&self, event: &ProgressEvent) {
        if !matches!(event, ProgressEvent::Downloaded { .. }) {
            self.0.event(event);
        }
    }
}
