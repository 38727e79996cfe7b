//! Reads the documents of a path, each with its file and line.
//!
//! A file is split at its `---` lines before anything is parsed, so that an invalid document
//! does not affect the others.

use std::fmt;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io;
use std::path::{Path, PathBuf};

use serde_json::Value;

use support::bounded_file;

/// Bytes of one file. A manifest is written by users; a wrong path (a disk image, a log) must not be read whole.
pub const FILE_BYTES_MAX: u64 = 4 << 20;
/// Files that one folder may hold.
pub const FILES_MAX: usize = 1_000;
/// Documents of one path; each is a write at the start.
pub const DOCUMENTS_MAX: usize = 10_000;
/// Bytes of all files of one path, which are in memory while they are applied.
pub const PATH_BYTES_MAX: u64 = 64 << 20;

/// An error in a file, or in one document of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ManifestError {
    pub path: PathBuf,
    /// From 1; 0 stands for the file as a whole.
    pub line: usize,
    pub message: String,
}

impl ManifestError {
    fn for_file(path: &Path, why: impl ToString) -> Self {
        Self { path: path.to_owned(), line: 0, message: why.to_string() }
    }
}

impl fmt::Display for ManifestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.path.display(), self.message),
            line => write!(f, "{}:{line}: {}", self.path.display(), self.message),
        }
    }
}

/// One object that a manifest wants.
#[derive(Debug, Clone)]
pub(super) struct ManifestDocument {
    pub(super) path: PathBuf,
    /// Its first line, from 1.
    pub(super) line: usize,
    pub(super) object: Value,
}

impl ManifestDocument {
    pub(super) fn error(&self, why: impl ToString) -> ManifestError {
        ManifestError { path: self.path.clone(), line: self.line, message: why.to_string() }
    }
}

/// Everything that a path holds at one moment.
#[derive(Debug, Default)]
pub(super) struct ManifestContents {
    pub(super) documents: Vec<ManifestDocument>,
    /// Documents that could not be parsed: with any of them, it is unknown which objects are no longer wanted.
    pub(super) errors: Vec<ManifestError>,
    /// A hash of the files' names and bytes: equal hashes, equal contents.
    pub(super) hash: u64,
}

/// Reads a file, or a folder's `*.yaml`, `*.yml` and `*.json` in the order of their names. Folders in
/// it are not looked at, nor are hidden files.
pub(super) fn read(path: &Path) -> ManifestContents {
    let mut contents = ManifestContents::default();
    let mut print = DefaultHasher::new();
    let files = match files(path) {
        Ok(files) => files,
        Err(why) => {
            contents.errors.push(ManifestError::for_file(path, why));
            Vec::new()
        }
    };
    let mut bytes_left = PATH_BYTES_MAX;
    for file in files {
        let text = match text(&file, bytes_left) {
            Ok(text) => text,
            // Gone since the folder was read.
            Err(why) if why.kind() == io::ErrorKind::NotFound => continue,
            Err(why) => {
                contents.errors.push(ManifestError::for_file(&file, why));
                continue;
            }
        };
        bytes_left -= text.len() as u64;
        (&file, &text).hash(&mut print);
        add_documents(&mut contents, &file, &text);
        if contents.documents.len() > DOCUMENTS_MAX {
            contents.documents.truncate(DOCUMENTS_MAX);
            let why = format!("more than {DOCUMENTS_MAX} documents are below one --manifests");
            contents.errors.push(ManifestError::for_file(&file, why));
            break;
        }
    }
    contents.errors.iter().for_each(|error| error.message.hash(&mut print));
    contents.hash = print.finish();
    contents
}

/// The objects of a file, or of a folder's files.
///
/// # Errors
///
/// The first document that cannot be read.
pub fn objects(path: &Path) -> Result<Vec<Value>, ManifestError> {
    let ManifestContents { documents, errors, .. } = read(path);
    match errors.into_iter().next() {
        Some(error) => Err(error),
        None => Ok(documents.into_iter().map(|document| document.object).collect()),
    }
}

