//! One file for each image that was pulled or imported.

use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use super::layout::{Layout, sync_parent, write_file};
use crate::config::ImageConfig;
use crate::digest::Digest;
use crate::limits::RECORD_BYTES_MAX;
use crate::platform::Platform;
use crate::reference::Reference;

/// How exact `last_used_s` is: a start within this time of the last one writes nothing.
const LAST_USED_PRECISION_S: u64 = 60;

/// Where an image came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ImageOrigin {
    Registry,
    /// Its tag is what the archive said; no registry was asked.
    Import,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageRecord {
    pub reference: String,
    /// The resolved digest of the reference: an index's, or the manifest's.
    pub digest: Digest,
    /// The manifest for this platform.
    pub manifest: Digest,
    pub platform: Platform,
    pub created: String,
    pub config: ImageConfig,
    /// DiffIDs, the lowest first.
    pub layers: Vec<Digest>,
    /// Bytes of the compressed layers.
    pub download_bytes: u64,
    /// Bytes of the files.
    pub bytes: u64,
    pub origin: ImageOrigin,
    /// Seconds since 1970.
    pub pulled_s: u64,
    pub last_used_s: u64,
}

impl ImageRecord {
    pub(super) fn touch(&mut self, layout: &Layout) -> io::Result<()> {
        let now = now_s();
        if now.saturating_sub(self.last_used_s) >= LAST_USED_PRECISION_S {
            self.last_used_s = now;
            write(layout, self)?;
        }
        Ok(())
    }

    /// True if `reference` names this image: as it was pulled, or by its digest in the same repository.
    #[must_use]
    pub fn matches(&self, reference: &Reference) -> bool {
        if self.reference == reference.to_string() {
            return true;
        }
        let own: Option<Reference> = self.reference.parse().ok();
        let same_name = own.is_some_and(|own| own.name() == reference.name());
        same_name && reference.digest().is_some_and(|digest| *digest == self.digest || *digest == self.manifest)
    }
}

pub(super) fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

fn path(layout: &Layout, reference: &str) -> PathBuf {
    layout.records().join(format!("{}.json", Digest::of(reference.as_bytes()).hex()))
}

pub(super) fn write(layout: &Layout, record: &ImageRecord) -> io::Result<()> {
    // Without blanks: a record then is not longer than the configuration in it, whose size is bounded.
    write_file(&path(layout, &record.reference), &serde_json::to_vec(record)?)
}

/// The record of an image, if the image was pulled or imported.
pub(super) fn get(layout: &Layout, reference: &Reference) -> io::Result<Option<ImageRecord>> {
    if let Some(record) = read_or_warn(&path(layout, &reference.to_string())) {
        return Ok(Some(record));
    }
    match reference.digest() {
        Some(_) => Ok(list(layout)?.into_iter().find(|record| record.matches(reference))),
        None => Ok(None),
    }
}

/// All records, by reference.
pub(super) fn list(layout: &Layout) -> io::Result<Vec<ImageRecord>> {
    let mut records = Vec::new();
    for entry in fs::read_dir(layout.records())? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "json") {
            records.extend(read_or_warn(&path));
        }
    }
    records.sort_by(|a, b| a.reference.cmp(&b.reference));
    Ok(records)
}

/// True if there was one.
pub(super) fn remove(layout: &Layout, reference: &str) -> io::Result<bool> {
    let path = path(layout, reference);
    match fs::remove_file(&path) {
        Err(why) if why.kind() == io::ErrorKind::NotFound => Ok(false),
        removed => {
            removed?;
            sync_parent(&path)?;
            Ok(true)
        }
    }
}

/// Leaves out a record that cannot be read: it costs a pull, not the store.
fn read_or_warn(path: &Path) -> Option<ImageRecord> {
    read(path).unwrap_or_else(|why| {
        tracing::warn!(path = %path.display(), %why, "an image's record cannot be read; the image is pulled again");
        None
    })
}

fn read(path: &Path) -> io::Result<Option<ImageRecord>> {
    let file = match fs::File::open(path) {
        Err(why) if why.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    let mut bytes = Vec::new();
    file.take(RECORD_BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(Some(serde_json::from_slice(&bytes)?))
}
