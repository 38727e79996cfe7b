//! The format of `docker save` before it wrote OCI layouts: a `manifest.json` with file names.

use serde::Deserialize;

use super::ArchivedImage;
use super::files::Files;
use crate::config;
use crate::digest::Digest;
use crate::limits::{ARCHIVE_IMAGES_MAX, CONFIG_BYTES_MAX, LAYERS_MAX, MANIFEST_BYTES_MAX};
use crate::manifest::{Descriptor, Manifest, OCI_CONFIG, OCI_LAYER, OCI_MANIFEST};

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct ManifestEntry {
    config: String,
    #[serde(default)]
    repo_tags: Option<Vec<String>>,
    layers: Vec<String>,
}

pub(super) fn images(files: &Files) -> Result<Vec<ArchivedImage>, String> {
    let text = files.read("manifest.json", MANIFEST_BYTES_MAX as u64)?;
    let entries: Vec<ManifestEntry> =
        serde_json::from_slice(&text).map_err(|why| format!("its manifest.json cannot be read: {why}"))?;
    if entries.len() > ARCHIVE_IMAGES_MAX {
        return Err(format!("it has {} images, limit {ARCHIVE_IMAGES_MAX}", entries.len()));
    }
    entries.iter().map(|entry| image(files, entry)).collect()
}

fn image(files: &Files, entry: &ManifestEntry) -> Result<ArchivedImage, String> {
    if entry.layers.len() > LAYERS_MAX {
        return Err(format!("it has {} layers, limit {LAYERS_MAX}", entry.layers.len()));
    }
    let bytes = files.read(&entry.config, CONFIG_BYTES_MAX)?;
    let config = config::parse(&bytes)?;
    let diff_ids = &config.rootfs.diff_ids;
    if diff_ids.len() != entry.layers.len() {
        return Err(format!("its image has {} layers, its configuration {}", entry.layers.len(), diff_ids.len()));
    }
    let references = entry.repo_tags.iter().flatten().map(|tag| tag.parse().map_err(|why| format!("{why}")));
    let references = references.collect::<Result<Vec<_>, _>>()?;
    let layers = entry.layers.iter().zip(diff_ids).map(|(name, diff_id)| {
        Descriptor::new(OCI_LAYER, diff_id.clone(), files.size(name)) // they are not compressed
    });
    let manifest = Manifest {
        schema_version: 2,
        media_type: OCI_MANIFEST.into(),
        config: Descriptor::new(OCI_CONFIG, Digest::of(&bytes), bytes.len() as u64),
        layers: layers.collect(),
    };
    // The archive has no manifest, so the image gets the one that pushing it without compression would make.
    let text = serde_json::to_vec(&manifest).map_err(|why| why.to_string())?;
    let find = |name: &String| files.path(name).ok_or_else(|| format!("layer {name} is missing in it"));
    let layer_files = entry.layers.iter().map(find).collect::<Result<Vec<_>, _>>()?;
    let digest = Digest::of(&text);
    Ok(ArchivedImage { references, manifest_digest: digest.clone(), digest, manifest, config: bytes, layer_files })
}
