//! The driver on io_uring.

mod buffers;
mod detached_sends;
mod setup;

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use io_uring::types::{CancelBuilder, Fd, FsyncFlags, SubmitArgs, Timespec};
use io_uring::{IoUring, cqueue, opcode, squeue};

use crate::address::SocketAddress;
use crate::driver::{Driver, WaitPolicy};
use crate::limits::RingOptions;
use crate::op::{Completion, Op, OpKey, SocketHandle, WriteOp};
use crate::pool::BufferPool;
use crate::sockets;
use crate::tick::Tick;
use crate::wake::WakeFlag;

use buffers::{GROUP, ProvidedBuffers};
use detached_sends::{DetachedOutcome, DetachedSends};
pub use setup::Unsupported;

/// Completions of cancellations, which say nothing that the cancelled operation does not say itself.
const IGNORED: u64 = u64::MAX;
/// The read of the eventfd. Neither is an [`OpKey`]: four billion slots would have to be in use.
const WAKE_USER_DATA: u64 = u64::MAX - 1;

/// Sends end in an error, not in a signal; and the kernel continues by itself after a short send.
const SEND_FLAGS: i32 = sockets::NO_SIGNAL | libc::MSG_WAITALL;

/// Requested event for the peer's end; a broken connection is reported unasked.
const HANGUP: u32 = libc::POLLRDHUP as u32;
const READABLE: u32 = libc::POLLIN as u32;

pub(crate) struct IoUringDriver {
    // Dropped first, when nothing is in flight any more: `RingState` has waited for all operations, and our
    // own `drop` for the read of the eventfd. Closing alone is not enough, because the kernel tears down a
    // ring later.
    ring: IoUring,
    buffers: ProvidedBuffers,
    wake_eventfd: WakeEventFd,
    detached_sends: DetachedSends,
    /// The outcome of some submitted detached sends is not known yet.
    undecided_sends: bool,
    /// Entries that found the submission queue full, oldest first.
    backlog: VecDeque<squeue::Entry>,
    epoch: Instant,
}

/// The eventfd that other threads write to, and the read that waits for them.
struct WakeEventFd {
    fd: OwnedFd,
    /// The kernel writes the counter here; boxed, so that it stays in place.
    count: Box<u64>,
    armed: bool,
}

/// Opens a ring, or says what this kernel lacks.
pub(crate) fn open(options: &RingOptions) -> Result<(IoUringDriver, Rc<BufferPool>, Arc<WakeFlag>), Unsupported> {
    let (fd, eventfd_writer) = sockets::eventfd(0).map_err(|why| Unsupported::failed("eventfd", &why))?;
    // last: they are dropped in the order of `IoUringDriver`'s fields, and in no other
    let (ring, buffers, pool) = setup::open(options)?;
    let wake_eventfd = WakeEventFd { fd, count: Box::new(0), armed: false };
    let kernel = IoUringDriver {
        ring,
        buffers,
        wake_eventfd,
        detached_sends: DetachedSends::default(),
        undecided_sends: false,
        backlog: VecDeque::new(),
        epoch: Instant::now(),
    };
    Ok((kernel, pool, WakeFlag::new(Some(eventfd_writer))))
}

impl Driver for IoUringDriver {
    fn now(&self) -> Tick {
        Tick::ZERO + self.epoch.elapsed()
    }

    unsafe fn start(&mut self, key: OpKey, op: &Op) {
        let entry = match op {
            Op::DetachedSend(socket, chunk) => self.detached_sends.start(key, socket.handle.0, chunk),
            op => entry(op).user_data(key.0),
        };
        self.push(entry);
    }

    fn cancel(&mut self, key: OpKey) {
        self.detached_sends.cancel(key);
        let cancel = opcode::AsyncCancel2::new(CancelBuilder::user_data(key.0)).build();
        self.push(cancel.flags(squeue::Flags::SKIP_SUCCESS).user_data(IGNORED));
    }

