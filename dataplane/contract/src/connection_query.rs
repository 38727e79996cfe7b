//! Queries to running cores from other threads: the open connections.
//!
//! A core answers between two turns of its event loop, from cells that it keeps anyway. There is no shared state and no
//! lock; a core with a full query queue is skipped.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

/// Queries that may wait for a core: for one or two users of the debug page.
pub const QUERIES_MAX: usize = 4;

/// Connections in one answer at most: the core serves nothing meanwhile, and this takes some 2 ms.
pub const CONNECTIONS_LISTED_MAX: usize = 10_000;

/// Asks for a core's connections.
#[derive(Debug)]
pub struct ConnectionQuery {
    most: usize,
    answer: oneshot::Sender<ConnectionList>,
}

/// The answer of a core.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectionList {
    /// All open ones, listed or not.
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
    /// Total so far.
    pub requests: u64,
    /// Open streams; in HTTP/1 the requests in flight.
    pub streams: usize,
    /// In HTTP/1 as of the end of its last request.
    pub received: u64,
    pub sent: u64,
}

/// The current activity of a connection.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ConnectionState {
    /// No byte was received yet.
    #[default]
    Opened,
    /// Between two requests.
    Idle,
    /// With a request that has no instance yet.
    Routing,
    /// With a request in the pending queue.
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

    /// Whether no request is in flight.
    #[must_use]
    pub const fn is_idle(self) -> bool {
        matches!(self, Self::Opened | Self::Idle)
    }
}

impl ConnectionQuery {
    /// Answers with the list that `tell` makes for the requested maximum.
    pub fn answer(self, list: impl FnOnce(usize) -> ConnectionList) {
        let lists = list(self.most);
        drop(self.answer.send(lists)); // the caller may be gone
    }
}

/// The query senders of all cores.
#[derive(Debug, Clone, Default)]
pub struct CoreQueries {
    senders: Vec<mpsc::Sender<ConnectionQuery>>,
}

impl CoreQueries {
    /// Adds a core and returns its query receiver.
    pub fn add(&mut self) -> mpsc::Receiver<ConnectionQuery> {
        let (sender, receiver) = mpsc::channel(QUERIES_MAX);
        self.senders.push(sender);
        receiver
    }

    /// Up to `most` connections of each core; `None` for a core that has ended or has too many queries waiting. Waits
    /// for the slowest core's event loop.
    pub async fn connections(&self, most: usize) -> Vec<Option<ConnectionList>> {
        let most = most.min(CONNECTIONS_LISTED_MAX);
        let replies: Vec<_> = self
            .senders
            .iter()
            .map(|sender| {
                let (answer, reply) = oneshot::channel();
                sender.try_send(ConnectionQuery { most, answer }).ok().map(|()| reply)
            })
            .collect();
        let mut lists = Vec::with_capacity(replies.len());
        for reply in replies {
            lists.push(match reply {
                Some(reply) => reply.await.ok(),
                None => None,
            });
        }
        lists
    }
}
