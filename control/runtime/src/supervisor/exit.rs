//! Why an instance is over, in words.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use rustix::io::Errno;

use crate::{ExitCause, InstanceExit, InstanceSpec};

/// Why an instance's life comes to its end.
pub(crate) enum TerminationCause {
    Exited,
    Stopped,
    /// It was not ready in time, for this reason if one is known.
    NotReady(String),
    Unreachable,
    Unhealthy(String),
    /// A sidecar failed again and again.
    SidecarFailed(InstanceExit),
}

/// What the instance said itself goes before what it wrote otherwise.
pub(crate) fn exit_of(
    end: &TerminationCause,
    status: ExitStatus,
    spec: &InstanceSpec,
    (said, tail): (&str, &str),
    starved: bool,
) -> InstanceExit {
    if let TerminationCause::SidecarFailed(gone) = end {
        return gone.clone();
    }
    let exit = match (status.code(), status.signal()) {
        (Some(code), _) => ExitCause::Exited(code),
        (None, signal) => ExitCause::Signaled(signal.unwrap_or_default()),
    };
    let limit = spec.resources.memory_bytes_max;
    let (cause, sentence) = match end {
        TerminationCause::Exited if starved => {
            (ExitCause::OutOfMemory, format!("instance wanted more memory than its limit of {limit} bytes"))
        }
        TerminationCause::NotReady(why) => {
            let colon = if why.is_empty() { "" } else { ": " };
            let seconds = spec.startup_timeout.as_secs_f64();
            (ExitCause::NotReady, format!("instance did not become ready within {seconds} s{colon}{why}"))
        }
        TerminationCause::Unreachable => (ExitCause::Unreachable, "instance took no connections any more".to_owned()),
        TerminationCause::Unhealthy(why) => (ExitCause::Unhealthy(why.clone()), why.clone()),
        TerminationCause::Exited | TerminationCause::Stopped | TerminationCause::SidecarFailed(_) => {
            (exit, format!("instance ended with {status}"))
        }
    };
    let message = if !said.is_empty() {
        format!("{sentence}; it said: {said}")
    } else if tail.is_empty() {
        format!("{sentence}; it wrote nothing")
    } else {
        format!("{sentence}; last lines of its output:\n{tail}")
    };
    InstanceExit { cause, message }
}

pub(crate) fn not_started(why: &io::Error) -> InstanceExit {
    let advice = match Errno::from_io_error(why) {
        Some(Errno::AGAIN) => "; the host gives us no more processes: see TasksMax, pids.max and ulimit -u",
        Some(Errno::MFILE) => "; we may open no more files: see LimitNOFILE and ulimit -n",
        Some(Errno::NFILE) => "; the host opens no more files: see fs.file-max",
        Some(Errno::NOMEM) => "; the host has no memory left for it",
        Some(Errno::NOSPC) => "; free some space in the data folder",
        _ => "",
    };
    InstanceExit { cause: ExitCause::NotStarted, message: format!("instance could not be started: {why}{advice}") }
}
