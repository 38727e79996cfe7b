//! Questions to running cores, asked by whoever is none: who is connected.
//!
//! A core answers between two turns of its loop, out of cells that it keeps anyway. Nothing is shared and nobody
//! takes a lock; a core that has enough questions before it is not asked.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

/// Questions that may wait for a core: somebody who looks, and a second one.
pub const QUESTIONS_MAX: usize = 4;

/// Most connections that a core tells of at a time: it serves nobody meanwhile, and this takes some 2 ms.
pub const CONNECTIONS_LISTED_MAX: usize = 10_000;

/// Asks for a core's connections.
#[derive(Debug)]
pub struct ConnectionQuery {
    most: usize,
    answer: oneshot::Sender<ConnectionList>,
}

/// What a core tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectionList {
    /// Open ones, told or not.
    pub open: usize,
    /// Those with a request first.
    pub connections: Vec<ConnectionInfo>,
}

/// One open connection of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectionInfo {
    pub peer: SocketAddr,
    /// `http`, `https` or `private`.
    pub listener: &'static str,
    /// `None` before its first byte.
    pub protocol: Option<&'static str>,
    pub state: ConnectionState,
    pub age: Duration,
    /// Since its latest request began, or ended.
    pub state_age: Duration,
    /// Ever begun.
    pub requests: u64,
    /// Open streams; in HTTP/1 as many as requests under way.
    pub streams: usize,
    /// In HTTP/1 as of its last request's end.
    pub received: u64,
    pub sent: u64,
}

/// What a connection is busy with.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ConnectionState {
    /// Nothing has come yet.
    #[default]
    Opened,
    /// Between two requests.
    Idle,
    /// With a request that has no instance yet.
    Routing,
    /// ... in the waiting room.
    Waiting,
    /// With a request in an instance. In HTTP/2: with any request.
    Serving,
    /// A WebSocket.
    Tunnel,
    /// Answered, and its client may still be sending.
    Closing,
}

impl ConnectionState {
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Opened => "new",
            Self::Idle => "idle",
            Self::Routing => "routing",
            Self::Waiting => "queued",
            Self::Serving => "active",
            Self::Tunnel => "tunnel",
            Self::Closing => "closing",
        }
    }

    /// Nobody waits for anything.
    #[must_use]
    pub const fn is_idle(self) -> bool {
        matches!(self, Self::Opened | Self::Idle)
    }
}

impl ConnectionQuery {
    /// Answers by what `tell` makes, given how many connections are wanted at most.
    pub(crate) fn answer(self, tell: impl FnOnce(usize) -> ConnectionList) {
        let told = tell(self.most);
        drop(self.answer.send(told)); // who asked may have gone
    }
}

/// The way to all cores.
#[derive(Debug, Clone, Default)]
pub struct CoreQueries {
    senders: Vec<mpsc::Sender<ConnectionQuery>>,
}

impl CoreQueries {
    /// A way to one core more, whose end is returned.
    pub fn add(&mut self) -> mpsc::Receiver<ConnectionQuery> {
        let (way, inbox) = mpsc::channel(QUESTIONS_MAX);
        self.senders.push(way);
        inbox
    }

    /// What each core tells of up to `most` of its connections; `None` from one that has ended or has too many
    /// questions before it. Waits for as long as the slowest core's loop takes.
    pub async fn connections(&self, most: usize) -> Vec<Option<ConnectionList>> {
        let most = most.min(CONNECTIONS_LISTED_MAX);
        let asked: Vec<_> = self
            .senders
            .iter()
            .map(|way| {
                let (answer, hear) = oneshot::channel();
                way.try_send(ConnectionQuery { most, answer }).ok().map(|()| hear)
            })
            .collect();
        let mut told = Vec::with_capacity(asked.len());
        for hear in asked {
            told.push(match hear {
                Some(hear) => hear.await.ok(),
                None => None,
            });
        }
        told
    }
}
