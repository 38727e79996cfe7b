//! Operations that a driver executes, and their completions.

use std::cell::{Cell, RefCell};
use std::fs;
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::Arc;

use crate::address::SocketAddress;
use crate::chunk::Chunk;

/// The id of an operation between ring and driver: slot and generation, so that a late completion never
/// reaches another operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct OpKey(pub(crate) u64);

/// A driver's handle of a socket: a file descriptor, or a number of the simulation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct SocketHandle(pub(crate) i32);

/// One operation with everything that it needs while it runs.
pub(crate) enum Op {
    /// Completes once per connection until it ends.
    Accept(Rc<SharedSocket>),
    Connect(Rc<SharedSocket>, Box<SocketAddress>),
    /// Completes once per filled buffer until it ends.
    Receive(Rc<SharedSocket>),
    /// Completes once, with bytes in memory of its own: for when all receive buffers are in use.
    ReceiveOnce(Rc<SharedSocket>, OpBuffer),
    Send(Rc<SharedSocket>, Chunk),
    /// The same for few bytes and without a waiting task; removed as soon as everything was sent.
    DetachedSend(Rc<SharedSocket>, Chunk),
    /// Shuts down our sending side.
    Shutdown(Rc<SharedSocket>),
    /// Completes once the peer has closed its side, even with unread data, or the connection is broken.
    Hangup(Rc<SharedSocket>),
    /// Completes once there may be something to receive. Started after a receive that found nothing.
    Readable(Rc<SharedSocket>),
    Close(SocketHandle),
    Write(WriteOp),
    /// Syncs data and the metadata needed to find it, same as fdatasync.
    Sync(Arc<fs::File>),
}

/// Memory of one operation, for the driver to write to.
pub(crate) struct OpBuffer {
    bytes: Vec<u8>,
    /// Taken while `bytes` was exclusively owned, so that the driver may write through it.
    pub(crate) start: NonNull<u8>,
}

impl OpBuffer {
    pub(crate) fn new(count: usize) -> Self {
        let mut bytes = vec![0; count]; // one allocation per receive without a buffer
        let start = NonNull::new(bytes.as_mut_ptr()).expect("a vector's pointer is never null");
        Self { bytes, start }
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Takes what the driver wrote: the first `count` bytes. A second call finds nothing.
    pub(crate) fn take(&mut self, count: usize) -> Chunk {
        let mut bytes = std::mem::take(&mut self.bytes);
        bytes.truncate(count);
        Chunk::from(bytes)
    }
}

pub(crate) struct WriteOp {
    pub(crate) file: Arc<fs::File>,
    pub(crate) chunk: Chunk,
    pub(crate) offset: u64,
    /// Completed only once the bytes would survive a power cut.
    pub(crate) durable: bool,
}

/// One completion of an operation.
pub(crate) struct Completion {
    pub(crate) key: OpKey,
    /// A count, a handle, or a negative errno.
    pub(crate) result: i32,
    /// The operation continues, and more completions follow.
    pub(crate) more: bool,
    pub(crate) chunk: Option<Chunk>,
}

/// A socket, closed when its last owner drops it: the stream or listener, and each operation on it. So no
/// operation ever uses a descriptor that was closed and reused.
pub(crate) struct SharedSocket {
    pub(crate) handle: SocketHandle,
    closing: Rc<PendingCloses>,
    /// Whether the handle was moved to an explicit close.
    closed: Cell<bool>,
}

impl SharedSocket {
    pub(crate) fn new(handle: SocketHandle, closing: &Rc<PendingCloses>) -> Rc<Self> {
        Rc::new(Self { handle, closing: Rc::clone(closing), closed: Cell::new(false) })
    }

    /// Takes the handle out of the last reference, for a close with a completion.
    pub(crate) fn into_handle(this: Rc<Self>) -> Option<SocketHandle> {
        let last = Rc::into_inner(this)?;
        last.closed.set(true);
        Some(last.handle)
    }
}

impl Drop for SharedSocket {
    fn drop(&mut self) {
        if !self.closed.get() {
            self.closing.0.borrow_mut().push(self.handle);
        }
    }
}

/// Handles without an owner; the next turn of the loop closes them.
#[derive(Default)]
pub(crate) struct PendingCloses(RefCell<Vec<SocketHandle>>);

impl PendingCloses {
    pub(crate) fn take(&self) -> Vec<SocketHandle> {
        self.0.take()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.borrow().is_empty()
    }
}
