//! The audit log: who asked for what and how it was answered, a line of JSON each, as Kubernetes writes it at
//! level Metadata.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use http::request::Parts;
use http::{StatusCode, header};
use jiff::Timestamp;
use serde_json::json;

use crate::kind::Requester;

/// Bytes kept of what a client says about itself.
const AGENT_BYTES_MAX: usize = 256;

/// Where the lines go. Written on the control thread: a line of half a KiB into the page cache.
#[derive(Debug, Clone)]
pub struct Audit {
    file: Arc<Mutex<File>>,
}

/// A request that is under way.
pub(super) struct Note {
    audit: Audit,
    method: String,
    uri: String,
    agent: String,
    received: Timestamp,
}

impl Audit {
    /// Appends to the file at `path`; only its owner may read it.
    ///
    /// # Errors
    /// It can be neither opened nor made.
    pub fn open(path: &Path) -> std::io::Result<Self> {
        let file = OpenOptions::new().create(true).append(true).mode(0o600).open(path)?;
        Ok(Self { file: Arc::new(Mutex::new(file)) })
    }

    pub(super) fn note(&self, head: &Parts) -> Note {
        let agent = head.headers.get(header::USER_AGENT).and_then(|agent| agent.to_str().ok()).unwrap_or("");
        Note {
            audit: self.clone(),
            method: head.method.to_string(),
            uri: head.uri.to_string(),
            agent: agent[..agent.floor_char_boundary(AGENT_BYTES_MAX)].to_owned(),
            received: Timestamp::now(),
        }
    }
}

impl Note {
    pub(super) fn end(self, who: &Requester, code: StatusCode) {
        let line = json!({
            "kind": "Event",
            "apiVersion": "audit.k8s.io/v1",
            "level": "Metadata",
            "stage": "ResponseStarted",
            "requestURI": self.uri,
            "verb": self.method,
            "user": { "username": who.user, "groups": who.groups },
            "userAgent": self.agent,
            "responseStatus": { "code": code.as_u16() },
            "requestReceivedTimestamp": self.received.to_string(),
            "stageTimestamp": Timestamp::now().to_string(),
        });
        let mut file = self.audit.file.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(why) = file.write_all(format!("{line}\n").as_bytes()) {
            tracing::error!(%why, "the audit log misses a request");
        }
    }
}
