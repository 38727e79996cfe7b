//! Reads a backup: validates each line as it arrives, and holds all of them until the last line has confirmed that it is complete.
//!
//! The held objects are compressed as in the store, so a restore takes about as much memory as its objects will, however long
//! the file is; and nothing is written before the last line was read.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::store::{OBJECT_BYTES_MAX, ObjectKey};
use support::compressed::{CompressedText, DictionaryCache};

pub(super) const FORMAT: u64 = 1;
/// Size of a backup's objects during the restore, compressed: some ten times as many bytes of text.
const RESTORE_BYTES_MAX: usize = 1 << 30;
/// Longest line of a backup: the longest object with its key.
const LINE_BYTES_MAX: usize = OBJECT_BYTES_MAX + 64 * 1024;
/// The overhead of each object besides its own bytes: its position in lists, and its indexed properties.
const ROW_BYTES: usize = 256;
/// Levels of owners that a restore handles in order; ours have four (a Service's Pod), and each
/// step reads all remaining objects.
const GENERATIONS_MAX: usize = 16;

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct BackupHeader {
    pub(super) sluicegate: String,
    pub(super) format: u64,
    pub(super) revision: u64,
}

#[derive(Debug, Deserialize)]
struct BackupRow<'a> {
    resource: String,
    namespace: String,
    name: String,
    #[serde(borrow)]
    object: &'a RawValue,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct BackupTrailer {
    pub(super) objects: usize,
}

/// An object to be restored.
#[derive(Debug)]
pub(super) struct RestoreObject {
    pub(super) key: ObjectKey,
    /// Serialized, and compressed until it is restored.
    object: CompressedText,
    uid: String,
    owners: Vec<String>,
}

impl RestoreObject {
    /// Its fields; they were parsed when it arrived.
    pub(super) fn value(&self) -> Option<Value> {
        serde_json::from_slice(&self.object.bytes(b"")).ok()
    }

    fn memory_bytes(&self) -> usize {
        let owners: usize = self.owners.iter().map(String::len).sum();
        ROW_BYTES + self.object.memory_bytes() + self.key.name.len() + self.uid.len() + owners
    }
}

/// A partially read backup.
#[derive(Debug, Default)]
pub(super) struct BackupReader {
    /// The start of an incomplete line.
    partial_line: Vec<u8>,
    lines: usize,
    rows: Vec<RestoreObject>,
    memory_bytes: usize,
    samples: DictionaryCache<Arc<str>>,
    is_complete: bool,
}

impl BackupReader {
    /// Checks what arrived; returns the problem and its line, and is not called again.
    pub(super) fn push(&mut self, mut piece: &[u8]) -> Result<(), String> {
        while let Some(end) = piece.iter().position(|byte| *byte == b'\n') {
            let mut line = std::mem::take(&mut self.partial_line);
            if line.is_empty() {
                self.push_line(&piece[..end])?;
            } else {
                line.extend_from_slice(&piece[..end]);
                self.push_line(&line)?;
            }
            piece = &piece[end + 1..];
        }
        if self.partial_line.len() + piece.len() > LINE_BYTES_MAX {
            return Err(format!("line {}: it has more than {LINE_BYTES_MAX} bytes", self.lines + 1));
        }
        self.partial_line.extend_from_slice(piece);
        Ok(())
    }

    /// All objects of the backup, once it is complete.
    pub(super) fn finish(mut self) -> Result<Vec<RestoreObject>, String> {
        let last = std::mem::take(&mut self.partial_line);
        if !last.is_empty() {
            self.push_line(&last).map_err(|why| format!("it is cut short, or {why}"))?;
        }
        match (self.is_complete, self.lines) {
            (true, _) => Ok(self.rows),
            (false, 0) => Err("it is empty".into()),
            (false, _) => Err("it is cut short: its last line is missing".into()),
        }
    }

