//! GitHubSource: upstream's kind. An adapter takes the webhook's requests, whose signature it verifies.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::adapter::{AdapterBacked, AdapterPlan, AdapterProgram};
use super::{AGE, CloudEventAttributes, CloudEventOverrides, READY, REASON, SINK, SINK_PROVIDED, SOURCE, SourceStatus};
use crate::delivery;
use crate::field_errors::{FieldErrors, MISSING};
use crate::kind;
use crate::kind_registry::{KindMeta, RequestContext, ResourceStrategy};
use crate::secret_reference::SecretValue;
use crate::settings::Settings;
use crate::shared::{Destination, namespace};

const SECRETS_PROVIDED: &str = "SecretsProvided";
const WEBHOOK_CONFIGURED: &str = "WebhookConfigured";
const TYPE_PREFIX: &str = "dev.knative.source.github";

/// The names of GitHub's webhook events that upstream allows.
const EVENTS: [&str; 34] = [
    "check_suite",
    "commit_comment",
    "create",
    "delete",
    "deployment",
    "deployment_status",
    "fork",
    "gollum",
    "installation",
    "integration_installation",
    "issue_comment",
    "issues",
    "label",
    "member",
    "membership",
    "milestone",
    "organization",
    "org_block",
    "page_build",
    "ping",
    "project_card",
    "project_column",
    "project",
    "public",
    "pull_request",
    "pull_request_review",
    "pull_request_review_comment",
    "push",
    "release",
    "repository",
    "status",
    "team",
    "team_add",
    "watch",
];

/// The events that it sends most.
const EVENT_TYPES: &str = r#"[{"type":"dev.knative.source.github.push","description":"Commits were pushed"},{"type":"dev.knative.source.github.pull_request","description":"A pull request was changed"},{"type":"dev.knative.source.github.issues","description":"An issue was changed"}]"#;

