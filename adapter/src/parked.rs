//! Rejected events that have no dead letter sink: a file of JSON lines, written before the acknowledgement.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};

use crate::error::SendError;
use crate::event::Event;
use crate::json::to_json;

#[derive(Debug, Clone)]
pub(crate) struct ParkingFile(PathBuf);

impl ParkingFile {
    /// In the state directory of the adapter.
    pub(crate) fn new(state: &Path) -> ParkingFile {
        ParkingFile(state.join("parked.jsonl"))
    }

    /// Returns once the event is on disk.
    pub(crate) fn append(&self, event: &Event, error: &SendError) -> std::io::Result<()> {
        let mut event = event.clone();
        for (name, value) in error_attributes(error) {
            event.set(name, value);
        }
        let mut line = to_json(&event);
        line.push(b'\n');
        let mut file = OpenOptions::new().create(true).append(true).open(&self.0)?;
        file.write_all(&line)?;
        file.sync_data()
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

/// What Knative adds to a dead letter.
pub(crate) fn error_attributes(error: &SendError) -> Vec<(&'static str, String)> {
    let mut attributes = vec![("knativeerrordata", error.to_string().chars().take(1024).collect())];
    if let Some(status) = error.status() {
        attributes.push(("knativeerrorcode", status.to_string()));
    }
    attributes
}
