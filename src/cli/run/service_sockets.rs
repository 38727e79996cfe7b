//! The sockets of core Services' ports, for the instances of this host.

use std::io;
use std::net::TcpListener;

use control::controllers::listeners::OpenSockets;
use dataplane::listener_sockets::{ListenerSocket, ListenerSpec};
use socket2::{Domain, Protocol, Socket, Type};

use super::sockets::BACKLOG;

/// The host's name for the loopback interface.
pub(super) const LOOPBACK: &[u8] = b"lo";

/// Never passed to a successor, whose instances have other addresses.
#[derive(Debug)]
pub(super) struct ServiceSockets {
    pub(super) workers: usize,
}

impl OpenSockets for ServiceSockets {
    /// The cores share one socket, because only such a socket is refused an address that another process has. It is on this
    /// interface alone, so that it is unreachable from outside.
    fn open(&self, spec: ListenerSpec) -> io::Result<Vec<ListenerSocket>> {
        let socket = Socket::new(Domain::IPV4, Type::STREAM.cloexec(), Some(Protocol::TCP))?;
        socket.bind_device(Some(LOOPBACK))?;
        socket.set_reuse_address(true)?;
        socket.bind(&spec.address.into())?;
        socket.listen(BACKLOG)?;
        let listener = TcpListener::from(socket);
        (0..self.workers).map(|_| Ok(ListenerSocket::Stream(listener.try_clone()?))).collect()
    }

    fn release(&self, _: ListenerSpec) {}
}
