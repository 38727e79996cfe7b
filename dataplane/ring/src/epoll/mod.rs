//! The driver on epoll, for hosts that forbid io_uring: the default seccomp profiles of container engines do.
//!
//! Operations are the same as on io_uring: they are tried when they are started, and otherwise when the kernel reports
//! that their socket is ready. Files have a thread of their own.

mod files;
mod socket_state;

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::address::SocketAddress;
use crate::chunk::Chunk;
use crate::driver::{Driver, WaitPolicy};
use crate::limits::RingOptions;
use crate::op::{Completion, Op, OpKey, SocketHandle};
use crate::pool::BufferPool;
use crate::sockets::{self, check};
use crate::tick::Tick;
use crate::wake::WakeFlag;

use files::FileThread;
use socket_state::{PendingSend, ReceiveTarget, SocketEvent, SocketState, SpareBuffers, errno};

/// Events that one wait returns: more than a turn of a busy core has, in 12 KiB.
const EVENTS_PER_TURN: usize = 1024;

/// How often a connection to a Unix socket is tried again whose backlog is full: epoll does not report space in it.
const CONNECT_RETRY_INTERVAL: Duration = Duration::from_millis(1);

/// What the kernel reports of each socket.
const INTEREST: u32 = (libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLRDHUP | libc::EPOLLET) as u32;

/// The user data of the eventfd, which is no descriptor.
const WAKE: u64 = u64::MAX;

pub(crate) struct EpollDriver {
    epoll: OwnedFd,
    eventfd: OwnedFd,
    events: Vec<libc::epoll_event>,
    /// By descriptor.
    sockets: Vec<SocketState>,
    /// By slot of the operation's key: the socket that it waits on.
    waits_on: Vec<RawFd>,
    /// Sockets where something may be done without a report of the kernel.
    runnable: Vec<RawFd>,
    /// The sockets of the last turn, kept for its allocation.
    looked_at: Vec<RawFd>,
    /// What one look brought, kept for its allocation.
    brought: Vec<SocketEvent>,
    /// Connections to Unix sockets with a full backlog.
    full_backlogs: Vec<FullBacklog>,
    buffers: PoolBuffers,
    /// Completions for the next turn.
    ready: Vec<Completion>,
    /// The same of detached sends, which end no wait.
    sent: Vec<Completion>,
    files: Option<FileThread>,
    /// The kernel (before 5.11) or the sandbox has no `epoll_pwait2`.
    no_precise_wait: bool,
    epoch: Instant,
}

struct FullBacklog {
    key: OpKey,
    fd: RawFd,
    address: libc::sockaddr_storage,
    bytes: libc::socklen_t,
}

/// The pool's buffers that no chunk holds; the one used last on top.
struct PoolBuffers {
    pool: Rc<BufferPool>,
    spare: Vec<u16>,
}