fn files(path: &Path) -> io::Result<Vec<PathBuf>> {
    if !std::fs::metadata(path)?.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut files = Vec::new();
    for entry in std::fs::read_dir(path)? {
        let file = entry?.path();
        let hidden = file.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
        let wanted = file.extension().is_some_and(|end| end == "yaml" || end == "yml" || end == "json");
        // Through a symlink too: that is how a ConfigMap is mounted.
        if !hidden && wanted && std::fs::metadata(&file).is_ok_and(|meta| meta.is_file()) {
            files.push(file);
        }
        if files.len() > FILES_MAX {
            return Err(io::Error::other(format!("more than {FILES_MAX} manifests are in one folder")));
        }
    }
    files.sort();
    Ok(files)
}

fn text(file: &Path, bytes_left: u64) -> io::Result<String> {
    let large = || io::Error::other(format!("more than {FILE_BYTES_MAX} bytes, the limit of a manifest"));
    let mut text = bounded_file::read_text(file, FILE_BYTES_MAX)?.ok_or_else(large)?;
    if text.len() as u64 > bytes_left {
        let why = format!("the files of one --manifests are more than {PATH_BYTES_MAX} bytes together");
        return Err(io::Error::other(why));
    }
    // Editors of some systems put a byte order mark in front.
    if text.starts_with('\u{feff}') {
        text.remove(0);
    }
    Ok(text)
}

fn add_documents(contents: &mut ManifestContents, file: &Path, text: &str) {
    let json = file.extension().is_some_and(|end| end == "json");
    for (line, part) in if json { vec![(1, text.to_owned())] } else { split_documents(text) } {
        let parsed = if json {
            serde_json::from_str(&part).map_err(|why| (why.line(), why.to_string()))
        } else {
            serde_norway::from_str(&part)
                .map_err(|why: serde_norway::Error| (why.location().map_or(1, |at| at.line()), why.to_string()))
        };
        match parsed {
            Ok(Value::Null) => {}
            Ok(object) => {
                let line = line + lines_before_text(&part);
                let document = ManifestDocument { path: file.to_owned(), line, object };
                expand(contents, document);
            }
            Err((within, why)) => {
                let line = line + within.saturating_sub(1);
                // The parser's own position counts from the document's start, which would mislead.
                let why = why.split(" at line ").next().unwrap_or(&why).to_owned();
                contents.errors.push(ManifestError { path: file.to_owned(), line, message: why });
            }
        }
    }
}

/// A `List` stands for its items. Those of a `ConfigMapList` need not say that they are `ConfigMap`s.
fn expand(contents: &mut ManifestContents, document: ManifestDocument) {
    let of_kind = document.object["kind"].as_str().and_then(|kind| kind.strip_suffix("List"));
    match (document.object.get("items").and_then(Value::as_array), of_kind) {
        (Some(items), Some(kind)) => {
            for item in items.iter().take(DOCUMENTS_MAX + 1) {
                let mut object = item.clone();
                if let Some(fields) = object.as_object_mut().filter(|_| !kind.is_empty()) {
                    fields.entry("kind").or_insert_with(|| kind.into());
                    fields.entry("apiVersion").or_insert_with(|| document.object["apiVersion"].clone());
                }
                contents.documents.push(ManifestDocument { object, path: document.path.clone(), ..document });
            }
        }
        _ if document.object.is_object() => contents.documents.push(document),
        _ => contents.errors.push(document.error("a document has to be an object")),
    }
}

/// The documents' texts with their first lines, from 1.
fn split_documents(text: &str) -> Vec<(usize, String)> {
    let mut parts = Vec::new();
    let (mut begins, mut part) = (1, String::new());
    for (at, line) in text.lines().enumerate() {
        let marker = ["---", "..."].into_iter().find(|marker| {
            line.strip_prefix(*marker).is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', '\t']))
        });
        if let Some(marker) = marker {
            parts.push((begins, std::mem::take(&mut part)));
            begins = at + 1;
            // What is after the marker belongs to the document that it begins.
            part.push_str("   ");
            part.push_str(line.strip_prefix(marker).unwrap_or_default());
        } else if !(line.starts_with('%') && part.trim().is_empty()) {
            part.push_str(line);
        }
        part.push('\n');
    }
    parts.push((begins, part));
    parts
}

