//! Complete lines of a file that grows and is rotated.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use adapter::Error;
use serde::{Deserialize, Serialize};

use super::LINE_BYTES_MAX;

/// Bytes of one read.
const READ_BYTES: usize = 64 << 10;

/// How far the events of which file were accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Checkpoint {
    /// The inode number: it stays when the file is renamed.
    pub(super) file: u64,
    pub(super) position: u64,
}

impl Checkpoint {
    pub(super) fn read(path: &Path) -> Result<Option<Checkpoint>, Error> {
        match std::fs::read(path) {
            Ok(bytes) => {
                let parsed = serde_json::from_slice(&bytes);
                let wrong = |error| {
                    Error::config(format!(
                        "checkpoint {}: {error}; remove it to start from the beginning",
                        path.display()
                    ))
                };
                parsed.map(Some).map_err(wrong)
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Error::connection(format!("read checkpoint {}: {error}", path.display()))),
        }
    }

    /// Replaces the file as a whole.
    pub(super) fn write(self, path: &Path) -> Result<(), Error> {
        let temporary = path.with_extension("new");
        let bytes = serde_json::to_vec(&self).unwrap_or_default();
        let written = std::fs::write(&temporary, bytes).and_then(|()| std::fs::rename(&temporary, path));
        written.map_err(|error| Error::connection(format!("write checkpoint {}: {error}", path.display())))
    }
}

pub(super) struct Tail {
    file: File,
    inode: u64,
    /// Bytes of the file that `next_line` has handed out.
    position: u64,
    /// Read and not yet handed out.
    buffer: Vec<u8>,
}

impl Tail {
    /// Goes on at the checkpoint, in the renamed file if the file was rotated meanwhile.
    pub(super) fn open(path: &Path, checkpoint: Option<Checkpoint>) -> Result<Tail, Error> {
        let tail = Tail::from_start(path)?;
        let Some(checkpoint) = checkpoint else { return Ok(tail) };
        let mut tail = match tail.inode == checkpoint.file {
            true => tail,
            false => match renamed(path, checkpoint.file) {
                Some(renamed) => Tail::from_start(&renamed)?,
                None => {
                    tracing::warn!(path = %path.display(), "the file of the checkpoint is missing; reading starts with its successor");
                    return Ok(tail);
                }
            },
        };
        let length = tail.file.metadata().map_or(0, |metadata| metadata.len());
        if checkpoint.position <= length {
            tail.seek(checkpoint.position)?;
        }
        Ok(tail)
    }

    fn from_start(path: &Path) -> Result<Tail, Error> {
        let failed = |error| Error::connection(format!("open {}: {error}", path.display()));
        let file = File::open(path).map_err(failed)?;
        let inode = file.metadata().map_err(failed)?.ino();
        Ok(Tail { file, inode, position: 0, buffer: Vec::new() })
    }

    fn seek(&mut self, position: u64) -> Result<(), Error> {
        self.file.seek(SeekFrom::Start(position)).map_err(|error| Error::connection(format!("seek: {error}")))?;
        self.position = position;
        self.buffer.clear();
        Ok(())
    }

    /// The file, and the position after the last line that was handed out.
    pub(super) fn position(&self) -> (u64, u64) {
        (self.inode, self.position)
    }

    /// The next line that has its end. `None`: there is none yet.
    pub(super) fn next_line(&mut self) -> Result<Option<Vec<u8>>, Error> {
        let mut searched = 0;
        loop {
            if let Some(end) = self.buffer[searched..].iter().position(|byte| *byte == b'\n') {
                let mut line: Vec<u8> = self.buffer.drain(..=searched + end).collect();
                self.position += line.len() as u64;
                line.pop();
                return Ok(Some(line));
            }
            searched = self.buffer.len();
            if searched > LINE_BYTES_MAX {
                return Err(Error::config(format!("line at byte {} is over {LINE_BYTES_MAX} bytes", self.position)));
            }
            self.buffer.resize(searched + READ_BYTES, 0);
            let read = self.file.read(&mut self.buffer[searched..]);
            let read = read.map_err(|error| Error::connection(format!("read: {error}")));
            self.buffer.truncate(searched + *read.as_ref().unwrap_or(&0));
            if read? == 0 {
                return Ok(None);
            }
        }
    }

    /// A last line without its newline; empty if there is none.
    pub(super) fn rest(&mut self) -> Vec<u8> {
        self.position += self.buffer.len() as u64;
        std::mem::take(&mut self.buffer)
    }

    /// At the end: continues with the file that took the name, or at the start of a truncated one. False: nothing changed.
    pub(super) fn advance(&mut self, path: &Path) -> Result<bool, Error> {
        let Ok(successor) = std::fs::metadata(path) else { return Ok(false) };
        if successor.ino() != self.inode {
            *self = Tail::from_start(path)?;
            return Ok(true);
        }
        if successor.len() < self.position {
            self.seek(0)?;
            return Ok(true);
        }
        Ok(false)
    }
}

/// The file with this inode in the same directory.
fn renamed(path: &Path, inode: u64) -> Option<PathBuf> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let entries = std::fs::read_dir(directory).ok()?.flatten();
    entries
        .filter(|entry| entry.metadata().is_ok_and(|metadata| metadata.ino() == inode))
        .map(|entry| entry.path())
        .next()
}
