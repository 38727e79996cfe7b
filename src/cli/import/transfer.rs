//! Reads objects from the cluster, page by page, and applies them to the appliance.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result, bail};
use kube::client::Body;
use serde_json::{Value, json};
use ureq::http::header::{CONTENT_TYPE, WARNING};
use ureq::http::{Method, Request};

use super::convert::{ImportFilter, convert, text};
use super::kinds::{IMPORTED, ImportedKind};
use super::references;
use super::report::{ImportOutcome, ImportReport};
use crate::cli::api_access::ApiClient;

/// Objects of a page.
const PAGE_OBJECTS: usize = 200;
/// A namespace that every appliance has.
const STAND_IN: &str = "default";
/// The manager of the fields of copied objects in `managedFields`.
const FIELD_MANAGER: &str = "sluicegate-import";

pub(super) struct ImportSession {
    pub(super) source: ApiClient,
    pub(super) target: ApiClient,
    pub(super) dry_run: bool,
    pub(super) force: bool,
}

/// An answer of an API: its status, its warnings and its body.
struct ApiAnswer {
    status: u16,
    warnings: Vec<String>,
    body: Value,
}

impl ApiAnswer {
    fn message(&self) -> String {
        match self.body["message"].as_str() {
            Some(message) => message.to_owned(),
            None => format!("the server answered {}", self.status),
        }
    }
}

impl ImportSession {
    /// Copies everything that `filter` chooses.
    pub(super) fn copy(&self, filter: &ImportFilter, report: &mut ImportReport) -> Result<()> {
        let mut secrets_copied = BTreeSet::new();
        let mut secrets_wanted = BTreeSet::new();
        // Whether they are missing, and will be.
        let mut namespaces: BTreeMap<String, bool> = BTreeMap::new();
        for kind in IMPORTED {
            let mut next = String::new();
            loop {
                let page = call(&self.source, Method::GET, &page_path(kind, &next), None)?;
                match page.status {
                    200 => {}
                    404 => break, // the cluster does not have the kind
                    401 => bail!("{}: {}", self.source.at.trim_end_matches('/'), page.message()),
                    _ => {
                        report.add_unread(kind.kind, &page.message());
                        break;
                    }
                }
                let objects = page.body["items"].as_array().cloned().unwrap_or_default();
                for object in objects.into_iter().filter(|object| filter.has(kind, object)) {
                    let name = format!("{}/{}", text(&object, "/metadata/namespace"), text(&object, "/metadata/name"));
                    let home = text(&object, "/metadata/namespace").to_owned();
                    secrets_wanted.extend(references::secrets(&object).into_iter().map(|one| format!("{home}/{one}")));
                    if kind.kind == "Secret" {
                        secrets_copied.insert(name.clone());
                    }
                    if !namespaces.contains_key(&home) {
                        let is_missing = self.create_namespace(&home, report)? && self.dry_run;
                        namespaces.insert(home.clone(), is_missing);
                    }
                    let is_missing = namespaces.get(&home) == Some(&true);
                    self.copy_one(kind, object, (&name, is_missing), report)?;
                }
                next = text(&page.body, "/metadata/continue").to_owned();
                if next.is_empty() {
                    break;
                }
            }
        }
        secrets_wanted.difference(&secrets_copied).for_each(|secret| report.leave_secret(secret.clone()));
        Ok(())
    }

