//! Images in files: `docker save`, OCI archives (both tar) and OCI layout folders.
//!
//! No name of an archive becomes a path of this host: files of a tar get numbers, and blobs of a layout are found by digest.

mod docker;
mod files;
mod oci;

use std::path::{Path, PathBuf};

use crate::digest::Digest;
use crate::error::Error;
use crate::manifest::Manifest;
use crate::platform::Platform;
use crate::reference::Reference;
use files::Files;

/// One image of an archive.
#[derive(Debug)]
pub struct ArchivedImage {
    /// None if the archive has no name for it.
    pub references: Vec<Reference>,
    pub digest: Digest,
    pub manifest_digest: Digest,
    pub manifest: Manifest,
    pub config: Vec<u8>,
    /// One file for each layer of the manifest.
    pub layer_files: Vec<PathBuf>,
}

/// An archive whose files are on the disk as long as `S`, the folder for them, lives.
#[derive(Debug)]
pub struct Archive<S> {
    pub images: Vec<ArchivedImage>,
    _folder: S,
}

impl<S> Archive<S> {
    /// Reads `path`. The files of a tar are written to the folder of `place`.
    ///
    /// # Errors
    /// If it is no archive of images, or one without an image for `platform`.
    pub fn open(path: &Path, place: S, folder: impl Fn(&S) -> &Path, platform: &Platform) -> Result<Self, Error> {
        let unsupported = |detail| Error::Unsupported { image: path.display().to_string(), detail };
        let files = Files::open(path, folder(&place))?;
        let images = if files.has("oci-layout") && files.has("index.json") {
            oci::images(&files, path, platform)?
        } else if files.has("manifest.json") {
            docker::images(&files).map_err(unsupported)?
        } else {
            let detail = "it is no `docker save` archive, OCI archive or OCI layout: neither manifest.json nor index.json is in it";
            return Err(unsupported(detail.into()));
        };
        if images.is_empty() {
            return Err(unsupported("no image is in it".into()));
        }
        Ok(Self { images, _folder: place })
    }
}
