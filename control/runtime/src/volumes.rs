//! Volumes of an instance: ConfigMaps, Secrets, empty folders and claims.

use std::path::{Component, Path, PathBuf};

/// One folder of files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InstanceVolume {
    pub name: String,
    pub content: VolumeContent,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VolumeContent {
    /// The same for all instances of a revision.
    Files(Vec<VolumeFile>),
    /// Each instance has its own, empty at its start and gone with it (`emptyDir`).
    Empty(VolumeMedium),
    /// A directory of this host that outlives instances: all instances share it, and its owner is their user.
    Persistent(PathBuf),
    /// The same of a claim. It exists, and instances of any user write there.
    Claim(PathBuf),
}

/// The folder of an instance's own files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VolumeMedium {
    Disk,
    /// RT-FS-03: nowhere else, where mounts are allowed; `None`: as much as the kernel lets it.
    Memory {
        bytes_max: Option<u64>,
    },
}

impl InstanceVolume {
    /// Each instance has its own.
    pub(crate) fn is_per_instance(&self) -> bool {
        matches!(self.content, VolumeContent::Empty(_))
    }

    /// The directory of this host that outlives instances, if it is one.
    pub(crate) fn persistent_dir(&self) -> Option<&Path> {
        match &self.content {
            VolumeContent::Persistent(directory) | VolumeContent::Claim(directory) => Some(directory),
            VolumeContent::Files(_) | VolumeContent::Empty(_) => None,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeFile {
    /// Below the volume's folder; never leads out of it (see [`is_contained_path`]).
    pub path: String,
    pub bytes: Vec<u8>,
    /// Permission bits.
    pub mode: u32,
}

/// Where an instance sees a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InstanceMount {
    pub volume: String,
    pub path: PathBuf,
    /// Only this file or folder of the volume.
    pub sub_path: Option<String>,
    pub read_only: bool,
}

/// A relative path that stays below the folder it starts in.
#[must_use]
pub fn is_contained_path(path: &str) -> bool {
    let mut parts = Path::new(path).components().peekable();
    // The links at the top begin with two dots, so a file there may not.
    let first_is_ours =
        matches!(parts.peek(), Some(Component::Normal(first)) if !first.as_encoded_bytes().starts_with(b".."));
    first_is_ours && parts.all(|part| matches!(part, Component::Normal(_)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_file_leads_out_of_its_volume() {
        for bad in ["", "/etc/passwd", "../x", "a/../../x", "..data", "..data/x", "./a"] {
            assert!(!is_contained_path(bad), "{bad}");
        }
        for good in ["a", "a/b", ".hidden", "a/..b", "a..b"] {
            assert!(is_contained_path(good), "{good}");
        }
    }
}
