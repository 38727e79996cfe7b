//! The old process: waits for a successor, and gives it everything in order.

use std::fs::File;
use std::net::TcpListener;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use anyhow::{Result, bail};

use super::super::sockets::Kept;
use super::pending::Pending;
use super::{HANDOVER_MAX, Hello, Name, Offer, SOCKET, Up, Yours, fits, socket_path, wire};

/// Where successors knock.
pub(in crate::cli::run) struct Door {
    listener: UnixListener,
}

/// A successor that has said what it wants.
pub(in crate::cli::run) struct Request {
    pub(super) stream: UnixStream,
    pub(super) hello: Hello,
}

/// A successor that has the sockets.
pub(in crate::cli::run) struct Successor {
    stream: UnixStream,
    pub(in crate::cli::run) version: String,
}

impl Door {
    /// To be opened by whoever holds the lock on the folder: what is there is a dead process's, or that of a
    /// predecessor which has given everything away.
    pub(in crate::cli::run) fn open(folder: &Path) -> Result<Self> {
        let handle = File::open(folder)?;
        let path = socket_path(&handle);
        let _ = std::fs::remove_file(folder.join(SOCKET)); // usually there is none; else binding says so
        let listener = UnixListener::bind(&path)?;
        std::fs::set_permissions(folder.join(SOCKET), std::fs::Permissions::from_mode(0o600))?;
        listener.set_nonblocking(true)?;
        Ok(Self { listener })
    }

    /// Hands every request to `tell`, on a thread of its own.
    pub(in crate::cli::run) fn watch(self, tell: impl Fn(Request) + Send + 'static) -> Result<()> {
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

impl Request {
    /// Gives the sockets away, if they are what is wanted; this process keeps accepting on them.
    pub(in crate::cli::run) fn grant(self, kept: &Kept) -> Result<Successor> {
        if let Err(why) = fits::check(&self.hello, kept) {
            let refused = Offer::Refused(why.to_string());
            wire::say(&self.stream, &refused)?;
            bail!("refused: {why}");
        }
        let sockets: Vec<(Name, &TcpListener)> = kept.all().collect();
        wire::say(&self.stream, &Offer::Sockets(sockets.iter().map(|(name, _)| *name).collect()))?;
        for (_, socket) in sockets {
            wire::give(&self.stream, socket.as_fd())?;
        }
        Ok(Successor { stream: self.stream, version: self.hello.version })
    }
}

impl Successor {
    /// Says that store, logs and folder are free.
    pub(in crate::cli::run) fn leave_it_all(&self) -> Result<()> {
        wire::say(&self.stream, &Yours)
    }

    /// Waits until it serves. The connection stays open for as long as this process lives: its end is how the
    /// successor learns of ours.
    pub(in crate::cli::run) fn wait_until_up(&self) -> Result<()> {
        self.stream.set_read_timeout(Some(HANDOVER_MAX))?;
        wire::hear::<Up>(&self.stream).map(drop)
    }
}
