//! What the ring needs from below. Two implementations: the kernel's and the simulation's.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use crate::address::Address;
use crate::op::{Completion, Handle, Key, Op};
use crate::tick::Tick;

/// How long a turn may wait for an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Patience {
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
    unsafe fn start(&mut self, key: Key, op: &Op);

    /// Asks the operation to end soon. It still ends with a last answer, which may be a success.
    fn cancel(&mut self, key: Key);

    /// Hands over what was begun, waits at most `patience` for an answer, and adds all answers that
    /// are there to `answers`.
    fn turn(&mut self, patience: Patience, answers: &mut Vec<Completion>);

    /// A stream socket that can be connected to `address`.
    fn socket(&mut self, address: &Address) -> io::Result<Handle>;

    /// A listening socket at `address`.
    fn listen(&mut self, address: &Address) -> io::Result<Handle>;

    /// Takes over a listener that somebody else has opened.
    fn adopt(&mut self, listener: TcpListener) -> io::Result<Handle>;

    fn local_address(&self, socket: Handle) -> io::Result<SocketAddr>;

    fn peer_address(&self, socket: Handle) -> io::Result<SocketAddr>;

    /// Whether the socket's close resets the connection, as `SO_LINGER` with no time does.
    fn set_reset_on_close(&mut self, socket: Handle, resets: bool) -> io::Result<()>;
}
