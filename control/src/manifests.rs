//! Manifests given at start: YAML documents, created or brought up to date through the API.

use std::path::{Path, PathBuf};

use http::Request;
use kube::Client;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::kind::{KindMeta, Registry};

/// A manifest is written by people; a wrong path (a disk image, a log) must not be read whole.
const FILE_BYTES_MAX: u64 = 4 << 20;

#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    #[error("{path}: {why}", path = path.display())]
    Read { path: PathBuf, why: String },
    #[error("{path}, document {number}: {why}", path = path.display())]
    Document { path: PathBuf, number: usize, why: String },
}

/// One document of a manifest.
#[derive(Debug)]
struct Document {
    path: PathBuf,
    /// From 1, as people count.
    number: usize,
    object: Value,
}

/// Applies all documents of a file, or of a folder's `*.yaml`, `*.yml` and `*.json` in name order;
/// answers how many there were. Namespaces go first, so that the order of files does not matter.
///
/// # Errors
/// The first document that cannot be read or is refused; those before it stay applied.
pub async fn apply(client: &Client, registry: &Registry, path: &Path) -> Result<usize, ManifestError> {
    let mut documents = read(path)?;
    documents.sort_by_key(|document| document.object["kind"] != "Namespace");
    for document in &documents {
        apply_one(client, registry, &document.object).await.map_err(|why| ManifestError::Document {
            path: document.path.clone(),
            number: document.number,
            why,
        })?;
    }
    Ok(documents.len())
}

fn read(path: &Path) -> Result<Vec<Document>, ManifestError> {
    let failed = |path: &Path, why: String| ManifestError::Read { path: path.to_owned(), why };
    let mut files = vec![path.to_owned()];
    if path.is_dir() {
        let entries = std::fs::read_dir(path).map_err(|why| failed(path, why.to_string()))?;
        files = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
        files.retain(|file| {
            file.extension().is_some_and(|end| end == "yaml" || end == "yml" || end == "json")
        });
        files.sort();
    }

    let mut documents = Vec::new();
    for file in files {
        let bytes = std::fs::metadata(&file).map_err(|why| failed(&file, why.to_string()))?.len();
        if bytes > FILE_BYTES_MAX {
            return Err(failed(&file, format!("{bytes} bytes, limit {FILE_BYTES_MAX}")));
        }
        let text = std::fs::read_to_string(&file).map_err(|why| failed(&file, why.to_string()))?;
        for (at, part) in serde_norway::Deserializer::from_str(&text).enumerate() {
            let number = at + 1;
            let object = Value::deserialize(part).map_err(|why| ManifestError::Document {
                path: file.clone(),
                number,
                why: why.to_string(),
            })?;
            if !object.is_null() {
                documents.push(Document { path: file.clone(), number, object });
            }
        }
    }
    Ok(documents)
}

async fn apply_one(client: &Client, registry: &Registry, object: &Value) -> Result<(), String> {
    let meta = find(registry, object)?;
    let name = object["metadata"]["name"].as_str().ok_or("metadata.name is missing")?;
    let collection = collection(meta, object["metadata"]["namespace"].as_str().unwrap_or("default"));

    let created = send(client, "POST", &collection, "application/json", object).await;
    match created {
        Err(kube::Error::Api(status)) if status.reason == "AlreadyExists" => {
            let mut change = object.clone();
            change["metadata"]["resourceVersion"] = json!(null);
            send(client, "PATCH", &format!("{collection}/{name}"), "application/merge-patch+json", &change)
                .await
        }
        other => other,
    }
    .map_err(|why| match why {
        kube::Error::Api(status) => format!("{} {name}: {}", meta.kind, status.message),
        other => format!("{} {name}: {other}", meta.kind),
    })
}

fn find<'r>(registry: &'r Registry, object: &Value) -> Result<&'r KindMeta, String> {
    let version = object["apiVersion"].as_str().ok_or("apiVersion is missing")?;
    let kind = object["kind"].as_str().ok_or("kind is missing")?;
    let (group, number) = version.split_once('/').unwrap_or(("", version));
    registry
        .entries
        .iter()
        .map(|entry| entry.meta)
        .find(|meta| meta.group == group && meta.version == number && meta.kind == kind)
        .ok_or_else(|| {
            format!("no kind {kind} in {version}; `kubectl api-resources` lists those that are served")
        })
}

fn collection(meta: &KindMeta, namespace: &str) -> String {
    let root = if meta.group.is_empty() {
        format!("/api/{}", meta.version)
    } else {
        format!("/apis/{}/{}", meta.group, meta.version)
    };
    if meta.namespaced {
        format!("{root}/namespaces/{namespace}/{}", meta.plural)
    } else {
        format!("{root}/{}", meta.plural)
    }
}

async fn send(client: &Client, verb: &str, path: &str, content: &str, body: &Value) -> kube::Result<()> {
    let request = Request::builder()
        .method(verb)
        .uri(path)
        .header(http::header::CONTENT_TYPE, content)
        .body(body.to_string().into_bytes())
        .map_err(kube::Error::HttpError)?;
    client.request::<Value>(request).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_are_counted_as_people_do_and_empty_ones_are_skipped() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a.yaml");
        std::fs::write(&file, "---\nkind: A\n---\n---\nkind: B\n").unwrap();
        std::fs::write(folder.path().join("notes.txt"), "not a manifest").unwrap();

        let documents = read(folder.path()).unwrap();

        let kinds: Vec<_> = documents.iter().map(|d| d.object["kind"].as_str().unwrap()).collect();
        assert_eq!(kinds, ["A", "B"]);
    }

    #[test]
    fn broken_yaml_names_its_file_and_document() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a.yaml");
        std::fs::write(&file, "kind: A\n---\nkind: [\n").unwrap();

        let why = read(&file).unwrap_err().to_string();

        assert!(why.contains("a.yaml, document 2"), "{why}");
    }

    #[test]
    fn an_unknown_kind_says_where_the_known_ones_are_listed() {
        let why = find(&Registry::default(), &json!({"apiVersion": "a/v1", "kind": "B"})).unwrap_err();
        assert!(why.contains("kubectl api-resources"), "{why}");
    }
}