    fn push_line(&mut self, line: &[u8]) -> Result<(), String> {
        self.lines += 1;
        if self.is_complete {
            return Ok(());
        }
        if self.lines == 1 {
            let head: BackupHeader = serde_json::from_slice(line).map_err(|why| format!("line 1: {why}"))?;
            if head.format != FORMAT {
                return Err(format!("it has format {}, this program reads {FORMAT}", head.format));
            }
            return Ok(());
        }
        if let Ok(foot) = serde_json::from_slice::<BackupTrailer>(line) {
            self.is_complete = true;
            return if foot.objects == self.rows.len() {
                Ok(())
            } else {
                Err(format!("it has {} objects and says {}", self.rows.len(), foot.objects))
            };
        }
        let row = parse_row(line, &self.samples).map_err(|why| format!("line {}: {why}", self.lines))?;
        self.memory_bytes += row.memory_bytes();
        if self.memory_bytes > RESTORE_BYTES_MAX {
            return Err(format!("its objects take more than {RESTORE_BYTES_MAX} bytes (RETURNING_BYTES_MAX)"));
        }
        self.rows.push(row);
        Ok(())
    }
}

/// Parses a line. The name is in it twice, and has to be the same.
fn parse_row(line: &[u8], samples: &DictionaryCache<Arc<str>>) -> Result<RestoreObject, String> {
    let row: BackupRow<'_> = serde_json::from_slice(line).map_err(|why| why.to_string())?;
    let object: Value = serde_json::from_str(row.object.get()).map_err(|why| why.to_string())?;
    let metadata = &object["metadata"];
    let text = |name: &str| metadata[name].as_str().unwrap_or("");
    if (text("name"), text("namespace")) != (&row.name, &row.namespace) || row.name.is_empty() {
        return Err(format!("the object is named {:?} in {:?}", text("name"), text("namespace")));
    }
    if [&row.resource, &row.namespace, &row.name].iter().any(|part| part.contains('\0')) {
        return Err("a name with a zero byte".into());
    }
    let owners = metadata["ownerReferences"].as_array().into_iter().flatten();
    let owners = owners.filter_map(|owner| owner["uid"].as_str().map(str::to_owned)).collect();
    let key = ObjectKey { resource: row.resource.into(), namespace: row.namespace.into(), name: row.name.into() };
    let packed = samples.compress(&key.resource, b"", row.object.get().as_bytes());
    Ok(RestoreObject { key, object: packed, uid: text("uid").to_owned(), owners })
}

