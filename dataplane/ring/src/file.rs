//! A file that is written at given offsets.

use std::cell::Cell;
use std::fs;
use std::io;
use std::rc::Rc;
use std::sync::Arc;

use crate::chunk::Chunk;
use crate::op::{Op, WriteOp};
use crate::ring::Ring;
use crate::ring_state::RingState;
use crate::stream::checked;

/// A file on this ring. A write that was started may happen even if its future is dropped.
pub struct RingFile {
    core: Rc<RingState>,
    file: Arc<fs::File>,
    /// The file system rejected RWF_DSYNC once.
    no_durable_write: Cell<bool>,
}

impl RingFile {
    #[must_use]
    pub fn from_std(ring: &Ring, file: fs::File) -> Self {
        Self::shared(ring, Arc::new(file))
    }

    /// A file that is shared with other owners: it needs no second descriptor, so this cannot fail.
    #[must_use]
    pub fn shared(ring: &Ring, file: Arc<fs::File>) -> Self {
        Self { core: Rc::clone(&ring.core), file, no_durable_write: Cell::new(false) }
    }

    /// Writes all of `bytes` at `offset`.
    pub async fn write_at(&self, bytes: impl Into<Chunk>, offset: u64) -> io::Result<()> {
        self.write(bytes.into(), offset, false).await.map_err(|(why, ..)| why)
    }

    /// Writes all of `bytes` at `offset` and returns once they would survive a power cut.
    pub async fn write_at_durable(&self, bytes: impl Into<Chunk>, offset: u64) -> io::Result<()> {
        let (mut rest, mut from) = (bytes.into(), offset);
        if !self.no_durable_write.get() {
            match self.write(rest, from, true).await {
                Ok(()) => return Ok(()),
                Err((why, chunk, at)) if why.raw_os_error() == Some(libc::EOPNOTSUPP) => {
                    self.no_durable_write.set(true);
                    (rest, from) = (chunk, at);
                }
                Err((why, ..)) => return Err(why),
            }
        }
        self.write_at(rest, from).await?;
        self.sync_data().await
    }

    /// Makes everything written so far survive a power cut.
    pub async fn sync_data(&self) -> io::Result<()> {
        let (result, _) = self.core.start(Op::Sync(Arc::clone(&self.file))).outcome().await;
        checked(result).map(drop)
    }

    /// On failure returns what is not written yet and its offset.
    async fn write(&self, mut rest: Chunk, mut offset: u64, durable: bool) -> Result<(), (io::Error, Chunk, u64)> {
        while !rest.is_empty() {
            let write = WriteOp { file: Arc::clone(&self.file), chunk: rest, offset, durable };
            let (result, op) = self.core.start(Op::Write(write)).outcome().await;
            let Op::Write(WriteOp { chunk, .. }) = op else { unreachable!("the slab gives back what it got") };
            rest = chunk;
            match checked(result) {
                Ok(0) => return Err((io::ErrorKind::WriteZero.into(), rest, offset)),
                Ok(written) => {
                    rest.advance(written);
                    offset += written as u64;
                }
                Err(why) if why.kind() == io::ErrorKind::Interrupted => {}
                Err(why) => return Err((why, rest, offset)),
            }
        }
        Ok(())
    }
}
