//! The new process: requests the sockets, waits for the rest, and announces when it serves.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::socket_peercred;
use rustix::process::{PidfdFlags, getpid, getppid, pidfd_open};
use serde::de::DeserializeOwned;

use super::{
    HANDOVER_MAX, HandoverOffer, HandoverRequest, ListenerName, MESSAGE_TIMEOUT, PROTOCOL, StateReleased,
    SuccessorReady, socket_path, wire,
};
use crate::config::RunConfig;

/// The process that is being replaced.
pub(in crate::cli::run) struct Predecessor {
    stream: UnixStream,
}

/// How often the request is retried when the process ends meanwhile: its successor may be running.
const ATTEMPTS_MAX: u32 = 20;
const ATTEMPT_STEP: Duration = Duration::from_millis(50);

/// A process that was killed releases its descriptors within milliseconds; one that dumps core takes
/// longer.
const DEATH_MAX: Duration = Duration::from_secs(10);

/// Sockets with their purpose.
type InheritedSockets = Vec<(ListenerName, OwnedFd)>;

/// Requests the sockets of the process that runs on the data folder. `None`: no process runs there, so this
/// is a normal start.
///
/// # Errors It rejects the request, and continues as before.
pub(in crate::cli::run) fn begin(config: &RunConfig) -> Result<Option<(Predecessor, InheritedSockets)>> {
    let Ok(folder) = File::open(&config.data) else { return Ok(None) };
    for attempt in 1.. {
        let Some(stream) = connect(&folder)? else { break };
        match ask(stream, config) {
            // It ended before it answered, or another process has taken it over meanwhile and has the
            // socket now.
            Err(why) if attempt < ATTEMPTS_MAX && is_end(&why) => pause(),
            outcome => return outcome.map(Some),
        }
    }
    tracing::info!("no process runs on the data folder: starting as usual");
    Ok(None)
}

/// `None`: no process listens there.
fn connect(folder: &File) -> Result<Option<UnixStream>> {
    loop {
        match UnixStream::connect(socket_path(folder)) {
            Ok(stream) => return Ok(Some(stream)),
            Err(why) if why.kind() == ErrorKind::Interrupted => {} // interrupted by a signal
            Err(why) if matches!(why.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) => {
                return Ok(None);
            }
            Err(why) => return Err(why).context("--hot-restart: the running process cannot be reached"),
        }
    }
}

fn ask(stream: UnixStream, config: &RunConfig) -> Result<(Predecessor, InheritedSockets)> {
    // It may be serving another request, and finishes that first.
    stream.set_read_timeout(Some(HANDOVER_MAX))?;
    stream.set_write_timeout(Some(MESSAGE_TIMEOUT))?;
    wire::send(&stream, &hello(config))?;
    let names = match read(&stream, "an answer")? {
        HandoverOffer::Sockets(names) => names,
        HandoverOffer::Refused(why) => {
            bail!("--hot-restart: the running process rejects it, and continues: {why}")
        }
    };
    let take = |name| Ok((name, wire::take(&stream)?));
    let sockets = names.into_iter().map(take).collect::<Result<_>>()?;
    Ok((Predecessor { stream }, sockets))
}

#[allow(clippy::disallowed_methods, reason = "nothing runs yet but this thread")]
fn pause() {
    std::thread::sleep(ATTEMPT_STEP);
}

/// Waits for a message of the running process. It may take as long as [`HANDOVER_MAX`], or be stopped: a
/// user at a terminal must see what the start waits for.
fn read<T: DeserializeOwned>(stream: &UnixStream, what: &str) -> Result<T> {
    let process = socket_peercred(stream)?.pid.as_raw_nonzero().get();
    let mut socket = [PollFd::new(stream, PollFlags::IN)];
    let limit = Timespec::try_from(MESSAGE_TIMEOUT)?;
    // An error: interrupted by a signal.
    if poll(&mut socket, Some(&limit)).is_ok_and(|ready| ready == 0) {
        let stopped = is_stopped(process).then(|| format!(", which is stopped: `kill -CONT {process}` continues it"));
        let (stopped, seconds_max) = (stopped.unwrap_or_default(), HANDOVER_MAX.as_secs());
        tracing::warn!(process, seconds_max, "waiting for {what} of the running process{stopped}");
    }
    wire::receive(stream)
        .with_context(|| format!("--hot-restart: {what} of the running process ({process}) did not arrive in time"))
}