    fn turn(&mut self, policy: WaitPolicy, answers: &mut Vec<Completion>) {
        self.buffers.refill();
        self.arm_wake();
        self.flush_backlog();
        // With entries left behind, a wait would wait for completions of operations that were never
        // submitted.
        let policy = if self.backlog.is_empty() && !self.undecided_sends { policy } else { WaitPolicy::None };
        if let Err(why) = self.enter(policy) {
            match why.raw_os_error() {
                // The time is up; a signal; or the kernel wants its completions read before it accepts
                // more.
                Some(libc::ETIME | libc::EINTR | libc::EBUSY | libc::EAGAIN) => {}
                _ => panic!("io_uring_enter on our own ring: {why}"),
            }
        }
        let slow = self.reap(answers);
        self.undecided_sends = !self.is_drained();
        if !self.undecided_sends {
            self.detached_sends.conclude(answers);
        }
        slow.into_iter().for_each(|entry| self.push(entry));
    }

    fn socket(&mut self, address: &SocketAddress) -> io::Result<SocketHandle> {
        sockets::connectable(address, 0)
    }
}

impl IoUringDriver {
    fn push(&mut self, entry: squeue::Entry) {
        if !self.backlog.is_empty() || !self.try_push(&entry) {
            self.backlog.push_back(entry);
            self.flush_backlog();
        }
    }

    fn try_push(&mut self, entry: &squeue::Entry) -> bool {
        // SAFETY: entries point into operations that the slab keeps until their last completion (contract
        // of `Driver::start`), or into `self.notify`, which lives as long as the ring.
        unsafe { self.ring.submission().push(entry).is_ok() }
    }

    fn flush_backlog(&mut self) {
        while let Some(entry) = self.backlog.front().cloned() {
            if !self.try_push(&entry) {
                // Full: one system call makes space, unless the kernel wants its completions read first.
                if self.ring.submit().is_err() || !self.try_push(&entry) {
                    return;
                }
            }
            self.backlog.pop_front();
        }
    }

    fn arm_wake(&mut self) {
        if !self.wake_eventfd.armed {
            self.wake_eventfd.armed = true;
            let target = (&raw mut *self.wake_eventfd.count).cast::<u8>();
            let read = opcode::Read::new(Fd(self.wake_eventfd.fd.as_raw_fd()), target, size_of::<u64>() as u32);
            self.push(read.build().user_data(WAKE_USER_DATA));
        }
    }

    fn enter(&mut self, policy: WaitPolicy) -> io::Result<usize> {
        match policy {
            WaitPolicy::Forever => self.ring.submit_and_wait(1),
            WaitPolicy::Until(wait) => {
                let wait = Timespec::new().sec(wait.as_secs()).nsec(wait.subsec_nanos());
                self.ring.submitter().submit_with_args(1, &SubmitArgs::new().timespec(&wait))
            }
            WaitPolicy::None if self.is_quiet() => Ok(0),
            WaitPolicy::Awake(_) if self.is_quiet() => {
                std::thread::yield_now(); // the kernel's own workers may need just this processor
                Ok(0)
            }
            WaitPolicy::None | WaitPolicy::Awake(_) => self.ring.submit(),
        }
    }

    /// Nothing to submit and nothing to read. Deferred work shows as TASKRUN (requested at setup), so that
    /// such a check costs no call.
    fn is_quiet(&mut self) -> bool {
        let submission = self.ring.submission();
        submission.is_empty() && !submission.taskrun() && !submission.cq_overflow()
    }

    /// The kernel has consumed all entries, and none of its completions waits outside the queue.
    fn is_drained(&mut self) -> bool {
        let submission = self.ring.submission();
        self.backlog.is_empty() && submission.is_empty() && !submission.cq_overflow()
    }

