//! Starts an instance that is a container, also repeatedly.
//!
//! A container writes to its own folder below its revision's, `ID.rootfs/NAME.N`, on disk and for one start
//! only: overlayfs does not accept it a second time. The mounts belong to its processes and end with them.

use std::cell::{Cell, RefCell};
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Child;
use std::rc::Rc;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use container::program::ProtectedProgram;
use container::user::UserSpec;
use container::{ContainerSpec, ExecSpec};
use rustix::process::{PidfdFlags, Signal, getpid, kill_process, pidfd_open};

use crate::names::instance_id;
use crate::process::child::pid;
use crate::process::host_processes;
use crate::process::precise_sleep::precise_sleep;
use crate::remove_tree::remove_tree;
use crate::sandbox_spec::SandboxSpec;
use crate::user_ids::UserIdBlock;
use crate::{ContainerImage, InstanceSpec};

/// The suffix of the folder with the files that an instance's containers write, after the instance's id.
const SUFFIX: &str = ".rootfs";
/// Files of a container may be secret.
const FOLDER_MODE: u32 = 0o700;

/// The interval of checks on a starting container, which takes some milliseconds.
const START_STEP: Duration = Duration::from_micros(200);

/// One container of an instance.
#[derive(Debug)]
pub(crate) struct ContainerLauncher {
    pub(crate) program: Rc<ProtectedProgram>,
    pub(crate) reaper: ScratchReaper,
    spec: ContainerSpec,
    /// The host's ids of its users, if they are others than the host's.
    _user_ids: Option<Rc<UserIdBlock>>,
    stop_signal: Signal,
    /// Without the number of the start.
    scratch: PathBuf,
    starts: Cell<u32>,
    /// Its first process, while it runs or until the next start.
    first: RefCell<Option<OwnedFd>>,
}

impl ContainerLauncher {
    /// `folder` is the instance's own; `name` is unique in it. `place` is its sandbox, and
    /// `user_ids` are the instance's.
    pub(crate) fn new(
        (program, reaper): (Rc<ProtectedProgram>, ScratchReaper),
        (folder, name): (&Path, &str),
        (spec, image): (&InstanceSpec, &ContainerImage),
        (place, user_ids): (&SandboxSpec, Option<Rc<UserIdBlock>>),
    ) -> Self {
        let user_ids = user_ids.filter(|_| spec.credentials.has_user_namespace);
        let container = ContainerSpec {
            layers: image.layers.to_vec(),
            scratch: PathBuf::new(),
            mounts: place.binds.clone(),
            resolver: place.resolver.clone(),
            hostname: place.hostname.clone().unwrap_or_default(),
            cgroups: place.cgroups.clone(),
            read_only_root: spec.read_only_root,
            working_dir: spec.working_dir.clone(),
            user: UserSpec {
                image: image.user.clone(),
                run_as_user: spec.credentials.user,
                run_as_group: spec.credentials.group,
                run_as_non_root: spec.credentials.run_as_non_root,
                supplemental_groups: Vec::new(),
            },
            first_host_id: user_ids.as_ref().map(|block| block.first()),
            capabilities: spec.credentials.capabilities.bits(),
            parent: getpid().as_raw_nonzero().get(),
        };
        Self {
            program,
            reaper,
            spec: container,
            _user_ids: user_ids,
            stop_signal: image.stop_signal,
            scratch: folder.join(name),
            starts: Cell::new(0),
            first: RefCell::new(None),
        }
    }

    /// Prepares one start: creates its writable folder, and removes that of the previous start.
    pub(crate) fn next_spec(&self) -> io::Result<Box<ContainerSpec>> {
        let number = self.starts.get();
        if number > 0 {
            self.reaper.remove(self.scratch.with_extension((number - 1).to_string()));
        }
        self.starts.set(number.wrapping_add(1));
        let scratch = self.scratch.with_extension(number.to_string());
        fs::DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(&scratch)?;
        Ok(Box::new(ContainerSpec { scratch, ..self.spec.clone() }))
    }

