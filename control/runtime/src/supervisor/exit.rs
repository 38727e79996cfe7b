//! Why an instance ended, as a message.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use rustix::io::Errno;

use crate::{ExitCause, InstanceExit, InstanceSpec};

/// Why an instance ended.
pub(crate) enum TerminationCause {
    Exited,
    Stopped,
    /// It was not ready in time, for this reason if one is known.
    NotReady(String),
    Unreachable,
    Unhealthy(String),
    /// A sidecar failed repeatedly.
    SidecarFailed(InstanceExit),
}

/// The instance's own termination message takes precedence over its output.
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
        TerminationCause::Unreachable => (ExitCause::Unreachable, "instance accepted no more connections".to_owned()),
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
        Some(Errno::AGAIN) => "; the host's process limit is reached: see TasksMax, pids.max and ulimit -u",
        Some(Errno::MFILE) => "; the file limit of the appliance is reached: see LimitNOFILE and ulimit -n",
        Some(Errno::NFILE) => "; the host's file limit is reached: see fs.file-max",
        Some(Errno::NOMEM) => "; the host has no memory left for it",
        Some(Errno::NOSPC) => "; free some space in the data folder",
        _ => "",
    };
    InstanceExit { cause: ExitCause::NotStarted, message: format!("instance could not be started: {why}{advice}") }
}
