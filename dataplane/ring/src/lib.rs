//! One core's runtime: tasks, timers, sockets and files on one `io_uring`, and a simulated twin.
//!
//! Everything here belongs to one thread. A future asks for an operation and may be dropped at any
//! time; the operation and its buffers belong to the ring's slab and stay there until the kernel has
//! said its last word about them. So a dropped future never frees memory that is still written to,
//! and bytes that had arrived wait for the next [`Stream::recv`].
//!
//! [`group_port`], [`code`] and [`heap`] stand beside the loop: the kernel does it all.
//!
//! Read `ring` first (the handle and the turn of the loop), then `slab` (who owns what), then
//! `driver` (what a kernel must be able to do). `kernel` and [`sim`] are the two drivers.
#![allow(unsafe_code)] // one of the two rooms that may; each block carries its own argument

mod address;
mod bell;
mod chunk;
pub mod code;
mod driver;
mod executor;
mod file;
pub mod group_port;
pub mod heap;
mod heartbeat;
mod kernel;
mod limits;
mod listener;
mod lull;
mod op;
mod pool;
mod prefetch;
mod remote;
mod ring;
pub mod sim;
mod slab;
mod stream;
mod tick;
mod timer;
mod waiter;

pub use bell::Bell;
pub use chunk::Chunk;
pub use file::File;
pub use heartbeat::{Heartbeat, Work, Working};
pub use kernel::Unsupported;
pub use limits::Options;
pub use listener::Listener;
pub use prefetch::prefetch;
pub use remote::Remote;
pub use ring::Ring;
pub use stream::{Readiness, Stream};
pub use tick::Tick;
pub use timer::{Elapsed, Sleep, Within};
