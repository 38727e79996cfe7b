//! Turns the started process into a container, step by step.
//!
//! The order matters. The host's files are out of reach before a path of the image is entered (CVE-2024-21626: no
//! descriptor of the host is left by then), the user changes before the parent's death signal is set, because the kernel
//! forgets it then, and the filter comes last, because it forbids most of the steps before it.

use std::ffi::OsString;
use std::io::{self, IsTerminal as _};
use std::os::fd::BorrowedFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use nix::sched::{CloneFlags, unshare};
use nix::unistd::{Gid, Uid, setgid, setgroups, sethostname, setuid};
use rustix::fs::{FileType, Mode, fchown, fstat};
use rustix::mount::{MountPropagationFlags, mount_change};
use rustix::process::{DumpableBehavior, set_dumpable_behavior, umask};
use rustix::thread::CapabilitySet;

use crate::capabilities::{self, DEFAULTS};
use crate::devices::DeviceFilesystem;
use crate::kernel_filesystems::{Masks, create_sys, mount_proc};
use crate::parent::Parent;
use crate::rootfs::{self, KernelFilesystems};
use crate::scope;
use crate::seccomp::SeccompFilter;
use crate::spec::ContainerSpec;
use crate::user::ProcessCredentials;
use crate::user_namespace::{self, UserNamespace, UserNamespaceTools};

/// As in shells: the program exists and cannot be run.
pub const EXIT_NOT_RUNNABLE: u8 = 126;
/// As in shells: there is no such program.
pub const EXIT_NOT_FOUND: u8 = 127;

/// Why a container does not run: a sentence for its log, and the status that its process exits with.
#[derive(Debug)]
pub struct LaunchError {
    pub message: String,
    pub code: u8,
}

/// A process that has done the steps shared by all containers. It is the first process of its pid namespace.
pub struct PreparedContainer {
    kernel: KernelFilesystems,
    parent: Parent,
}

impl PreparedContainer {
    /// The part of a start that is the same for all containers. `parent` is the parent's process, as it calls itself.
    pub fn create(parent: i32) -> Result<Self, LaunchError> {
        let steps = || {
            // A container's processes must not trace this one (CVE-2016-9962).
            set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
            close_inherited()?;
            let parent = Parent::open(parent)?;
            unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWUTS | CloneFlags::CLONE_NEWIPC)?;
            // Later mounts of the host appear here; mounts made here do not appear on the host.
            mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)?;
            let (devices, masks) = (DeviceFilesystem::create()?, Masks::open()?);
            mount_proc(&masks)?;
            let kernel = KernelFilesystems { devices, sys: create_sys()?, masks };
            SeccompFilter::of_defaults();
            Ok(Self { kernel, parent })
        };
        steps().map_err(|why: io::Error| not_prepared(&format!("its own namespaces and file systems: {why}")))
    }

    /// Becomes `command` in the container. Returns only if that failed.
    #[must_use]
    pub fn become_container(
        self,
        spec: &ContainerSpec,
        command: &[OsString],
        variables: Variables,
        tools: Option<&UserNamespaceTools>,
    ) -> LaunchError {
        match self.enter(spec, tools) {
            Ok(credentials) => {
                let filter = filter_for(spec.capabilities);
                start(&filter, command, variables.with_home(&credentials.home), false)
            }
            Err(why) => not_prepared(&why),
        }
    }

    fn enter(self, spec: &ContainerSpec, tools: Option<&UserNamespaceTools>) -> Result<ProcessCredentials, String> {
        let to_message = |why: io::Error| why.to_string();
        umask(Mode::from_raw_mode(0o022));
        // Paths in /proc/self/cgroup begin at its own group, as they do in what is mounted.
        unshare(CloneFlags::CLONE_NEWCGROUP).map_err(|why| format!("a control group namespace: {why}"))?;
        sethostname(&spec.hostname).map_err(|why| format!("host name {}: {why}", spec.hostname))?;
        let users = spec.first_host_id.map(|first| user_namespace(first, tools)).transpose()?;
        let (root, credentials) = rootfs::assemble(spec, self.kernel, users.as_ref())?;
        rootfs::enter(root).map_err(|why| format!("its root cannot be entered: {why}"))?;
        if let Some(users) = users {
            user_namespace::check(&credentials)?;
            own_streams(users.host_id(credentials.uid));
            users.enter().map_err(|why| format!("its user namespace cannot be entered: {why}"))?;
        }
        if let Some(folder) = &spec.working_dir {
            enter_working_dir(folder)?;
        }
        become_user(&credentials, spec.capabilities).map_err(|why| format!("user {}: {why}", credentials.uid))?;
        scope::restrict_self();
        self.parent.die_with().map_err(to_message)?;
        Ok(credentials)
    }
}

fn user_namespace(first: u32, tools: Option<&UserNamespaceTools>) -> Result<UserNamespace, String> {
    let tools = tools.ok_or("this program makes no user namespaces")?;
    UserNamespace::create(first, tools).map_err(|why| format!("a user namespace: {why}"))
}

