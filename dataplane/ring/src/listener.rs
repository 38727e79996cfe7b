//! A listening TCP socket.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::task::{Context, Poll};

use crate::address::SocketAddress;
use crate::op::{Op, SharedSocket};
use crate::ring::Ring;
use crate::ring_state::{OpTicket, RingState};
use crate::slab::{MultishotPoll, QueuedCompletion};
use crate::stream::{RingStream, checked};

/// Accepts connections. Dropping it stops that too; [`RingListener::close`] returns when it has stopped.
pub struct RingListener {
    core: Rc<RingState>,
    socket: Rc<SharedSocket>,
    /// The multishot accept. It outlives the calls to `accept`.
    ticket: RefCell<Option<OpTicket>>,
}

impl RingListener {
    /// Listens at `address`, shared with other rings (SO_REUSEPORT).
    pub fn bind(ring: &Ring, address: SocketAddr) -> io::Result<Self> {
        let handle = ring.core.driver.borrow_mut().listen(&SocketAddress::new(address.into()))?;
        Ok(Self::new(ring, handle))
    }

    /// Takes over a socket that is already listening.
    pub fn from_std(ring: &Ring, listener: std::net::TcpListener) -> io::Result<Self> {
        let handle = ring.core.driver.borrow_mut().adopt(listener)?;
        Ok(Self::new(ring, handle))
    }

    fn new(ring: &Ring, handle: crate::op::SocketHandle) -> Self {
        let core = Rc::clone(&ring.core);
        let socket = SharedSocket::new(handle, &core.closing);
        Self { core, socket, ticket: RefCell::default() }
    }

    /// Returns the next connection. An error (no free descriptor, say) ends this call and not the listener;
    /// the caller should wait briefly before the next. A dropped call loses no connection.
    pub async fn accept(&self) -> io::Result<RingStream> {
        poll_fn(|cx| self.poll_accept(cx)).await
    }

    /// Checks the queue again. The kernel notifies one waiter of a new connection; when that was another
    /// process, which stopped before it accepted, no other waiter is notified.
    pub fn recheck(&self) {
        if let Some(ticket) = self.ticket.borrow_mut().as_mut() {
            ticket.cancel(); // `accept` starts another one, which completes at once if connections wait
        }
    }

    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.core.driver.borrow().local_address(self.socket.handle)
    }

    /// Stops accepting and closes. When this returns, new connections are refused. Returns the connections
    /// that were accepted by the kernel and not yet by the caller, because their peers consider them
    /// connected.
    pub async fn close(self) -> io::Result<Vec<RingStream>> {
        let Self { core, socket, ticket } = self;
        let mut taken = Vec::new();
        if let Some(mut ticket) = ticket.take() {
            ticket.cancel();
            while let MultishotPoll::Arrived(arrived) = poll_fn(|cx| ticket.poll_next(cx)).await {
                if let QueuedCompletion::Socket(socket) = arrived {
                    taken.push(RingStream::new(Rc::clone(&core), socket));
                }
            }
        }
        match SharedSocket::into_handle(socket) {
            Some(handle) => checked(core.start(Op::Close(handle)).outcome().await.0).map(|_| taken),
            None => unreachable!("the accept was the only other holder, and it has ended"),
        }
    }

    fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<RingStream>> {
        let mut held = self.ticket.borrow_mut();
        loop {
            let ticket = held.get_or_insert_with(|| self.core.start(Op::Accept(Rc::clone(&self.socket))));
            match ticket.poll_next(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(MultishotPoll::Arrived(QueuedCompletion::Socket(socket))) => {
                    return Poll::Ready(Ok(RingStream::new(Rc::clone(&self.core), socket)));
                }
                Poll::Ready(MultishotPoll::Arrived(QueuedCompletion::Chunk(_))) => {
                    unreachable!("only receive brings bytes")
                }
                Poll::Ready(MultishotPoll::Ended(result)) => {
                    *held = None;
                    if result < 0 && ![-libc::ECANCELED, -libc::EINTR].contains(&result) {
                        return Poll::Ready(Err(io::Error::from_raw_os_error(-result)));
                    }
                }
            }
        }
    }
}
