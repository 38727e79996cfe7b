//! The steps of a handover, as the old process sees them.

use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use anyhow::{Result, bail};
use rustix::net::sockopt::socket_peercred;

use super::super::gateway_sockets::GatewaySockets;
use super::super::sockets::SocketDescriptors;
use super::{HANDOVER_MAX, HandoverOffer, HandoverRequest, ListenerName, StateReleased, SuccessorReady, fits, wire};

/// A successor that has sent its request.
pub(in crate::cli::run) struct PendingHandover {
    pub(super) stream: UnixStream,
    pub(super) hello: HandoverRequest,
}

/// A successor that has the sockets.
pub(in crate::cli::run) struct Successor {
    stream: UnixStream,
    pub(in crate::cli::run) version: String,
}

impl PendingHandover {
    /// Sends the sockets, if they match the request; this process keeps accepting on them.
    pub(in crate::cli::run) fn grant(self, kept: &SocketDescriptors, gateways: &GatewaySockets) -> Result<Successor> {
        if let Err(why) = fits::check(&self.hello, kept) {
            let refused = HandoverOffer::Refused(why.to_string());
            wire::send(&self.stream, &refused)?;
            bail!("refused: {why}");
        }
        gateways.with_open(|open| {
            let open = if self.hello.gateways { open } else { &[] };
            let own = kept.all().map(|(name, socket)| (name, socket.as_fd()));
            let sockets: Vec<(ListenerName, BorrowedFd<'_>)> = own.chain(open.iter().copied()).collect();
            wire::send(&self.stream, &HandoverOffer::Sockets(sockets.iter().map(|(name, _)| *name).collect()))?;
            sockets.iter().try_for_each(|(_, socket)| wire::give(&self.stream, *socket))
        })?;
        Ok(Successor { stream: self.stream, version: self.hello.version })
    }
}

impl Successor {
    /// Announces that store, logs and folder are released.
    pub(in crate::cli::run) fn release_state(&self) -> Result<()> {
        wire::send(&self.stream, &StateReleased)
    }

    pub(in crate::cli::run) fn pid(&self) -> Option<i32> {
        socket_peercred(&self.stream).ok().map(|peer| peer.pid.as_raw_nonzero().get())
    }

    /// Waits until it serves. The connection stays open for as long as this process lives: its end tells
    /// the successor that this process has ended.
    pub(in crate::cli::run) fn wait_until_up(&self) -> Result<()> {
        self.stream.set_read_timeout(Some(HANDOVER_MAX))?;
        wire::receive::<SuccessorReady>(&self.stream).map(drop)
    }
}
