//! The first step of an instance, in its own process: set up the process, then execute
//! the developer's program.
//!
//! The appliance starts itself under the hidden verb [`VERB`]:
//! `sluicegate instance-init --parent PID [--cgroup DIR MOUNTED]... [--resolver FILE] [--bind SOURCE TARGET ro|rw [--sub-path PATH]]... [--mask PATH]... [--unmask PATH]... [--dir DIR]
//! [--user UID] [--group GID] [--capabilities BITS] [--hostname NAME] [--never-root] [--read-only] [--host-devices] -- COMMAND [ARGUMENT]...`
//! A hidden verb instead of code between fork and exec, because that code may do hardly anything and would
//! need `unsafe`. The parent has already set the descriptors; variables come on stdin.
//!
//! `sluicegate instance-init --parent PID [--cgroup DIR MOUNTED]... [--host-devices] --wait` starts a prefork
//! process: it does the steps that are the same for all instances, and waits for the other arguments on its stdin. With
//! `--first-process` it becomes a container, and with `--in-container` another process in a running one. `--session STDIN` says
//! that the process is a client's command, which keeps the rest of its stdin, or has a terminal.
//!
//! `sluicegate instance-init --hold-user-namespace` is the helper that makes a user namespace for a container.

use std::ffi::{OsStr, OsString};
use std::io::{self, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};

use container::launch::{
    EXIT_NOT_FOUND, EXIT_NOT_RUNNABLE, LaunchError, PreparedContainer, Variables, close_inherited,
};
use container::terminal::take_controlling;
use container::user_namespace::{self, UserNamespaceTools};
use container::{CgroupView, ExecStdin};
use contract::idmapped_mount;
use rustix::fs::fchown;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, Uid, getppid, set_parent_process_death_signal, setsid};
use rustix::thread::set_no_new_privs;

use super::launch_spec::{LaunchSpec, decode, parse_arguments};
use super::session_words;
use crate::InstanceCredentials;
use crate::capabilities::Capabilities;
use crate::mounts::devices::{self, InstanceDevices};
use crate::mounts::host_views::WritableCgroups;
use crate::mounts::{bind, host_views, read_only_root};
use crate::sandbox_spec::SandboxSpec;

pub use super::launch_spec::VERB;

/// Executes the command in `arguments` (those after the verb). Returns only if that failed, after
/// it wrote the reason to stderr, which is the instance's log.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    if arguments.first().is_some_and(|first| first == HOLD_USER_NAMESPACE) {
        return match user_namespace::hold() {
            Ok(()) => ExitCode::SUCCESS,
            Err(why) => report(&LaunchError { message: format!("a user namespace: {why}"), code: EXIT_NOT_RUNNABLE }),
        };
    }
    let (message, code) = match parse_arguments(arguments) {
        Ok((_, launch)) if launch.joins_container => return enter_container(&launch),
        Ok((parent, launch)) if launch.is_first_process => return become_container(parent, &launch),
        Ok((parent, launch)) => match prepare(parent, launch) {
            Ok(Some((launch, prepared))) => exec_instance(parent, &launch, prepared),
            Ok(None) => return ExitCode::SUCCESS, // no launch spec came
            Err(why) => unprepared(&why),
        },
        Err(usage) => (usage.to_owned(), EXIT_NOT_RUNNABLE),
    };
    eprintln!("sluicegate: {message}");
    ExitCode::from(code)
}

/// With it, the verb runs the helper that makes a user namespace for a container.
const HOLD_USER_NAMESPACE: &str = "--hold-user-namespace";

/// This program makes user namespaces by itself.
fn user_namespace_tools() -> UserNamespaceTools {
    let mut helper: Vec<OsString> = std::env::args_os().skip(1).take_while(|word| word != VERB).collect();
    helper.extend([VERB.into(), HOLD_USER_NAMESPACE.into()]);
    UserNamespaceTools { helper, map_mount: idmapped_mount::map }
}

