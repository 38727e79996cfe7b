//! IntegrationSink: upstream's kind. `log` writes events to the log of its instance. `aws` is stored and not run:
//! AdapterSinks run the transports `s3` and `sqs`.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{ADDRESSABLE, AdapterSinkKind, AdapterSinkPlan, EVENT_POLICIES_READY, SINK, SinkStatus};
use crate::adapter_program::AdapterProgram;
use crate::field_errors::FieldErrors;
use crate::kind;
use crate::kind_registry::{KindMeta, RequestContext, ResourceStrategy};

const DEPLOYMENT_READY: &str = "DeploymentReady";
const CERTIFICATE_READY: &str = "CertificateReady";

kind! {
    /// `sinks.knative.dev/v1alpha1` IntegrationSink.
    IntegrationSink { spec: IntegrationSinkSpec, status: SinkStatus }
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct IntegrationSinkSpec {
    /// Events are written to the log. Upstream's options, which change the form of a line, have no effect.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log: Option<LogSink>,
    /// `s3`, `sqs` or `sns`, with `auth`.
    #[serde(skip_serializing_if = "Value::is_null")]
    pub aws: Value,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[expect(clippy::struct_excessive_bools, reason = "upstream's fields")]
pub struct LogSink {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub logger_name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub level: String,
    pub log_mask: bool,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub marker: String,
    pub multiline: bool,
    pub show_all_properties: bool,
    pub show_body: bool,
    pub show_body_type: bool,
    pub show_exchange_pattern: bool,
    pub show_headers: bool,
    pub show_properties: bool,
    pub show_streams: bool,
    pub show_cached_streams: bool,
}

sink! {
    IntegrationSink { conditions: [ADDRESSABLE, DEPLOYMENT_READY, EVENT_POLICIES_READY, CERTIFICATE_READY] }
}

impl AdapterSinkKind for IntegrationSink {
    const DEPLOYED_CONDITION: &'static str = DEPLOYMENT_READY;
    const UNUSED_CONDITIONS: &'static [&'static str] = &[EVENT_POLICIES_READY, CERTIFICATE_READY];
    const SERVICE_SUFFIX: &'static str = "-integrationsink";

    fn plan(&self) -> AdapterSinkPlan {
        // Without a path, events are lines of the instance's output.
        let transport = if self.spec.log.is_some() { "file" } else { "aws" };
        AdapterSinkPlan { program: AdapterProgram::transport(transport), sink: json!({}), ..AdapterSinkPlan::default() }
    }
}

/// A sink that nothing runs gets a warning at once.
pub(super) fn warnings(object: &Value) -> Vec<String> {
    let is_aws = object["spec"]["aws"].is_object();
    let warning = || "spec.aws: nothing runs this sink; use an AdapterSink with the transport s3 or sqs".to_owned();
    is_aws.then(warning).into_iter().collect()
}

impl ResourceStrategy for IntegrationSink {
    const META: KindMeta =
        KindMeta { kind: "IntegrationSink", plural: "integrationsinks", singular: "integrationsink", ..SINK };

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }

    fn set_defaults(&mut self, _: Option<&Self>, _: &RequestContext) {}

    fn validate(&self, _: Option<&Self>, problems: &mut FieldErrors) {
        match (&self.spec.log, self.spec.aws.is_object()) {
            (None, false) => problems.add("spec", "expected exactly one, got neither: aws, log"),
            (Some(_), true) => problems.add("spec", "expected exactly one, got both: aws, log"),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sink_that_is_not_run_is_a_warning() {
        assert!(warnings(&json!({ "spec": { "aws": { "s3": {} } } }))[0].contains("AdapterSink"));
        assert_eq!(warnings(&json!({ "spec": { "log": {} } })), [""; 0]);
    }
}
