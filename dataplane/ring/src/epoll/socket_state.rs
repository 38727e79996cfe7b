//! The operations that wait on one socket, and what is known about its readiness.
//!
//! Readiness is edge-triggered: the kernel reports a change once, so that it is remembered here until a call finds nothing
//! more to receive or no space to send.

use std::io;
use std::os::fd::RawFd;
use std::ptr::NonNull;

use crate::op::OpKey;
use crate::sockets::NO_SIGNAL;

/// Sockets that an accept takes in one turn: the others of the loop have their turn in between.
const ACCEPTED_PER_TURN: usize = 32;

/// One socket.
pub(super) struct SocketState {
    pub(super) registered: bool,
    /// A listener, which another process may share: closing it does not end its registration.
    pub(super) is_listener: bool,
    /// In the list of sockets to look at.
    pub(super) queued: bool,
    readable: bool,
    writable: bool,
    /// The peer has closed its side, or the connection is broken.
    hung_up: bool,
    accept: Option<OpKey>,
    connect: Option<OpKey>,
    receive: Option<(OpKey, ReceiveTarget)>,
    send: Option<PendingSend>,
    hangups: Vec<OpKey>,
    /// Waits for something to receive, which it receives itself.
    waits_readable: Option<OpKey>,
}

/// Where received bytes go.
#[derive(Clone, Copy)]
pub(super) enum ReceiveTarget {
    /// Buffers of the pool; more than one completion.
    Pool,
    /// Memory of the operation; one completion.
    Operation { start: NonNull<u8>, bytes: usize },
}

/// Bytes that were not sent yet. The operation keeps them in place until its last completion.
#[derive(Clone, Copy)]
pub(super) struct PendingSend {
    pub(super) key: OpKey,
    pub(super) start: *const u8,
    pub(super) bytes: usize,
    pub(super) sent: usize,
    pub(super) detached: bool,
}

/// What one look at a socket brought.
pub(super) enum SocketEvent {
    /// The last completion of an operation.
    Done(OpKey, i32),
    /// A detached send is done; no task waits for it.
    Sent(OpKey, i32),
    Accepted(OpKey, RawFd),
    /// So many bytes are in the pool's buffer.
    Received(OpKey, u16, u32),
}

/// The receive buffers that are not in use.
pub(super) trait SpareBuffers {
    fn take(&mut self) -> Option<(u16, NonNull<u8>, usize)>;
    fn put_back(&mut self, id: u16);
}

impl Default for SocketState {
    /// A new socket may be ready: the first call finds out.
    fn default() -> Self {
        Self {
            registered: false,
            is_listener: false,
            queued: false,
            readable: true,
            writable: true,
            hung_up: false,
            accept: None,
            connect: None,
            receive: None,
            send: None,
            hangups: Vec::new(),
            waits_readable: None,
        }
    }
}

impl SocketState {
    /// Takes in what `epoll_wait` reports.
    pub(super) fn report(&mut self, events: u32) {
        let has = |event: i32| events & event as u32 != 0;
        let broken = has(libc::EPOLLERR) || has(libc::EPOLLHUP);
        self.hung_up |= has(libc::EPOLLRDHUP) || broken;
        self.readable |= has(libc::EPOLLIN) || self.hung_up;
        self.writable |= has(libc::EPOLLOUT) || broken;
    }

    pub(super) fn accept(&mut self, key: OpKey) {
        self.is_listener = true;
        self.accept = Some(key);
    }

    /// The connection is being made.
    pub(super) fn connecting(&mut self, key: OpKey) {
        self.writable = false;
        self.connect = Some(key);
    }

    pub(super) fn receive(&mut self, key: OpKey, target: ReceiveTarget) {
        self.receive = Some((key, target));
    }

    pub(super) fn hangup(&mut self, key: OpKey) {
        self.hangups.push(key);
    }

    /// Datagrams are received outside of the loop, so a change that was reported may be one of a datagram that is gone, or of
    /// one that came after the last receive. The kernel is asked.
    pub(super) fn wait_readable(&mut self, key: OpKey, fd: RawFd) {
        self.readable = is_readable(fd);
        self.waits_readable = Some(key);
    }

    /// Sends at once what the kernel takes, and the rest when it has space.
    pub(super) fn send(&mut self, fd: RawFd, send: PendingSend, events: &mut Vec<SocketEvent>) {
        self.send = Some(send);
        self.try_send(fd, events);
    }

    /// Does everything that can be done now. Returns whether there may be more to do.
    pub(super) fn look(&mut self, fd: RawFd, buffers: &mut impl SpareBuffers, events: &mut Vec<SocketEvent>) -> bool {
        if self.writable
            && let Some(key) = self.connect.take()
        {
            events.push(SocketEvent::Done(key, -pending_error(fd)));
        }
        if self.hung_up {
            events.extend(self.hangups.drain(..).map(|key| SocketEvent::Done(key, libc::POLLRDHUP.into())));
        }
        if self.readable
            && let Some(key) = self.waits_readable.take()
        {
            events.push(SocketEvent::Done(key, libc::POLLIN.into()));
        }
        self.try_send(fd, events);
        self.try_accept(fd, events);
        self.try_receive(fd, buffers, events);
        self.readable && (self.receive.is_some() || self.accept.is_some())
    }