/// The steps that a prefork process has completed.
#[derive(Default)]
struct PreforkState {
    /// The mount namespace, if it could be created.
    namespace: Option<MountNamespace>,
    bound: Option<Capabilities>,
}

/// A new mount namespace, and the remaining steps in it.
struct MountNamespace {
    unguarded: WritableCgroups,
    devices: Option<InstanceDevices>,
}

impl MountNamespace {
    fn enter(place: &SandboxSpec) -> io::Result<Self> {
        bind::enter_namespace()?;
        let devices = (!place.host_devices).then(devices::create).transpose();
        let devices = devices.inspect_err(devices::warn_unavailable).unwrap_or_default();
        Ok(Self { unguarded: host_views::protect(), devices })
    }
}

impl PreforkState {
    fn prepare_mounts(place: &SandboxSpec) -> Result<Self, String> {
        // If that fails now, it fails again when something is mounted, and is reported then.
        let namespace = MountNamespace::enter(place).ok();
        let bound = Capabilities::default();
        bound.limit_bounding_set(None).map_err(not_dropped)?;
        Ok(Self { namespace, bound: Some(bound) })
    }
}

/// The steps that do not depend on the instance, and the wait for its launch spec. `None`: the process is not needed.
fn prepare(parent: Pid, launch: LaunchSpec) -> Result<Option<(LaunchSpec, PreforkState)>, String> {
    // A new session: one signal reaches the whole group, and there is no terminal.
    setsid().map_err(|why| why.to_string())?;
    join(&launch.sandbox.cgroups)?;
    if !launch.is_prefork {
        let variables = if launch.variables_follow { read_words(launch.session)? } else { Vec::new() };
        return Ok(Some((LaunchSpec { variables, ..launch }, PreforkState::default())));
    }
    let prepared = PreforkState::prepare_mounts(&launch.sandbox)?;
    let Some(launch_spec) = wait(parent)? else { return Ok(None) };
    let joined = launch.sandbox.cgroups;
    let others: Vec<_> =
        launch_spec.sandbox.cgroups.iter().filter(|prefork| !joined.contains(prefork)).cloned().collect();
    join(&others)?;
    Ok(Some((LaunchSpec { is_prefork: true, ..launch_spec }, prepared)))
}

/// The first process of a container: the same, in new namespaces from the start.
fn become_container(parent: Pid, launch: &LaunchSpec) -> ExitCode {
    let prepared = || {
        setsid().map_err(|why| why.to_string())?;
        join(&launch.sandbox.cgroups)?;
        set_parent_process_death_signal(Some(Signal::KILL)).map_err(|why| why.to_string())?;
        let prepared = PreparedContainer::create(parent.as_raw_nonzero().get()).map_err(|why| why.message)?;
        let Some(launch_spec) = read_launch_spec(None)? else { return Ok(None) };
        let others: Vec<_> = launch_spec
            .sandbox
            .cgroups
            .iter()
            .filter(|group| !launch.sandbox.cgroups.contains(group))
            .cloned()
            .collect();
        join(&others)?;
        Ok::<_, String>(Some((prepared, launch_spec)))
    };
    let failed = match prepared() {
        Ok(None) => return ExitCode::SUCCESS, // no launch spec came
        Ok(Some((
            prepared,
            LaunchSpec { sandbox: SandboxSpec { container: Some(spec), .. }, command, variables, .. },
        ))) => {
            let variables = variables.iter().map(|word| split_variable(word)).collect();
            prepared.become_container(&spec, &command, Variables(variables), Some(&user_namespace_tools()))
        }
        Ok(Some(_)) => LaunchError { message: "the container is not described".to_owned(), code: EXIT_NOT_RUNNABLE },
        Err(message) => LaunchError { message, code: EXIT_NOT_RUNNABLE },
    };
    report(&failed)
}

