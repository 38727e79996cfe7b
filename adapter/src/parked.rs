//! Rejected events that have no dead letter sink: a file of JSON lines, written before the acknowledgement.

use std::fs::{File, OpenOptions};
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
        if let Some(content_type) = event.opaque.take() {
            event.set("datacontenttype", content_type);
        }
        for (name, value) in error_attributes(error) {
            event.set(name, value);
        }
        let mut line = to_json(&event);
        line.push(b'\n');
        let mut file = OpenOptions::new().create(true).append(true).open(&self.0)?;
        append_line(&mut file, &line)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

/// Appends a line and returns once it is on disk. After a failure, such as a full disk, the file is as long as before: a part
/// of a line would spoil the next one.
pub fn append_line(file: &mut File, line: &[u8]) -> std::io::Result<()> {
    let before = file.metadata()?.len();
    let written = file.write_all(line).and_then(|()| file.sync_data());
    if written.is_err() {
        let _ = file.set_len(before);
    }
    written
}

/// The attributes that Knative adds to a dead letter.
pub(crate) fn error_attributes(error: &SendError) -> Vec<(&'static str, String)> {
    let mut attributes = vec![("knativeerrordata", error.to_string().chars().take(1024).collect())];
    if let Some(status) = error.status() {
        attributes.push(("knativeerrorcode", status.to_string()));
    }
    attributes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opaque_event_is_parked_with_its_content_type() {
        let directory = tempfile::tempdir().unwrap();
        let parking = ParkingFile::new(directory.path());
        let event = Event::opaque("application/cloudevents+avro", bytes::Bytes::from_static(b"\x01"));
        parking.append(&event, &SendError::rejected("no")).unwrap();
        let line = std::fs::read_to_string(parking.path()).unwrap();
        assert!(line.contains("application/cloudevents+avro") && line.contains("\"data_base64\":\"AQ==\""), "{line}");
    }
}
