//! Streams into instances: `exec`, `attach` and `port-forward`, as kubectl 1.20 to 1.34 speak them.
//!
//! - [`instance_streams`] is the interface of the runtime: a process to talk to, or a connection.
//! - `upgrade` chooses a protocol from the head of a request.
//! - `spdy` and `websocket` are the two protocols; `remote_command` speaks either of them.
//! - `exec` moves bytes between a client and a process, `port_forward` between a client and a port.
//!
//! This module does not depend on objects or authorization; see `api::pod_streams`.

mod client_event;
pub(crate) mod exec;
pub mod instance_streams;
pub(crate) mod limits;
pub(crate) mod port_forward;
pub(crate) mod remote_command;
mod session_status;
pub mod spdy;
#[cfg(test)]
mod test_connection;
pub(crate) mod upgrade;
mod websocket;
mod websocket_channels;

use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;

/// The connection of a request after the upgrade.
pub(crate) type UpgradedIo = TokioIo<Upgraded>;