/// Another process in the container of its pid namespace.
fn enter_container(launch: &LaunchSpec) -> ExitCode {
    let prepared = || {
        setsid().map_err(|why| why.to_string())?;
        join(&launch.sandbox.cgroups)?;
        read_launch_spec(launch.session)
    };
    report(&match prepared() {
        Ok(None) => return ExitCode::SUCCESS, // the appliance has ended
        Ok(Some(LaunchSpec { enter: Some(spec), command, variables, .. })) => {
            let variables = variables.iter().map(|word| split_variable(word)).collect();
            spec.become_process(&command, Variables(variables))
        }
        Ok(Some(_)) => LaunchError { message: "the container is not described".to_owned(), code: EXIT_NOT_RUNNABLE },
        Err(message) => LaunchError { message, code: EXIT_NOT_RUNNABLE },
    })
}

fn report(LaunchError { message, code }: &LaunchError) -> ExitCode {
    eprintln!("sluicegate: {message}");
    ExitCode::from(*code)
}

fn split_variable(word: &OsStr) -> (OsString, OsString) {
    let at = word.as_bytes().iter().position(|byte| *byte == b'=').unwrap_or(word.len());
    let (name, value) = word.as_bytes().split_at(at);
    (OsStr::from_bytes(name).into(), OsStr::from_bytes(value.get(1..).unwrap_or_default()).into())
}

/// The launch spec from stdin. Stdin ends without one when the appliance, or its runtime thread, ends.
fn wait(parent: Pid) -> Result<Option<LaunchSpec>, String> {
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(|why| why.to_string())?;
    if getppid() != Some(parent) {
        return Ok(None);
    }
    read_launch_spec(None)
}

fn read_launch_spec(session: Option<ExecStdin>) -> Result<Option<LaunchSpec>, String> {
    let words = read_words(session)?;
    if words.is_empty() { Ok(None) } else { Ok(Some(decode(words.into_iter())?)) }
}

/// All of stdin, with NULs between the arguments; of a client's command only the arguments before its own input.
fn read_words(session: Option<ExecStdin>) -> Result<Vec<OsString>, String> {
    let mut bytes = Vec::new();
    match session {
        None => io::stdin().lock().read_to_end(&mut bytes).map(drop),
        Some(_) => session_words::read(&mut bytes),
    }
    .map_err(|why| why.to_string())?;
    if bytes.is_empty() {
        return Ok(Vec::new());
    }
    Ok(bytes.split(|byte| *byte == 0).map(|word| OsString::from_vec(word.to_vec())).collect())
}

fn exec_instance(parent: Pid, launch: &LaunchSpec, prepared: PreforkState) -> (String, u8) {
    let LaunchSpec { sandbox: place, command, .. } = launch;
    let steps = || {
        if launch.session == Some(ExecStdin::Terminal) {
            take_controlling().map_err(|why| format!("the terminal cannot be taken: {why}"))?;
        }
        if let Some(name) = &place.hostname {
            set_hostname(name);
        }
        finish_mounts(place, prepared.namespace)?;
        let capabilities = place.credentials.capabilities;
        capabilities.limit_bounding_set(prepared.bound).map_err(not_dropped)?;
        become_user(place.credentials)?;
        capabilities.apply().map_err(not_dropped)?;
        restore_death_signal(parent).map_err(|why| why.to_string())
    };
    if let Err(why) = steps() {
        return unprepared(&why);
    }
    let mut program = Command::new(&command[0]);
    program.args(&command[1..]);
    if launch.is_prefork || launch.variables_follow {
        let variables = launch.variables.iter().map(|word| split_variable(word));
        program.env_clear().envs(variables);
        if launch.session.is_none_or(|stdin| stdin == ExecStdin::Null) {
            program.stdin(Stdio::null()); // RT-FD-01
        }
    }
    let why = program.exec();
    let code = if why.kind() == io::ErrorKind::NotFound { EXIT_NOT_FOUND } else { EXIT_NOT_RUNNABLE };
    (format!("cannot run {}: {why}", command[0].display()), code)
}

fn not_dropped(why: Errno) -> String {
    format!("capabilities cannot be dropped: {why}")
}

