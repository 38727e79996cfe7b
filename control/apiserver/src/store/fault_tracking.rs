//! The database's file, with a record of the operations that the disk rejected.
//!
//! A write that fails for lack of space has changed nothing that counts: the last commit is complete, and the file can
//! be opened again. After a failed sync the content of the disk is unknown, whatever a later read returns.

use std::fs::File;
use std::io;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

use redb::backends::FileBackend;
use redb::{BackendError, DatabaseError, StorageBackend};

const NO_FAULT: u8 = 0;
const DISK_FULL: u8 = 1;
const OTHER_FAULT: u8 = 2;

/// The worst that happened since the file was opened.
#[derive(Debug, Clone, Default)]
pub(super) struct DiskFaults(Arc<AtomicU8>);

impl DiskFaults {
    /// Whether room is all that was missing.
    pub(super) fn is_only_disk_full(&self) -> bool {
        self.0.load(Relaxed) == DISK_FULL
    }

    pub(super) fn clear(&self) {
        self.0.store(NO_FAULT, Relaxed);
    }

    fn record<T>(&self, outcome: io::Result<T>, syncs: bool) -> io::Result<T> {
        if let Err(why) = &outcome {
            let full = matches!(
                why.kind(),
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge
            );
            self.0.fetch_max(if full && !syncs { DISK_FULL } else { OTHER_FAULT }, Relaxed);
        }
        outcome
    }
}

/// Any backend, with its faults noted.
#[derive(Debug)]
pub(super) struct FaultTrackingBackend<B> {
    inner: B,
    faults: DiskFaults,
}

impl FaultTrackingBackend<FileBackend> {
    pub(super) fn file(file: File, faults: &DiskFaults) -> Result<Self, DatabaseError> {
        Ok(Self::wrap(FileBackend::new(file)?, faults))
    }
}

impl<B> FaultTrackingBackend<B> {
    pub(super) fn wrap(inner: B, faults: &DiskFaults) -> Self {
        Self { inner, faults: faults.clone() }
    }
}

impl<B: StorageBackend> StorageBackend for FaultTrackingBackend<B> {
    fn len(&self) -> io::Result<u64> {
        self.inner.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.faults.record(self.inner.read(offset, out), false)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.faults.record(self.inner.set_len(len), false)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.faults.record(self.inner.sync_data(), true)
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.faults.record(self.inner.write(offset, data), false)
    }

    fn close(&self) -> io::Result<()> {
        self.inner.close()
    }

    fn try_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.inner.try_lock_range(start, end)
    }

    fn try_lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.inner.try_lock_shared_range(start, end)
    }

    fn lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.inner.lock_range(start, end)
    }

    fn lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.inner.lock_shared_range(start, end)
    }

    fn unlock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.inner.unlock_range(start, end)
    }

    fn query_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.inner.query_lock_range(start, end)
    }
}
