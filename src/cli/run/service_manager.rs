//! Messages to systemd (`Type=notify` in a unit file): that the appliance serves, stops, or has been replaced.

use std::env;
use std::ffi::OsString;
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use super::hot_restart::Successor;

/// Where systemd listens, in a path or as an abstract name that begins with `@`.
const NOTIFY_SOCKET: &str = "NOTIFY_SOCKET";

/// The appliance serves.
pub(super) fn ready() {
    send("READY=1");
}

/// The appliance drains, and ends.
pub(super) fn stopping() {
    send("STOPPING=1");
}

/// `successor` serves now, and this one ends when its requests have ended.
pub(super) fn replaced_by(successor: &Successor) {
    if let Some(pid) = successor.pid() {
        send(&format!("MAINPID={pid}"));
    }
}

/// Does nothing outside a unit of this type.
fn send(message: &str) {
    if let Some(socket) = env::var_os(NOTIFY_SOCKET).filter(|socket| !socket.is_empty())
        && let Err(why) = send_to(&socket, message)
    {
        tracing::warn!(%why, message, "the service manager at {} was not notified", socket.display());
    }
}

fn send_to(socket: &OsString, message: &str) -> io::Result<()> {
    let address = match socket.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(socket)?,
    };
    UnixDatagram::unbound()?.send_to_addr(message.as_bytes(), &address).map(drop)
}
