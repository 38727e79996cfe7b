//! OCI layouts, as a folder or in a tar.

use std::path::Path;

use super::ArchivedImage;
use super::files::{Files, blob_name};
use crate::digest::Digest;
use crate::error::Error;
use crate::index;
use crate::limits::{ARCHIVE_IMAGES_MAX, CONFIG_BYTES_MAX, MANIFEST_BYTES_MAX};
use crate::manifest::{self, Descriptor, Document, Manifest, OCI_INDEX};
use crate::platform::Platform;
use crate::reference::Reference;

/// The whole name, as containerd and Docker write it.
const IMAGE_NAME: &str = "io.containerd.image.name";
/// A name or only a tag.
const REF_NAME: &str = "org.opencontainers.image.ref.name";

pub(super) fn images(files: &Files, path: &Path, platform: &Platform) -> Result<Vec<ArchivedImage>, Error> {
    let shown = path.display().to_string();
    let unsupported = |detail| Error::Unsupported { image: shown.clone(), detail };
    let text = files.read("index.json", MANIFEST_BYTES_MAX as u64).map_err(unsupported)?;
    let Document::Index(entries) = manifest::parse(&text, OCI_INDEX).map_err(unsupported)? else {
        return Err(unsupported("its index.json is not an index".into()));
    };
    // Attestations are listed next to their image.
    let entries: Vec<Descriptor> = entries.into_iter().filter(|entry| !is_attestation(entry)).collect();
    if entries.len() > ARCHIVE_IMAGES_MAX {
        return Err(unsupported(format!("it has {} images, limit {ARCHIVE_IMAGES_MAX}", entries.len())));
    }
    // Several images of one name are one image for several platforms.
    let mut images: Vec<ArchivedImage> = Vec::new();
    let mut names: Vec<Option<Reference>> = Vec::new();
    for entry in &entries {
        let name = reference(entry);
        if names.contains(&name) {
            continue;
        }
        let same: Vec<Descriptor> = entries.iter().filter(|other| reference(other) == name).cloned().collect();
        let chosen = if same.len() == 1 { Ok(entry) } else { index::choose_or_error(platform, &shown, &same) };
        images.push(image(files, chosen?, name.clone(), &shown, platform)?);
        names.push(name);
    }
    Ok(images)
}

fn is_attestation(entry: &Descriptor) -> bool {
    entry.annotations.contains_key("vnd.docker.reference.type")
}

/// The image's name, none if the layout has only a tag or nothing.
fn reference(entry: &Descriptor) -> Option<Reference> {
    let whole = entry.annotations.get(IMAGE_NAME);
    // A tag has neither of these signs.
    let name = whole.or_else(|| entry.annotations.get(REF_NAME).filter(|name| name.contains(['/', ':'])));
    name.and_then(|name| name.parse().ok())
}

fn image(
    files: &Files,
    entry: &Descriptor,
    name: Option<Reference>,
    shown: &str,
    platform: &Platform,
) -> Result<ArchivedImage, Error> {
    let unsupported = |detail| Error::Unsupported { image: shown.to_owned(), detail };
    let (manifest_digest, manifest) = match document(files, entry, shown)? {
        Document::Image(manifest) => (entry.digest.clone(), manifest),
        Document::Index(entries) => {
            let chosen = index::choose_or_error(platform, shown, &entries)?;
            match document(files, chosen, shown)? {
                Document::Image(manifest) => (chosen.digest.clone(), manifest),
                Document::Index(_) => return Err(unsupported("its index leads to another index".into())),
            }
        }
    };
    let config = verified(files, &manifest.config.digest, CONFIG_BYTES_MAX, "configuration", shown)?;
    let layer_files = layer_files(files, &manifest).map_err(unsupported)?;
    let references = name.into_iter().collect();
    Ok(ArchivedImage { references, digest: entry.digest.clone(), manifest_digest, manifest, config, layer_files })
}

fn document(files: &Files, descriptor: &Descriptor, shown: &str) -> Result<Document, Error> {
    let bytes = verified(files, &descriptor.digest, MANIFEST_BYTES_MAX as u64, "manifest", shown)?;
    let unsupported = |detail| Error::Unsupported { image: shown.to_owned(), detail };
    manifest::parse(&bytes, &descriptor.media_type).map_err(unsupported)
}

fn verified(files: &Files, digest: &Digest, limit: u64, part: &'static str, shown: &str) -> Result<Vec<u8>, Error> {
    let unsupported = |detail| Error::Unsupported { image: shown.to_owned(), detail };
    let bytes = files.read(&blob_name(digest), limit).map_err(unsupported)?;
    if digest.matches(&bytes) {
        return Ok(bytes);
    }
    let detail = "its bytes in the archive do not have this digest".into();
    Err(Error::Corrupt { image: shown.to_owned(), part, digest: digest.clone(), detail })
}

/// Their content is verified when they are unpacked.
fn layer_files(files: &Files, manifest: &Manifest) -> Result<Vec<std::path::PathBuf>, String> {
    let find = |layer: &Descriptor| {
        let path = files.path(&blob_name(&layer.digest)).filter(|path| path.is_file());
        path.ok_or_else(|| format!("layer {} is missing in it", layer.digest))
    };
    manifest.layers.iter().map(find).collect()
}
