//! The first step of an instance, in its own process: become what an instance must be, then become
//! the developer's program.
//!
//! The appliance starts itself under the hidden verb [`VERB`]:
//! `sluicegate instance-init --parent PID [--cgroup DIR MOUNTED]... [--resolver FILE] [--bind SOURCE TARGET ro|rw]... [--dir DIR]
//! [--user UID] [--group GID] [--hostname NAME] [--never-root] [--read-only] -- COMMAND [ARGUMENT]...`
//! A verb instead of code between fork and exec, because that place allows hardly anything and would
//! need `unsafe`. Environment and descriptors are set by the parent already.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal, setsid};
use rustix::thread::set_no_new_privs;

use super::Identity;
use super::mounts::{self, Bind};
use super::read_only;
use super::views;

/// The verb that the program's `main` hands to [`run`], with everything behind it.
pub const VERB: &str = "instance-init";

/// As shells say it: found, but cannot be run.
const EXIT_NOT_RUNNABLE: u8 = 126;
/// As shells say it: not found.
const EXIT_NOT_FOUND: u8 = 127;

/// Becomes the command that `arguments` (those behind the verb) name. Returns only if that failed, after
/// it said why on stderr, which is the instance's log.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let (message, code) = match parse(arguments) {
        Ok((parent, place, command)) => become_instance(parent, &place, &command),
        Err(usage) => (usage.to_owned(), EXIT_NOT_RUNNABLE),
    };
    eprintln!("sluicegate: {message}");
    ExitCode::from(code)
}

/// Where an instance finds itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Place {
    /// Control groups to join, before anything else is done.
    pub(super) cgroups: Vec<Seat>,
    /// What it is to find as its `/etc/resolv.conf`.
    pub(super) resolver: Option<PathBuf>,
    pub(super) binds: Vec<Bind>,
    /// Entered last, because it may be in a volume.
    pub(super) working_dir: Option<PathBuf>,
    pub(super) identity: Identity,
    /// What it calls itself, where it may: by this, programs tell each other apart.
    pub(super) hostname: Option<String>,
    pub(super) read_only_root: bool,
}

/// A control group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Seat {
    pub(super) folder: PathBuf,
    /// Where its hierarchy is mounted.
    pub(super) mounted: PathBuf,
}

/// The words of the verb, as the parent writes them.
pub(super) fn arguments(parent: Pid, place: &Place, command: &[String]) -> Vec<OsString> {
    let mut words: Vec<OsString> =
        vec![VERB.into(), "--parent".into(), parent.as_raw_nonzero().to_string().into()];
    for seat in &place.cgroups {
        words.extend(["--cgroup".into(), seat.folder.clone().into(), seat.mounted.clone().into()]);
    }
    if let Some(file) = &place.resolver {
        words.extend(["--resolver".into(), file.clone().into()]);
    }
    for bind in &place.binds {
        let access = if bind.read_only { "ro" } else { "rw" };
        words.extend([
            "--bind".into(),
            bind.source.clone().into(),
            bind.target.clone().into(),
            access.into(),
        ]);
    }
    if let Some(dir) = &place.working_dir {
        words.extend(["--dir".into(), dir.clone().into()]);
    }
    for (word, id) in [("--user", place.identity.user), ("--group", place.identity.group)] {
        words.extend(id.into_iter().flat_map(|id| [OsString::from(word), id.to_string().into()]));
    }
    if let Some(name) = &place.hostname {
        words.extend(["--hostname".into(), name.into()]);
    }
    for (word, set) in [("--never-root", place.identity.never_root), ("--read-only", place.read_only_root)] {
        words.extend(set.then(|| OsString::from(word)));
    }
    words.push("--".into());
    words.extend(command.iter().map(OsString::from));
    words
}

fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<(Pid, Place, Vec<OsString>), &'static str> {
    const USAGE: &str = "usage: instance-init --parent PID [--cgroup DIR MOUNTED]... [--resolver FILE] [--bind SOURCE TARGET ro|rw]... \
                         [--dir DIR] [--user UID] [--group GID] [--hostname NAME] [--never-root] [--read-only] -- COMMAND [ARGUMENT]...";
    let id = |word: Option<OsString>| word.and_then(|word| word.to_str()?.parse::<u32>().ok()).ok_or(USAGE);
    let mut words = arguments.into_iter();
    if words.next().is_none_or(|word| word != "--parent") {
        return Err(USAGE);
    }
    let parent = words
        .next()
        .and_then(|word| word.to_str()?.parse::<i32>().ok())
        .filter(|pid| *pid > 0)
        .and_then(Pid::from_raw)
        .ok_or(USAGE)?;
    let mut place = Place::default();
    loop {
        match words.next().as_ref().and_then(|word| word.to_str()) {
            Some("--cgroup") => {
                let mut next = || words.next().ok_or(USAGE);
                place.cgroups.push(Seat { folder: next()?.into(), mounted: next()?.into() });
            }
            Some("--resolver") => place.resolver = Some(words.next().ok_or(USAGE)?.into()),
            Some("--bind") => {
                let mut next = || words.next().ok_or(USAGE);
                let (source, target, access) = (next()?.into(), next()?.into(), next()?);
                place.binds.push(Bind { source, target, read_only: access != "rw" });
            }
            Some("--user") => place.identity.user = Some(id(words.next())?),
            Some("--group") => place.identity.group = Some(id(words.next())?),
            Some("--hostname") => {
                place.hostname = Some(words.next().and_then(|word| word.into_string().ok()).ok_or(USAGE)?);
            }
            Some("--never-root") => place.identity.never_root = true,
            Some("--read-only") => place.read_only_root = true,
            Some("--dir") => place.working_dir = Some(words.next().ok_or(USAGE)?.into()),
            Some("--") => break,
            _ => return Err(USAGE),
        }
    }
    let command: Vec<OsString> = words.collect();
    if command.is_empty() { Err(USAGE) } else { Ok((parent, place, command)) }
}

fn become_instance(parent: Pid, place: &Place, command: &[OsString]) -> (String, u8) {
    let steps = || {
        // A session of its own: one signal reaches the whole family, and there is no terminal.
        setsid().map_err(|why| why.to_string())?;
        join(&place.cgroups)?;
        if let Some(name) = &place.hostname {
            call_itself(name);
        }
        settle(place)?;
        become_user(place.identity)?;
        seal(parent).map_err(|why| why.to_string())
    };
    if let Err(why) = steps() {
        return (format!("cannot prepare the instance: {why}"), EXIT_NOT_RUNNABLE);
    }
    let why = Command::new(&command[0]).args(&command[1..]).exec();
    let code = if why.kind() == io::ErrorKind::NotFound { EXIT_NOT_FOUND } else { EXIT_NOT_RUNNABLE };
    (format!("cannot run {}: {why}", command[0].display()), code)
}

/// Moves this process, and with it everything it will start.
fn join(cgroups: &[Seat]) -> Result<(), String> {
    cgroups.iter().try_for_each(|Seat { folder, .. }| {
        std::fs::write(folder.join("cgroup.procs"), "0")
            .map_err(|why| format!("the control group {} cannot be joined: {why}", folder.display()))
    })
}

/// RT-FS-06: a host name of its own. Whoever may not have one, keeps the host's.
fn call_itself(name: &str) {
    if nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWUTS).is_ok() {
        let _ = nix::unistd::sethostname(name); // allowed to who could make the namespace
    }
}

/// RT-USER-05: an identity that cannot be had ends the start.
fn become_user(identity: Identity) -> Result<(), String> {
    let refused = |what: &str, id: u32, why: nix::Error| {
        format!("{what} {id} is not allowed: {why}; run the appliance as root or leave it out")
    };
    // Asked for what it is already, a process needs no privilege.
    let (user, group) = (nix::unistd::geteuid().as_raw(), nix::unistd::getegid().as_raw());
    let changes_user = identity.user.is_some_and(|id| id != user);
    let changes_group = identity.group.is_some_and(|id| id != group);
    if (changes_user || changes_group) && user == 0 {
        nix::unistd::setgroups(&[])
            .map_err(|why| format!("groups of the appliance cannot be left: {why}"))?;
    }
    if let Some(id) = identity.group.filter(|_| changes_group) {
        nix::unistd::setgid(id.into()).map_err(|why| refused("runAsGroup", id, why))?;
    }
    if let Some(id) = identity.user.filter(|_| changes_user) {
        nix::unistd::setuid(id.into()).map_err(|why| refused("runAsUser", id, why))?;
    }
    if identity.never_root && nix::unistd::geteuid().is_root() {
        return Err("runAsNonRoot is set and the instance would be root: set runAsUser".to_owned());
    }
    Ok(())
}

