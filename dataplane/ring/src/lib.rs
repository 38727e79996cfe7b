//! One core's runtime: tasks, timers, sockets and files on one `io_uring` (or on epoll), and its simulated twin.
//!
//! Everything here belongs to one thread. A future starts an operation and may be dropped at any time; the
//! operation and its buffers belong to the ring's slab and stay there until the kernel has finished with
//! them. So a dropped future never frees memory that is still written to, and bytes that had arrived wait
//! for the next [`RingStream::recv`].
//!
//! [`cgroup_ports`], [`idmapped_mount`], [`code_pages`] and [`allocator`] do not use the loop: they are wrappers of kernel and
//! libc features.
//!
//! Read `ring` first (the handle and the turn of the loop), then `slab` (who owns what), then `driver` (the
//! interface of a kernel). `kernel` (io_uring), `epoll` and [`sim`] are the drivers.
#![allow(unsafe_code)] // one of the crates that may; each block carries its own argument

mod address;
pub mod allocator;
pub mod cgroup_ports;
mod chunk;
pub mod code_pages;
mod datagram;
mod driver;
mod endpoint_address;
mod epoll;
mod executor;
mod file;
mod heartbeat;
mod idle;
pub mod idmapped_mount;
mod kernel;
mod limits;
mod listener;
mod notify;
mod op;
mod pool;
mod prefetch;
mod ready_queue;
mod ring;
mod ring_state;
pub mod sim;
mod slab;
mod sleep;
mod sockets;
mod stream;
mod task_memory;
mod tick;
mod timer;
mod turn_budget;
mod waiter;
mod wake;

pub use chunk::Chunk;
pub use datagram::RingDatagram;
pub use endpoint_address::{EndpointAddress, UNIX_PATH_BYTES_MAX, UnixPath, UnixPathError};
pub use file::RingFile;
pub use heartbeat::{CurrentWork, Heartbeat, Working};
pub use kernel::Unsupported;
pub use limits::{IoDriver, RingOptions, TURN_STEPS_MAX};
pub use listener::RingListener;
pub use notify::Notify;
pub use prefetch::prefetch;
pub use ring::Ring;
pub use sleep::{Elapsed, Sleep, Timeout};
pub use stream::{IdleReadiness, RingStream};
pub use tick::Tick;
pub use wake::WakeHandle;
