//! A connected stream: of TCP, or of a Unix socket.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::task::{Context, Poll};

use crate::address::SocketAddress;
use crate::chunk::Chunk;
use crate::endpoint_address::EndpointAddress;
use crate::limits::{DETACHED_SEND_BYTES_MAX, FALLBACK_BUFFER_BYTES};
use crate::op::{Op, OpBuffer, OpKey, SharedSocket};
use crate::ring::Ring;
use crate::ring_state::{OpTicket, RingState};
use crate::slab::{MultishotPoll, QueuedCompletion};

/// A connection. Methods take `&self`, so that one task may receive while another sends.
///
/// Dropping it ends its operations, and the socket is closed once they have ended.
pub struct RingStream {
    core: Rc<RingState>,
    socket: Rc<SharedSocket>,
    receive: RefCell<ReceiveState>,
    sending: Cell<SendState>,
    /// A detached send, until it is known that its bytes were sent.
    posted: Cell<Option<OpKey>>,
}

/// State of a pooled connection, available without waiting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IdleReadiness {
    Idle,
    Data,
    /// The peer has finished, or the connection is broken.
    Closed,
}

#[derive(Default)]
struct ReceiveState {
    /// The multishot receive. It outlives the calls to `recv`, so a dropped call loses nothing.
    ticket: Option<OpTicket>,
    ended: Option<StreamEnd>,
}

#[derive(Debug, Clone, Copy)]
enum StreamEnd {
    Finished,
    Failed(i32),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SendState {
    Idle,
    Busy,
    /// A send was dropped midway: it is unknown how much of it was sent.
    Broken,
}

impl RingStream {
    pub(crate) fn new(core: Rc<RingState>, socket: Rc<SharedSocket>) -> Self {
        Self { core, socket, receive: RefCell::default(), sending: Cell::new(SendState::Idle), posted: Cell::default() }
    }

    pub async fn connect(ring: &Ring, address: impl Into<EndpointAddress>) -> io::Result<Self> {
        let core = Rc::clone(&ring.core);
        let address = Box::new(SocketAddress::new(address.into()));
        let handle = core.driver.borrow_mut().socket(&address)?;
        let socket = SharedSocket::new(handle, &core.closing);
        if handle.0 >= core.options.sockets_max {
            return Err(io::Error::from_raw_os_error(libc::EMFILE));
        }
        let (result, _) = core.start(Op::Connect(Rc::clone(&socket), address)).outcome().await;
        checked(result)?;
        Ok(Self::new(core, socket))
    }

    /// Whether its descriptor is in the range reserved for files, see [`crate::RingOptions::sockets_max`].
    #[must_use]
    pub fn is_beyond_limit(&self) -> bool {
        self.socket.handle.0 >= self.core.options.sockets_max
    }

    /// The next bytes, as they arrive. Empty: the peer has finished. A dropped call loses no bytes: they
    /// wait for the next one. One task at a time may wait here.
    pub async fn recv(&self) -> io::Result<Chunk> {
        poll_fn(|cx| self.poll_recv(cx)).await
    }

    /// Sends a few `bytes` without waiting. The next [`send`](Self::send) or [`settled`](Self::settled)
    /// reports a failure; [`ready`](Self::ready) treats a connection as closed until they are sent. Returns
    /// the bytes when they are too many, or must wait for others: then use `send`.
    pub fn send_detached(&self, bytes: Chunk) -> Result<(), Chunk> {
        let free = self.sending.get() == SendState::Idle && self.has_posted_all();
        if !free || bytes.len() > DETACHED_SEND_BYTES_MAX || bytes.is_empty() {
            return Err(bytes);
        }
        self.posted.set(Some(self.core.submit(Op::DetachedSend(Rc::clone(&self.socket), bytes))));
        Ok(())
    }

    /// Waits until the detached send has completed.
    pub async fn settled(&self) -> io::Result<()> {
        poll_fn(|cx| {
            let Some(key) = self.posted.get() else { return Poll::Ready(Ok(())) };
            self.core.poll_posted(key, cx).map(|result| {
                self.posted.set(None);
                if result < 0 {
                    self.sending.set(SendState::Broken);
                }
                checked(result).map(drop)
            })
        })
        .await
    }

    fn has_posted_all(&self) -> bool {
        let Some(key) = self.posted.get() else { return true };
        let left = self.core.slab.borrow().is_removed(key);
        if left {
            self.posted.set(None);
        }
        left
    }

    /// Sends all of `bytes`. A call dropped midway leaves the stream unable to send: it is unknown how much
    /// was sent, and the next message would begin inside the last.
    pub async fn send(&self, bytes: impl Into<Chunk>) -> io::Result<()> {
        let mut rest = bytes.into();
        if rest.is_empty() {
            return Ok(());
        }
        self.settled().await?;
        let mut turn = self.begin_send()?;
        while !rest.is_empty() {
            let ticket = self.core.start(Op::Send(Rc::clone(&self.socket), rest));
            let (result, op) = ticket.outcome().await;
            let Op::Send(_, chunk) = op else { unreachable!("the slab gives back what it was given") };
            rest = chunk;
            match checked(result) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(sent) => rest.advance(sent),
                Err(why) if why.kind() == io::ErrorKind::Interrupted => {}
                Err(why) => return Err(why),
            }
        }
        turn.whole = true;
        Ok(())
    }

    /// Stops receiving until the next [`recv`](Self::recv), and returns the receive buffers, which are few:
    /// received bytes are copied.
    pub fn suspend(&self) {
        if let Some(ticket) = &self.receive.borrow().ticket {
            ticket.detach();
            ticket.cancel();
        }
    }

