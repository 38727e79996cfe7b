//! Hot restart: a new process takes over the data folder and the listening sockets of the old one, without a gap.
//!
//! ```text
//! new                                   old
//!  |--- HandoverRequest (its addresses) -->|  rejects what does not fit
//!  |<-- HandoverOffer, and descriptors ----|
//!  |                                       |  ends API, controllers and store; drains events, releases the logs
//!  |<-- StateReleased ---------------------|  and the folder. HTTP continues, with the last table
//!  |  opens all of it, serves              |
//!  |--- SuccessorReady ------------------->|  accepts nothing more, drains its requests, exits
//! ```
//!
//! Connections that arrive meanwhile wait in the kernel's queues, which belong to the sockets and not to a process.
//! Instances are not handed over: each dies with the process that started it, so the old one keeps its own until
//! its last request is answered, and the new one starts others.

mod fits;
mod handover;
mod handover_state;
mod pending;
mod predecessor;
mod successor;
mod successor_process;
mod wire;

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::listener_name::ListenerName;

pub(super) use handover::{PendingHandover, Successor};
pub(super) use handover_state::HandoverState;
pub(super) use predecessor::HandoverListener;
pub(super) use successor::{Predecessor, begin};
pub(super) use successor_process::OwnCommand;

/// Changes whenever the two sides could misunderstand each other.
const PROTOCOL: u32 = 1;

/// In the data folder; a process that can connect to it may take everything over, so it belongs to the
/// owner alone.
const SOCKET: &str = "takeover.sock";

/// A message between the processes takes microseconds. Longer waits have a limit of their own.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(5);

/// The old process ends requests to its API, deliveries and writes to its logs within this.
const HANDOVER_MAX: Duration = Duration::from_secs(60);

/// What the new process requests.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct HandoverRequest {
    protocol: u32,
    version: String,
    workers: usize,
    /// As configured: port 0 matches any port.
    addresses: Vec<(ListenerName, SocketAddr)>,
    /// It also takes the listeners that Gateways have opened. Releases before those do not say so.
    #[serde(default)]
    gateways: bool,
}

/// The response.
#[derive(Debug, Serialize, Deserialize)]
enum HandoverOffer {
    /// One descriptor for each follows.
    Sockets(Vec<ListenerName>),
    Refused(String),
}

/// The store, the logs and the folder are released to the new process.
#[derive(Debug, Serialize, Deserialize)]
struct StateReleased;

/// The new process serves.
#[derive(Debug, Serialize, Deserialize)]
struct SuccessorReady;

/// A path of any length, where a socket's address has 108 bytes: through the folder's descriptor.
fn socket_path(folder: &std::fs::File) -> std::path::PathBuf {
    use std::os::fd::AsRawFd;
    Path::new("/proc/self/fd").join(folder.as_raw_fd().to_string()).join(SOCKET)
}
