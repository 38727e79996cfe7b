//! Volumes: folders of files that an instance reads, kept current while it runs.
//!
//! The layout is the kubelet's, because programs that watch their configuration know it: a folder holds
//! `..data`, a link to a folder with the content, and one link per file through `..data`. New content is
//! written next to the old one and `..data` is renamed over, so that a reader sees all of the old files or
//! all of the new ones.
//!
//! ```text
//! REVISION/volumes/settings/..7f3a…/colour      the content, named by a hash of it
//!                          /..data  -> ..7f3a…
//!                          /colour  -> ..data/colour
//! ```

use std::fs;
use std::hash::{BuildHasher, Hasher};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt, chown, fchown, symlink};
use std::path::{Path, PathBuf};

use container::user::number_in_layers;
use rustix::fs::{Mode, OFlags};

use super::{EMPTY_DIR_SUFFIX, may_mount, tmpfs};
use crate::remove_tree::remove_tree;
use crate::volumes::{InstanceMount, InstanceVolume, VolumeContent, VolumeFile, VolumeMedium, is_contained_path};
use crate::{InstanceCredentials, InstanceSpec};

/// The link that is swapped.
const DATA_LINK: &str = "..data";
/// The folder of all volumes holds secrets: other users have no access.
const FOLDER_MODE: u32 = 0o700;
/// An instance's own folders are writable for any user, as the kubelet's are; the folder above them admits no other
/// users.
const OWN_MODE: u32 = 0o777;

/// The permission of groups and of other users to read.
const OTHERS_READ: u32 = 0o044;

/// The user of the instances, if it is not the appliance's.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct FileOwner(Option<u32>);

impl FileOwner {
    /// The manifest's user, or else the image's.
    pub(crate) fn of(spec: &InstanceSpec) -> Self {
        let has_own = |volume: &InstanceVolume| match &volume.content {
            VolumeContent::Files(files) => files.iter().any(is_for_owner),
            _ => false,
        };
        let image = spec.image.as_ref().filter(|_| spec.volumes.iter().any(has_own));
        let of_image = || image.and_then(|image| number_in_layers(&image.user, &image.layers));
        Self(spec.credentials.user.or_else(of_image))
    }
}

fn is_for_owner(file: &VolumeFile) -> bool {
    file.mode & OTHERS_READ == 0
}

/// The volumes of one revision, and the empty ones of one instance.
#[derive(Debug, Clone)]
pub(crate) struct VolumeStore {
    shared_dir: PathBuf,
    instance_dir: PathBuf,
}

impl VolumeStore {
    /// `folder` is the revision's.
    pub(crate) fn new(folder: &Path, id: u64) -> Self {
        Self { shared_dir: folder.join("volumes"), instance_dir: folder.join(format!("{id}{EMPTY_DIR_SUFFIX}")) }
    }

    /// Where the instance finds all volumes by their names.
    pub(crate) fn volumes_dir(&self) -> &Path {
        &self.shared_dir
    }

