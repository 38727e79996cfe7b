//! The folders of PersistentVolumeClaims: `volumes/pvc-UID` in the data folder, empty at first.

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::PersistentVolumeClaim;

use crate::context::ControllerContext;
use runtime::remove_tree;

const ROOT: &str = "volumes";
/// Of the folder above them: no other user of this host reaches them.
const ROOT_MODE: u32 = 0o700;
/// Instances of any user write there, as in a volume of a cluster's local storage.
const MODE: u32 = 0o777;

/// The folder above all.
pub(crate) fn root(context: &ControllerContext) -> Option<PathBuf> {
    context.config.state_root.as_deref().map(|state| state.with_file_name(ROOT))
}

/// The name of the volume of a claim, which is the name of its folder.
pub(crate) fn volume_name(claim: &PersistentVolumeClaim) -> String {
    format!("pvc-{}", claim.metadata.uid.as_deref().unwrap_or_default())
}

/// The folder of a claim that is bound.
pub(crate) fn of(context: &ControllerContext, claim: &PersistentVolumeClaim) -> Option<PathBuf> {
    let volume = claim.spec.as_ref()?.volume_name.as_deref()?;
    (volume == volume_name(claim)).then(|| root(context))?.map(|root| root.join(volume))
}

/// Makes the folder `name`, unless it is there. Programs may have changed the mode of one that is bound.
pub(crate) fn create(root: &Path, name: &str, is_bound: bool) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(ROOT_MODE).create(root)?;
    let folder = root.join(name);
    match fs::create_dir(&folder) {
        Err(why) if why.kind() != io::ErrorKind::AlreadyExists => Err(why),
        Err(_) if is_bound => Ok(()),
        // The mode given at creation loses the bits of the umask.
        _ => fs::set_permissions(&folder, Permissions::from_mode(MODE)),
    }
}

/// Removes the folder `name` with its files.
pub(crate) fn remove(root: &Path, name: &str) -> io::Result<()> {
    match remove_tree(&root.join(name)) {
        Err(why) if why.kind() != io::ErrorKind::NotFound => Err(why),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folder_of_a_bound_claim_keeps_its_mode() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join(ROOT);
        let mode = || fs::metadata(root.join("pvc-1")).unwrap().permissions().mode() & 0o777;
        create(&root, "pvc-1", false).unwrap();
        assert_eq!(mode(), MODE);
        fs::set_permissions(root.join("pvc-1"), Permissions::from_mode(0o700)).unwrap();
        create(&root, "pvc-1", true).unwrap();
        assert_eq!(mode(), 0o700);
        create(&root, "pvc-1", false).unwrap();
        assert_eq!(mode(), MODE, "its creation was interrupted");
        remove(&root, "pvc-1").unwrap();
        remove(&root, "pvc-1").unwrap();
        assert!(!root.join("pvc-1").exists());
    }
}