/// Opens the driver. Fails only without descriptors or memory.
pub(crate) fn open(options: &RingOptions) -> io::Result<(EpollDriver, Rc<BufferPool>, Arc<WakeFlag>)> {
    let (eventfd, writer) = sockets::eventfd(libc::EFD_NONBLOCK)?;
    // SAFETY: takes no pointer.
    let epoll = check(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
    // SAFETY: the kernel has just created this descriptor, and it has no other owner.
    let epoll = unsafe { OwnedFd::from_raw_fd(epoll) };
    let pool = BufferPool::new(options.chunk_bytes, options.chunks)?;
    let driver = EpollDriver {
        events: Vec::with_capacity(EVENTS_PER_TURN),
        sockets: Vec::new(),
        waits_on: Vec::new(),
        runnable: Vec::new(),
        looked_at: Vec::new(),
        brought: Vec::new(),
        full_backlogs: Vec::new(),
        buffers: PoolBuffers { pool: Rc::clone(&pool), spare: (0..pool.count()).rev().collect() },
        ready: Vec::new(),
        sent: Vec::new(),
        files: None,
        no_precise_wait: false,
        epoch: Instant::now(),
        epoll,
        eventfd,
    };
    // Edge-triggered: every write is reported, and none has to be read.
    driver.register(driver.eventfd.as_raw_fd(), (libc::EPOLLIN | libc::EPOLLET) as u32, WAKE)?;
    Ok((driver, pool, WakeFlag::new(Some(writer))))
}

impl Driver for EpollDriver {
    fn now(&self) -> Tick {
        Tick::ZERO + self.epoch.elapsed()
    }

    unsafe fn start(&mut self, key: OpKey, op: &Op) {
        match op {
            Op::Accept(socket) => {
                let fd = socket.handle.0;
                set_nonblocking(fd);
                self.wait_on(key, fd, |state| state.accept(key));
            }
            Op::Connect(socket, address) => self.connect(key, socket.handle.0, address),
            Op::Receive(socket) => self.wait_on(key, socket.handle.0, |state| state.receive(key, ReceiveTarget::Pool)),
            Op::ReceiveOnce(socket, buffer) => {
                let target = ReceiveTarget::Operation { start: buffer.start, bytes: buffer.len() };
                self.wait_on(key, socket.handle.0, |state| state.receive(key, target));
            }
            Op::Send(socket, chunk) => self.send(key, socket.handle.0, chunk, false),
            Op::DetachedSend(socket, chunk) => self.send(key, socket.handle.0, chunk, true),
            Op::Shutdown(socket) => {
                // SAFETY: takes no pointer.
                let result = unsafe { libc::shutdown(socket.handle.0, libc::SHUT_WR) };
                self.finish(key, if result < 0 { -errno() } else { 0 });
            }
            Op::Hangup(socket) => self.wait_on(key, socket.handle.0, |state| state.hangup(key)),
            Op::Readable(socket) => {
                let fd = socket.handle.0;
                self.wait_on(key, fd, |state| state.wait_readable(key, fd));
            }
            Op::Close(handle) => self.close(key, handle.0),
            // SAFETY: the contract of this function is the one of `write`.
            Op::Write(write) => match self.files() {
                Ok(files) => unsafe { files.write(key, write) },
                Err(result) => self.finish(key, result),
            },
            Op::Sync(file) => match self.files() {
                Ok(files) => files.sync(key, file),
                Err(result) => self.finish(key, result),
            },
        }
    }

    fn cancel(&mut self, key: OpKey) {
        let before = self.full_backlogs.len();
        self.full_backlogs.retain(|full| full.key != key);
        if before != self.full_backlogs.len() {
            return self.finish(key, -libc::ECANCELED);
        }
        // Files finish what was started, and what has a completion already is not found.
        let Some(&fd) = self.waits_on.get(slot(key)) else { return };
        let Some(state) = usize::try_from(fd).ok().and_then(|fd| self.sockets.get_mut(fd)) else { return };
        state.cancel(key, &mut self.brought);
        self.take_in();
    }

    fn turn(&mut self, policy: WaitPolicy, answers: &mut Vec<Completion>) {
        self.buffers.refill();
        self.retry_full_backlogs();
        self.look_at_runnable();
        self.take_file_results();
        let wait = match policy {
            _ if !self.ready.is_empty() || !self.runnable.is_empty() => Some(Duration::ZERO),
            WaitPolicy::None | WaitPolicy::Awake(_) => Some(Duration::ZERO),
            WaitPolicy::Until(wait) => Some(wait),
            WaitPolicy::Forever => None,
        };
        let retry = (!self.full_backlogs.is_empty()).then_some(CONNECT_RETRY_INTERVAL);
        self.wait(retry.map_or(wait, |retry| Some(wait.map_or(retry, |wait| wait.min(retry)))));
        self.take_file_results();
        if self.ready.is_empty() && matches!(policy, WaitPolicy::Awake(_)) {
            std::thread::yield_now(); // the thread for files may need just this processor
        }
        answers.append(&mut self.ready);
        answers.append(&mut self.sent);
    }

    fn socket(&mut self, address: &SocketAddress) -> io::Result<SocketHandle> {
        sockets::connectable(address, libc::SOCK_NONBLOCK)
    }
}

impl EpollDriver {
    fn register(&self, fd: RawFd, events: u32, user_data: u64) -> io::Result<()> {
        let mut event = libc::epoll_event { events, u64: user_data };
        // SAFETY: the pointer is to an event that outlives the call.
        check(unsafe { libc::epoll_ctl(self.epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &raw mut event) })?;
        Ok(())
    }

    /// The state of a socket that the kernel reports about from here on.
    fn state(&mut self, key: OpKey, fd: RawFd) -> io::Result<&mut SocketState> {
        let at = usize::try_from(fd).map_err(|_| io::Error::from_raw_os_error(libc::EBADF))?;
        if self.sockets.len() <= at {
            self.sockets.resize_with(at + 1, SocketState::default);
        }
        if !self.sockets[at].registered {
            self.register(fd, INTEREST, at as u64)?;
            self.sockets[at].registered = true;
        }
        if self.waits_on.len() <= slot(key) {
            self.waits_on.resize(slot(key) + 1, -1);
        }
        self.waits_on[slot(key)] = fd;
        Ok(&mut self.sockets[at])
    }

    /// Adds an operation to a socket; the next turn tries it.
    fn wait_on(&mut self, key: OpKey, fd: RawFd, add: impl FnOnce(&mut SocketState)) {
        match self.state(key, fd) {
            Ok(state) => {
                add(state);
                if !std::mem::replace(&mut state.queued, true) {
                    self.runnable.push(fd);
                }
            }
            Err(why) => self.finish(key, -why.raw_os_error().unwrap_or(libc::EIO)),
        }
    }

    fn send(&mut self, key: OpKey, fd: RawFd, bytes: &[u8], detached: bool) {
        let mut brought = std::mem::take(&mut self.brought);
        let send = PendingSend { key, start: bytes.as_ptr(), bytes: bytes.len(), sent: 0, detached };
        match self.state(key, fd) {
            Ok(state) => state.send(fd, send, &mut brought),
            Err(why) => brought.push(SocketEvent::Done(key, -why.raw_os_error().unwrap_or(libc::EIO))),
        }
        self.brought = brought;
        self.take_in();
    }

    fn connect(&mut self, key: OpKey, fd: RawFd, address: &SocketAddress) {
        let (pointer, bytes) = address.pointer();
        // SAFETY: pointer and length are those of `address`, which outlives the call.
        let result = unsafe { libc::connect(fd, pointer, bytes) };
        match if result < 0 { errno() } else { 0 } {
            // Registered only now: a socket that is not being connected counts as hung up.
            libc::EINPROGRESS | libc::EINTR => self.wait_on(key, fd, |state| state.connecting(key)),
            libc::EAGAIN => {
                // SAFETY: sockaddr_storage contains only integers, for which all zero bits are valid; it is as large as
                // every address, and the two do not overlap.
                let address = unsafe {
                    let mut storage: libc::sockaddr_storage = std::mem::zeroed();
                    let to = (&raw mut storage).cast::<u8>();
                    std::ptr::copy_nonoverlapping(pointer.cast::<u8>(), to, bytes as usize);
                    storage
                };
                self.full_backlogs.push(FullBacklog { key, fd, address, bytes });
            }
            errno => self.finish(key, -errno),
        }
    }

    fn retry_full_backlogs(&mut self) {
        for full in std::mem::take(&mut self.full_backlogs) {
            // SAFETY: the pointer is to `bytes` bytes of an address that outlives the call.
            let result = unsafe { libc::connect(full.fd, (&raw const full.address).cast(), full.bytes) };
            match if result < 0 { errno() } else { 0 } {
                libc::EAGAIN | libc::EINTR => self.full_backlogs.push(full),
                errno => self.finish(full.key, -errno),
            }
        }
    }

    /// Operations hold their socket, so none waits on it.
    fn close(&mut self, key: OpKey, fd: RawFd) {
        if let Some(state) = usize::try_from(fd).ok().and_then(|fd| self.sockets.get_mut(fd)) {
            let closed = std::mem::take(state);
            state.queued = closed.queued;
            if closed.is_listener && closed.registered {
                let none = std::ptr::null_mut();
                // SAFETY: a removal reads no event.
                unsafe { libc::epoll_ctl(self.epoll.as_raw_fd(), libc::EPOLL_CTL_DEL, fd, none) };
            }
        }
        // SAFETY: the descriptor was the operation's, and has no other owner.
        let result = unsafe { libc::close(fd) };
        self.finish(key, if result < 0 { -errno() } else { 0 });
    }

    fn look_at_runnable(&mut self) {
        std::mem::swap(&mut self.runnable, &mut self.looked_at);
        while let Some(fd) = self.looked_at.pop() {
            self.sockets[fd as usize].queued = false;
            self.look(fd);
        }
    }

    fn look(&mut self, fd: RawFd) {
        let state = &mut self.sockets[fd as usize];
        let more = state.look(fd, &mut self.buffers, &mut self.brought);
        if more && !std::mem::replace(&mut state.queued, true) {
            self.runnable.push(fd);
        }
        self.take_in();
    }

    fn take_in(&mut self) {
        let mut brought = std::mem::take(&mut self.brought);
        for event in brought.drain(..) {
            match event {
                SocketEvent::Done(key, result) => self.finish(key, result),
                SocketEvent::Sent(key, result) => {
                    let to = if result >= 0 { &mut self.sent } else { &mut self.ready };
                    to.push(Completion { key, result, more: false, chunk: None });
                }
                SocketEvent::Accepted(key, socket) => {
                    self.ready.push(Completion { key, result: socket, more: true, chunk: None });
                }
                SocketEvent::Received(key, id, bytes) => {
                    let chunk = Some(self.buffers.filled(id, bytes));
                    self.ready.push(Completion { key, result: bytes.cast_signed(), more: true, chunk });
                }
            }
        }
        self.brought = brought;
    }

    fn finish(&mut self, key: OpKey, result: i32) {
        self.ready.push(Completion { key, result, more: false, chunk: None });
    }

    fn files(&mut self) -> Result<&FileThread, i32> {
        if self.files.is_none() {
            let copy = self.eventfd.try_clone().map(fs::File::from);
            let started = copy.and_then(FileThread::start);
            self.files = Some(started.map_err(|why| -why.raw_os_error().unwrap_or(libc::EIO))?);
        }
        self.files.as_ref().ok_or(-libc::EIO)
    }

    fn take_file_results(&mut self) {
        for (key, result) in self.files.as_ref().map(FileThread::take).unwrap_or_default() {
            self.finish(key, result);
        }
    }

    /// Waits for reports of the kernel, and does what they allow.
    fn wait(&mut self, wait: Option<Duration>) {
        let count = match self.enter(wait) {
            Ok(count) => count,
            Err(why) if why.kind() == io::ErrorKind::Interrupted => 0,
            Err(why) => panic!("epoll_wait on our own descriptor: {why}"),
        };
        for at in 0..count {
            let libc::epoll_event { events, u64: user_data } = self.events[at];
            if user_data == WAKE {
                continue;
            }
            self.sockets[user_data as usize].report(events);
            self.look(user_data as RawFd);
        }
    }

    fn enter(&mut self, wait: Option<Duration>) -> io::Result<usize> {
        let (epoll, most) = (self.epoll.as_raw_fd(), EVENTS_PER_TURN as i32);
        let events = self.events.as_mut_ptr();
        let waits = wait.is_none_or(|wait| !wait.is_zero());
        let mut result = -1;
        if waits && !self.no_precise_wait {
            let limit = wait.map(|wait| libc::timespec {
                tv_sec: wait.as_secs().try_into().unwrap_or(libc::time_t::MAX),
                tv_nsec: wait.subsec_nanos().into(),
            });
            let limit = limit.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
            let no_mask = std::ptr::null::<libc::sigset_t>();
            // SAFETY: `events` has space for so many events, and `limit` outlives the call.
            result = unsafe { libc::syscall(libc::SYS_epoll_pwait2, epoll, events, most, limit, no_mask, 0) } as i32;
            self.no_precise_wait = result < 0 && [libc::ENOSYS, libc::EPERM].contains(&errno());
        }
        if !waits || self.no_precise_wait {
            // A millisecond more rather than less: otherwise the loop would spin in the last one.
            let millis = wait.map_or(-1, |wait| i32::try_from(wait.as_nanos().div_ceil(1_000_000)).unwrap_or(i32::MAX));
            // SAFETY: `events` has space for so many events.
            result = unsafe { libc::epoll_wait(epoll, events, most, millis) };
        }
        let count = check(result)? as usize;
        // SAFETY: the kernel has written so many events, at most the capacity.
        unsafe { self.events.set_len(count) };
        Ok(count)
    }
}

impl PoolBuffers {
    /// Takes the buffers that chunks have returned. Once per turn.
    fn refill(&mut self) {
        self.pool.give_back(|id| self.spare.push(id));
    }

    fn filled(&self, id: u16, bytes: u32) -> Chunk {
        // SAFETY: the buffer was taken from the spare ones, where each is once, and returns there only after its chunk was
        // dropped.
        Chunk::leased(unsafe { self.pool.lend(id) }, bytes)
    }
}

impl SpareBuffers for PoolBuffers {
    fn take(&mut self) -> Option<(u16, NonNull<u8>, usize)> {
        let id = self.spare.pop()?;
        Some((id, self.pool.buffer(id), self.pool.buffer_bytes() as usize))
    }

    fn put_back(&mut self, id: u16) {
        self.spare.push(id);
    }
}

/// The lower half of a key is the operation's slot; slots are reused, so that they are few.
fn slot(key: OpKey) -> usize {
    (key.0 & u64::from(u32::MAX)) as usize
}

/// An accept must not wait for a connection that another process has taken. Connections need not be: each call says that it
/// does not wait.
fn set_nonblocking(fd: RawFd) {
    // SAFETY: takes no pointer.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    if flags >= 0 && flags & libc::O_NONBLOCK == 0 {
        // SAFETY: takes no pointer.
        unsafe { libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK) };
    }
}
