//! The driver interface of the ring. Three implementations: io_uring, epoll and the simulation.

use std::io;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::os::fd::IntoRawFd;
use std::time::Duration;

use crate::address::SocketAddress;
use crate::op::{Completion, Op, OpKey, SocketHandle};
use crate::sockets;
use crate::tick::Tick;

/// How long a turn may wait for a completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WaitPolicy {
    /// Tasks are runnable: poll, do not wait.
    None,
    Until(Duration),
    /// Poll without sleeping: the expected event takes less time than a wake-up.
    Awake(Duration),
    Forever,
}

/// The methods with a body are those of this machine's kernel; the simulation has its own.
pub(crate) trait Driver {
    fn now(&self) -> Tick;

    /// Starts `op`. Its completions carry `key`; the one without `more` is the last.
    ///
    /// # Safety Everything `op` points to stays alive and in place until [`turn`](Self::turn) returned the
    /// last completion.
    unsafe fn start(&mut self, key: OpKey, op: &Op);

    /// Requests that the operation ends soon. It still ends with a last completion, which may be a success.
    fn cancel(&mut self, key: OpKey);

    /// Submits the started operations, waits as `policy` says for a completion, and adds all available
    /// completions to `answers`.
    fn turn(&mut self, policy: WaitPolicy, answers: &mut Vec<Completion>);

    /// A stream socket that can be connected to `address`.
    fn socket(&mut self, address: &SocketAddress) -> io::Result<SocketHandle>;

    /// A listening socket at `address`.
    fn listen(&mut self, address: &SocketAddress) -> io::Result<SocketHandle> {
        sockets::listen(address)
    }

    /// Takes over a listener that was opened elsewhere.
    fn adopt(&mut self, listener: TcpListener) -> io::Result<SocketHandle> {
        sockets::adopt(listener)
    }

    /// Takes over a UDP socket.
    fn adopt_datagram(&mut self, socket: UdpSocket) -> io::Result<SocketHandle> {
        Ok(SocketHandle(socket.into_raw_fd()))
    }

    fn local_address(&self, socket: SocketHandle) -> io::Result<SocketAddr> {
        sockets::local_address(socket)
    }

    fn peer_address(&self, socket: SocketHandle) -> io::Result<SocketAddr> {
        sockets::peer_address(socket)
    }

    /// Sets whether closing the socket resets the connection, as `SO_LINGER` with zero time does.
    fn set_reset_on_close(&mut self, socket: SocketHandle, resets: bool) -> io::Result<()> {
        sockets::set_reset_on_close(socket, resets)
    }

    /// Sends the acknowledgement of received bytes now (`TCP_QUICKACK`). Sockets that are not TCP have none.
    fn acknowledge(&mut self, socket: SocketHandle) {
        sockets::acknowledge(socket);
    }
}