kind! {
    /// `sources.knative.dev/v1alpha1` GitHubSource.
    GitHubSource { spec: GitHubSourceSpec, status: SourceStatus }
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct GitHubSourceSpec {
    /// Where events go.
    pub sink: Destination,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ce_overrides: Option<CloudEventOverrides>,
    /// `OWNER/REPOSITORY`, or an organization.
    pub owner_and_repository: String,
    /// The names of the webhook's events, such as `push`.
    pub event_types: Vec<String>,
    /// Upstream registers the webhook with it; kept and not used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub access_token: Option<SecretValue>,
    /// The secret of the webhook, which signs its requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret_token: Option<SecretValue>,
    /// Upstream's URL of GitHub Enterprise; kept and not used.
    #[serde(rename = "githubAPIURL", skip_serializing_if = "Option::is_none")]
    pub github_api_url: Option<String>,
    /// Upstream's choice of the scheme that it registers; kept and not used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secure: Option<bool>,
    /// The identity of the adapter's instance.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service_account_name: Option<String>,
}

source! { GitHubSource { conditions: [SECRETS_PROVIDED, SINK_PROVIDED, WEBHOOK_CONFIGURED] } }

impl AdapterBacked for GitHubSource {
    const SINK_CONDITION: &'static str = SINK_PROVIDED;
    const DEPLOYED_CONDITION: &'static str = WEBHOOK_CONFIGURED;
    const EVENT_TYPES_CONDITION: Option<&'static str> = None;
    const SECRETS_CONDITION: Option<&'static str> = Some(SECRETS_PROVIDED);
    const SERVICE_SUFFIX: &'static str = "-githubsource";
    const IS_PUBLIC: bool = true;

    fn plan(&self) -> AdapterPlan {
        let spec = &self.spec;
        let source = format!("https://github.com/{}", spec.owner_and_repository);
        let event_type =
            |event: &String| CloudEventAttributes { kind: format!("{TYPE_PREFIX}.{event}"), source: source.clone() };
        AdapterPlan {
            program: AdapterProgram::transport("github"),
            source: json!({
                "ownerAndRepository": spec.owner_and_repository,
                "eventTypes": spec.event_types,
                "secretToken": spec.secret_token.as_ref().and_then(SecretValue::file),
            }),
            ce_overrides: spec.ce_overrides.clone(),
            event_types: spec.event_types.iter().map(event_type).collect(),
            service_account_name: spec.service_account_name.clone(),
            ..AdapterPlan::default()
        }
    }

    fn deployed_note(&self, url: &str) -> Option<(&'static str, String)> {
        let (repository, events) = (&self.spec.owner_and_repository, self.spec.event_types.join(", "));
        let why = format!(
            "GitHub is not called: add the webhook to {repository} there, with the payload URL {url}, the content type \
             application/json, the secret of spec.secretToken and the events {events}"
        );
        Some(("RegisterWebhook", why))
    }
}

impl ResourceStrategy for GitHubSource {
    const META: KindMeta = KindMeta {
        version: "v1alpha1",
        kind: "GitHubSource",
        plural: "githubsources",
        singular: "githubsource",
        categories: &["all", "knative", "eventing", "sources"],
        columns: &[READY, REASON, SINK, AGE],
        event_types: Some(EVENT_TYPES),
        ..SOURCE
    };

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }

    fn set_defaults(&mut self, _: Option<&Self>, _: &RequestContext) {
        let home = namespace(&self.metadata).to_owned();
        delivery::default_destination(&mut self.spec.sink, &home);
    }

    fn validate(&self, _: Option<&Self>, problems: &mut FieldErrors) {
        let spec = &self.spec;
        super::validate(&spec.sink, spec.ce_overrides.as_ref(), problems);
        let parts: Vec<&str> = spec.owner_and_repository.split('/').collect();
        let is_name = |part: &str| {
            !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
        };
        if spec.owner_and_repository.is_empty() {
            problems.add("spec.ownerAndRepository", MISSING);
        } else if parts.len() > 2 || !parts.iter().all(|part| is_name(part)) {
            let why = format!("invalid value: {}: expected OWNER/REPOSITORY", spec.owner_and_repository);
            problems.add("spec.ownerAndRepository", why);
        }
        if spec.event_types.is_empty() {
            problems.add("spec.eventTypes", MISSING);
        }
        for (nth, event) in spec.event_types.iter().enumerate().filter(|(_, event)| !EVENTS.contains(&event.as_str())) {
            problems.add(format!("spec.eventTypes[{nth}]"), format!("invalid value: {event}: use names such as push"));
        }
        // Without it, any client could send events.
        match &spec.secret_token {
            Some(token) if token.secret_key_ref.is_some() => token.validate("spec.secretToken", problems),
            _ => problems.add("spec.secretToken.secretKeyRef", MISSING),
        }
        if let Some(token) = &spec.access_token {
            token.validate("spec.accessToken", problems);
        }
    }

    fn validate_settings(&self, _: Option<&Self>, settings: &Settings, problems: &mut FieldErrors) {
        super::validate_by(&self.spec.sink, settings, problems);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    fn source(spec: &Value) -> GitHubSource {
        serde_json::from_value(json!({ "metadata": { "name": "g", "namespace": "ns" }, "spec": spec })).unwrap()
    }

    #[test]
    fn webhook_without_a_secret_is_refused() {
        let token = json!({ "secretKeyRef": { "name": "s", "key": "k" } });
        let fields = |spec: Value| -> Vec<String> {
            let mut problems = FieldErrors::default();
            source(&spec).validate(None, &mut problems);
            problems.into_list().into_iter().map(|one| one.field).collect()
        };
        let sink = json!({ "uri": "http://s" });
        let whole = json!({ "sink": sink, "ownerAndRepository": "o/r", "eventTypes": ["push"], "secretToken": token });
        assert_eq!(fields(whole), [""; 0]);
        let lacking = json!({ "sink": sink, "ownerAndRepository": "o/r/x", "eventTypes": ["nothing"] });
        let wanted = ["spec.ownerAndRepository", "spec.eventTypes[0]", "spec.secretToken.secretKeyRef"];
        assert_eq!(fields(lacking), wanted);
    }

    #[test]
    fn fields_become_those_of_the_adapter() {
        let token = json!({ "secretKeyRef": { "name": "s", "key": "k" } });
        let source = source(&json!({ "ownerAndRepository": "o/r", "eventTypes": ["push"], "secretToken": token }));
        let plan = source.plan();
        assert_eq!(plan.source["secretToken"], json!({ "secret": { "name": "s", "key": "k" } }));
        assert_eq!(plan.event_types[0].kind, "dev.knative.source.github.push");
        assert!(source.deployed_note("http://u").unwrap().1.contains("http://u"));
    }
}
