//! The query string, parsed once.

use axum::extract::Query;
use http::Uri;
use serde::Deserialize;

use super::errors::Refusal;
use super::fields::FieldValidation;

/// Bytes of a field manager's name; Kubernetes' figure.
pub(super) const MANAGER_BYTES_MAX: usize = 128;

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Raw {
    watch: Option<String>,
    label_selector: Option<String>,
    field_selector: Option<String>,
    resource_version: Option<String>,
    resource_version_match: Option<String>,
    limit: Option<String>,
    r#continue: Option<String>,
    timeout_seconds: Option<String>,
    allow_watch_bookmarks: Option<String>,
    send_initial_events: Option<String>,
    dry_run: Option<String>,
    field_manager: Option<String>,
    force: Option<String>,
    field_validation: Option<String>,
    propagation_policy: Option<String>,
    grace_period_seconds: Option<String>,
    orphan_dependents: Option<String>,
    include_object: Option<String>,
}

/// What a request's query asks for.
#[derive(Debug, Clone, Default)]
pub(super) struct Parameters {
    pub(super) watch: bool,
    pub(super) label_selector: String,
    pub(super) field_selector: String,
    /// `None`: not given, or empty.
    pub(super) resource_version: Option<u64>,
    pub(super) resource_version_match: Option<Match>,
    /// 0 = no limit.
    pub(super) limit: usize,
    pub(super) continue_token: Option<String>,
    pub(super) timeout_seconds: Option<u64>,
    pub(super) bookmarks: bool,
    pub(super) send_initial_events: Option<bool>,
    pub(super) dry_run: bool,
    pub(super) field_validation: FieldValidation,
    /// Who counts as the one that writes fields; empty = whoever the client says it is.
    pub(super) field_manager: String,
    /// Server-side apply takes fields from others.
    pub(super) force: Option<bool>,
    pub(super) propagation_policy: Option<String>,
    pub(super) orphan_dependents: Option<bool>,
    pub(super) include_object: IncludeObject,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Match {
    Exact,
    NotOlderThan,
}

/// What a table's row carries beside its cells.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum IncludeObject {
    None,
    #[default]
    Metadata,
    Object,
}

impl Parameters {
    pub(super) fn parse(uri: &Uri) -> Result<Self, Refusal> {
        let raw = read(uri)?;
        let resource_version_match = match raw.resource_version_match.as_deref() {
            None | Some("") => None,
            Some("Exact") => Some(Match::Exact),
            Some("NotOlderThan") => Some(Match::NotOlderThan),
            Some(other) => return Err(unknown("resourceVersionMatch", other)),
        };
        let include_object = match raw.include_object.as_deref() {
            None | Some("" | "Metadata") => IncludeObject::Metadata,
            Some("None") => IncludeObject::None,
            Some("Object") => IncludeObject::Object,
            Some(other) => return Err(unknown("includeObject", other)),
        };
        let dry_run = match raw.dry_run.as_deref() {
            None | Some("") => false,
            Some("All") => true,
            Some(other) => return Err(unknown("dryRun", other)),
        };
        let field_validation = match raw.field_validation.as_deref() {
            None | Some("") => FieldValidation::default(),
            Some("Ignore") => FieldValidation::Ignore,
            Some("Warn") => FieldValidation::Warn,
            Some("Strict") => FieldValidation::Strict,
            Some(other) => return Err(unknown("fieldValidation", other)),
        };
        let field_manager = raw.field_manager.unwrap_or_default();
        if field_manager.len() > MANAGER_BYTES_MAX || field_manager.chars().any(char::is_control) {
            return Err(unknown("fieldManager", &field_manager));
        }
        number::<i64>("gracePeriodSeconds", raw.grace_period_seconds.as_deref())?;
        Ok(Self {
            watch: flag("watch", raw.watch.as_deref())?.unwrap_or(false),
            label_selector: raw.label_selector.unwrap_or_default(),
            field_selector: raw.field_selector.unwrap_or_default(),
            resource_version: number("resourceVersion", raw.resource_version.as_deref())?,
            resource_version_match,
            limit: count("limit", raw.limit.as_deref())?
                .map_or(0, |limit| usize::try_from(limit).unwrap_or(usize::MAX)),
            continue_token: raw.r#continue.filter(|token| !token.is_empty()),
            timeout_seconds: count("timeoutSeconds", raw.timeout_seconds.as_deref())?,
            bookmarks: flag("allowWatchBookmarks", raw.allow_watch_bookmarks.as_deref())?.unwrap_or(false),
            send_initial_events: flag("sendInitialEvents", raw.send_initial_events.as_deref())?,
            dry_run,
            field_validation,
            field_manager,
            force: flag("force", raw.force.as_deref())?,
            propagation_policy: raw.propagation_policy.filter(|policy| !policy.is_empty()),
            orphan_dependents: flag("orphanDependents", raw.orphan_dependents.as_deref())?,
            include_object,
        })
    }
}

/// What is given twice counts as it stands first.
fn read(uri: &Uri) -> Result<Raw, Refusal> {
    let wrong = |why: String| Refusal::bad_request(why);
    if let Ok(Query(raw)) = Query::<Raw>::try_from_uri(uri) {
        return Ok(raw);
    }
    let Query(pairs) =
        Query::<Vec<(String, String)>>::try_from_uri(uri).map_err(|why| wrong(why.to_string()))?;
    let mut first = serde_json::Map::new();
    for (name, value) in pairs {
        first.entry(name).or_insert_with(|| value.into());
    }
    serde_json::from_value(first.into()).map_err(|why| wrong(why.to_string()))
}

/// A number that may be negative and then counts as not given, as Kubernetes takes it.
fn count(name: &str, text: Option<&str>) -> Result<Option<u64>, Refusal> {
    Ok(number::<i64>(name, text)?.and_then(|number| u64::try_from(number).ok()))
}

/// A bare `?watch` counts as yes.
fn flag(name: &str, text: Option<&str>) -> Result<Option<bool>, Refusal> {
    match text {
        None => Ok(None),
        Some("" | "1" | "t" | "T" | "true" | "True" | "TRUE") => Ok(Some(true)),
        Some("0" | "f" | "F" | "false" | "False" | "FALSE") => Ok(Some(false)),
        Some(other) => Err(unknown(name, other)),
    }
}

fn number<N: std::str::FromStr>(name: &str, text: Option<&str>) -> Result<Option<N>, Refusal> {
    match text {
        None | Some("") => Ok(None),
        Some(text) => text.parse().map(Some).map_err(|_| unknown(name, text)),
    }
}

fn unknown(name: &str, value: &str) -> Refusal {
    Refusal::bad_request(format!("invalid query parameter {name}: {value:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(query: &str) -> Result<Parameters, Refusal> {
        Parameters::parse(&format!("/x?{query}").parse().unwrap())
    }

    #[test]
    fn what_is_said_twice_or_means_nothing_is_taken_as_kubernetes_takes_it() {
        assert!(parsed("dryRun=All&dryRun=All").unwrap().dry_run);
        assert_eq!(parsed("limit=5&limit=9").unwrap().limit, 5);
        assert_eq!(parsed("limit=-1").unwrap().limit, 0);
        assert_eq!(parsed("timeoutSeconds=-1").unwrap().timeout_seconds, None);
        assert_eq!(parsed("limit=x").unwrap_err().code, 400);
        assert_eq!(parsed("dryRun=Some").unwrap_err().code, 400);
    }
}
