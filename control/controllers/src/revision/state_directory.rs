//! A directory that outlives the instances of a Revision, as systemd's `StateDirectory=`: adapters keep checkpoints there.
//!
//! All Revisions of a namespace that name the same directory share it. It is the name of a Service, and is removed after
//! that Service and its instances ([`remove_unused`]).

use std::path::{Path, PathBuf};

use runtime::InstanceSpec;
use runtime::remove_tree;
use runtime::volumes::{InstanceMount, InstanceVolume, VolumeContent};
use support::names::is_dns1123_label;
use types::serving::annotations::STATE_DIRECTORY;
use types::serving::revision::Revision;
use types::shared::{annotation, namespace};

/// The variable by which a program finds the directory.
const VARIABLE: &str = "STATE_DIRECTORY";
/// Where an instance with a mount namespace sees it.
const MOUNT: &str = "/var/run/sluicegate/state";
/// The name of the volume. No manifest can name a volume so.
const VOLUME: &str = "sluicegate.dev/state";

/// One directory on this host, and where the instance sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct StateDirectory {
    on_host: PathBuf,
    is_mounted: bool,
}

impl StateDirectory {
    /// That of a Revision, if it names one. `root` holds all of them.
    pub(super) fn of(revision: &Revision, root: Option<&Path>, is_mounted: bool) -> Option<Self> {
        let name = annotation(&revision.metadata, STATE_DIRECTORY).filter(|name| is_dns1123_label(name))?;
        Some(Self { on_host: directory(root?, namespace(&revision.metadata), name), is_mounted })
    }

    pub(super) fn variable(&self) -> (String, String) {
        let path = if self.is_mounted { MOUNT.to_owned() } else { self.on_host.display().to_string() };
        (VARIABLE.to_owned(), path)
    }

    pub(super) fn add_to(&self, spec: &mut InstanceSpec) {
        let content = VolumeContent::Persistent(self.on_host.clone());
        spec.volumes.push(InstanceVolume { name: VOLUME.to_owned(), content });
        if self.is_mounted {
            let path = PathBuf::from(MOUNT);
            spec.mounts.push(InstanceMount { volume: VOLUME.to_owned(), path, sub_path: None, read_only: false });
        }
    }
}

fn directory(root: &Path, namespace: &str, name: &str) -> PathBuf {
    root.join(namespace).join(name)
}

/// Removes the directory `name` of a namespace.
pub(crate) fn remove(root: &Path, namespace: &str, name: &str) {
    let path = directory(root, namespace, name);
    match remove_tree(&path) {
        Err(why) if why.kind() != std::io::ErrorKind::NotFound => {
            tracing::warn!(directory = %path.display(), %why, "the state directory of a deleted source stays behind");
        }
        _ => {}
    }
}

/// Removes all directories that are not `in_use`: what was deleted while the appliance ended.
pub(crate) fn remove_unused(root: &Path, in_use: impl Fn(&str, &str) -> bool) {
    for home in entries(root) {
        for name in entries(&root.join(&home)) {
            if !in_use(&home, &name) {
                remove(root, &home, &name);
            }
        }
    }
}

fn entries(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn revision(name: &str) -> Revision {
        let annotations = json!({ STATE_DIRECTORY: name });
        let metadata = json!({ "name": "r", "namespace": "ns", "annotations": annotations });
        serde_json::from_value(json!({ "metadata": metadata, "spec": {} })).unwrap()
    }

    #[test]
    fn directory_is_below_the_root_or_none() {
        let root = Path::new("/data/state");
        let found = |name: &str| StateDirectory::of(&revision(name), Some(root), false);
        assert_eq!(found("a-adapter").unwrap().variable().1, "/data/state/ns/a-adapter");
        for bad in ["", "..", "../x", "a/b", "/etc", "A"] {
            assert_eq!(found(bad), None, "{bad}");
        }
        assert_eq!(StateDirectory::of(&revision("a"), None, false), None);
        let mounted = StateDirectory::of(&revision("a"), Some(root), true).unwrap();
        assert_eq!(mounted.variable(), (VARIABLE.to_owned(), MOUNT.to_owned()));
    }

    #[test]
    fn only_unused_directories_are_removed() {
        let root = tempfile::tempdir().unwrap();
        for name in ["kept", "left"] {
            std::fs::create_dir_all(root.path().join("ns").join(name)).unwrap();
            std::fs::write(root.path().join("ns").join(name).join("parked.jsonl"), "{}").unwrap();
        }
        remove_unused(root.path(), |home, name| home == "ns" && name == "kept");
        assert_eq!(entries(&root.path().join("ns")), ["kept"]);
        remove(root.path(), "ns", "kept");
        remove(root.path(), "ns", "kept");
        assert!(entries(&root.path().join("ns")).is_empty());
    }
}
