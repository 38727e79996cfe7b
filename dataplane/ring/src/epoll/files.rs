//! Writes and syncs of files, on a thread of their own: epoll cannot wait for a disk, and the loop must not.

use std::fs;
use std::io::{self, Write as _};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use crate::op::{OpKey, WriteOp};

/// Executes operations one after the other, in the order in which they were started. A log has one write in flight, so a
/// second thread would have nothing to do.
pub(super) struct FileThread {
    orders: Option<Sender<FileOrder>>,
    results: Arc<FileResults>,
    thread: Option<JoinHandle<()>>,
}

struct FileOrder {
    key: OpKey,
    file: Arc<fs::File>,
    work: FileWork,
}

enum FileWork {
    Write { start: *const u8, bytes: usize, offset: u64, durable: bool },
    Sync,
}

// SAFETY: `start` points to bytes that do not change and stay in place until the completion was returned (contract of
// `Driver::start`); the thread reads them before that, and not afterwards.
unsafe impl Send for FileOrder {}

struct FileResults {
    done: Mutex<Vec<(OpKey, i32)>>,
    any: AtomicBool,
    /// The loop's eventfd.
    eventfd: fs::File,
}

impl FileThread {
    /// `eventfd` is written to after each operation.
    pub(super) fn start(eventfd: fs::File) -> io::Result<Self> {
        let results = Arc::new(FileResults { done: Mutex::default(), any: false.into(), eventfd });
        let (orders, inbox) = mpsc::channel();
        let shared = Arc::clone(&results);
        let thread = thread::Builder::new().name("files".to_owned()).spawn(move || execute_all(&inbox, &shared))?;
        Ok(Self { orders: Some(orders), results, thread: Some(thread) })
    }

    /// # Safety
    ///
    /// The bytes of `write` stay alive and in place until its result was returned.
    pub(super) unsafe fn write(&self, key: OpKey, write: &WriteOp) {
        let WriteOp { file, chunk, offset, durable } = write;
        let work = FileWork::Write { start: chunk.as_ptr(), bytes: chunk.len(), offset: *offset, durable: *durable };
        self.order(FileOrder { key, file: Arc::clone(file), work });
    }

    pub(super) fn sync(&self, key: OpKey, file: &Arc<fs::File>) {
        self.order(FileOrder { key, file: Arc::clone(file), work: FileWork::Sync });
    }

    /// The results since the last call.
    pub(super) fn take(&self) -> Vec<(OpKey, i32)> {
        if !self.results.any.swap(false, Ordering::AcqRel) {
            return Vec::new();
        }
        std::mem::take(&mut *self.results.done.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn order(&self, order: FileOrder) {
        let key = order.key;
        // The thread ends only when the sender is dropped.
        if self.orders.as_ref().is_none_or(|orders| orders.send(order).is_err()) {
            self.results.add(key, -libc::EIO);
        }
    }
}

impl Drop for FileThread {
    fn drop(&mut self) {
        self.orders = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // it has no result, and a panic in it was reported
        }
    }
}

impl FileResults {
    fn add(&self, key: OpKey, result: i32) {
        self.done.lock().unwrap_or_else(PoisonError::into_inner).push((key, result));
        self.any.store(true, Ordering::Release);
        // Fails only if the counter is at its end, and then the loop is awake anyway.
        let _ = (&self.eventfd).write(&1_u64.to_ne_bytes());
    }
}

fn execute_all(inbox: &Receiver<FileOrder>, results: &FileResults) {
    for FileOrder { key, file, work } in inbox {
        results.add(key, execute(&file, &work));
    }
}

fn execute(file: &fs::File, work: &FileWork) -> i32 {
    let fd = file.as_raw_fd();
    let result = match *work {
        FileWork::Write { start, bytes, offset, durable } => {
            let part = libc::iovec { iov_base: start.cast_mut().cast(), iov_len: bytes.min(1 << 30) };
            let flags = if durable { libc::RWF_DSYNC } else { 0 };
            // SAFETY: one part, whose bytes live until the result was returned; the call only reads them.
            unsafe { libc::pwritev2(fd, &raw const part, 1, offset.cast_signed(), flags) }
        }
        // SAFETY: takes no pointer; the descriptor is open while `file` lives.
        FileWork::Sync => (unsafe { libc::fdatasync(fd) }) as isize,
    };
    if result >= 0 {
        return result as i32; // at most 1 GiB
    }
    match io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO) {
        libc::ENOSYS => -libc::EOPNOTSUPP, // the caller then writes and syncs
        errno => -errno,
    }
}
