//! IntegrationSink: upstream's kind. `log` writes events to the log of its instance, and the built-in transports `s3` and `sqs`
//! send them to Amazon's services.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{ADDRESSABLE, AdapterSinkKind, AdapterSinkPlan, EVENT_POLICIES_READY, SINK, SinkStatus};
use crate::adapter_program::AdapterProgram;
use crate::aws::{AwsAuth, AwsS3, AwsSqs};
use crate::field_errors::{FieldErrors, exactly_one};
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
    #[serde(skip_serializing_if = "Option::is_none")]
    pub aws: Option<AwsSink>,
}

/// `s3` or `sqs`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AwsSink {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub s3: Option<AwsS3>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sqs: Option<AwsSqs>,
    /// It has no transport yet.
    #[serde(skip_serializing_if = "Value::is_null")]
    pub sns: Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auth: Option<AwsAuth>,
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
    /// The events listener has the certificate.
    const INDEPENDENT_CONDITIONS: &'static [&'static str] = &[CERTIFICATE_READY];
    const SERVICE_SUFFIX: &'static str = "-integrationsink";

    fn plan(&self) -> AdapterSinkPlan {
        let (transport, sink) = match (&self.spec.log, &self.spec.aws) {
            // Without a path, events are lines of the instance's output.
            (Some(_), _) => ("file", json!({})),
            (None, Some(AwsSink { s3: Some(s3), auth, .. })) => ("s3", s3.sink(auth.as_ref())),
            (None, Some(AwsSink { sqs: Some(sqs), auth, .. })) => ("sqs", sqs.sink(auth.as_ref())),
            _ => ("sns", json!({})),
        };
        let auth = self.spec.aws.as_ref().and_then(|aws| aws.auth.as_ref());
        AdapterSinkPlan {
            program: AdapterProgram::transport(transport),
            sink,
            service_account_name: auth.and_then(|auth| auth.service_account_name.clone()),
        }
    }
}

/// A sink that nothing runs gets a warning at once.
pub(super) fn warnings(object: &Value) -> Vec<String> {
    let is_sns = object["spec"]["aws"]["sns"].is_object();
    let warning = || "spec.aws.sns: nothing runs this sink, use spec.aws.s3 or spec.aws.sqs".to_owned();
    is_sns.then(warning).into_iter().collect()
}

impl ResourceStrategy for IntegrationSink {
    const META: KindMeta =
        KindMeta { kind: "IntegrationSink", plural: "integrationsinks", singular: "integrationsink", ..SINK };

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }

    fn set_defaults(&mut self, _: Option<&Self>, _: &RequestContext) {}

    fn validate(&self, _: Option<&Self>, problems: &mut FieldErrors) {
        let aws = self.spec.aws.clone().unwrap_or_default();
        let kinds = [self.spec.log.is_some(), aws.s3.is_some(), aws.sqs.is_some(), !aws.sns.is_null()];
        let set = kinds.into_iter().filter(|set| *set).count();
        exactly_one(set, "spec", "aws.s3, aws.sns, aws.sqs, log", problems);
        if set == 1 && self.spec.log.is_none() {
            AwsAuth::validate(aws.auth.as_ref(), "spec.aws.auth", problems);
        }
        if let Some(s3) = &aws.s3 {
            s3.validate("spec.aws.s3", problems);
        }
        if let Some(sqs) = &aws.sqs {
            sqs.validate("spec.aws.sqs", problems);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sink_that_is_not_run_is_a_warning() {
        assert!(warnings(&json!({ "spec": { "aws": { "sns": {} } } }))[0].contains("spec.aws.sqs"));
        assert_eq!(warnings(&json!({ "spec": { "aws": { "s3": {} } } })), [""; 0]);
    }
}