/// The kernel forgets the death signal when the user changes, so this comes after that.
fn seal(parent: Pid) -> io::Result<()> {
    // Dies with the appliance's hand that started it, however that ends.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // The hand may have died before the line above; then nobody sends that signal.
    if getppid() != Some(parent) {
        return Err(io::Error::other("the appliance is gone"));
    }
    set_no_new_privs(true)?;
    close_inherited()
}

fn settle(place: &Place) -> Result<(), String> {
    let needs_mounts = match place.binds.first() {
        Some(first) => Some(format!("mountPath {}", first.target.display())),
        None => place.read_only_root.then(|| "readOnlyRootFilesystem".to_owned()),
    };
    match mounts::enter_namespace() {
        Ok(()) => {
            mounts::make(&place.binds)?;
            views::show(place);
        }
        Err(why) => {
            if let Some(what) = needs_mounts {
                return Err(format!("{what} needs a mount namespace: {why}"));
            } // else it sees what everybody sees
        }
    }
    if place.read_only_root {
        read_only::make(&place.binds)?;
    }
    if let Some(dir) = &place.working_dir {
        std::env::set_current_dir(dir)
            .map_err(|why| format!("workingDir {} cannot be entered: {why}", dir.display()))?;
    }
    Ok(())
}

/// Closes what the appliance itself inherited from whoever started it: everything of its own is
/// close-on-exec, but a shell's or a supervisor's descriptors are not, and are no business of an instance.
fn close_inherited() -> io::Result<()> {
    let open: Vec<i32> = std::fs::read_dir("/proc/self/fd")?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    for fd in open.into_iter().filter(|fd| *fd > 2) {
        let _ = nix::unistd::close(fd); // the listing's own is closed already
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(list: &[&str]) -> Vec<OsString> {
        list.iter().map(OsString::from).collect()
    }

    #[test]
    fn what_the_parent_writes_is_what_init_reads() {
        let command = vec!["sh".to_owned(), "-c".to_owned(), "--".to_owned()];
        let bind = |target: &str, read_only| Bind { source: "/a b".into(), target: target.into(), read_only };
        let seat = |folder: &str| Seat { folder: folder.into(), mounted: "/sys/fs".into() };
        let place = Place {
            cgroups: vec![seat("/sys/fs/c g"), seat("/x")],
            resolver: Some("/etc/res olv".into()),
            binds: vec![bind("/--", true), bind("/c", false)],
            working_dir: Some("/work dir".into()),
            identity: Identity { user: Some(1000), group: Some(0), never_root: true },
            hostname: Some("a-b".into()),
            read_only_root: true,
        };
        let written = arguments(Pid::from_raw(7).unwrap(), &place, &command);
        assert_eq!(written[0], VERB);

        let (parent, read_place, read) = parse(written[1..].iter().cloned()).unwrap();
        assert_eq!(parent.as_raw_nonzero().get(), 7);
        assert_eq!(read_place, place);
        assert_eq!(read, words(&["sh", "-c", "--"]));
    }

    #[test]
    fn anything_else_is_refused() {
        for bad in [
            &[][..],
            &["--parent"],
            &["--parent", "x", "--", "sh"],
            &["--parent", "0", "--", "sh"],
            &["--parent", "-1", "--", "sh"],
            &["--parent", "7", "sh"],
            &["--parent", "7", "--"],
            &["--parent", "7", "--bind", "/a", "/b"],
            &["--parent", "7", "--dir"],
            &["--parent", "7", "--user", "root", "--", "sh"],
            &["--parent", "7", "--group", "-1", "--", "sh"],
        ] {
            assert!(parse(words(bad)).is_err(), "{bad:?}");
        }
    }
}
