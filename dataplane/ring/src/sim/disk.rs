//! The disk of one simulation: real files, for which it tracks what a power cut would revert.
//!
//! Every 4 KiB page that was written since the last sync has a *before* image: what is certain to be
//! stored. A power cut restores any subset of the before images.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::Arc;

use super::{SimContext, SimEvent};
use crate::chunk::Chunk;
use crate::op::{OpKey, WriteOp};

/// Size that a disk writes atomically, as file systems assume.
const PAGE_BYTES: u64 = 4096;

/// Device and inode: two descriptors of one file share its pages.
type FileId = (u64, u64);

#[derive(Default)]
pub(super) struct SimDisk {
    jobs: BTreeMap<OpKey, DiskJob>,
    files: BTreeMap<FileId, FileImage>,
}

enum DiskJob {
    Write { file: FileId, chunk: Chunk, offset: u64, durable: bool },
    Sync { file: FileId, as_of: SyncSnapshot },
}

/// One file and its data that is not durable yet.
struct FileImage {
    /// A descriptor of its own: it can read even where the writer's may not.
    file: fs::File,
    /// The durable length.
    safe_bytes: u64,
    pages: BTreeMap<u64, DirtyPage>,
    writes: u64,
}

struct DirtyPage {
    before: Vec<u8>,
    /// Number of the last write that touched it.
    touched: u64,
}

/// What a sync requested now will have made durable when it is done.
struct SyncSnapshot {
    writes: u64,
    bytes: u64,
    pages: BTreeMap<u64, Vec<u8>>,
}

impl SimDisk {
    pub(super) fn write(&mut self, key: OpKey, write: &WriteOp, means: &mut SimContext<'_>) {
        match self.image(&write.file) {
            Ok(_) if write.durable && !means.faults.durable_writes => means.finish(key, -libc::EOPNOTSUPP),
            Ok((file, _)) => {
                let WriteOp { chunk, offset, durable, .. } = write;
                let job = DiskJob::Write { file, chunk: chunk.clone(), offset: *offset, durable: *durable };
                self.begin(key, job, means);
            }
            Err(why) => means.finish(key, errno(&why)),
        }
    }

    pub(super) fn sync(&mut self, key: OpKey, file: &Arc<fs::File>, means: &mut SimContext<'_>) {
        let begun = self.image(file).and_then(|(id, image)| Ok((id, image.snapshot()?)));
        match begun {
            Ok((file, as_of)) => self.begin(key, DiskJob::Sync { file, as_of }, means),
            Err(why) => means.finish(key, errno(&why)),
        }
    }

    /// The disk executes an operation.
    pub(super) fn happen(&mut self, key: OpKey, means: &mut SimContext<'_>) {
        let Some(job) = self.jobs.remove(&key) else { return };
        let failed = if means.happens(means.faults.disk_errors) {
            Some(-libc::EIO)
        } else {
            let odds = means.faults.disk_shortages;
            (odds > 0 && means.happens(odds)).then_some(-libc::ENOMEM)
        };
        let result = match (job, failed) {
            (DiskJob::Write { file, chunk, offset, .. }, Some(errno)) => {
                self.tear(file, &chunk, offset, means);
                errno
            }
            (DiskJob::Sync { .. }, Some(errno)) => errno,
            (DiskJob::Write { file, mut chunk, offset, durable }, None) => {
                if chunk.len() > 1 && means.happens(means.faults.short_writes) {
                    chunk.truncate(means.chance.usize(1..chunk.len()));
                }
                let image = self.files.get_mut(&file).expect("made when the write was asked for");
                match image.write(&chunk, offset, durable) {
                    Ok(()) => chunk.len() as i32,
                    Err(why) => errno(&why),
                }
            }
            (DiskJob::Sync { file, as_of }, None) => {
                self.files.get_mut(&file).expect("made when the sync was asked for").synced(as_of);
                0
            }
        };
        means.finish(key, result);
    }

    pub(super) fn power_cut(&mut self, means: &mut SimContext<'_>) {
        for (key, job) in std::mem::take(&mut self.jobs) {
            if let DiskJob::Write { file, chunk, offset, .. } = job {
                self.tear(file, &chunk, offset, means);
            }
            means.finish(key, -libc::EIO);
        }
        for image in self.files.values_mut() {
            image.power_cut(means).expect("the files of a simulation can be written");
        }
        self.files.clear();
    }