/// Whether the peer process has ended.
fn is_end(why: &anyhow::Error) -> bool {
    let mut causes = why.chain().filter_map(|cause| cause.downcast_ref::<std::io::Error>());
    causes.any(|cause| {
        matches!(cause.kind(), ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe)
    })
}

/// By SIGSTOP or a debugger.
fn is_stopped(process: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // The name before it may contain brackets and spaces.
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with(['T', 't']))
}

fn hello(config: &RunConfig) -> HandoverRequest {
    let mut addresses = vec![
        (ListenerName::Http, config.http),
        (ListenerName::Events, config.events),
        (ListenerName::Admin, config.admin),
    ];
    addresses.extend(config.https.map(|address| (ListenerName::Https, address)));
    addresses.extend(config.private.map(|address| (ListenerName::Private, address)));
    addresses.extend(config.private_https.map(|address| (ListenerName::PrivateHttps, address)));
    addresses.extend(config.events_https.map(|address| (ListenerName::EventsHttps, address)));
    addresses.extend(config.console.map(|address| (ListenerName::Console, address)));
    if config.kubeconfig.is_none() {
        addresses.push((ListenerName::Api, config.api));
    }
    HandoverRequest {
        protocol: PROTOCOL,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        workers: config.workers,
        addresses,
        gateways: true,
    }
}

impl Predecessor {
    /// Waits until it has released store, logs and folder; the same applies when it is dead.
    pub(in crate::cli::run) fn wait_for_folder(&self) -> Result<()> {
        match read::<StateReleased>(&self.stream, "the data folder") {
            Err(why) if is_end(&why) => {
                tracing::warn!("the process to be replaced ended during the handover; starting with its files");
                self.wait_for_death();
                Ok(())
            }
            outcome => outcome.map(drop),
        }
    }

    /// Its connection is closed; its files and locks are released when the kernel is done with it.
    fn wait_for_death(&self) {
        let process = socket_peercred(&self.stream).ok().map(|peer| peer.pid);
        let Some(process) = process.filter(|process| *process != getpid()) else { return };
        let Ok(death) = pidfd_open(process, PidfdFlags::empty()) else { return };
        // However this ends: a remaining lock is reported by itself.
        let _ = poll(&mut [PollFd::new(&death, PollFlags::IN)], Timespec::try_from(DEATH_MAX).ok().as_ref());
    }

    /// Whether it started this process, at SIGUSR2.
    pub(in crate::cli::run) fn is_parent(&self) -> bool {
        socket_peercred(&self.stream).ok().map(|peer| peer.pid) == getppid()
    }

    /// Announces that this process serves, and calls `gone` when the other one has ended.
    pub(in crate::cli::run) fn dismiss(mut self, gone: impl FnOnce() + Send + 'static) -> Result<()> {
        // An error: it has ended already, which is detected below.
        let _ = wire::send(&self.stream, &SuccessorReady);
        self.stream.set_read_timeout(None)?;
        std::thread::Builder::new().name("predecessor".to_owned()).spawn(move || {
            let mut byte = [0];
            while matches!(self.stream.read(&mut byte), Ok(1)) {}
            gone();
        })?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    fn predecessor() -> (Predecessor, UnixStream) {
        let (here, there) = UnixStream::pair().unwrap();
        (Predecessor { stream: here }, there)
    }

    /// The new process, which served already, ended with it.
    #[test]
    fn predecessor_that_dies_midway_is_replaced() {
        let (predecessor, there) = predecessor();
        drop(there);
        predecessor.wait_for_folder().unwrap();
        let (say, hear) = mpsc::channel();
        predecessor.dismiss(move || say.send(()).unwrap()).unwrap();
        hear.recv().unwrap();
    }

    #[test]
    fn live_predecessor_with_wrong_reply_keeps_folder() {
        let (predecessor, there) = predecessor();
        wire::send(&there, &"nonsense").unwrap();
        assert!(predecessor.wait_for_folder().is_err());
    }
}
