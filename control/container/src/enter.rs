//! Starts another process in a running container, such as the command of an `exec` probe.
//!
//! It was started in the container's pid namespace ([`crate::namespaces::spawn_in_container`]), and takes the other namespaces
//! from the container's first process, which is number 1 there.

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use nix::sched::{CloneFlags, setns};
use rustix::fs::{Mode, OFlags, open};
use rustix::process::{DumpableBehavior, Pid, PidfdFlags, pidfd_open, set_dumpable_behavior, umask};
use serde::{Deserialize, Serialize};

use crate::launch::{
    LaunchError, Variables, become_user, close_inherited, enter_working_dir, filter_for, not_prepared, own_streams,
    start,
};
use crate::parent::Parent;
use crate::path_text;
use crate::scope;
use crate::terminal;
use crate::user::{self, UserSpec};
use crate::user_namespace::{self, host_id};

/// The properties of the process, except its command and its variables.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ExecSpec {
    #[serde(with = "path_text")]
    pub working_dir: Option<PathBuf>,
    pub user: UserSpec,
    /// As in the container's own specification.
    pub first_host_id: Option<u32>,
    pub capabilities: u64,
    /// The parent's process, as the parent calls it.
    pub parent: i32,
    pub stdin: ExecStdin,
}

/// The stdin of a process that enters a container.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum ExecStdin {
    #[default]
    Null,
    /// The rest of the stdin of the process that becomes it.
    Inherited,
    /// The terminal that its stdout is, which becomes its controlling terminal.
    Terminal,
}

impl ExecSpec {
    /// Becomes `command` in the container of this process's pid namespace. Returns only if that failed.
    #[must_use]
    pub fn become_process(&self, command: &[OsString], variables: Variables) -> LaunchError {
        match self.enter() {
            Ok(home) => {
                let keeps_stdin = self.stdin != ExecStdin::Null;
                start(&filter_for(self.capabilities), command, variables.with_home(&home), keeps_stdin)
            }
            Err(why) => not_prepared(&why),
        }
    }

    fn enter(&self) -> Result<String, String> {
        let to_message = |why: io::Error| why.to_string();
        // A container's processes must not trace this one (CVE-2016-9962).
        set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(|why| why.to_string())?;
        close_inherited().map_err(to_message)?;
        let parent = Parent::open(self.parent).map_err(to_message)?;
        if self.stdin == ExecStdin::Terminal {
            terminal::take_controlling().map_err(|why| format!("the terminal cannot be taken: {why}"))?;
        }
        let first = join().map_err(|why| format!("the container's namespaces cannot be entered: {why}"))?;
        umask(Mode::from_raw_mode(0o022));
        let root = root().map_err(to_message)?;
        let credentials = user::resolve(&root, &self.user)?;
        drop(root);
        if let Some(id) = self.first_host_id {
            own_streams(host_id(id, credentials.uid));
            user_namespace::enter(first).map_err(|why| format!("the user namespace cannot be entered: {why}"))?;
        }
        if let Some(folder) = &self.working_dir {
            enter_working_dir(folder)?;
        }
        become_user(&credentials, self.capabilities).map_err(|why| format!("user {}: {why}", credentials.uid))?;
        scope::restrict_self();
        parent.die_with().map_err(to_message)?;
        Ok(credentials.home)
    }
}

/// Enters the namespaces of the container but that of its users, and returns its first process.
fn join() -> io::Result<OwnedFd> {
    let first = pidfd_open(Pid::INIT, PidfdFlags::empty())?;
    let identity = |path: &str| std::fs::metadata(path).map(|found| (found.dev(), found.ino()));
    let host = identity("/")?;
    let namespaces =
        CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWUTS | CloneFlags::CLONE_NEWIPC | CloneFlags::CLONE_NEWCGROUP;
    setns(&first, namespaces)?;
    // The container's first process enters its root in one of its last steps.
    if identity("/")? == host {
        return Err(io::Error::other("the container is still starting; try again"));
    }
    Ok(first)
}

fn root() -> io::Result<OwnedFd> {
    Ok(open("/", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
}