/// The variables of a process, in their order.
#[derive(Debug, Clone, Default)]
pub struct Variables(pub Vec<(OsString, OsString)>);

impl Variables {
    /// HOME is the user's own, unless it is set.
    pub(crate) fn with_home(mut self, home: &str) -> Self {
        if !self.0.iter().any(|(name, _)| name == "HOME") {
            self.0.push(("HOME".into(), home.into()));
        }
        self
    }
}

/// Becomes `command`, with this process's stdout and stderr, and its stdin if that is kept.
pub(crate) fn start(
    filter: &SeccompFilter,
    command: &[OsString],
    variables: Variables,
    keeps_stdin: bool,
) -> LaunchError {
    let Some((program, arguments)) = command.split_first() else {
        return not_prepared("it has no command");
    };
    let mut starting = Command::new(program);
    starting.args(arguments).env_clear().envs(variables.0);
    if !keeps_stdin {
        starting.stdin(Stdio::null());
    }
    if let Err(why) = filter.install() {
        return not_prepared(&format!("the filter of system calls cannot be installed: {why}"));
    }
    let why = starting.exec();
    let code = if why.kind() == io::ErrorKind::NotFound { EXIT_NOT_FOUND } else { EXIT_NOT_RUNNABLE };
    LaunchError { message: format!("cannot run {}: {why}", program.display()), code }
}

pub(crate) fn not_prepared(why: &str) -> LaunchError {
    LaunchError { message: format!("cannot prepare the container: {why}"), code: EXIT_NOT_RUNNABLE }
}

pub(crate) fn filter_for(capabilities: u64) -> SeccompFilter {
    let kept = CapabilitySet::from_bits_truncate(capabilities);
    if kept == DEFAULTS { SeccompFilter::of_defaults().clone() } else { SeccompFilter::for_capabilities(kept) }
}

/// RT-USER-01: takes the user and its groups, and keeps at most `capabilities`.
pub(crate) fn become_user(credentials: &ProcessCredentials, capabilities: u64) -> io::Result<()> {
    let kept = CapabilitySet::from_bits_truncate(capabilities);
    // Without it the bounding set stays as it is, and a program of root gets all of it back when it starts.
    if !rustix::thread::capabilities(None)?.effective.contains(CapabilitySet::SETPCAP) {
        return Err(io::Error::other("capabilities cannot be limited; grant the appliance CAP_SETPCAP"));
    }
    capabilities::limit_bounding_set(kept, CapabilitySet::all())?;
    own_streams(credentials.uid);
    let groups: Vec<Gid> = credentials.groups.iter().map(|gid| Gid::from_raw(*gid)).collect();
    setgroups(&groups)?;
    setgid(Gid::from_raw(credentials.gid))?;
    setuid(Uid::from_raw(credentials.uid))?;
    capabilities::limit_own(kept)?;
    Ok(rustix::thread::set_no_new_privs(true)?)
}

/// A program that opens `/dev/stdout` opens a pipe again, which only its owner may. If its owner cannot be changed, the program
/// can still write to what it has.
pub(crate) fn own_streams(uid: u32) {
    for stream in [rustix::stdio::stdin(), rustix::stdio::stdout(), rustix::stdio::stderr()] {
        if is_own_stream(stream) {
            let _ = fchown(stream, Some(rustix::fs::Uid::from_raw(uid)), None);
        }
    }
}

/// Made for this process alone, as a pipe and a terminal are. The null device is the host's and all processes share it.
fn is_own_stream(stream: BorrowedFd<'_>) -> bool {
    let kind = fstat(stream).map(|status| FileType::from_raw_mode(status.st_mode));
    stream.is_terminal() || matches!(kind, Ok(FileType::Fifo | FileType::Socket))
}

/// Made if it is missing, as container runtimes do. Inside the container's root, with nothing of the host open.
pub(crate) fn enter_working_dir(folder: &Path) -> Result<(), String> {
    let folder = Path::new("/").join(folder);
    let failed = |why: io::Error| format!("workingDir {} cannot be entered: {why}", folder.display());
    if !folder.is_dir() {
        std::fs::create_dir_all(&folder).map_err(failed)?;
    }
    std::env::set_current_dir(&folder).map_err(failed)?;
    // A folder outside of the root has no path here.
    match std::env::current_dir() {
        Ok(now) if now.is_absolute() => Ok(()),
        Ok(_) => Err(failed(io::Error::other("it is outside of the container"))),
        Err(why) => Err(failed(why)),
    }
}

/// Closes all descriptors but stdin, stdout and stderr. The appliance's own are close-on-exec, but those that it inherited
/// from a shell or a supervisor are not.
pub fn close_inherited() -> io::Result<()> {
    let open: Vec<i32> = std::fs::read_dir("/proc/self/fd")?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    for fd in open.into_iter().filter(|fd| *fd > 2) {
        let _ = nix::unistd::close(fd); // the listing's own is closed already
    }
    Ok(())
}
