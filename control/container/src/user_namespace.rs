//! The user namespace of a container: its users are other users of the host, and its root has no rights there.
//!
//! Ids 0 to 65,535 inside are a block of the host's. Only a process outside of a namespace may say which, so a helper
//! is in it until that is done. Layers and volumes stay as they are on disk: their mounts map the ids, so files that belong
//! to root on disk belong to root inside.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::process::{Child, Command, Stdio};

use nix::sched::{CloneFlags, setns, unshare};
use nix::unistd::{Gid, Uid, setgid, setgroups, setuid};

use crate::limits::USER_IDS;
use crate::user::ProcessCredentials;

/// What a program that starts containers brings along for user namespaces.
#[derive(Debug, Clone)]
pub struct UserNamespaceTools {
    /// The arguments by which the program runs [`hold`].
    pub helper: Vec<OsString>,
    /// Maps the ids of a mount, which is attached nowhere yet, to those of a user namespace.
    pub map_mount: fn(mount: BorrowedFd<'_>, namespace: BorrowedFd<'_>) -> io::Result<()>,
}

/// A user namespace that no process is in yet.
pub(crate) struct UserNamespace {
    /// The host's id of the root inside.
    first: u32,
    namespace: File,
    map_mount: fn(BorrowedFd<'_>, BorrowedFd<'_>) -> io::Result<()>,
}

impl UserNamespace {
    /// Its ids are those of the host from `first` on.
    pub(crate) fn create(first: u32, tools: &UserNamespaceTools) -> io::Result<Self> {
        let mut starting = Command::new("/proc/self/exe");
        starting.args(&tools.helper).env_clear().stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut helper = starting.spawn()?;
        let namespace = map_ids_of(&mut helper, first);
        drop(helper.stdin.take()); // it ends now
        helper.wait()?;
        Ok(Self { first, namespace: namespace?, map_mount: tools.map_mount })
    }

    /// The host's id of `id` inside.
    pub(crate) fn host_id(&self, id: u32) -> u32 {
        host_id(self.first, id)
    }

    /// Files on `mount`, which is attached nowhere yet, belong to the users inside.
    pub(crate) fn map(&self, mount: impl AsFd) -> io::Result<()> {
        (self.map_mount)(mount.as_fd(), self.namespace.as_fd()).map_err(|why| {
            let advice = "hostUsers: false needs Linux 5.19, and file systems that can map ids";
            io::Error::new(why.kind(), format!("the ids of its files cannot be mapped: {why}; {advice}"))
        })
    }

    /// From now on, this process is root inside, and nothing outside.
    pub(crate) fn enter(&self) -> io::Result<()> {
        enter(&self.namespace)
    }
}

/// The host's id of `id` in a namespace that begins at `first`. Ids without one are the last, as the kernel shows them.
pub(crate) fn host_id(first: u32, id: u32) -> u32 {
    first.saturating_add(id.min(USER_IDS - 1))
}

/// Enters the user namespace behind a descriptor of it, or of a process in it, as its root.
pub(crate) fn enter(namespace: impl AsFd) -> io::Result<()> {
    setns(namespace, CloneFlags::CLONE_NEWUSER)?;
    setgroups(&[])?;
    setgid(Gid::from_raw(0))?;
    Ok(setuid(Uid::from_raw(0))?)
}

/// Says which user, or group, is not in the namespace.
pub(crate) fn check(credentials: &ProcessCredentials) -> Result<(), String> {
    let ids = [credentials.uid, credentials.gid].into_iter().chain(credentials.groups.iter().copied());
    match ids.into_iter().find(|id| *id >= USER_IDS) {
        Some(id) => Err(format!("user or group {id}: with hostUsers: false, ids are below {USER_IDS}")),
        None => Ok(()),
    }
}

/// The helper: makes a user namespace, says so, and is in it until its stdin ends.
pub fn hold() -> io::Result<()> {
    unshare(CloneFlags::CLONE_NEWUSER)?;
    let mut stdout = io::stdout();
    stdout.write_all(b"\n")?;
    stdout.flush()?;
    io::copy(&mut io::stdin().lock(), &mut io::sink()).map(drop)
}

fn map_ids_of(helper: &mut Child, first: u32) -> io::Result<File> {
    let mut ready = [0];
    let mut stdout = helper.stdout.take().ok_or_else(|| io::Error::other("it has no stdout"))?;
    stdout
        .read_exact(&mut ready)
        .map_err(|_| io::Error::other("this host allows none; see user.max_user_namespaces"))?;
    let folder = format!("/proc/{}", helper.id());
    for map in ["uid_map", "gid_map"] {
        fs::write(format!("{folder}/{map}"), format!("0 {first} {USER_IDS}"))?;
    }
    File::open(format!("{folder}/ns/user"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn id_outside_of_the_namespace_is_refused() {
        let of = |uid, groups: &[u32]| ProcessCredentials { uid, gid: 0, groups: groups.to_vec(), home: "/".into() };
        assert!(check(&of(65_535, &[0, 50])).is_ok());
        assert!(check(&of(65_536, &[0])).unwrap_err().contains("65536"));
        assert!(check(&of(0, &[0, 100_000])).is_err());
    }

    #[test]
    fn host_ids_follow_the_first() {
        assert_eq!((host_id(0x7000_0000, 0), host_id(0x7000_0000, 1000)), (0x7000_0000, 0x7000_03e8));
        assert_eq!(host_id(0x7000_0000, u32::MAX), 0x7000_ffff);
    }
}