    /// A dry run does not create the namespace of new objects; where it `is_missing` they are tried in another one.
    fn copy_one(
        &self,
        kind: ImportedKind,
        object: Value,
        (name, is_missing): (&str, bool),
        report: &mut ImportReport,
    ) -> Result<()> {
        let (mut object, mut notes) = convert(kind, object);
        for service in references::core_services(&object) {
            notes.push(format!("refers to the core Service {service}, which is not copied: create it, or use a uri"));
        }
        for url in references::cluster_urls(&object) {
            notes.push(format!("{url} is an address of the cluster: use one that the appliance reaches"));
        }
        if is_missing {
            object["metadata"]["namespace"] = STAND_IN.into();
        }
        let (home, own_name) = (text(&object, "/metadata/namespace"), text(&object, "/metadata/name"));
        let force = if self.force || is_missing { "&force=true" } else { "" };
        let query = format!("fieldManager={FIELD_MANAGER}{}{force}", self.dry_run_query());
        let path = format!("{}/{own_name}?{query}", kind.path(Some(home)));
        let answer = call(&self.target, Method::PATCH, &path, Some(&object))?;
        let outcome = match answer.status {
            201 => ImportOutcome::Created,
            200 if is_missing => ImportOutcome::Created,
            200 => ImportOutcome::Updated,
            401 => {
                bail!("{}: {}; give --token or --to-kubeconfig", self.target.at.trim_end_matches('/'), answer.message())
            }
            409 => ImportOutcome::Refused(format!("{}; --force overwrites it", answer.message())),
            _ => ImportOutcome::Refused(answer.message()),
        };
        notes.extend(answer.warnings);
        report.add(&format!("{} {name}", kind.kind), &outcome, &notes);
        Ok(())
    }

    /// Whether it was missing.
    fn create_namespace(&self, name: &str, report: &mut ImportReport) -> Result<bool> {
        let path = format!("/api/v1/namespaces?fieldManager={FIELD_MANAGER}{}", self.dry_run_query());
        let body = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name } });
        let answer = call(&self.target, Method::POST, &path, Some(&body))?;
        match answer.status {
            201 => report.add(&format!("Namespace {name}"), &ImportOutcome::Created, &[]),
            409 => {} // it is there
            _ => report.add(&format!("Namespace {name}"), &ImportOutcome::Refused(answer.message()), &[]),
        }
        Ok(answer.status == 201)
    }

    fn dry_run_query(&self) -> &'static str {
        if self.dry_run { "&dryRun=All" } else { "" }
    }
}

fn page_path(kind: ImportedKind, next: &str) -> String {
    let next = if next.is_empty() { String::new() } else { format!("&continue={}", query_value(next)) };
    format!("{}?limit={PAGE_OBJECTS}{next}", kind.path(None))
}

/// Percent-encoded: a server may write anything into its token.
fn query_value(text: &str) -> String {
    let encode = |byte: u8| match byte {
        b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    };
    text.bytes().map(encode).collect()
}

fn call(api: &ApiClient, method: Method, path: &str, body: Option<&Value>) -> Result<ApiAnswer> {
    // An apply takes JSON as YAML.
    let media = if method == Method::PATCH { "application/apply-patch+yaml" } else { "application/json" };
    let request = Request::builder().method(method).uri(path).header(CONTENT_TYPE, media);
    let bytes = body.map(serde_json::to_vec).transpose()?.unwrap_or_default();
    api.runtime.block_on(async {
        let answer = api.send(request.body(Body::from(bytes))?).await?;
        let status = answer.status().as_u16();
        let warnings =
            answer.headers().get_all(WARNING).iter().filter_map(|value| warning(value.to_str().ok()?)).collect();
        let body = answer.into_body().collect_bytes().await.context("the response was truncated")?;
        Ok(ApiAnswer { status, warnings, body: serde_json::from_slice(&body).unwrap_or_default() })
    })
}

/// `299 - "TEXT"` (RFC 7234 section 5.5).
fn warning(header: &str) -> Option<String> {
    let quoted = header.splitn(3, ' ').nth(2)?.strip_prefix('"')?.strip_suffix('"')?;
    Some(quoted.replace("\\\"", "\"").replace("\\\\", "\\"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_asked_for_by_token() {
        let kind = IMPORTED[0];
        assert_eq!(page_path(kind, ""), "/api/v1/configmaps?limit=200");
        assert_eq!(page_path(kind, "a=/b"), "/api/v1/configmaps?limit=200&continue=a%3D%2Fb");
    }

    #[test]
    fn warning_is_its_text() {
        assert_eq!(warning(r#"299 - "unknown field \"a\"""#).as_deref(), Some(r#"unknown field "a""#));
        assert_eq!(warning("299 -"), None);
    }
}
