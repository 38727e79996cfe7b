//! Unpacks layers to folders, such that no archive can write elsewhere.
//!
//! Three protections, each sufficient by itself: the kernel resolves paths inside the layer's folder (`root_folder`), the work
//! is done by a child process that is chrooted there (`child`), and Landlock lets that process open nothing else (`sandbox`).

mod apply;
mod child;
mod decompress;
mod entry_name;
mod metadata;
mod root_folder;
mod sandbox;
#[cfg(test)]
mod tests;

use std::fs::File;
use std::io::{self, Seek as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::error::is_disk_full;
use crate::limits::LayerLimits;

pub use child::{VERB, unpack_child_main};
pub use root_folder::{OPAQUE_ATTRIBUTE, remove_tree};

/// A layer that has been unpacked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerSummary {
    /// The digest of the uncompressed tar.
    pub diff_id: Digest,
    /// Bytes of its files.
    pub bytes: u64,
    pub entries: u64,
    /// The layer's root is opaque: the layers below it are hidden as a whole.
    pub hides_lower: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UnpackError {
    /// The layer is not what it should be.
    Corrupt {
        detail: String,
    },
    TooLarge {
        what: String,
        limit: u64,
    },
    DiskFull {
        what: String,
    },
    Storage {
        what: String,
        detail: String,
    },
}

/// Characters of an error's detail: a name in a layer may be as long as the headers of an entry.
const DETAIL_CHARS_MAX: usize = 1000;

impl UnpackError {
    fn corrupt(detail: String) -> Self {
        Self::Corrupt { detail: detail.chars().take(DETAIL_CHARS_MAX).collect() }
    }

    fn storage(what: &str, cause: &io::Error) -> Self {
        if is_disk_full(cause) {
            return Self::DiskFull { what: what.into() };
        }
        let hint = match cause.kind() {
            io::ErrorKind::PermissionDenied => "; unpacking images takes root",
            _ => "",
        };
        Self::Storage { what: what.into(), detail: format!("{cause}{hint}") }
    }
}

/// Where layers are unpacked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unpacker {
    /// In a child of this program, whose `main` hands [`VERB`] to [`unpack_child_main`].
    Child(PathBuf),
    /// In this process, without chroot and Landlock: for programs that do not have the verb, such as tests.
    InProcess,
}

impl Unpacker {
    /// This program as its own child.
    #[must_use]
    pub fn this_program() -> Self {
        Self::Child("/proc/self/exe".into())
    }

    /// Unpacks the compressed `layer` to the empty `folder`. Blocks.
    ///
    /// # Errors
    /// If the layer or the file system does not allow it. What is in the folder then is of no use.
    pub fn unpack(
        &self,
        mut layer: File,
        media_type: &str,
        folder: &Path,
        limits: &LayerLimits,
        cancelled: &AtomicBool,
    ) -> Result<LayerSummary, UnpackError> {
        layer.rewind().map_err(|why| UnpackError::storage("the downloaded layer", &why))?;
        match self {
            Self::Child(program) => child::run(program, layer, media_type, folder, limits, cancelled),
            Self::InProcess => {
                let root =
                    root_folder::open_root(folder).map_err(|why| UnpackError::storage("a layer's folder", &why))?;
                apply::apply(layer, media_type, root, limits, &mut |_| {})
            }
        }
    }
}