    /// Brings the files to what `volumes` say, and returns the names of the volumes that have changed. What is right already is
    /// not touched. A file that only its owner may read belongs to `owner`.
    pub(crate) fn write_files<'a>(&self, volumes: &'a [InstanceVolume], owner: FileOwner) -> io::Result<Vec<&'a str>> {
        let mut changed = Vec::new();
        for volume in volumes {
            if let VolumeContent::Files(files) = &volume.content {
                create_dir(&self.shared_dir)?;
                if write(&self.shared_dir.join(&volume.name), files, owner)? {
                    changed.push(volume.name.as_str());
                }
            }
        }
        Ok(changed)
    }

    /// Makes the directories that outlive the instance, for its user alone.
    pub(crate) fn create_persistent_dirs(volumes: &[InstanceVolume], owner: &InstanceCredentials) -> io::Result<()> {
        for volume in volumes {
            if let VolumeContent::Persistent(directory) = &volume.content {
                create_dir(directory)?;
                if owner.user.is_some() || owner.group.is_some() {
                    chown(directory, owner.user, owner.group)?;
                }
            }
        }
        Ok(())
    }

    /// Makes the instance's own folders, and in them those that `mounts` name.
    pub(crate) fn create_instance_dirs<'a>(
        &self,
        volumes: &[InstanceVolume],
        mounts: impl Iterator<Item = &'a InstanceMount>,
    ) -> io::Result<()> {
        for volume in volumes.iter().filter(|volume| volume.is_per_instance()) {
            create_dir(&self.instance_dir)?;
            let folder = self.instance_dir.join(&volume.name);
            create_instance_dir(&folder)?;
            if let VolumeContent::Empty(VolumeMedium::Memory { bytes_max }) = volume.content
                && is_in_memory(volume)
            {
                tmpfs::mount(&folder, bytes_max)?;
            }
        }
        for mount in mounts {
            let Some(below) = mount.sub_path.as_deref().filter(|below| is_contained_path(below)) else { continue };
            match volumes.iter().find(|volume| volume.name == mount.volume).map(|volume| &volume.content) {
                Some(VolumeContent::Empty(_)) => {
                    create_instance_dir(&self.instance_dir.join(&mount.volume).join(below))?;
                }
                Some(VolumeContent::Claim(directory)) => create_below(directory, Path::new(below))?,
                _ => {}
            }
        }
        Ok(())
    }

    /// Removes the instance's own folders; those of a crashed appliance go with their revision.
    pub(crate) fn remove_instance_dirs(&self, volumes: &[InstanceVolume]) {
        let dismounted = volumes.iter().filter(|volume| is_in_memory(volume)).try_for_each(|volume| {
            match tmpfs::unmount_tmpfs(&self.instance_dir.join(&volume.name)) {
                // It was never mounted: its start failed before that.
                Err(why) if [io::ErrorKind::NotFound, io::ErrorKind::InvalidInput].contains(&why.kind()) => Ok(()),
                dismounted => dismounted,
            }
        });
        if let Err(why) = dismounted.and_then(|()| remove_tree(&self.instance_dir))
            && why.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(folder = %self.instance_dir.display(), %why, "an instance's empty volumes stay behind");
        }
    }

    /// The folder of the volume behind a mount.
    pub(crate) fn source(&self, volumes: &[InstanceVolume], mount: &InstanceMount) -> PathBuf {
        if let Some(directory) = persistent_dir(volumes, mount) {
            return directory.to_owned();
        }
        let is_own = is_mount_per_instance(volumes, mount);
        let folder = if is_own { &self.instance_dir } else { &self.shared_dir };
        folder.join(&mount.volume)
    }

    /// Files that the appliance writes are read-only, as in Kubernetes: all instances of the revision share them, and the
    /// appliance follows links there as root.
    pub(crate) fn is_read_only(volumes: &[InstanceVolume], mount: &InstanceMount) -> bool {
        let is_writable = is_mount_per_instance(volumes, mount) || persistent_dir(volumes, mount).is_some();
        mount.read_only || !is_writable
    }
}

fn persistent_dir<'a>(volumes: &'a [InstanceVolume], mount: &InstanceMount) -> Option<&'a Path> {
    volumes.iter().find(|volume| volume.name == mount.volume)?.persistent_dir()
}

/// Whether it is mounted for each instance.
pub(crate) fn is_in_memory(volume: &InstanceVolume) -> bool {
    may_mount() && matches!(volume.content, VolumeContent::Empty(VolumeMedium::Memory { .. }))
}

fn is_mount_per_instance(volumes: &[InstanceVolume], mount: &InstanceMount) -> bool {
    volumes.iter().any(|volume| volume.name == mount.volume && volume.is_per_instance())
}

fn create_dir(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(path)
}

/// With what leads to it.
fn create_instance_dir(path: &Path) -> io::Result<()> {
    fs::create_dir_all(path)?;
    // Set afterwards, because the mode given at creation loses the bits of the umask.
    fs::set_permissions(path, fs::Permissions::from_mode(OWN_MODE))
}

/// Makes the folders that lead to `below`. Programs write to this directory, so no link in it is followed; a folder behind
/// one is not made.
fn create_below(directory: &Path, below: &Path) -> io::Result<()> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut folder = rustix::fs::open(directory, flags, Mode::empty())?;
    for part in below.components() {
        let is_new = match rustix::fs::mkdirat(&folder, part.as_os_str(), Mode::from(OWN_MODE)) {
            Ok(()) => true,
            Err(rustix::io::Errno::EXIST) => false,
            Err(why) => return Err(why.into()),
        };
        match rustix::fs::openat(&folder, part.as_os_str(), flags, Mode::empty()) {
            Ok(next) => {
                if is_new {
                    // The mode given at creation loses the bits of the umask. By descriptor: a program may have put a link there.
                    rustix::fs::fchmod(&next, Mode::from(OWN_MODE))?;
                }
                folder = next;
            }
            Err(rustix::io::Errno::LOOP | rustix::io::Errno::NOTDIR) => return Ok(()),
            Err(why) => return Err(why.into()),
        }
    }
    Ok(())
}

