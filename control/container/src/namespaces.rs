//! Starts processes in other pid namespaces. The calling thread stays in its own.
//!
//! A thread can choose the pid namespace of its children without leaving its own. So it chooses another one, starts
//! the process, and switches back. The process has to be started by the thread that is to outlive it: the signal
//! that ends it with its parent follows that thread.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::process::{Child, Command};

use nix::sched::{CloneFlags, setns, unshare};

/// Starts `command` as the first process of a pid namespace. All others in it end with it.
pub fn spawn_first_process(command: &mut Command) -> io::Result<Child> {
    let own = own_namespace()?;
    unshare(CloneFlags::CLONE_NEWPID)?;
    let spawned = command.spawn();
    choose(&own);
    spawned
}

/// Starts `command` in the pid namespace of the process behind `pidfd`.
pub fn spawn_in_container(pidfd: impl AsFd, command: &mut Command) -> io::Result<Child> {
    let own = own_namespace()?;
    setns(pidfd, CloneFlags::CLONE_NEWPID)?;
    let spawned = command.spawn();
    choose(&own);
    spawned
}

fn own_namespace() -> io::Result<File> {
    File::open("/proc/thread-self/ns/pid")
}

/// # Panics
/// If the kernel refuses to give this thread back its own namespace: all it starts afterwards would be in a container's.
fn choose(own: &File) {
    setns(own, CloneFlags::CLONE_NEWPID).expect("a thread may always start processes in its own pid namespace");
}