    /// Tells the peer that no more data will follow. Receiving continues.
    pub async fn shutdown_write(&self) -> io::Result<()> {
        self.settled().await?;
        let (result, _) = self.core.start(Op::Shutdown(Rc::clone(&self.socket))).outcome().await;
        checked(result).map(drop)
    }

    /// Resolves once the peer has finished, or the connection is broken, even with unread bytes. May wait
    /// concurrently with any other call.
    pub async fn hung_up(&self) -> io::Result<()> {
        let (result, _) = self.core.start(Op::Hangup(Rc::clone(&self.socket))).outcome().await;
        checked(result).map(drop)
    }

    /// Sets whether dropping the stream resets the connection (`SO_LINGER` with zero time), so that the
    /// peer cannot take its end for the end of the data. Applies also if the process ends. One system call.
    pub fn set_reset_on_close(&self, resets: bool) -> io::Result<()> {
        self.core.driver.borrow_mut().set_reset_on_close(self.socket.handle, resets)
    }

    /// Acknowledges the received bytes at once. The kernel delays an acknowledgement for up to 40 ms, and a peer with
    /// Nagle's algorithm (RFC 1122, 4.2.3.4) holds back the rest of its message until it comes. For the middle of a message:
    /// one system call, or none if more bytes are already here.
    pub fn acknowledge(&self) {
        let more = self.receive.borrow().ticket.as_ref().is_some_and(|ticket| ticket.peek().0 > 0);
        if !more {
            self.core.driver.borrow_mut().acknowledge(self.socket.handle);
        }
    }

    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.core.driver.borrow().peer_address(self.socket.handle)
    }

    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.core.driver.borrow().local_address(self.socket.handle)
    }

    /// Whether a connection that should be idle is: as of the last turn of the loop, without waiting.
    /// Starts to receive if nothing has yet.
    #[must_use]
    pub fn ready(&self) -> IdleReadiness {
        let mut receive = self.receive.borrow_mut();
        if receive.ended.is_some() || !self.has_posted_all() {
            return IdleReadiness::Closed;
        }
        let ticket = receive.ticket.get_or_insert_with(|| self.arm());
        match ticket.peek() {
            (0, None) => IdleReadiness::Idle,
            (0, Some(result)) if rearms(result) => {
                *ticket = self.arm(); // otherwise the end would go unnoticed
                IdleReadiness::Idle
            }
            (0, Some(_)) => IdleReadiness::Closed,
            _ => IdleReadiness::Data,
        }
    }

    fn poll_recv(&self, cx: &mut Context<'_>) -> Poll<io::Result<Chunk>> {
        let mut receive = self.receive.borrow_mut();
        loop {
            match receive.ended {
                Some(StreamEnd::Finished) => return Poll::Ready(Ok(Chunk::empty())),
                Some(StreamEnd::Failed(errno)) => {
                    return Poll::Ready(Err(io::Error::from_raw_os_error(errno)));
                }
                None => {}
            }
            let ticket = receive.ticket.get_or_insert_with(|| self.arm());
            match ticket.poll_next(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(MultishotPoll::Arrived(QueuedCompletion::Chunk(chunk))) => {
                    return Poll::Ready(Ok(chunk));
                }
                Poll::Ready(MultishotPoll::Arrived(QueuedCompletion::Socket(_))) => {
                    unreachable!("only accept brings sockets")
                }
                Poll::Ready(MultishotPoll::Ended(result)) => {
                    receive.ticket = None;
                    if result == 0 {
                        receive.ended = Some(StreamEnd::Finished);
                    } else if !rearms(result) {
                        receive.ended = Some(StreamEnd::Failed(-result));
                    }
                }
            }
        }
    }

    /// Starts to receive. While other streams hold all buffers this one allocates its own, because their
    /// owners might be waiting for it.
    fn arm(&self) -> OpTicket {
        let socket = Rc::clone(&self.socket);
        if self.core.pool.is_exhausted() {
            return self.core.start(Op::ReceiveOnce(socket, OpBuffer::new(FALLBACK_BUFFER_BYTES)));
        }
        self.core.start(Op::Receive(socket))
    }

    fn begin_send(&self) -> io::Result<SendGuard<'_>> {
        match self.sending.replace(SendState::Busy) {
            SendState::Idle => Ok(SendGuard { sending: &self.sending, whole: false }),
            SendState::Busy => Err(io::Error::other("another send on this stream is in flight")),
            SendState::Broken => {
                self.sending.set(SendState::Broken);
                Err(io::Error::new(io::ErrorKind::BrokenPipe, "an earlier send was dropped midway"))
            }
        }
    }
}

impl Drop for RingStream {
    fn drop(&mut self) {
        if let Some(key) = self.posted.get()
            && !self.has_posted_all()
        {
            self.core.abandon(key);
        }
    }
}

/// Marks the stream broken unless a send ran to its end.
struct SendGuard<'a> {
    sending: &'a Cell<SendState>,
    whole: bool,
}

impl Drop for SendGuard<'_> {
    fn drop(&mut self) {
        self.sending.set(if self.whole { SendState::Idle } else { SendState::Broken });
    }
}

/// Whether a receive with this result should be started again: it was paused, found no free buffer, was
/// interrupted, or ended although it returned bytes.
fn rearms(result: i32) -> bool {
    result > 0 || [-libc::ECANCELED, -libc::ENOBUFS, -libc::EINTR].contains(&result)
}

/// Converts a result to the standard library's.
pub(crate) fn checked(result: i32) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::from_raw_os_error(-result))
}