/// Whether the files were others before.
fn write(folder: &Path, files: &[VolumeFile], owner: FileOwner) -> io::Result<bool> {
    fs::create_dir_all(folder)?;
    let before = fs::read_link(folder.join(DATA_LINK)).ok();
    let fresh = PathBuf::from(format!("..{:016x}", hash(files, owner)));
    if before.as_ref() == Some(&fresh) {
        return Ok(false);
    }
    let target = folder.join(&fresh);
    // Left over from a write that was cut short; nothing points to it.
    clear(&target)?;
    for file in files.iter().filter(|file| is_contained_path(&file.path)) {
        write_file(&target.join(&file.path), file, owner)?;
    }
    fs::create_dir_all(&target)?;
    let link = folder.join("..data_new");
    let _ = fs::remove_file(&link); // the same
    symlink(&fresh, &link)?;
    fs::rename(&link, folder.join(DATA_LINK))?;
    relink(folder, files)?;
    match before {
        // A link that leads elsewhere is not the appliance's.
        Some(old) if old.file_name() == Some(old.as_os_str()) => clear(&folder.join(old))?,
        _ => {}
    }
    Ok(true)
}

fn write_file(path: &Path, file: &VolumeFile, owner: FileOwner) -> io::Result<()> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    let mut written = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    written.write_all(&file.bytes)?;
    if let Some(user) = owner.0.filter(|_| is_for_owner(file)) {
        fchown(&written, Some(user), None)?;
    }
    // Set afterwards, because the mode given at creation loses the bits of the umask.
    written.set_permissions(fs::Permissions::from_mode(file.mode & 0o777))
}

