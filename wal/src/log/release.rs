//! Releases the folder of a log to another process while this one continues with other work.

use std::sync::Arc;

use rustix::fs::{FlockOperation, flock};

use super::WriteAheadLog;

/// Why appends to a released log are rejected.
const RELEASED: &str = "another process has taken over the log";

impl WriteAheadLog {
    /// Releases the folder, so that another process can open the log, and rejects appends from now on. Call
    /// it when everything is durable; `false` while a thread still prepares a segment here: then try again
    /// later.
    ///
    /// # Errors The kernel does not unlock the folder.
    pub fn release(&mut self) -> std::io::Result<bool> {
        if Arc::strong_count(&self.lock) > 1 || self.in_flight.is_some() {
            return Ok(false);
        }
        // First of all: the next owner of the folder must be the only writer.
        self.poison.get_or_insert_with(|| RELEASED.into());
        flock(&*self.lock, FlockOperation::Unlock)?;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use crate::{AppendError, LogOptions, WriteAheadLog};

    #[test]
    fn released_log_rejects_appends_and_can_be_reopened() {
        let folder = tempfile::tempdir().unwrap();
        let options = || LogOptions { segment_bytes: 1 << 20, ..LogOptions::default() };
        let (mut old, _) = WriteAheadLog::open(folder.path(), options()).unwrap();
        let stream = old.stream("a").unwrap();
        old.append(stream, 1, &[b"kept".as_slice()]).unwrap();
        old.flush_blocking().unwrap();
        assert!(WriteAheadLog::open(folder.path(), options()).is_err());
        while !old.release().unwrap() {}

        let refused = old.append(stream, 2, &[b"late".as_slice()]);
        assert!(matches!(refused, Err(AppendError::Poisoned { .. })), "{refused:?}");
        let (mut new, _) = WriteAheadLog::open(folder.path(), options()).unwrap();
        let stream = new.stream("a").unwrap();
        assert!(new.append(stream, 3, &[b"on".as_slice()]).is_ok());
    }
}