/// The same objects by the number of owners above them, at most [`GENERATIONS_MAX`]; those in a cycle come last.
pub(super) fn generations(mut rows: Vec<RestoreObject>) -> Vec<Vec<RestoreObject>> {
    let mut back = BTreeSet::new();
    let mut generations = Vec::new();
    let known: BTreeSet<String> = rows.iter().map(|row| row.uid.clone()).collect();
    while !rows.is_empty() && generations.len() < GENERATIONS_MAX {
        let is_free =
            |row: &RestoreObject| row.owners.iter().all(|owner| back.contains(owner) || !known.contains(owner));
        let (free, bound): (Vec<_>, Vec<_>) = rows.into_iter().partition(is_free);
        rows = bound;
        if free.is_empty() {
            break;
        }
        back.extend(free.iter().map(|row| row.uid.clone()));
        generations.push(free);
    }
    generations.push(rows);
    generations
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Reads a backup in chunks, with the same result for any chunk size.
    fn read(text: &str) -> Result<Vec<RestoreObject>, String> {
        let in_pieces = |bytes: usize| {
            let mut reader = BackupReader::default();
            for piece in text.as_bytes().chunks(bytes) {
                reader.push(piece)?;
            }
            reader.finish()
        };
        let whole = in_pieces(usize::MAX);
        for bytes in [1, 7, 64] {
            let again = in_pieces(bytes);
            assert_eq!(again.as_ref().map(Vec::len), whole.as_ref().map(Vec::len));
        }
        whole
    }

    #[test]
    fn a_backup_that_is_cut_or_damaged_is_refused_whole() {
        let head = r#"{"sluicegate":"backup","format":1,"revision":7}"#;
        let row = r#"{"resource":"/configmaps","namespace":"n","name":"a","object":{"metadata":{"name":"a","namespace":"n"}}}"#;
        let good = format!("{head}\n{row}\n{{\"objects\":1}}\n");
        assert_eq!(read(&good).unwrap().len(), 1);
        for (bad, expected) in [
            (String::new(), "empty"),
            (format!("{head}\n{row}\n"), "cut short"),
            (good[..good.len() - 4].to_owned(), "cut short, or line 3"),
            (format!("{head}\n{row}\n{{\"objects\":2}}\n"), "says 2"),
            (format!("{head}\n{{\"resource\":\n"), "line 2"),
            (good.replace("\"format\":1", "\"format\":9"), "format 9"),
            (row.to_owned(), "line 1"),
            (good.replace(r#"{"metadata""#, r#"5,"x":{"metadata""#), "line 2: the object is named"),
            (good.replace(r#"{"name":"a""#, r#"{"name":"b""#), "named \"b\""),
            (good.replace(r#""n"}}"#, &format!(r#""n"}},"x":{}{}}}"#, "[".repeat(999), "]".repeat(999))), "line 2"),
        ] {
            let why = read(&bad).unwrap_err();
            assert!(why.contains(expected), "{why}");
        }
    }

    /// A backup was once read whole before it was checked, and one of more than 1 GiB could not be restored.
    #[test]
    fn a_backup_takes_a_tenth_of_its_bytes_while_it_comes_in() {
        let mut reader = BackupReader::default();
        let words = "the same in all of them ".repeat(100);
        let mut bytes = 0;
        reader.push(b"{\"sluicegate\":\"backup\",\"format\":1,\"revision\":7}\n").unwrap();
        for number in 0..1000 {
            let name = format!("m{number}");
            let object = json!({ "metadata": { "name": name, "namespace": "n", "uid": name }, "data": { "a": words } });
            let row = json!({ "resource": "/configmaps", "namespace": "n", "name": name, "object": object });
            bytes += row.to_string().len();
            reader.push(format!("{row}\n").as_bytes()).unwrap();
            assert_eq!(reader.rows[number].value().unwrap(), object);
        }
        let packed = reader.memory_bytes - ROW_BYTES * 1000;
        assert!(packed < bytes / 10, "{packed} of {bytes}");

        reader.memory_bytes = RESTORE_BYTES_MAX;
        let row = r#"{"resource":"/configmaps","namespace":"n","name":"a","object":{"metadata":{"name":"a","namespace":"n"}}}"#;
        let why = reader.push(format!("{row}\n").as_bytes()).unwrap_err();
        assert!(why.contains("RETURNING_BYTES_MAX"), "{why}");
        let why = BackupReader::default().push(&vec![b' '; LINE_BYTES_MAX + 1]).unwrap_err();
        assert!(why.contains("line 1: it has more than"), "{why}");
    }

    #[test]
    fn owners_come_back_before_what_they_own() {
        let row = |name: &str, owners: &[&str]| {
            let owners: Vec<Value> = owners.iter().map(|uid| json!({ "uid": uid })).collect();
            let metadata = json!({ "name": name, "uid": name, "ownerReferences": owners });
            json!({ "resource": "r", "namespace": "", "name": name, "object": { "metadata": metadata } }).to_string()
        };
        let lines = [
            row("child", &["parent", "of nobody here"]),
            row("grandchild", &["child", "parent"]),
            row("one of a circle", &["other of a circle"]),
            row("other of a circle", &["one of a circle"]),
            row("parent", &[]),
        ];
        let samples = DictionaryCache::default();
        let rows = lines.iter().map(|line| parse_row(line.as_bytes(), &samples).unwrap()).collect();
        let found: Vec<Vec<String>> = generations(rows)
            .into_iter()
            .map(|rows| rows.into_iter().map(|row| row.key.name.to_string()).collect())
            .collect();
        let circle = vec!["one of a circle", "other of a circle"];
        assert_eq!(found, [vec!["parent"], vec!["child"], vec!["grandchild"], circle]);
    }
}