fn unprepared(why: &str) -> (String, u8) {
    (format!("cannot prepare the instance: {why}"), EXIT_NOT_RUNNABLE)
}

/// Moves this process, and everything it will start, into the group.
fn join(cgroups: &[CgroupView]) -> Result<(), String> {
    cgroups.iter().try_for_each(|CgroupView { folder, .. }| {
        std::fs::write(folder.join("cgroup.procs"), "0")
            .map_err(|why| format!("the control group {} cannot be joined: {why}", folder.display()))
    })
}

/// RT-FS-06: a host name of its own. Without the right to set one, it keeps the host's.
fn set_hostname(name: &str) {
    if nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWUTS).is_ok() {
        let _ = nix::unistd::sethostname(name); // allowed in a namespace of its own
    }
}

/// RT-USER-05: an identity that is not allowed ends the start.
fn become_user(identity: InstanceCredentials) -> Result<(), String> {
    let refused = |what: &str, id: u32, why: nix::Error| {
        format!("{what} {id} is not allowed: {why}; run the appliance as root or leave it out")
    };
    // A process that already has the identity needs no privilege.
    let (user, group) = (nix::unistd::geteuid().as_raw(), nix::unistd::getegid().as_raw());
    let changes_user = identity.user.is_some_and(|id| id != user);
    let changes_group = identity.group.is_some_and(|id| id != group);
    if (changes_user || changes_group) && user == 0 {
        nix::unistd::setgroups(&[]).map_err(|why| format!("groups of the appliance cannot be left: {why}"))?;
    }
    if let Some(id) = identity.group.filter(|_| changes_group) {
        nix::unistd::setgid(id.into()).map_err(|why| refused("runAsGroup", id, why))?;
    }
    if let Some(id) = identity.user.filter(|_| changes_user) {
        // A program that opens `/dev/stdout` opens the pipe again, which its owner may do. If the owner cannot be
        // changed, the program can still write to its inherited descriptor.
        // The same holds for `/dev/stdin`, which only this process has.
        for output in [rustix::stdio::stdin(), rustix::stdio::stdout(), rustix::stdio::stderr()] {
            let _ = fchown(output, Some(Uid::from_raw(id)), None);
        }
        nix::unistd::setuid(id.into()).map_err(|why| refused("runAsUser", id, why))?;
    }
    if identity.run_as_non_root && nix::unistd::geteuid().is_root() {
        return Err("runAsNonRoot is set and the instance would be root: set runAsUser".to_owned());
    }
    Ok(())
}

/// The kernel forgets the death signal when the user changes, so this comes after that.
fn restore_death_signal(parent: Pid) -> io::Result<()> {
    // Dies with the runtime thread that started it, however that ends.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // The parent thread may have died before the line above; then the signal does not come.
    if getppid() != Some(parent) {
        return Err(io::Error::other("the appliance has ended"));
    }
    set_no_new_privs(true)?;
    close_inherited()
}

fn finish_mounts(place: &SandboxSpec, namespace: Option<MountNamespace>) -> Result<(), String> {
    let needs_mounts = match place.binds.first() {
        Some(first) => Some(format!("mountPath {}", first.target.display())),
        None => place.read_only_root.then(|| "readOnlyRootFilesystem".to_owned()),
    };
    match namespace.map_or_else(|| MountNamespace::enter(place), Ok) {
        Ok(MountNamespace { unguarded, devices }) => {
            unguarded.guard();
            let views = host_views::prepare(place);
            bind::mount_all(place, devices)?;
            views.mount();
        }
        Err(why) => {
            if let Some(what) = needs_mounts {
                return Err(format!("{what} needs a mount namespace: {why}"));
            } // else it sees the mounts of the host
        }
    }
    if place.read_only_root {
        read_only_root::remount_read_only(&place.binds)?;
    }
    if let Some(dir) = &place.working_dir {
        std::env::set_current_dir(dir)
            .map_err(|why| format!("workingDir {} cannot be entered: {why}", dir.display()))?;
    }
    Ok(())
}
