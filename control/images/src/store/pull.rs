//! Pulls an image into the store: manifest, configuration, layers, record.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use futures_util::{StreamExt as _, TryStreamExt as _, stream};

use super::Inner;
use super::layers::LayerRequest;
use super::pins::Pin;
use super::records::{self, ImageOrigin, ImageRecord, now_s};
use crate::Image;
use crate::config::{self, ConfigDocument};
use crate::credentials::Credentials;
use crate::digest::Digest;
use crate::error::Error;
use crate::index;
use crate::limits::DOWNLOADS_AT_ONCE;
use crate::manifest::{Descriptor, Document, Manifest};
use crate::platform::Platform;
use crate::progress::{Progress, ProgressEvent};
use crate::reference::Reference;
use crate::registry::Repository;

/// An image whose layers are still to be pulled or imported.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) reference: Reference,
    pub(super) digest: Digest,
    pub(super) manifest_digest: Digest,
    pub(super) config: ConfigDocument,
    pub(super) layers: Vec<Descriptor>,
    pub(super) origin: ImageOrigin,
}

impl Inner {
    pub(super) async fn pull(
        self: &Arc<Self>,
        reference: &Reference,
        credentials: &Credentials,
        progress: &Arc<dyn Progress>,
    ) -> Result<Image, Error> {
        let repository = Arc::new(self.client.open(reference, credentials).await?);
        let plan = self.plan(&repository, progress).await?;
        let (present, requests) = self.missing(&plan)?;
        let bytes: u64 = requests.iter().map(|request| request.descriptor.size).sum();
        self.check_space(bytes, &plan.reference)?;
        let (layers, missing_layers) = (plan.layers.len(), requests.len());
        progress.event(&ProgressEvent::Started { layers, missing_layers, bytes });
        let pulls = requests.into_iter().map(|request| self.layer(&repository, request, progress));
        // Their pins last until the image has its own.
        let pins: Vec<Pin> = stream::iter(pulls).buffer_unordered(DOWNLOADS_AT_ONCE).try_collect().await?;
        let image = self.record(plan).await;
        drop((present, pins));
        image
    }

    async fn plan(&self, repository: &Repository, progress: &Arc<dyn Progress>) -> Result<Plan, Error> {
        let reference = repository.reference().clone();
        let top = self.client.manifest(repository, None, &**progress).await?;
        let (manifest_digest, manifest) = match top.parse(&reference)? {
            Document::Image(manifest) => (top.digest.clone(), manifest),
            Document::Index(entries) => {
                let chosen = index::choose_or_error(&self.options.platform, &reference.to_string(), &entries)?;
                let below = self.client.manifest(repository, Some(&chosen.digest), &**progress).await?;
                let Document::Image(manifest) = below.parse(&reference)? else {
                    let detail = "its index leads to another index".into();
                    return Err(Error::Unsupported { image: reference.to_string(), detail });
                };
                (below.digest, manifest)
            }
        };
        let staged = self.layout.stage()?;
        let path = staged.path.join("config");
        drop(self.client.blob(repository, &manifest.config, &path, &super::SilentDownload(&**progress)).await?);
        let bytes = std::fs::read(&path).map_err(|why| Error::storage(&path, "a configuration", &why))?;
        let digest = top.digest;
        plan(reference, digest, (manifest_digest, manifest), &bytes, &self.options.platform, ImageOrigin::Registry)
    }

    /// Pins the layers that are in the store, and lists those that are not, each once.
    fn missing(&self, plan: &Plan) -> Result<(Vec<Pin>, Vec<LayerRequest>), Error> {
        let mut seen = HashSet::new();
        let (mut present, mut requests) = (Vec::new(), Vec::new());
        for (descriptor, diff_id) in plan.layers.iter().zip(&plan.config.rootfs.diff_ids) {
            if !seen.insert(diff_id) {
                continue;
            }
            match self.pin_one(diff_id)? {
                Some(pin) => present.push(pin),
                None => {
                    let image = plan.reference.to_string();
                    requests.push(LayerRequest { image, descriptor: descriptor.clone(), diff_id: diff_id.clone() });
                }
            }
        }
        Ok((present, requests))
    }

    /// Fails before the download if even the compressed layers do not fit on the disk.
    pub(super) fn check_space(&self, bytes: u64, reference: &Reference) -> Result<(), Error> {
        let path: &Path = &self.layout.root;
        let about = rustix::fs::statvfs(path).map_err(|why| Error::storage(path, "free space", &why.into()))?;
        if about.f_bavail.saturating_mul(about.f_frsize) < bytes {
            let what = format!("{reference} with {bytes} bytes of compressed layers");
            return Err(Error::DiskFull { path: path.display().to_string(), what });
        }
        Ok(())
    }

    /// Pins all layers, writes the record, and returns the image.
    pub(super) async fn record(self: &Arc<Self>, plan: Plan) -> Result<Image, Error> {
        let inner = Arc::clone(self);
        let reference = plan.reference.to_string();
        let done = tokio::task::spawn_blocking(move || {
            let diff_ids = &plan.config.rootfs.diff_ids;
            let failed = |why: std::io::Error| Error::storage(&inner.layout.root, "an image's record", &why);
            let pinned = inner.pins.pin(&inner.layout, diff_ids).map_err(failed)?;
            // Garbage collection of another process came between; the caller tries again.
            let lost = || Error::Storage {
                what: plan.reference.to_string(),
                detail: "a layer was removed; pull again".into(),
            };
            let (pin, layers) = pinned.ok_or_else(lost)?;
            let record = ImageRecord {
                reference: plan.reference.to_string(),
                digest: plan.digest.clone(),
                manifest: plan.manifest_digest.clone(),
                platform: plan.config.platform.clone(),
                created: plan.config.created.clone(),
                config: plan.config.config.clone(),
                layers: diff_ids.clone(),
                download_bytes: plan.layers.iter().map(|layer| layer.size).sum(),
                bytes: layers.iter().map(|layer| layer.summary.bytes).sum(),
                origin: plan.origin,
                pulled_s: now_s(),
                last_used_s: now_s(),
            };
            records::write(&inner.layout, &record).map_err(failed)?;
            Ok(inner.image(&plan.reference, &record, pin, &layers))
        });
        done.await.map_err(|_| Error::Cancelled(reference))?
    }
}

/// Combines manifest and configuration, and checks that they fit each other.
pub(super) fn plan(
    reference: Reference,
    digest: Digest,
    (manifest_digest, manifest): (Digest, Manifest),
    config: &[u8],
    platform: &Platform,
    origin: ImageOrigin,
) -> Result<Plan, Error> {
    let unsupported = |detail| Error::Unsupported { image: reference.to_string(), detail };
    let config = config::parse(config).map_err(unsupported)?;
    let (layers, diff_ids) = (manifest.layers.len(), config.rootfs.diff_ids.len());
    if layers != diff_ids {
        return Err(unsupported(format!("its manifest has {layers} layers, its configuration {diff_ids}")));
    }
    if !platform.runs(&config.platform) {
        return Err(Error::NoMatchingPlatform {
            image: reference.to_string(),
            wanted: platform.to_string(),
            available: config.platform.to_string(),
        });
    }
    Ok(Plan { reference, digest, manifest_digest, config, layers: manifest.layers, origin })
}
