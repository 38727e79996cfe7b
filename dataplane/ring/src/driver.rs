//! What the ring needs from below. Two implementations: the kernel's and the simulation's.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use crate::address::SocketAddress;
use crate::op::{Completion, Op, OpKey, SocketHandle};
use crate::tick::Tick;

/// How long a turn may wait for an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WaitPolicy {
    /// Tasks are runnable: look, do not wait.
    None,
    Until(Duration),
    /// The same without sleep: what is waited for takes less than to be woken.
    Awake(Duration),
    Forever,
}

pub(crate) trait Driver {
    fn now(&self) -> Tick;

    /// Begins `op`. Its answers carry `key`; the one without `more` is the last.
    ///
    /// # Safety
    /// Everything `op` points to stays alive and in place until the last answer was handed out by
    /// [`turn`](Self::turn).
    unsafe fn start(&mut self, key: OpKey, op: &Op);

    /// Asks the operation to end soon. It still ends with a last answer, which may be a success.
    fn cancel(&mut self, key: OpKey);

    /// Hands over what was begun, waits at most `patience` for an answer, and adds all answers that
    /// are there to `answers`.
    fn turn(&mut self, patience: WaitPolicy, answers: &mut Vec<Completion>);

    /// A stream socket that can be connected to `address`.
    fn socket(&mut self, address: &SocketAddress) -> io::Result<SocketHandle>;

    /// A listening socket at `address`.
    fn listen(&mut self, address: &SocketAddress) -> io::Result<SocketHandle>;

    /// Takes over a listener that somebody else has opened.
    fn adopt(&mut self, listener: TcpListener) -> io::Result<SocketHandle>;

    fn local_address(&self, socket: SocketHandle) -> io::Result<SocketAddr>;

    fn peer_address(&self, socket: SocketHandle) -> io::Result<SocketAddr>;

    /// Whether the socket's close resets the connection, as `SO_LINGER` with no time does.
    fn set_reset_on_close(&mut self, socket: SocketHandle, resets: bool) -> io::Result<()>;
}
