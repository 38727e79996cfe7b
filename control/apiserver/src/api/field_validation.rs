//! Field validation: reports unknown and duplicate fields.
//!
//! Both are dropped from the request. `fieldValidation` chooses whether the client gets a warning (`Warn`, the
//! default), an error (`Strict`, which kubectl requests) or neither.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fmt;

use axum::response::Response;
use http::{HeaderName, HeaderValue};
use serde_json::Value;

use types::field_errors::AdmissionError;
use types::kind_registry::{KindEntry, KindMeta};
use types::known_keys;

use super::errors::StatusError;

const WARNING: HeaderName = HeaderName::from_static("warning");
/// Bytes of all warnings of one response; Kubernetes' figure. Further ones are left out.
const WARNING_BYTES_MAX: usize = 4096;
/// Warnings of one answer. Python's HTTP client refuses an answer with more than 100 fields.
const WARNINGS_MAX: usize = 32;
/// Duplicate fields that are reported one by one.
const DUPLICATES_REPORTED_MAX: usize = 100;
/// Bytes of their paths: a key may be as long as the body.
const DUPLICATES_BYTES_MAX: usize = 64 * 1024;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum FieldValidation {
    Ignore,
    #[default]
    Warn,
    Strict,
}

/// The warnings about the fields of `object`; an error if the client requests that.
pub(super) fn check(
    entry: &KindEntry,
    validation: FieldValidation,
    object: &Value,
    duplicates: Vec<String>,
) -> Result<Vec<String>, StatusError> {
    if validation == FieldValidation::Ignore {
        return Ok(Vec::new());
    }
    let unknown = entry.unknown_fields(object).into_iter().map(|path| format!("unknown field {path:?}"));
    check_known(entry, validation, object, unknown.chain(duplicates).collect())
}

/// The same of an object whose fields are all known: what was `found` otherwise.
pub(super) fn check_known(
    entry: &KindEntry,
    validation: FieldValidation,
    object: &Value,
    found: Vec<String>,
) -> Result<Vec<String>, StatusError> {
    if validation == FieldValidation::Ignore {
        return Ok(Vec::new());
    }
    if validation == FieldValidation::Strict && !found.is_empty() {
        return Err(strict_error(entry.meta, &found));
    }
    Ok(found.into_iter().chain((entry.warnings)(object)).chain(known_keys::warnings(object)).collect())
}

fn strict_error(meta: &KindMeta, found: &[String]) -> StatusError {
    StatusError::from_admission_error(
        meta,
        "",
        AdmissionError::Malformed(format!("strict decoding error: {}", found.join(", "))),
    )
}

/// Adds the warnings to an answer, in the form that kubectl prints.
pub(super) fn with_warnings(mut response: Response, warnings: &[impl AsRef<str>]) -> Response {
    let mut bytes = 0;
    let mut sent = BTreeSet::new();
    for warning in warnings {
        if sent.len() == WARNINGS_MAX || !sent.insert(warning.as_ref()) {
            continue;
        }
        let quoted = warning.as_ref().replace('\\', "\\\\").replace('"', "\\\"");
        bytes += quoted.len();
        if bytes > WARNING_BYTES_MAX {
            break;
        }
        // A name with a control character in it does not fit into a header.
        if let Ok(value) = HeaderValue::from_str(&format!("299 - \"{quoted}\"")) {
            response.headers_mut().append(WARNING, value);
        }
    }
    response
}

/// The fields that stand twice in a document, as warnings: the first ones.
#[derive(Default)]
pub(super) struct DuplicateFields(RefCell<Vec<String>>);

impl DuplicateFields {
    pub(super) fn note(&self, at: &DocumentPath<'_>) {
        let mut found = self.0.borrow_mut();
        if found.len() < DUPLICATES_REPORTED_MAX && found.iter().map(String::len).sum::<usize>() < DUPLICATES_BYTES_MAX
        {
            found.push(format!("duplicate field {:?}", at.to_string()));
        }
    }

    pub(super) fn into_warnings(self) -> Vec<String> {
        self.0.into_inner()
    }
}

/// Where the walk is; serialized only when there is something to say.
pub(super) enum DocumentPath<'a> {
    Root,
    Field(&'a DocumentPath<'a>, &'a str),
    Item(&'a DocumentPath<'a>, usize),
}

impl fmt::Display for DocumentPath<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Root => Ok(()),
            Self::Field(Self::Root, name) => formatter.write_str(name),
            Self::Field(parent, name) => write!(formatter, "{parent}.{name}"),
            Self::Item(parent, index) => write!(formatter, "{parent}[{index}]"),
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::response::IntoResponse;

    use super::*;

    #[test]
    fn duplicate_fields_are_reported_up_to_limit() {
        let duplicates = DuplicateFields::default();
        (0..10_000).for_each(|_| duplicates.note(&DocumentPath::Field(&DocumentPath::Root, "a")));
        let found = duplicates.into_warnings();
        assert_eq!(found.len(), DUPLICATES_REPORTED_MAX);
        let response = with_warnings("".into_response(), &found);
        let bytes: usize = response.headers().get_all(WARNING).iter().map(HeaderValue::len).sum();
        assert!(bytes > 0 && bytes < 2 * WARNING_BYTES_MAX);
        assert_eq!(response.headers().get_all(WARNING).iter().count(), 1, "equal warnings are one");
        let different: Vec<_> = (0..1000).map(|n| n.to_string()).collect();
        let response = with_warnings("".into_response(), &different);
        assert_eq!(response.headers().get_all(WARNING).iter().count(), WARNINGS_MAX);
    }

    #[test]
    fn a_warning_is_quoted_and_never_breaks_the_header() {
        let response = with_warnings("".into_response(), &["unknown field \"a\"", "a\nb"]);
        let found: Vec<_> = response.headers().get_all(WARNING).iter().collect();
        assert_eq!(found, [r#"299 - "unknown field \"a\"""#]);
    }
}
