//! Parses the query string, once per request.

use axum::extract::Query;
use http::{Method, Uri};
use serde::Deserialize;

use super::errors::StatusError;
use super::field_validation::FieldValidation;

/// Bytes of a field manager's name; Kubernetes' figure.
pub(super) const MANAGER_BYTES_MAX: usize = 128;

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct RawQuery {
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

/// The parameters of a request's query.
#[derive(Debug, Clone, Default)]
pub(super) struct QueryParameters {
    pub(super) watch: bool,
    pub(super) label_selector: String,
    pub(super) field_selector: String,
    /// `None`: not given, or empty.
    pub(super) resource_version: Option<u64>,
    pub(super) resource_version_match: Option<ResourceVersionMatch>,
    /// 0 = no limit.
    pub(super) limit: usize,
    pub(super) continue_token: Option<String>,
    pub(super) timeout_seconds: Option<u64>,
    pub(super) bookmarks: bool,
    pub(super) send_initial_events: Option<bool>,
    pub(super) dry_run: bool,
    pub(super) field_validation: FieldValidation,
    /// The field manager that the request names; empty: it is derived from the client's user agent.
    pub(super) field_manager: String,
    /// Server-side apply takes fields from others.
    pub(super) force: Option<bool>,
    pub(super) propagation_policy: Option<String>,
    pub(super) orphan_dependents: Option<bool>,
    /// Of a deleted Pod.
    pub(super) grace_period_seconds: Option<i64>,
    pub(super) include_object: IncludeObject,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ResourceVersionMatch {
    Exact,
    NotOlderThan,
}

/// What a table's row contains besides its cells.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum IncludeObject {
    None,
    #[default]
    Metadata,
    Object,
}

/// Kubernetes' names of the parameters of a method.
fn options(method: &Method) -> &'static str {
    match *method {
        Method::POST => "CreateOptions",
        Method::PUT => "UpdateOptions",
        Method::PATCH => "PatchOptions",
        Method::DELETE => "DeleteOptions",
        _ => "ListOptions",
    }
}

/// The value of a word; the rejection lists the valid words.
fn parse_choice<T: Copy>(
    options: &str,
    option: &str,
    said: Option<&str>,
    known: &[(&str, T)],
) -> Result<Option<T>, StatusError> {
    let said = said.unwrap_or("");
    if let Some((_, meant)) = known.iter().find(|(word, _)| *word == said) {
        return Ok(Some(*meant));
    }
    if said.is_empty() {
        return Ok(None);
    }
    let all: Vec<String> = known.iter().map(|(word, _)| format!("{word:?}")).collect();
    let why = format!("Unsupported value: {said:?}: supported values: {}", all.join(", "));
    Err(StatusError::invalid_option(options, option, &why))
}

/// The field manager that a write names.
fn parse_field_manager(options: &str, name: String) -> Result<String, StatusError> {
    let why = if name.len() > MANAGER_BYTES_MAX {
        format!("Too long: may not be more than {MANAGER_BYTES_MAX} bytes")
    } else if let Some((at, letter)) = name.char_indices().find(|(_, letter)| letter.is_control()) {
        let code = u32::from(letter);
        format!("Invalid value: {name:?}: invalid character U+{code:04X} (at position {at})")
    } else {
        return Ok(name);
    };
    Err(StatusError::invalid_option(options, "fieldManager", &why))
}

impl QueryParameters {
    pub(super) fn parse(uri: &Uri, method: &Method) -> Result<Self, StatusError> {
        let raw = read(uri)?;
        let options = options(method);
        let matches = [("Exact", ResourceVersionMatch::Exact), ("NotOlderThan", ResourceVersionMatch::NotOlderThan)];
        let resource_version_match =
            parse_choice(options, "resourceVersionMatch", raw.resource_version_match.as_deref(), &matches)?;
        let include_object = match raw.include_object.as_deref() {
            None | Some("" | "Metadata") => IncludeObject::Metadata,
            Some("None") => IncludeObject::None,
            Some("Object") => IncludeObject::Object,
            Some(other) => return Err(unknown("includeObject", other)),
        };
        let dry_run = parse_choice(options, "dryRun", raw.dry_run.as_deref(), &[("All", true)])?.unwrap_or(false);
        let validations =
            [("Ignore", FieldValidation::Ignore), ("Strict", FieldValidation::Strict), ("Warn", FieldValidation::Warn)];
        let validation = raw.field_validation.as_deref();
        let field_validation = parse_choice(options, "fieldValidation", validation, &validations)?.unwrap_or_default();
        let field_manager = parse_field_manager(options, raw.field_manager.unwrap_or_default())?;
        Ok(Self {
            grace_period_seconds: number("gracePeriodSeconds", raw.grace_period_seconds.as_deref())?,
            watch: parse_flag(raw.watch.as_deref()).unwrap_or(false),
            label_selector: raw.label_selector.unwrap_or_default(),
            field_selector: raw.field_selector.unwrap_or_default(),
            resource_version: number("resourceVersion", raw.resource_version.as_deref())?,
            resource_version_match,
            limit: parse_count("limit", raw.limit.as_deref())?
                .map_or(0, |limit| usize::try_from(limit).unwrap_or(usize::MAX)),
            continue_token: raw.r#continue.filter(|token| !token.is_empty()),
            timeout_seconds: parse_count("timeoutSeconds", raw.timeout_seconds.as_deref())?,
            bookmarks: parse_flag(raw.allow_watch_bookmarks.as_deref()).unwrap_or(false),
            send_initial_events: parse_flag(raw.send_initial_events.as_deref()),
            dry_run,
            field_validation,
            field_manager,
            force: parse_flag(raw.force.as_deref()),
            propagation_policy: raw.propagation_policy.filter(|policy| !policy.is_empty()),
            orphan_dependents: parse_flag(raw.orphan_dependents.as_deref()),
            include_object,
        })
    }
}