    pub(crate) fn started(&self, child: &Child) -> io::Result<()> {
        self.first.replace(Some(pidfd_open(pid(child), PidfdFlags::empty())?));
        Ok(())
    }

    /// The launch spec of a process that enters the container.
    pub(crate) fn entry(&self) -> io::Result<(ExecSpec, OwnedFd)> {
        let first = self.first.borrow().as_ref().map(|first| first.try_clone());
        let first = first.ok_or_else(|| io::Error::other("the container is not running"))??;
        let ContainerSpec { working_dir, user, first_host_id, capabilities, parent, .. } = self.spec.clone();
        Ok((ExecSpec { working_dir, user, first_host_id, capabilities, parent, ..ExecSpec::default() }, first))
    }

    /// Returns when its first process has switched its root: from then on there is a container to probe. Never, if that fails; then
    /// the process ends.
    pub(crate) async fn until_started(&self, first: u32) {
        let identity = |path: &str| fs::metadata(path).map(|found| (found.dev(), found.ino()));
        let (Ok(host), root) = (identity("/"), format!("/proc/{first}/root")) else { return };
        while identity(&root).is_ok_and(|found| found == host) {
            precise_sleep(START_STEP).await;
        }
    }

    /// Sends the image's stop signal to its first process; that process ends the others.
    ///
    /// The kernel drops a signal that the first process of a pid namespace neither handles nor blocks (pid_namespaces(7)), even
    /// if its default action is to end the process. Such a process is killed at once: waiting for the grace period, 300 s by
    /// default, would change nothing.
    pub(crate) fn terminate(&self, child: &Child) {
        let first = pid(child);
        let signal = if host_processes::handles(first, self.stop_signal) { self.stop_signal } else { Signal::KILL };
        let _ = kill_process(first, signal); // it may have ended
    }
}

/// The writable folder of all containers of instance `id`; `revision` is the revision's.
pub(crate) fn scratch_folder(revision: &Path, id: u64) -> PathBuf {
    revision.join(format!("{id}{SUFFIX}"))
}

/// Removes folders one after the other on a separate thread: a container may have written many files.
#[derive(Debug, Clone)]
pub(crate) struct ScratchReaper(Sender<PathBuf>);

impl ScratchReaper {
    pub(crate) fn start() -> io::Result<Self> {
        let (folders, inbox) = channel::<PathBuf>();
        std::thread::Builder::new()
            .name("scratch".into())
            .spawn(move || inbox.iter().for_each(|folder| remove(&folder)))?;
        Ok(Self(folders))
    }

    pub(crate) fn remove(&self, folder: PathBuf) {
        let _ = self.0.send(folder); // without the thread it goes at the next start
    }
}

/// Removes the containers' files of instances that `is_left`; their processes have ended.
pub(crate) fn remove_leftovers(instances: &Path, is_left: &dyn Fn(u64) -> bool) {
    let inside = |folder: PathBuf| fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    // INSTANCES/NAMESPACE/REVISION/ID.rootfs
    for folder in inside(instances.to_owned()).flat_map(inside).flat_map(inside) {
        let name = folder.file_name().and_then(|name| name.to_str()?.strip_suffix(SUFFIX));
        if name.and_then(instance_id).is_some_and(is_left) {
            remove(&folder);
        }
    }
}

fn remove(folder: &Path) {
    if let Err(why) = remove_tree(folder)
        && why.kind() != io::ErrorKind::NotFound
    {
        tracing::warn!(folder = %folder.display(), %why, "what a container wrote stays behind until the next start");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_leftover_scratch_folders_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let file = |path: &str| {
            let path = dir.path().join("default/hello-00001").join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, "").unwrap();
            path
        };
        let (old, new, other) = (file("7.rootfs/main.0/upper/x"), file("8.rootfs/main.0/upper/x"), file("7.log"));
        remove_leftovers(dir.path(), &|id| id < 8);
        assert!(!old.exists() && !old.ancestors().nth(3).unwrap().exists());
        assert!(new.exists() && other.exists());
    }
}