    /// Reads the completions, and returns the entries with which detached sends continue that were not sent
    /// at once.
    fn reap(&mut self, answers: &mut Vec<Completion>) -> Vec<squeue::Entry> {
        let mut slow = Vec::new(); // nearly always empty
        for entry in self.ring.completion() {
            match entry.user_data() {
                IGNORED => {}
                WAKE_USER_DATA => self.wake_eventfd.armed = false,
                key => {
                    let (result, flags) = (entry.result(), entry.flags());
                    // SAFETY: the kernel names a buffer once per time it was provided, and `refill`
                    // provides it again only after its chunk was dropped.
                    let chunk =
                        cqueue::buffer_select(flags).map(|id| unsafe { self.buffers.filled(id, result.max(0) as u32) });
                    let more = cqueue::more(flags);
                    let mut answer = Completion { key: OpKey(key), result, more, chunk };
                    if !more && !self.detached_sends.is_empty() {
                        match self.detached_sends.answered(answer.key, result) {
                            Some(DetachedOutcome::More(entry)) => {
                                slow.push(entry);
                                continue;
                            }
                            Some(DetachedOutcome::Done(result)) => answer.result = result,
                            None => {}
                        }
                    }
                    answers.push(answer);
                }
            }
        }
        slow
    }
}

impl Drop for IoUringDriver {
    /// The ring waits for all operations before it drops its driver; the read of the eventfd is the
    /// driver's own, and the kernel must not write to freed memory.
    fn drop(&mut self) {
        let mut unasked = Vec::new();
        self.cancel(OpKey(WAKE_USER_DATA));
        while self.wake_eventfd.armed {
            self.flush_backlog();
            if self.enter(WaitPolicy::Forever).is_err() {
                std::mem::forget(std::mem::take(&mut self.wake_eventfd.count));
                return;
            }
            self.reap(&mut unasked);
        }
    }
}

/// The submission entry of an operation, without its key.
fn entry(op: &Op) -> squeue::Entry {
    let fd = |handle: SocketHandle| Fd(handle.0);
    match op {
        Op::Accept(socket) => opcode::AcceptMulti::new(fd(socket.handle)).flags(libc::SOCK_CLOEXEC).build(),
        Op::Connect(socket, address) => {
            let (pointer, bytes) = address.pointer();
            opcode::Connect::new(fd(socket.handle), pointer, bytes).build()
        }
        Op::Receive(socket) => opcode::RecvMulti::new(fd(socket.handle), GROUP).build(),
        Op::ReceiveOnce(socket, buffer) => {
            opcode::Recv::new(fd(socket.handle), buffer.start.as_ptr(), buffer.len() as u32).build()
        }
        Op::Send(socket, chunk) => {
            let send = opcode::Send::new(fd(socket.handle), chunk.as_ptr(), length(chunk));
            send.flags(SEND_FLAGS).build()
        }
        Op::DetachedSend(..) => unreachable!("detached sends are started separately"),
        Op::Shutdown(socket) => opcode::Shutdown::new(fd(socket.handle), libc::SHUT_WR).build(),
        Op::Hangup(socket) => opcode::PollAdd::new(fd(socket.handle), HANGUP).build(),
        Op::Readable(socket) => opcode::PollAdd::new(fd(socket.handle), READABLE).build(),
        Op::Close(handle) => opcode::Close::new(fd(*handle)).build(),
        Op::Write(WriteOp { file, chunk, offset, durable }) => {
            let write = opcode::Write::new(Fd(file.as_raw_fd()), chunk.as_ptr(), length(chunk));
            write.offset(*offset).rw_flags(if *durable { libc::RWF_DSYNC } else { 0 }).build()
        }
        Op::Sync(file) => opcode::Fsync::new(Fd(file.as_raw_fd())).flags(FsyncFlags::DATASYNC).build(),
    }
}

/// At most 1 GiB at a time: the kernel counts in 31 bits, and callers continue after a short one.
fn length(bytes: &[u8]) -> u32 {
    bytes.len().min(1 << 30) as u32
}