    /// Ends an operation. `false`: it is not here.
    pub(super) fn cancel(&mut self, key: OpKey, events: &mut Vec<SocketEvent>) {
        let mut result = -libc::ECANCELED;
        let sent = self.send.take_if(|send| send.key == key);
        if let Some(send) = sent
            && send.sent > 0
        {
            result = if send.detached { -libc::EPIPE } else { count(send.sent) };
        }
        let hangups = self.hangups.len();
        self.hangups.retain(|hangup| *hangup != key);
        let found = sent.is_some()
            || hangups != self.hangups.len()
            || self.accept.take_if(|accept| *accept == key).is_some()
            || self.connect.take_if(|connect| *connect == key).is_some()
            || self.waits_readable.take_if(|waits| *waits == key).is_some()
            || self.receive.take_if(|(receive, _)| *receive == key).is_some();
        if found {
            events.push(SocketEvent::Done(key, result));
        }
    }

    fn try_send(&mut self, fd: RawFd, events: &mut Vec<SocketEvent>) {
        while self.writable
            && let Some(send) = &mut self.send
        {
            let left = (send.bytes - send.sent).min(1 << 30);
            let flags = NO_SIGNAL | libc::MSG_DONTWAIT;
            // SAFETY: `start` points to `bytes` bytes that the operation keeps in place; `sent` is at most as many.
            let result = unsafe { libc::send(fd, send.start.add(send.sent).cast(), left, flags) };
            let outcome = match usize::try_from(result) {
                Ok(sent) => {
                    send.sent += sent;
                    // Fewer than asked for: the kernel has no space, and reports when it has.
                    self.writable = sent == left;
                    if send.sent < send.bytes {
                        continue;
                    }
                    count(send.sent)
                }
                Err(_) => match errno() {
                    libc::EINTR => continue,
                    libc::EAGAIN => {
                        self.writable = false;
                        return;
                    }
                    // The part that was sent is told first; the next call finds the error.
                    _ if send.sent > 0 && !send.detached => count(send.sent),
                    errno => -errno,
                },
            };
            let (key, detached) = (send.key, send.detached);
            self.send = None;
            events.push(if detached { SocketEvent::Sent(key, outcome) } else { SocketEvent::Done(key, outcome) });
        }
    }

    fn try_accept(&mut self, fd: RawFd, events: &mut Vec<SocketEvent>) {
        let Some(key) = self.accept else { return };
        for _ in 0..ACCEPTED_PER_TURN {
            if !self.readable {
                return;
            }
            // SAFETY: null pointers: the peer's address is not wanted.
            let socket = unsafe { libc::accept4(fd, std::ptr::null_mut(), std::ptr::null_mut(), libc::SOCK_CLOEXEC) };
            if socket >= 0 {
                events.push(SocketEvent::Accepted(key, socket));
                continue;
            }
            match errno() {
                libc::EINTR | libc::ECONNABORTED => {}
                libc::EAGAIN => self.readable = false,
                errno => {
                    self.accept = None;
                    events.push(SocketEvent::Done(key, -errno));
                    return;
                }
            }
        }
    }

    /// One buffer: the next one in the next turn, after the others.
    fn try_receive(&mut self, fd: RawFd, buffers: &mut impl SpareBuffers, events: &mut Vec<SocketEvent>) {
        let Some((key, target)) = self.receive.filter(|_| self.readable) else { return };
        let (id, start, bytes) = match target {
            ReceiveTarget::Operation { start, bytes } => (None, start, bytes),
            ReceiveTarget::Pool => {
                let Some((id, start, bytes)) = buffers.take() else {
                    self.receive = None;
                    return events.push(SocketEvent::Done(key, -libc::ENOBUFS));
                };
                (Some(id), start, bytes)
            }
        };
        let received = loop {
            // SAFETY: the buffer is spare, or the operation's own, and holds so many bytes.
            let received = unsafe { libc::recv(fd, start.as_ptr().cast(), bytes, libc::MSG_DONTWAIT) };
            if received >= 0 || errno() != libc::EINTR {
                break received;
            }
        };
        let outcome = if received < 0 { -errno() } else { received as i32 };
        // Fewer than fit: nothing more is there, and the kernel reports what comes. The peer's end was reported already.
        self.readable = outcome != -libc::EAGAIN && (self.hung_up || received.cast_unsigned() == bytes);
        let (Some(id), true) = (id, outcome > 0) else {
            if let Some(id) = id {
                buffers.put_back(id);
            }
            if outcome != -libc::EAGAIN {
                self.receive = None;
                events.push(SocketEvent::Done(key, outcome));
            }
            return;
        };
        events.push(SocketEvent::Received(key, id, outcome.cast_unsigned()));
    }
}

/// Whether a receive would find something: bytes, a datagram, the end or an error.
fn is_readable(fd: RawFd) -> bool {
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: the pointer is to one `pollfd` that outlives the call, which does not wait.
    unsafe { libc::poll(&raw mut poll, 1, 0) > 0 }
}

/// The error with which a connection attempt ended; 0 for none.
fn pending_error(fd: RawFd) -> i32 {
    let mut errno: libc::c_int = 0;
    let mut bytes = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the pointers are to an integer and to its size.
    let result =
        unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_ERROR, (&raw mut errno).cast(), &raw mut bytes) };
    if result < 0 { self::errno() } else { errno }
}

pub(super) fn errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}

/// Operations count in 31 bits.
fn count(bytes: usize) -> i32 {
    i32::try_from(bytes).unwrap_or(i32::MAX)
}
