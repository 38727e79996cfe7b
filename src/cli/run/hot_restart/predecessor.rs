//! The old process: waits for a successor, and hands over everything in order.

use std::fs::File;
use std::net::TcpListener;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use anyhow::{Result, bail};

use super::super::sockets::SocketDescriptors;
use super::pending::Pending;
use super::{
    HANDOVER_MAX, HandoverOffer, HandoverRequest, ListenerName, SOCKET, StateReleased, SuccessorReady, fits,
    socket_path, wire,
};

/// The socket for successors.
pub(in crate::cli::run) struct HandoverListener {
    listener: UnixListener,
}

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

impl HandoverListener {
    /// Only the holder of the folder's lock may call this: an existing socket belongs to a dead process, or
    /// to a predecessor that has handed over everything.
    pub(in crate::cli::run) fn open(folder: &Path) -> Result<Self> {
        let handle = File::open(folder)?;
        let path = socket_path(&handle);
        let _ = std::fs::remove_file(folder.join(SOCKET)); // usually there is none; else binding says so
        let listener = UnixListener::bind(&path)?;
        std::fs::set_permissions(folder.join(SOCKET), std::fs::Permissions::from_mode(0o600))?;
        listener.set_nonblocking(true)?;
        Ok(Self { listener })
    }

    /// Passes every request to `tell`, on a thread of its own.
    pub(in crate::cli::run) fn watch(self, tell: impl Fn(PendingHandover) + Send + 'static) -> Result<()> {
        std::thread::Builder::new().name("takeover".to_owned()).spawn(move || {
            let mut pending = Pending::default();
            loop {
                let ready = pending.wait(&self.listener);
                pending.read(&tell);
                if ready {
                    pending.accept(&self.listener);
                }
            }
        })?;
        Ok(())
    }
}

impl PendingHandover {
    /// Sends the sockets, if they match the request; this process keeps accepting on them.
    pub(in crate::cli::run) fn grant(self, kept: &SocketDescriptors) -> Result<Successor> {
        if let Err(why) = fits::check(&self.hello, kept) {
            let refused = HandoverOffer::Refused(why.to_string());
            wire::send(&self.stream, &refused)?;
            bail!("refused: {why}");
        }
        let sockets: Vec<(ListenerName, &TcpListener)> = kept.all().collect();
        wire::send(&self.stream, &HandoverOffer::Sockets(sockets.iter().map(|(name, _)| *name).collect()))?;
        for (_, socket) in sockets {
            wire::give(&self.stream, socket.as_fd())?;
        }
        Ok(Successor { stream: self.stream, version: self.hello.version })
    }
}

impl Successor {
    /// Announces that store, logs and folder are released.
    pub(in crate::cli::run) fn release_state(&self) -> Result<()> {
        wire::send(&self.stream, &StateReleased)
    }

    /// Waits until it serves. The connection stays open for as long as this process lives: its end tells
    /// the successor that this process has ended.
    pub(in crate::cli::run) fn wait_until_up(&self) -> Result<()> {
        self.stream.set_read_timeout(Some(HANDOVER_MAX))?;
        wire::receive::<SuccessorReady>(&self.stream).map(drop)
    }
}
