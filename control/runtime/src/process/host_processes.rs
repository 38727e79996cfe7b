//! The processes of this host, read from `/proc`.

use std::fs;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};

/// Marks every process of an instance, so that leftovers of a crashed appliance are distinguishable from others.
pub(crate) const INSTANCE_MARK: &str = "SLUICEGATE_INSTANCE";

/// A process, distinguishable from a later one with the same id.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ProcessIdentity {
    pub(crate) pid: i32,
    /// Clock ticks since boot.
    pub(crate) started: u64,
}

/// One process of this host, as far as it matters here.
#[derive(Debug)]
pub(crate) struct HostProcess {
    pub(crate) identity: ProcessIdentity,
    /// Its session's number, which is the leader's process id.
    pub(crate) session: i32,
    /// The instance that it belongs to, by its environment.
    pub(crate) mark: Option<String>,
}

/// The very process: looked at again after the descriptor holds it.
pub(crate) fn open_pidfd(identity: &ProcessIdentity) -> Option<OwnedFd> {
    let pidfd = pidfd_open(Pid::from_raw(identity.pid)?, PidfdFlags::empty()).ok()?;
    (process(identity.pid)?.identity == *identity).then_some(pidfd)
}

/// Sends SIGKILL to all, then waits for their ends, `within` this time. Returns how many got the signal. Blocks.
pub(crate) fn kill(list: &[&ProcessIdentity], within: Duration) -> usize {
    let began = Instant::now();
    let mut killed = Vec::with_capacity(list.len());
    for identity in list {
        let Some(pidfd) = open_pidfd(identity) else { continue };
        match pidfd_send_signal(&pidfd, Signal::KILL) {
            Ok(()) => killed.push(pidfd),
            Err(Errno::SRCH) => {} // it has ended
            Err(why) => tracing::warn!(pid = identity.pid, %why, "a process left behind cannot be ended"),
        }
    }
    for pidfd in &killed {
        let left = within.saturating_sub(began.elapsed());
        // Whatever comes of it: the caller looks again, until its time is up.
        let _ = poll(&mut [PollFd::new(pidfd, PollFlags::IN)], Timespec::try_from(left).ok().as_ref());
    }
    killed.len()
}

/// Whether the process catches, ignores or blocks this signal. True if that cannot be read.
pub(crate) fn handles(pid: Pid, signal: Signal) -> bool {
    let Ok(status) = fs::read(format!("/proc/{}/status", pid.as_raw_nonzero())) else { return true };
    status_handles(&String::from_utf8_lossy(&status), signal)
}

/// The kernel keeps a blocked signal for sigwait(3) or signalfd(2): init programs such as tini receive theirs that way,
/// and have no handler.
fn status_handles(status: &str, signal: Signal) -> bool {
    let bit = u64::try_from(signal.as_raw() - 1).map_or(0, |number| 1 << number);
    let masks = status
        .lines()
        .filter_map(|line| ["SigBlk:", "SigIgn:", "SigCgt:"].iter().find_map(|name| line.strip_prefix(*name)));
    masks.filter_map(|mask| u64::from_str_radix(mask.trim(), 16).ok()).fold(0, |all, mask| all | mask) & bit != 0
}

pub(crate) fn list() -> Vec<HostProcess> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries.flatten().filter_map(|entry| process(entry.file_name().to_str()?.parse().ok()?)).collect()
}

/// `None` if the process has ended, as a zombie has. Its name may be in no encoding.
pub(crate) fn process(pid: i32) -> Option<HostProcess> {
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    let (session, started) = parse_stat(&String::from_utf8_lossy(&stat))?;
    // An appliance that is not root can neither read the environment of another user's process nor end it.
    let environ = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    Some(HostProcess { identity: ProcessIdentity { pid, started }, session, mark: instance_mark(&environ) })
}

fn instance_mark(environ: &[u8]) -> Option<String> {
    environ.split(|byte| *byte == 0).find_map(|entry| {
        let value = entry.strip_prefix(INSTANCE_MARK.as_bytes())?.strip_prefix(b"=")?;
        String::from_utf8(value.to_vec()).ok()
    })
}

/// Session and start time out of `/proc/PID/stat`, unless it is a zombie. The command's name, in
/// parentheses, may hold anything, parentheses included.
fn parse_stat(stat: &str) -> Option<(i32, u64)> {
    let mut fields = stat.get(stat.rfind(')')? + 1..)?.split_whitespace();
    let state = fields.next()?;
    let session = fields.nth(2)?.parse().ok()?;
    let started = fields.nth(15)?.parse().ok()?;
    (!matches!(state, "Z" | "X")).then_some((session, started))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stat_line_is_read_whatever_the_command_calls_itself() {
        let rest = "S 1 7 8 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 987 1 2";
        assert_eq!(parse_stat(&format!("7 (a) b) {rest}")), Some((8, 987)));
        assert_eq!(parse_stat(&format!("7 (z) {}", rest.replacen('S', "Z", 1))), None);
        for bad in ["", ")", "7 (x) S 1", "7 (x) S 1 7 y 0"] {
            assert_eq!(parse_stat(bad), None);
        }
    }

    #[test]
    fn ignored_signal_is_handled_and_default_action_is_not() {
        let own = rustix::process::getpid();
        assert!(handles(own, Signal::PIPE), "Rust programs ignore SIGPIPE");
        assert!(!handles(own, Signal::POWER) && !handles(own, Signal::KILL));
        assert!(handles(Pid::from_raw(i32::MAX).unwrap(), Signal::TERM), "unknown counts as handled");
    }

    /// A `/proc` entry of tini(1).
    #[test]
    fn blocked_signal_is_handled() {
        let status = "Name:\ttini\nSigPnd:\t0000000000000000\nSigBlk:\t0000000000004000\n\
                      SigIgn:\t0000000000000000\nSigCgt:\t0000000000000000\n";
        assert!(status_handles(status, Signal::TERM));
        assert!(!status_handles(status, Signal::INT));
    }

    /// Else a program could hide from the reaper by its name.
    #[test]
    fn process_whose_name_is_not_utf8_is_found() {
        let found = std::thread::spawn(|| {
            rustix::thread::set_name(c"\xff\xfe").unwrap();
            process(rustix::thread::gettid().as_raw_nonzero().get()).is_some()
        });
        assert!(found.join().unwrap());
    }

    #[test]
    fn this_very_process_is_found_under_its_own_number() {
        let own = i32::try_from(std::process::id()).unwrap();
        let found = process(own).unwrap();
        assert_eq!(found.identity.pid, own);
        assert!(open_pidfd(&found.identity).is_some());
        assert!(open_pidfd(&ProcessIdentity { pid: own, started: found.identity.started + 1 }).is_none());
    }
}