/// The first occurrence of a repeated parameter counts.
fn read(uri: &Uri) -> Result<RawQuery, StatusError> {
    let wrong = |why: String| StatusError::bad_request(why);
    if let Ok(Query(raw)) = Query::<RawQuery>::try_from_uri(uri) {
        return Ok(raw);
    }
    let Query(pairs) = Query::<Vec<(String, String)>>::try_from_uri(uri).map_err(|why| wrong(why.to_string()))?;
    let mut first = serde_json::Map::new();
    for (name, value) in pairs {
        first.entry(name).or_insert_with(|| value.into());
    }
    serde_json::from_value(first.into()).map_err(|why| wrong(why.to_string()))
}

/// A number that may be negative and then counts as not given, as Kubernetes takes it.
fn parse_count(name: &str, text: Option<&str>) -> Result<Option<u64>, StatusError> {
    Ok(number::<i64>(name, text)?.and_then(|number| u64::try_from(number).ok()))
}

/// Everything but a plain no is a yes, a bare `?watch` too, as Kubernetes takes it.
fn parse_flag(text: Option<&str>) -> Option<bool> {
    text.map(|text| text != "0" && !text.eq_ignore_ascii_case("false"))
}

fn number<N: std::str::FromStr>(name: &str, text: Option<&str>) -> Result<Option<N>, StatusError> {
    match text {
        None | Some("") => Ok(None),
        Some(text) => text.parse().map(Some).map_err(|_| unknown(name, text)),
    }
}

fn unknown(name: &str, value: &str) -> StatusError {
    StatusError::bad_request(format!("invalid query parameter {name}: {value:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(query: &str) -> Result<QueryParameters, StatusError> {
        QueryParameters::parse(&format!("/x?{query}").parse().unwrap(), &Method::POST)
    }

    #[test]
    fn what_is_said_twice_or_means_nothing_is_taken_as_kubernetes_takes_it() {
        assert!(parsed("dryRun=All&dryRun=All").unwrap().dry_run);
        assert_eq!(parsed("limit=5&limit=9").unwrap().limit, 5);
        assert_eq!(parsed("limit=-1").unwrap().limit, 0);
        assert_eq!(parsed("timeoutSeconds=-1").unwrap().timeout_seconds, None);
        assert_eq!(parsed("limit=x").unwrap_err().code, 400);
        assert!(parsed("watch").unwrap().watch && parsed("watch=yes").unwrap().watch);
        assert!(!parsed("watch=False").unwrap().watch && !parsed("watch=0").unwrap().watch);
    }

    /// APP-28: the rejection of an unknown option lists the valid ones.
    #[test]
    fn a_word_that_means_nothing_is_refused_with_those_that_do() {
        let long = format!("fieldManager={}", "a".repeat(MANAGER_BYTES_MAX + 1));
        for (query, field, why) in [
            ("dryRun=Some", "dryRun", r#"Unsupported value: "Some": supported values: "All""#),
            (
                "fieldValidation=x",
                "fieldValidation",
                r#"Unsupported value: "x": supported values: "Ignore", "Strict", "Warn""#,
            ),
            (&long, "fieldManager", "Too long: may not be more than 128 bytes"),
            ("fieldManager=%01", "fieldManager", r#"Invalid value: "\u{1}": invalid character U+0001 (at position 0)"#),
        ] {
            let refusal = parsed(query).unwrap_err();
            assert_eq!(refusal.code, 422, "{query}");
            assert!(refusal.message.starts_with("CreateOptions.meta.k8s.io"), "{}", refusal.message);
            assert_eq!(refusal.details["causes"][0]["field"], field);
            assert_eq!(refusal.details["causes"][0]["message"], why);
        }
    }
}
