//! Redirects a Trigger's or Subscription's subscriber before events are sent to it again.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use kube::client::Body;
use serde_json::{Value, json};

use super::text;
use crate::cli::api_access::{ApiAccessArgs, ApiClient};

/// Possible kinds of the object: its name, and its path without namespace and name.
const KINDS: [(&str, &str, &str); 2] =
    [("Trigger", "eventing.knative.dev/v1", "triggers"), ("Subscription", "messaging.knative.dev/v1", "subscriptions")];
/// How long the changed object may take to be Ready; usually some milliseconds.
const READY_TIMEOUT: Duration = Duration::from_secs(30);
/// Poll interval.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

#[derive(Debug, clap::Args)]
pub(crate) struct SubscriberPatch {
    /// First change the subscriber: a JSON merge patch of spec.subscriber, like
    /// '{"ref":null,"uri":"http://…"}'
    #[arg(long, value_name = "JSON")]
    patch: Option<String>,
    #[command(flatten)]
    reach: ApiAccessArgs,
}

impl SubscriberPatch {
    /// Patches the object and waits until the cores have it; returns the new target. `None`: no patch was
    /// given.
    pub(super) fn lay(&self, name: &str, dry_run: bool) -> Result<Option<String>> {
        let Some(patch) = &self.patch else { return Ok(None) };
        let subscriber: Value = serde_json::from_str(patch).context("--patch is not JSON")?;
        if !subscriber.is_object() {
            bail!("--patch must be an object, as spec.subscriber is");
        }
        let api = self.reach.open()?;
        let (kind, path) = find(&api, name)?;
        let query = if dry_run { "?dryRun=All" } else { "" };
        let body = json!({ "spec": { "subscriber": subscriber } });
        let (status, answer) = ask(&api, "PATCH", &format!("{path}{query}"), Some(&body))?;
        match status {
            200 if dry_run => Ok(Some(format!("{kind} {name} would be changed"))),
            200 => await_ready(&api, &path, kind, name).map(Some),
            _ => bail!("{kind} {name} is not changed: {}", text(&answer, "message")),
        }
    }
}

/// The only object with this name, its kind, and its path.
fn find(api: &ApiClient, name: &str) -> Result<(&'static str, String)> {
    let (asked, label) = match name.split_once('/') {
        Some((kind, label)) if label.contains('/') => (Some(kind), label),
        _ => (None, name),
    };
    let (namespace, object) = label.split_once('/').context("--trigger must be NAMESPACE/NAME")?;
    let mut found = Vec::new();
    for (kind, version, plural) in KINDS {
        if asked.is_some_and(|asked| !asked.eq_ignore_ascii_case(kind)) {
            continue;
        }
        let path = format!("/apis/{version}/namespaces/{namespace}/{plural}/{object}");
        let (status, answer) = ask(api, "GET", &path, None)?;
        match status {
            200 => found.push((kind, path)),
            404 => {}
            _ => bail!("{kind} {label}: {}", text(&answer, "message")),
        }
    }
    match (found.pop(), found.pop()) {
        (Some(only), None) => Ok(only),
        (Some(_), Some(_)) => {
            bail!("{label} is a Trigger and a Subscription: write trigger/{label} or subscription/{label}")
        }
        (None, _) => bail!("there is no Trigger and no Subscription {name}"),
    }
}

#[expect(clippy::disallowed_methods, reason = "a command line tool has nothing else to do")]
fn await_ready(api: &ApiClient, path: &str, kind: &str, name: &str) -> Result<String> {
    let began = Instant::now();
    loop {
        let (status, object) = ask(api, "GET", path, None)?;
        if status != 200 {
            bail!("{kind} {name}: {}", text(&object, "message"));
        }
        let ready = ready(&object);
        if ready.is_some_and(|ready| ready["status"] == "True") {
            return Ok(format!("{kind} {name} is changed and Ready"));
        }
        if began.elapsed() > READY_TIMEOUT {
            let why = ready.map_or("not reconciled yet", |ready| text(ready, "message"));
            bail!("{kind} {name} was changed and is not Ready, so nothing is sent: {why}");
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

fn ask(api: &ApiClient, method: &str, path: &str, body: Option<&Value>) -> Result<(u16, Value)> {
    let body = body.map(Value::to_string).unwrap_or_default().into_bytes();
    let request = ureq::http::Request::builder()
        .method(method)
        .uri(path)
        .header("Content-Type", "application/merge-patch+json")
        .body(Body::from(body))?;
    api.runtime.block_on(async {
        let answer = api.send(request).await?;
        let status = answer.status().as_u16();
        let said = answer.into_body().collect_bytes().await?;
        let text = || json!({ "message": String::from_utf8_lossy(&said).trim() });
        Ok((status, serde_json::from_slice(&said).unwrap_or_else(|_| text())))
    })
}

/// Its Ready condition, if it is for the current generation.
fn ready(object: &Value) -> Option<&Value> {
    let is_current = object["status"]["observedGeneration"] == object["metadata"]["generation"];
    let conditions = object["status"]["conditions"].as_array().filter(|_| is_current)?;
    conditions.iter().find(|condition| condition["type"] == "Ready")
}