    fn begin(&mut self, key: OpKey, job: DiskJob, means: &mut SimContext<'_>) {
        self.jobs.insert(key, job);
        let wait = means.between(&means.faults.disk_latency.clone());
        means.schedule.plan(wait, SimEvent::Disk(key));
    }

    /// Writes some of the pages of a write that fails.
    fn tear(&mut self, file: FileId, chunk: &[u8], offset: u64, means: &mut SimContext<'_>) {
        let image = self.files.get_mut(&file).expect("made when the write was asked for");
        let mut done = 0;
        while done < chunk.len() {
            let at = offset + done as u64;
            let page_end = (at / PAGE_BYTES + 1) * PAGE_BYTES;
            let part = ((page_end - at) as usize).min(chunk.len() - done);
            if means.chance.bool() {
                // An error in the partial write changes nothing: the write fails anyway.
                let _ = image.write(&chunk[done..done + part], at, false);
            }
            done += part;
        }
    }

    fn image(&mut self, file: &fs::File) -> io::Result<(FileId, &mut FileImage)> {
        let metadata = file.metadata()?;
        let id = (metadata.dev(), metadata.ino());
        let image = match self.files.entry(id) {
            std::collections::btree_map::Entry::Occupied(known) => known.into_mut(),
            std::collections::btree_map::Entry::Vacant(new) => {
                let path = format!("/proc/self/fd/{}", file.as_raw_fd());
                let file = fs::OpenOptions::new().read(true).write(true).open(path)?;
                new.insert(FileImage { file, safe_bytes: metadata.len(), pages: BTreeMap::new(), writes: 0 })
            }
        };
        Ok((id, image))
    }
}

impl FileImage {
    fn write(&mut self, bytes: &[u8], offset: u64, durable: bool) -> io::Result<()> {
        let end = offset.checked_add(bytes.len() as u64).ok_or(io::ErrorKind::InvalidInput)?;
        let pages = offset / PAGE_BYTES..end.div_ceil(PAGE_BYTES);
        self.writes += 1;
        for page in pages.clone() {
            if !self.pages.contains_key(&page) {
                let before = self.read(page)?;
                self.pages.insert(page, DirtyPage { before, touched: 0 });
            }
            if let Some(page) = self.pages.get_mut(&page) {
                page.touched = self.writes;
            }
        }
        self.file.write_all_at(bytes, offset)?;
        if durable {
            self.pages.retain(|page, _| !pages.contains(page));
            self.safe_bytes = self.safe_bytes.max(end);
        }
        Ok(())
    }

    fn snapshot(&self) -> io::Result<SyncSnapshot> {
        let pages = self.pages.keys().map(|page| Ok((*page, self.read(*page)?)));
        let pages = pages.collect::<io::Result<_>>()?;
        Ok(SyncSnapshot { writes: self.writes, bytes: self.file.metadata()?.len(), pages })
    }

    /// A sync is done: what existed when it was requested is durable, later writes are not.
    fn synced(&mut self, as_of: SyncSnapshot) {
        self.safe_bytes = self.safe_bytes.max(as_of.bytes);
        for (number, content) in as_of.pages {
            if let Some(page) = self.pages.get_mut(&number) {
                if page.touched <= as_of.writes {
                    self.pages.remove(&number);
                } else {
                    page.before = content;
                }
            }
        }
    }

    fn power_cut(&mut self, means: &mut SimContext<'_>) -> io::Result<()> {
        let bytes = self.file.metadata()?.len();
        for (page, DirtyPage { before, .. }) in std::mem::take(&mut self.pages) {
            if means.chance.bool() {
                let start = page * PAGE_BYTES;
                let mut content = before;
                content.resize(bytes.saturating_sub(start).min(PAGE_BYTES) as usize, 0);
                self.file.write_all_at(&content, start)?;
            }
        }
        if bytes > self.safe_bytes && means.chance.bool() {
            self.file.set_len(self.safe_bytes)?;
        }
        Ok(())
    }

    /// A page as it is now; shorter at the end of the file.
    fn read(&self, page: u64) -> io::Result<Vec<u8>> {
        let mut content = vec![0; PAGE_BYTES as usize];
        let mut filled = 0;
        while filled < content.len() {
            match self.file.read_at(&mut content[filled..], page * PAGE_BYTES + filled as u64)? {
                0 => break,
                count => filled += count,
            }
        }
        content.truncate(filled);
        Ok(content)
    }
}

fn errno(why: &io::Error) -> i32 {
    -why.raw_os_error().unwrap_or(libc::EIO)
}
