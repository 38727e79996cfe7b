//! Imports images of archives into the store.

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;

use super::Inner;
use super::layers::LayerRequest;
use super::pins::Pin;
use super::pull;
use super::records::ImageOrigin;
use crate::Image;
use crate::archive::{Archive, ArchivedImage};
use crate::error::Error;
use crate::manifest::Descriptor;
use crate::progress::{Progress, ProgressEvent};
use crate::reference::Reference;

impl Inner {
    pub(super) async fn import(
        self: &Arc<Self>,
        path: PathBuf,
        name: Option<Reference>,
        progress: Arc<dyn Progress>,
    ) -> Result<Vec<Image>, Error> {
        let shown = path.display().to_string();
        let staged = self.layout.stage()?;
        let platform = self.options.platform.clone();
        let read = move || Archive::open(&path, staged, |staged| staged.path.as_path(), &platform);
        let archive = tokio::task::spawn_blocking(read).await.map_err(|_| Error::Cancelled(shown.clone()))??;
        let mut images = Vec::new();
        for archived in &archive.images {
            let references = match &name {
                Some(name) => vec![name.clone()],
                None if archived.references.is_empty() => {
                    let detail = "it contains no image name; set one with --reference".into();
                    return Err(Error::Unsupported { image: shown, detail });
                }
                None => archived.references.clone(),
            };
            for reference in references {
                images.push(self.import_image(reference, archived, &progress).await?);
            }
        }
        Ok(images)
    }

    async fn import_image(
        self: &Arc<Self>,
        reference: Reference,
        archived: &ArchivedImage,
        progress: &Arc<dyn Progress>,
    ) -> Result<Image, Error> {
        let platform = &self.options.platform;
        let manifest = (archived.manifest_digest.clone(), archived.manifest.clone());
        let digest = archived.digest.clone();
        let plan = pull::plan(reference, digest, manifest, &archived.config, platform, ImageOrigin::Import)?;
        let bytes = archived.manifest.layers.iter().map(|layer| layer.size).sum();
        let layers = plan.layers.len();
        progress.event(&ProgressEvent::Started { layers, missing_layers: layers, bytes });
        let mut pins = Vec::new();
        for ((descriptor, diff_id), path) in
            plan.layers.iter().zip(&plan.config.rootfs.diff_ids).zip(&archived.layer_files)
        {
            let image = plan.reference.to_string();
            let request = LayerRequest { image, descriptor: descriptor.clone(), diff_id: diff_id.clone() };
            pins.push(self.import_layer(&request, path, descriptor, progress).await?);
        }
        let image = self.record(plan).await;
        drop(pins);
        image
    }

    async fn import_layer(
        self: &Arc<Self>,
        request: &LayerRequest,
        path: &PathBuf,
        descriptor: &Descriptor,
        progress: &Arc<dyn Progress>,
    ) -> Result<Pin, Error> {
        let failed = |why| Error::storage(path, "a layer of the archive", &why);
        if let Some((pin, _)) = self.pins.pin(&self.layout, std::slice::from_ref(&request.diff_id)).map_err(failed)? {
            return Ok(pin);
        }
        progress.event(&ProgressEvent::Unpacking { layer: descriptor.digest.clone() });
        let file = File::open(path).map_err(failed)?;
        let pin = self.add_layer(self.layout.stage()?, file, request).await?;
        progress.event(&ProgressEvent::LayerReady { layer: descriptor.digest.clone() });
        Ok(pin)
    }
}
