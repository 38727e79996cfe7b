//! `sluicegate validate`: what the API would refuse or warn of, with file, line and field, without an appliance.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::manifest_files::{self, ManifestDocument};
use super::{known_kind, yaml_lines};
use support::bounded_file;
use support::nearest::nearest;
use types::field_errors::AdmissionError;
use types::kind_registry::{KindEntry, RequestContext};
use types::known_keys;

/// Something to tell about a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ManifestFinding {
    pub path: PathBuf,
    /// From 1; 0: the file as a whole.
    pub line: usize,
    pub severity: Severity,
    pub message: String,
}

/// Whether the API would take the document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Severity {
    Error,
    Warning,
}

/// Checks a file of manifests, or the files of a folder. Returns how many documents there are, and what is wrong with them.
#[must_use]
pub fn validate(path: &Path) -> (usize, Vec<ManifestFinding>) {
    let contents = manifest_files::read(path);
    let mut findings: Vec<_> = contents
        .errors
        .into_iter()
        .map(|error| {
            let message = error.message;
            ManifestFinding { path: error.path, line: error.line, severity: Severity::Error, message }
        })
        .collect();
    let defined = defined_kinds(&contents.documents);
    for document in &contents.documents {
        findings.extend(validate_document(document, &defined));
    }
    findings.sort_by_key(|finding| (finding.path.clone(), finding.line));
    (contents.documents.len(), findings)
}

/// Group and kind of what the definitions among the documents define.
fn defined_kinds(documents: &[ManifestDocument]) -> BTreeSet<(String, String)> {
    let definitions = documents.iter().filter(|document| document.object["kind"] == "CustomResourceDefinition");
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    definitions
        .map(|document| {
            let spec = &document.object["spec"];
            (text(&spec["group"]), text(&spec["names"]["kind"]))
        })
        .collect()
}

fn validate_document(document: &ManifestDocument, defined: &BTreeSet<(String, String)>) -> Vec<ManifestFinding> {
    let object = &document.object;
    let text = text_of(document);
    let tell = |severity: Severity, field: &str, message: String| {
        let line = document.line + yaml_lines::line_of(&text, field);
        let message = if field.is_empty() { message } else { format!("{field}: {message}") };
        ManifestFinding { path: document.path.clone(), line, severity, message }
    };
    let error = |field: &str, message: &str| tell(Severity::Error, field, message.to_owned());
    let (Some(version), Some(kind)) = (object["apiVersion"].as_str(), object["kind"].as_str()) else {
        let missing = if object["apiVersion"].is_string() { "kind" } else { "apiVersion" };
        return vec![error("", &format!("{missing} is missing"))];
    };
    let group = version.split_once('/').map_or("", |(group, _)| group);
    if defined.contains(&(group.to_owned(), kind.to_owned())) {
        return Vec::new(); // the definition's schema judges it, in the API
    }
    let registry = types::registry();
    let Some(entry) = known_kind::find(&registry, version, kind) else {
        return vec![error("kind", &known_kind::unknown(version, kind))];
    };
    let mut findings = Vec::new();
    if object["metadata"]["name"].as_str().is_none_or(str::is_empty) {
        findings.push(error("metadata", "name is missing"));
    }
    if !entry.meta.user_creatable {
        findings.push(error("kind", &format!("{kind} objects are created by controllers only")));
    }
    let schema = entry.openapi_schema();
    for field in entry.unknown_fields(object) {
        let near = nearest_field(&schema, &field).map(|near| format!("; did you mean {near}?")).unwrap_or_default();
        findings.push(error(&field, &format!("unknown field{near}")));
    }
    findings.extend(admission_problems(entry, object).into_iter().map(|(field, message)| error(&field, &message)));
    for told in (entry.warnings)(object).into_iter().chain(known_keys::warnings(&with_namespace(object))) {
        // A warning begins with its field.
        let field = told.split(' ').next().filter(|word| word.contains(['.', '['])).unwrap_or_default().to_owned();
        let line = tell(Severity::Warning, &field, String::new()).line;
        findings.push(ManifestFinding { line, ..tell(Severity::Warning, "", told) });
    }
    findings
}

