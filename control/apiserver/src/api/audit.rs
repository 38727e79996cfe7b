//! The audit log: one JSON line per request with its user and its response, as Kubernetes writes it at
//! level Metadata.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use http::request::Parts;
use http::{StatusCode, header};
use jiff::Timestamp;
use serde_json::json;

use types::kind_registry::RequestContext;

use super::reviews;

/// Bytes kept of what a client says about itself.
const AGENT_BYTES_MAX: usize = 256;

/// Where the lines go. Written on the control thread: a line of half a KiB into the page cache.
#[derive(Debug, Clone)]
pub struct AuditLog {
    log: Arc<Mutex<AuditFile>>,
}

#[derive(Debug)]
struct AuditFile {
    path: PathBuf,
    file: File,
    /// The last line could not be written, and that was logged.
    is_failing: bool,
}

/// A request that is in progress.
pub(super) struct AuditEntry {
    audit: AuditLog,
    method: String,
    uri: String,
    agent: String,
    received: Timestamp,
}

impl AuditLog {
    /// Appends to the file at `path`; only its owner may read it.
    ///
    /// # Errors
    /// It can be neither opened nor made.
    pub fn open(path: &Path) -> std::io::Result<Self> {
        let log = AuditFile { path: path.to_owned(), file: open(path)?, is_failing: false };
        Ok(Self { log: Arc::new(Mutex::new(log)) })
    }

    /// The file was moved away: the next line goes into a new one.
    pub fn reopen(&self) {
        let mut log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        match open(&log.path) {
            Ok(file) => log.file = file,
            Err(why) => {
                tracing::error!(%why, path = %log.path.display(), "the audit log stays in its old file")
            }
        }
    }

    pub(super) fn begin(&self, head: &Parts) -> AuditEntry {
        let agent = head.headers.get(header::USER_AGENT).and_then(|agent| agent.to_str().ok()).unwrap_or("");
        AuditEntry {
            audit: self.clone(),
            method: head.method.to_string(),
            uri: head.uri.to_string(),
            agent: agent[..agent.floor_char_boundary(AGENT_BYTES_MAX)].to_owned(),
            received: Timestamp::now(),
        }
    }
}

fn open(path: &Path) -> std::io::Result<File> {
    OpenOptions::new().create(true).append(true).mode(0o600).open(path)
}

impl AuditEntry {
    pub(super) fn finish(self, who: &RequestContext, code: StatusCode) {
        let asked_as = reviews::user_json(&who.user, &who.groups, &who.uid, &who.extra);
        let really = who.impersonator.as_ref();
        let really = really.map(|one| reviews::user_json(&one.name, &one.groups, &one.uid, &one.extra));
        let mut line = json!({
            "kind": "Event",
            "apiVersion": "audit.k8s.io/v1",
            "level": "Metadata",
            "stage": "ResponseStarted",
            "requestURI": self.uri,
            "verb": self.method,
            "user": really.as_ref().unwrap_or(&asked_as),
            "userAgent": self.agent,
            "responseStatus": { "code": code.as_u16() },
            "requestReceivedTimestamp": self.received.to_string(),
            "stageTimestamp": Timestamp::now().to_string(),
        });
        if really.is_some() {
            line["impersonatedUser"] = asked_as;
        }
        let mut log = self.audit.log.lock().unwrap_or_else(PoisonError::into_inner);
        let written = log.file.write_all(format!("{line}\n").as_bytes());
        // Said once, not for every request: a full disk would fill the other log as well.
        match written {
            Ok(()) => log.is_failing = false,
            Err(why) if !std::mem::replace(&mut log.is_failing, true) => {
                tracing::error!(%why, "the audit log cannot be written; it misses requests");
            }
            Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_was_moved_away_is_followed_by_a_new_one() {
        let folder = tempfile::tempdir().unwrap();
        let [path, moved] = ["audit.log", "audit.log.1"].map(|name| folder.path().join(name));
        let audit = AuditLog::open(&path).unwrap();
        std::fs::rename(&path, &moved).unwrap();
        audit.reopen();
        audit.log.lock().unwrap().file.write_all(b"new\n").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "new\n");
        assert_eq!(std::fs::read_to_string(&moved).unwrap(), "");
    }
}
