//! What can be asked of a driver, and what it answers.

use std::cell::{Cell, RefCell};
use std::fs;
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::Arc;

use crate::address::Address;
use crate::chunk::Chunk;

/// An operation's name between ring and driver: slot and generation, so that a late answer never
/// meets a stranger.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Key(pub(crate) u64);

/// What a driver calls one of its sockets: a file descriptor, or a number of the simulation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Handle(pub(crate) i32);

/// One operation with all that it needs while it runs.
pub(crate) enum Op {
    /// Answers once per connection until it ends.
    Accept(Rc<Socket>),
    Connect(Rc<Socket>, Box<Address>),
    /// Answers once per filled buffer until it ends.
    Receive(Rc<Socket>),
    /// Answers once, with bytes in memory of its own: for when all receive buffers are out.
    ReceiveOnce(Rc<Socket>, Room),
    Send(Rc<Socket>, Chunk),
    /// The same for few bytes and when nobody waits; forgotten as soon as all has left.
    Post(Rc<Socket>, Chunk),
    /// Ends our side of the conversation.
    Shutdown(Rc<Socket>),
    /// Answers once the peer has ended its side, whatever of it has still to be received, or the connection is broken.
    Hangup(Rc<Socket>),
    Close(Handle),
    Write(Write),
    /// Data and what is needed to find it, as fdatasync.
    Sync(Arc<fs::File>),
}

/// Memory of one operation, for the driver to write to.
pub(crate) struct Room {
    bytes: Vec<u8>,
    /// Taken while `bytes` was ours to write, so that the driver may write by it.
    pub(crate) start: NonNull<u8>,
}

impl Room {
    pub(crate) fn new(count: usize) -> Self {
        let mut bytes = vec![0; count]; // one allocation per receive without a buffer
        let start = NonNull::new(bytes.as_mut_ptr()).expect("a vector's pointer is never null");
        Self { bytes, start }
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// What the driver wrote: the first `count` bytes. Nothing is left for a second time.
    pub(crate) fn take(&mut self, count: usize) -> Chunk {
        let mut bytes = std::mem::take(&mut self.bytes);
        bytes.truncate(count);
        Chunk::from(bytes)
    }
}

pub(crate) struct Write {
    pub(crate) file: Arc<fs::File>,
    pub(crate) chunk: Chunk,
    pub(crate) offset: u64,
    /// Completed only once the bytes would survive a power cut.
    pub(crate) durable: bool,
}

/// One answer to an operation.
pub(crate) struct Completion {
    pub(crate) key: Key,
    /// A count, a handle, or a negative errno.
    pub(crate) result: i32,
    /// The operation goes on, and more answers follow.
    pub(crate) more: bool,
    pub(crate) chunk: Option<Chunk>,
}

/// A socket, closed when the last one that holds it lets go: the stream or listener, and each
/// operation on it. So no operation ever meets a descriptor that was closed and used again.
pub(crate) struct Socket {
    pub(crate) handle: Handle,
    closing: Rc<Closing>,
    /// Whether the handle was handed to an explicit close.
    closed: Cell<bool>,
}

impl Socket {
    pub(crate) fn new(handle: Handle, closing: &Rc<Closing>) -> Rc<Self> {
        Rc::new(Self { handle, closing: Rc::clone(closing), closed: Cell::new(false) })
    }

    /// Takes the handle out of the last hand, for a close that is waited for.
    pub(crate) fn into_handle(this: Rc<Self>) -> Option<Handle> {
        let last = Rc::into_inner(this)?;
        last.closed.set(true);
        Some(last.handle)
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if !self.closed.get() {
            self.closing.0.borrow_mut().push(self.handle);
        }
    }
}

/// Handles whose last holder is gone; the next turn of the loop closes them.
#[derive(Default)]
pub(crate) struct Closing(RefCell<Vec<Handle>>);

impl Closing {
    pub(crate) fn take(&self) -> Vec<Handle> {
        self.0.take()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.borrow().is_empty()
    }
}