fn lines_before_text(part: &str) -> usize {
    let blank = |line: &&str| line.trim().is_empty() || line.trim_start().starts_with('#');
    part.lines().take_while(blank).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(name: &str, text: &str) -> ManifestContents {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(name), text).unwrap();
        read(folder.path())
    }

    fn kinds(contents: &ManifestContents) -> Vec<(&str, usize)> {
        contents.documents.iter().map(|d| (d.object["kind"].as_str().unwrap(), d.line)).collect()
    }

    #[test]
    fn documents_know_their_lines_and_empty_ones_are_skipped() {
        let text = "%YAML 1.2\n---\n# why\nkind: A\n---\n---\n\n  \nkind: B\n...\n--- {kind: C}\n---\ntext: |\n  ---\nkind: D\n";
        let contents = of("a.yaml", text);
        assert_eq!(contents.errors, []);
        assert_eq!(kinds(&contents), [("A", 4), ("B", 9), ("C", 11), ("D", 13)]);
        assert_eq!(kinds(&of("a.json", "{\n\t\"kind\": \"A\"\n}")), [("A", 1)]);
        assert_eq!(kinds(&of("a.yaml", "\u{feff}kind: A\n")), [("A", 1)]);
    }

    #[test]
    fn a_document_that_is_no_yaml_names_its_line_and_costs_itself_only() {
        let contents = of("a.yaml", "kind: A\n---\nkind: B\nx: [\n---\nkind: C\n---\njust words\n");
        assert_eq!(kinds(&contents), [("A", 1), ("C", 6)]);
        let messages: Vec<String> = contents.errors.iter().map(ToString::to_string).collect();
        assert_eq!(messages.len(), 2, "{messages:?}");
        assert!(messages[0].contains("a.yaml:4: ") || messages[0].contains("a.yaml:5: "), "{messages:?}");
        assert!(messages[1].ends_with("a.yaml:8: a document has to be an object"), "{messages:?}");
    }

    #[test]
    fn a_list_stands_for_its_items() {
        let contents = of("a.yaml", "kind: List\nitems:\n- kind: A\n- kind: B\n");
        assert_eq!(kinds(&contents), [("A", 1), ("B", 1)]);
        let contents = of("a.yaml", "kind: AList\napiVersion: v9\nitems:\n- x: 1\n- {kind: B, apiVersion: v1}\n");
        assert_eq!(kinds(&contents), [("A", 1), ("B", 1)]);
        let versions: Vec<_> = contents.documents.iter().map(|one| &one.object["apiVersion"]).collect();
        assert_eq!(versions, ["v9", "v1"]);
    }

    #[test]
    fn only_manifests_of_the_folder_itself_are_read_and_any_change_shows_in_the_print() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        std::fs::create_dir(folder.path().join("next.yaml")).unwrap();
        write("b.yml", "kind: B");
        write("a.yaml", "kind: A");
        write(".a.yaml.swp.yaml", "kind: Hidden");
        write("notes.txt", "not a manifest");
        let before = read(folder.path());
        assert_eq!(kinds(&before), [("A", 1), ("B", 1)]);
        assert_eq!(read(folder.path()).hash, before.hash);
        write("b.yml", "kind: C");
        assert_ne!(read(folder.path()).hash, before.hash);
    }

    #[test]
    fn what_is_too_large_or_not_there_is_named() {
        let large = of("a.yaml", &"#".repeat(usize::try_from(FILE_BYTES_MAX).unwrap() + 1));
        assert!(large.errors[0].message.contains("limit"), "{:?}", large.errors);
        assert!(read(Path::new("/does/not/exist")).errors[0].to_string().starts_with("/does/not/exist: "));
    }
}
