//! The demo's client: plain HTTP.

use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use serde::Deserialize;
use serde_json::Value;

use super::appliance::ReadyLine;
use super::wait_for;

pub(super) struct DemoClient {
    pub(super) ready: ReadyLine,
    agent: ureq::Agent,
}

impl DemoClient {
    pub(super) fn new(ready: ReadyLine) -> Self {
        let config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .timeout_global(Some(Duration::from_secs(60)))
            .build();
        Self { ready, agent: config.into() }
    }

    /// GET with a Host header: status and body.
    pub(super) fn get(&self, host: &str, path: &str) -> Result<(u16, String)> {
        let url = format!("http://{}{path}", self.ready.http);
        let mut answer = self.agent.get(&url).header("Host", host).call()?;
        Ok((answer.status().as_u16(), answer.body_mut().read_to_string()?))
    }

    /// Posts a CloudEvent in structured mode: the status.
    pub(super) fn post_event(&self, broker: &str, event: &cloudevents::Event) -> Result<u16> {
        let url = format!("http://{}/brokers/default/{broker}", self.ready.events);
        let body = serde_json::to_vec(event)?;
        let answer = self.agent.post(&url).header("Content-Type", "application/cloudevents+json").send(&body[..])?;
        Ok(answer.status().as_u16())
    }

    /// Creates or updates the objects of the manifest.
    pub(super) fn apply(&self, manifest: &str) -> Result<()> {
        for document in serde_norway::Deserializer::from_str(manifest) {
            let object = Value::deserialize(document)?;
            let collection = self.collection(&object)?;
            let body = object.to_string();
            let created =
                self.agent.post(&collection).header("Content-Type", "application/json").send(body.as_bytes())?;
            let answer = if created.status() == 409 {
                let name = object["metadata"]["name"].as_str().unwrap_or_default();
                self.agent
                    .patch(format!("{collection}/{name}"))
                    .header("Content-Type", "application/merge-patch+json")
                    .send(body.as_bytes())?
            } else {
                created
            };
            let status = answer.status();
            if !status.is_success() {
                let why = answer.into_body().read_to_string().unwrap_or_default();
                return Err(anyhow!("{} is rejected: {status} {why}", object["metadata"]["name"]));
            }
        }
        Ok(())
    }

    fn collection(&self, object: &Value) -> Result<String> {
        let version = object["apiVersion"].as_str().context("apiVersion")?;
        let plural = format!("{}s", object["kind"].as_str().context("kind")?.to_ascii_lowercase());
        Ok(format!("http://{}/apis/{version}/namespaces/default/{plural}", self.ready.api))
    }

    /// An object of namespace `default`.
    pub(super) fn object(&self, group_version: &str, plural: &str, name: &str) -> Result<Value> {
        let url = format!("http://{}/apis/{group_version}/namespaces/default/{plural}/{name}", self.ready.api);
        Ok(self.agent.get(&url).call()?.body_mut().read_json()?)
    }

    /// Waits until the object's Ready is True for its current generation.
    pub(super) fn wait_ready(&self, group_version: &str, plural: &str, name: &str) -> Result<()> {
        let mut last = Value::Null;
        let waited = wait_for(&format!("{plural}/{name} Ready"), Duration::from_secs(30), || {
            last = self.object(group_version, plural, name)?;
            let current = last["status"]["observedGeneration"] == last["metadata"]["generation"];
            let conditions = last["status"]["conditions"].as_array().map_or(&[][..], Vec::as_slice);
            let ready = conditions.iter().any(|c| c["type"] == "Ready" && c["status"] == "True");
            Ok((current && ready).then_some(()))
        });
        waited.with_context(|| last["status"].to_string())
    }

    /// The sum of a counter over all its labels that contain `label`.
    pub(super) fn metric(&self, name: &str, label: &str) -> Result<u64> {
        let url = format!("http://{}/metrics", self.ready.admin);
        let text = self.agent.get(&url).call()?.body_mut().read_to_string()?;
        let values = text.lines().filter_map(|line| {
            let rest = line.strip_prefix(name)?;
            (rest.starts_with(['{', ' ']) && rest.contains(label))
                .then(|| line.rsplit(' ').next()?.parse::<u64>().ok())?
        });
        Ok(values.sum())
    }
}
