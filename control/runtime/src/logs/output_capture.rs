//! Watches a process for its end, and reads its output.

use std::cell::RefCell;
use std::io;
use std::os::fd::OwnedFd;
use std::process::Child;
use std::rc::Rc;

use tokio::io::unix::AsyncFd;
use tokio::net::unix::pipe;
use tokio::task::{JoinHandle, spawn_local};
use tokio::time::timeout;

use crate::limits::OUTPUT_DRAIN_TIMEOUT;
use crate::logs::instance_log::{InstanceLog, OutputStream, copy_output};
use crate::process::child::pidfd;

/// The pidfd, which becomes readable when the process ends, and the tasks that read its output.
pub(crate) fn capture(
    child: &mut Child,
    log: &Rc<RefCell<InstanceLog>>,
) -> io::Result<(AsyncFd<OwnedFd>, Vec<JoinHandle<()>>)> {
    let pidfd = pidfd(child)?;
    let outputs = [
        (OutputStream::Stdout, child.stdout.take().map(OwnedFd::from)),
        (OutputStream::Stderr, child.stderr.take().map(OwnedFd::from)),
    ];
    let mut readers = Vec::with_capacity(outputs.len());
    for (origin, output) in outputs {
        if let Some(fd) = output {
            readers.push(spawn_local(copy_output(pipe::Receiver::from_owned_fd(fd)?, origin, Rc::clone(log))));
        }
    }
    Ok((pidfd, readers))
}

/// Waits for the rest of the output of a process that has ended, for a bounded time. What the pipe still holds is read at
/// once.
pub(crate) async fn drain(readers: Vec<JoinHandle<()>>, log: &Rc<RefCell<InstanceLog>>) {
    log.borrow_mut().start_drain();
    for reader in readers {
        let abort = reader.abort_handle();
        if timeout(OUTPUT_DRAIN_TIMEOUT, reader).await.is_err() {
            abort.abort();
        }
    }
}
