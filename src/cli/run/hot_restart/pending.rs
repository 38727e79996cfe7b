//! Connections to the takeover socket whose first message is incomplete.
//!
//! All are read at once, so a silent peer delays no successor. They are bounded by count and by time, and
//! only processes of the same user, or of root, are accepted.

use std::io::{ErrorKind, Read};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::socket_peercred;
use rustix::process::geteuid;

use super::handover::PendingHandover;
use super::{HandoverRequest, MESSAGE_TIMEOUT, wire};

/// A successor sends its message as soon as it is connected, so pending ones are stalled: with one more the
/// oldest is closed.
const PENDING_MAX: usize = 64;
/// Without a free descriptor, connections are accepted again after this.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);
/// Minimum interval of the log line about silent or invalid peers.
const REPORT_INTERVAL: Duration = Duration::from_secs(10);

#[derive(Default)]
pub(super) struct Pending {
    /// The oldest first.
    all: Vec<One>,
    /// No connection is accepted before.
    accept_after: Option<Instant>,
    reported: Option<Instant>,
}

struct One {
    stream: UnixStream,
    bytes: Vec<u8>,
    due: Instant,
}

impl Pending {
    /// Waits until there is something to do. `true`: a connection waits to be accepted.
    pub(super) fn wait(&mut self, listener: &UnixListener) -> bool {
        let now = Instant::now();
        let paused = self.accept_after.filter(|after| *after > now);
        let mut sockets: Vec<PollFd<'_>> = self.all.iter().map(|one| PollFd::new(&one.stream, PollFlags::IN)).collect();
        if paused.is_none() {
            sockets.push(PollFd::new(listener, PollFlags::IN));
        }
        let due = self.all.iter().map(|one| one.due).chain(paused).min();
        let limit = due.and_then(|due| Timespec::try_from(due.saturating_duration_since(now)).ok());
        // An error: interrupted by a signal; the next check tells.
        let ready = poll(&mut sockets, limit.as_ref()).is_ok();
        ready && paused.is_none() && sockets.last().is_some_and(|listener| !listener.revents().is_empty())
    }

    /// Accepts pending connections, as far as peers are allowed.
    pub(super) fn accept(&mut self, listener: &UnixListener) {
        loop {
            match listener.accept() {
                Ok((stream, _)) => self.add(stream),
                Err(why) if why.kind() == ErrorKind::WouldBlock => return,
                Err(why) => {
                    self.tell(&why.into());
                    self.accept_after = Some(Instant::now() + ACCEPT_RETRY);
                    return;
                }
            }
        }
    }

    fn add(&mut self, stream: UnixStream) {
        if let Err(why) = allowed(&stream).and_then(|()| Ok(stream.set_nonblocking(true)?)) {
            return self.tell(&why);
        }
        if self.all.len() == PENDING_MAX {
            self.all.remove(0);
        }
        self.all.push(One { stream, bytes: Vec::new(), due: Instant::now() + MESSAGE_TIMEOUT });
    }

    /// Reads what has arrived. Complete messages go to `tell`; late, ended or invalid connections are
    /// closed.
    pub(super) fn read(&mut self, tell: &impl Fn(PendingHandover)) {
        let now = Instant::now();
        for mut one in std::mem::take(&mut self.all) {
            match one.message() {
                Ok(Some(hello)) => match request(one.stream, hello) {
                    Ok(request) => tell(request),
                    Err(why) => self.tell(&why),
                },
                Ok(None) if one.due > now => self.all.push(one),
                Ok(None) => self.tell(&anyhow::anyhow!("no message came within {MESSAGE_TIMEOUT:?}")),
                Err(why) => self.tell(&why),
            }
        }
    }

    fn tell(&mut self, why: &anyhow::Error) {
        let now = Instant::now();
        if self.reported.is_none_or(|reported| now - reported >= REPORT_INTERVAL) {
            self.reported = Some(now);
            tracing::warn!(why = format!("{why:#}"), "a connection to the hot restart socket was closed");
        }
    }
}

impl One {
    fn message(&mut self) -> Result<Option<HandoverRequest>> {
        let mut piece = [0; 4096];
        loop {
            match self.stream.read(&mut piece) {
                Ok(0) => bail!("the other process hung up"),
                Ok(length) => self.bytes.extend_from_slice(&piece[..length]),
                Err(why) if why.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(why) if why.kind() == ErrorKind::Interrupted => {}
                Err(why) => return Err(why.into()),
            }
            if let Some(hello) = wire::parse(&self.bytes)? {
                return Ok(Some(hello));
            }
        }
    }
}

fn request(stream: UnixStream, hello: HandoverRequest) -> Result<PendingHandover> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(MESSAGE_TIMEOUT))?;
    stream.set_write_timeout(Some(MESSAGE_TIMEOUT))?;
    Ok(PendingHandover { stream, hello })
}

fn allowed(stream: &UnixStream) -> Result<()> {
    let peer = socket_peercred(stream)?;
    ensure!(peer.uid == geteuid() || peer.uid.is_root(), "user {:?} may not take over", peer.uid);
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::super::predecessor::HandoverListener;
    use super::super::{HandoverRequest, PROTOCOL, socket_path};
    use super::*;

    fn hello() -> HandoverRequest {
        HandoverRequest {
            protocol: PROTOCOL,
            version: "0".to_owned(),
            workers: 1,
            addresses: Vec::new(),
            gateways: false,
        }
    }

    #[test]
    fn stalled_connections_delay_no_successor() {
        let data = tempfile::tempdir().unwrap();
        let (say, hear) = mpsc::channel();
        let listener = HandoverListener::open(data.path()).unwrap();
        listener.watch(move |request| say.send(request.hello.workers).unwrap()).unwrap();
        let folder = std::fs::File::open(data.path()).unwrap();
        let connect = || UnixStream::connect(socket_path(&folder)).unwrap();
        let began = Instant::now();
        let stalled: Vec<_> = (0..2 * PENDING_MAX).map(|_| connect()).collect();
        let successor = connect();
        wire::send(&successor, &hello()).unwrap();
        assert_eq!(hear.recv().unwrap(), 1);
        assert!(began.elapsed() < MESSAGE_TIMEOUT, "it waited for those that say nothing");
        drop(stalled);
    }

    #[test]
    fn message_in_pieces_is_reassembled() {
        let (mut one, other) = UnixStream::pair().unwrap();
        other.set_nonblocking(true).unwrap();
        let mut pending = Pending::default();
        pending.add(other);
        let (source, copy) = UnixStream::pair().unwrap();
        wire::send(&source, &hello()).unwrap();
        drop(source);
        let mut bytes = Vec::new();
        { &copy }.read_to_end(&mut bytes).unwrap();
        let reported = std::cell::Cell::new(0);
        for byte in bytes {
            assert_eq!(reported.get(), 0);
            std::io::Write::write_all(&mut one, &[byte]).unwrap();
            pending.read(&|_| reported.set(reported.get() + 1));
        }
        assert_eq!(reported.get(), 1);
        assert!(pending.all.is_empty());
    }
}