fn with_namespace(object: &Value) -> Value {
    let mut object = object.clone();
    if let Some(metadata) = object["metadata"].as_object_mut() {
        metadata.entry("namespace").or_insert_with(|| "default".into());
    }
    object
}

/// What the kind's own rules say, by field.
fn admission_problems(entry: &KindEntry, object: &Value) -> Vec<(String, String)> {
    let mut object = with_namespace(object);
    entry.to_stored(&mut object);
    match entry.as_stored().admit_object(object, None, &RequestContext::default()) {
        Ok(_) => Vec::new(),
        Err(AdmissionError::Malformed(why)) if why.starts_with("unknown field") => Vec::new(), // told already
        Err(AdmissionError::Malformed(why)) => vec![(String::new(), why)],
        Err(AdmissionError::Invalid(problems) | AdmissionError::WrongTypes(problems)) => {
            problems.into_iter().map(|problem| (problem.field, problem.message)).collect()
        }
    }
}

/// The property that a misspelt field is nearest to, among those of the object that it is in.
fn nearest_field(schema: &Value, path: &str) -> Option<String> {
    let (parents, field) = path.rsplit_once('.').unwrap_or(("", path));
    let mut schema = schema;
    for name in parents.split('.').filter(|name| !name.is_empty()) {
        let (name, indexes) = name.split_once('[').map_or((name, 0), |(name, rest)| (name, rest.matches(']').count()));
        schema = &schema["properties"][name];
        for _ in 0..indexes {
            schema = if schema["items"].is_object() { &schema["items"] } else { &schema["additionalProperties"] };
        }
    }
    let names = schema["properties"].as_object()?.keys().map(String::as_str);
    nearest(field, names).map(str::to_owned)
}

/// The text of a document, from its first line.
fn text_of(document: &ManifestDocument) -> String {
    let text =
        bounded_file::read_text(&document.path, manifest_files::FILE_BYTES_MAX).ok().flatten().unwrap_or_default();
    let own = text.lines().skip(document.line.saturating_sub(1));
    let mut lines: Vec<&str> = Vec::new();
    for line in own {
        if line.starts_with("---") && !lines.is_empty() {
            break;
        }
        lines.push(line);
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.yaml");
        std::fs::write(&path, text).unwrap();
        let told = |finding: &ManifestFinding| format!("{}: {:?}: {}", finding.line, finding.severity, finding.message);
        validate(&path).1.iter().map(told).collect()
    }

    #[test]
    fn finding_names_line_field_and_nearest_key() {
        let told = found(
            "apiVersion: serving.knative.dev/v1
kind: Service
metadata:
  name: hello
  annotations:
    sluicegate.dev/stiky: cookie
spec:
  template:
    spec:
      containers:
      - image: a/b
        imagePullPolcy: Always
---
apiVersion: eventing.knative.dev/v1
kind: Triger
metadata: {name: a}
---
apiVersion: eventing.knative.dev/v1
kind: Trigger
metadata: {name: a}
spec:
  broker: default
  subscriber: {}
",
        );
        let has = |line: usize, words: &[&str]| {
            let begin = format!("{line}: ");
            told.iter().any(|told| told.starts_with(&begin) && words.iter().all(|word| told.contains(word)))
        };
        assert!(has(6, &["Warning", "sluicegate.dev/sticky?"]), "{told:#?}");
        assert!(has(12, &["Error", "imagePullPolcy", "imagePullPolicy?"]), "{told:#?}");
        assert!(has(15, &["Error", "did you mean Trigger?"]), "{told:#?}");
        assert!(has(23, &["Error", "spec.subscriber"]), "{told:#?}");
    }

    #[test]
    fn valid_document_has_no_findings() {
        let told = found(
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {a: b}\n---\napiVersion: eventing.knative.dev/v1\n\
             kind: Broker\nmetadata: {name: default}\n",
        );
        assert_eq!(told, [""; 0]);
    }
}