/// One link per name at the top, and none to what is gone.
fn relink(folder: &Path, files: &[VolumeFile]) -> io::Result<()> {
    let top = |file: &VolumeFile| file.path.split('/').next().map(str::to_owned);
    let wanted: std::collections::BTreeSet<String> =
        files.iter().filter(|file| is_contained_path(&file.path)).filter_map(top).collect();
    for name in &wanted {
        match symlink(Path::new(DATA_LINK).join(name), folder.join(name)) {
            Err(why) if why.kind() != io::ErrorKind::AlreadyExists => return Err(why),
            _ => {}
        }
    }
    for entry in fs::read_dir(folder)?.flatten() {
        let name = entry.file_name();
        // A folder was made for a mount inside of the volume.
        let is_ours = name.as_encoded_bytes().starts_with(b"..") || entry.file_type()?.is_dir();
        if !is_ours && !name.to_str().is_some_and(|name| wanted.contains(name)) {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

fn clear(folder: &Path) -> io::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(why) if why.kind() != io::ErrorKind::NotFound => Err(why),
        _ => Ok(()),
    }
}

/// Names a content; equal contents have equal names over restarts, because the keys are fixed.
fn hash(files: &[VolumeFile], owner: FileOwner) -> u64 {
    let mut hasher = std::hash::BuildHasherDefault::<std::hash::DefaultHasher>::default().build_hasher();
    for file in files {
        for part in [file.path.as_bytes(), &file.bytes, &file.mode.to_le_bytes()] {
            hasher.write_usize(part.len());
            hasher.write(part);
        }
    }
    if let Some(user) = owner.0 {
        hasher.write_u32(user);
    }
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_that_leads_elsewhere_is_replaced_and_its_target_stays() {
        let dir = tempfile::tempdir().unwrap();
        let (folder, other) = (dir.path().join("volume"), dir.path().join("other"));
        for folder in [&folder, &other] {
            fs::create_dir(folder).unwrap();
        }
        for target in [other.as_path(), Path::new("../other"), Path::new("..")] {
            let _ = fs::remove_file(folder.join(DATA_LINK));
            symlink(target, folder.join(DATA_LINK)).unwrap();
            write(&folder, &files(&[("colour", "red")]), FileOwner::default()).unwrap();
            assert_eq!(fs::read_to_string(folder.join("colour")).unwrap(), "red");
            assert!(other.exists() && folder.exists());
        }
    }

    #[test]
    fn only_an_instances_own_volume_is_writable() {
        let volumes = [
            InstanceVolume { name: "settings".into(), content: VolumeContent::Files(Vec::new()) },
            InstanceVolume { name: "scratch".into(), content: VolumeContent::Empty(VolumeMedium::Disk) },
        ];
        let mount = |volume: &str, read_only| InstanceMount {
            volume: volume.into(),
            path: "/x".into(),
            sub_path: None,
            read_only,
        };
        assert!(VolumeStore::is_read_only(&volumes, &mount("settings", false)));
        assert!(VolumeStore::is_read_only(&volumes, &mount("scratch", true)));
        assert!(!VolumeStore::is_read_only(&volumes, &mount("scratch", false)));
    }

    #[test]
    fn persistent_directory_is_its_own_source_and_stays() {
        let dir = tempfile::tempdir().unwrap();
        let (store, state) = (VolumeStore::new(&dir.path().join("revision"), 1), dir.path().join("state/ns/a"));
        let volumes = [InstanceVolume { name: "state".into(), content: VolumeContent::Persistent(state.clone()) }];
        let mount = InstanceMount { volume: "state".into(), path: "/s".into(), sub_path: None, read_only: false };
        VolumeStore::create_persistent_dirs(&volumes, &InstanceCredentials::default()).unwrap();
        assert_eq!(fs::metadata(&state).unwrap().permissions().mode() & 0o777, 0o700);
        fs::write(state.join("checkpoint"), "1").unwrap();
        assert_eq!(store.source(&volumes, &mount), state);
        assert!(!VolumeStore::is_read_only(&volumes, &mount));
        store.remove_instance_dirs(&volumes);
        VolumeStore::create_persistent_dirs(&volumes, &InstanceCredentials::default()).unwrap();
        assert_eq!(fs::read_to_string(state.join("checkpoint")).unwrap(), "1");
    }

    fn files(list: &[(&str, &str)]) -> Vec<VolumeFile> {
        let file = |(path, text): &(&str, &str)| VolumeFile {
            path: (*path).to_owned(),
            bytes: text.as_bytes().to_vec(),
            mode: 0o640,
        };
        list.iter().map(file).collect()
    }

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| !name.starts_with(".."))
            .collect();
        names.sort();
        names
    }

    #[test]
    fn content_is_replaced_as_a_whole_and_leaves_nothing_of_the_old() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("settings");
        write(&folder, &files(&[("colour", "red"), ("deep/er", "1"), ("old", "x")]), FileOwner::default()).unwrap();
        assert_eq!(names(&folder), ["colour", "deep", "old"]);
        assert_eq!(fs::read_to_string(folder.join("deep/er")).unwrap(), "1");
        assert_eq!(fs::metadata(folder.join("colour")).unwrap().permissions().mode() & 0o777, 0o640);

        // A reader with the old folder open continues in it or finds it gone, and never sees a mixture.
        let first = fs::read_link(folder.join(DATA_LINK)).unwrap();
        assert!(write(&folder, &files(&[("colour", "blue"), ("deep/er", "1")]), FileOwner::default()).unwrap());
        assert_eq!(fs::read_to_string(folder.join("colour")).unwrap(), "blue");
        assert_eq!(names(&folder), ["colour", "deep"]);
        assert_ne!(fs::read_link(folder.join(DATA_LINK)).unwrap(), first);
        assert!(!folder.join(first).exists());
    }

    /// TRN-21: a Secret's file that only its owner may read belongs to the user of the instances.
    #[test]
    fn file_for_its_owner_belongs_to_the_user_of_the_instances() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: only root may give files away");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let file = |path: &str, mode| VolumeFile { path: path.to_owned(), bytes: b"s".to_vec(), mode };
        let content = [file("own", 0o400), file("shared", 0o444)];
        write(dir.path(), &content, FileOwner::default()).unwrap();
        assert!(write(dir.path(), &content, FileOwner(Some(4242))).unwrap(), "another owner is a change");
        let owner = |name: &str| std::os::unix::fs::MetadataExt::uid(&fs::metadata(dir.path().join(name)).unwrap());
        assert_eq!((owner("own"), owner("shared")), (4242, 0));
    }

    #[test]
    fn the_same_content_again_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("settings");
        let content = files(&[("colour", "red")]);
        write(&folder, &content, FileOwner::default()).unwrap();
        let stamp = || fs::symlink_metadata(folder.join(DATA_LINK)).unwrap().modified().unwrap();
        let before = stamp();
        assert!(!write(&folder, &content, FileOwner::default()).unwrap());
        assert_eq!(stamp(), before);
    }

    #[test]
    fn a_write_that_was_cut_short_does_not_stop_the_next() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("settings");
        let content = files(&[("colour", "red")]);
        let half = folder.join(format!("..{:016x}", hash(&content, FileOwner::default())));
        fs::create_dir_all(&half).unwrap();
        fs::write(half.join("colour"), "r").unwrap();
        symlink("nowhere", folder.join("..data_new")).unwrap();
        write(&folder, &content, FileOwner::default()).unwrap();
        assert_eq!(fs::read_to_string(folder.join("colour")).unwrap(), "red");
    }
}
