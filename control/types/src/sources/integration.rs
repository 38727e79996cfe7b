//! IntegrationSource: upstream's kind, run by the built-in transports `timer`, `s3` and `sqs`.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::adapter::{AdapterBacked, AdapterPlan, AdapterProgram};
use super::{CloudEventAttributes, CloudEventOverrides, SINK_PROVIDED, SOURCE, SourceStatus};
use crate::aws::{AwsAuth, AwsS3, AwsSqs};
use crate::delivery;
use crate::field_errors::{FieldErrors, MISSING, exactly_one};
use crate::kind;
use crate::kind_registry::{KindMeta, RequestContext, ResourceStrategy};
use crate::settings::Settings;
use crate::shared::{Destination, name, namespace};

const CONTAINER_READY: &str = "ContainerSourceReady";

/// The events that it sends.
const EVENT_TYPES: &str = concat!(
    r#"[{"type":"dev.knative.connector.event.timer","description":"The message of a timer, in a fixed period"},"#,
    r#"{"type":"dev.knative.connector.event.aws-s3","description":"An object of a bucket of S3"},"#,
    r#"{"type":"dev.knative.connector.event.aws-sqs","description":"A message of a queue of SQS"}]"#,
);

kind! {
    /// `sources.knative.dev/v1alpha1` IntegrationSource.
    IntegrationSource { spec: IntegrationSourceSpec, status: SourceStatus }
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct IntegrationSourceSpec {
    /// Where events go.
    pub sink: Destination,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ce_overrides: Option<CloudEventOverrides>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timer: Option<Timer>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub aws: Option<AwsSource>,
}

/// `s3` or `sqs`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AwsSource {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub s3: Option<AwsS3>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sqs: Option<AwsSqs>,
    /// It has no transport yet.
    #[serde(skip_serializing_if = "Value::is_null")]
    pub ddb_streams: Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auth: Option<AwsAuth>,
}

/// An event every period.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Timer {
    /// Milliseconds.
    pub period: i64,
    pub message: String,
    pub content_type: String,
    /// The timer ends after so many events.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub repeat_count: Option<i64>,
}

source! { IntegrationSource { conditions: [SINK_PROVIDED, CONTAINER_READY] } }

impl AdapterBacked for IntegrationSource {
    const SINK_CONDITION: &'static str = SINK_PROVIDED;
    const DEPLOYED_CONDITION: &'static str = CONTAINER_READY;
    const EVENT_TYPES_CONDITION: Option<&'static str> = None;

    fn plan(&self) -> AdapterPlan {
        let meta = &self.metadata;
        let (transport, section, kind, source) = match (&self.spec.timer, &self.spec.aws) {
            (Some(timer), _) => {
                let source = format!("/apis/v1/namespaces/{}/integrationsources/{}", namespace(meta), name(meta));
                ("timer", json!(timer), "timer", source)
            }
            (None, Some(AwsSource { s3: Some(s3), auth, .. })) => {
                ("s3", s3.source(auth.as_ref()), "aws-s3", "dev.knative.eventing.aws-s3-source".to_owned())
            }
            (None, Some(AwsSource { sqs: Some(sqs), auth, .. })) => {
                ("sqs", sqs.source(auth.as_ref()), "aws-sqs", "dev.knative.eventing.aws-sqs-source".to_owned())
            }
            _ => ("ddbStreams", Value::Null, "aws-ddb-streams", "dev.knative.eventing.aws-ddb-streams".to_owned()),
        };
        let auth = self.spec.aws.as_ref().and_then(|aws| aws.auth.as_ref());
        AdapterPlan {
            program: AdapterProgram::transport(transport),
            source: section,
            ce_overrides: self.spec.ce_overrides.clone(),
            event_types: vec![CloudEventAttributes { kind: format!("dev.knative.connector.event.{kind}"), source }],
            service_account_name: auth.and_then(|auth| auth.service_account_name.clone()),
            ..AdapterPlan::default()
        }
    }
}

impl ResourceStrategy for IntegrationSource {
    const META: KindMeta = KindMeta {
        version: "v1alpha1",
        kind: "IntegrationSource",
        plural: "integrationsources",
        singular: "integrationsource",
        event_types: Some(EVENT_TYPES),
        ..SOURCE
    };

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }

    fn set_defaults(&mut self, _: Option<&Self>, _: &RequestContext) {
        let home = namespace(&self.metadata).to_owned();
        delivery::default_destination(&mut self.spec.sink, &home);
        if let Some(timer) = &mut self.spec.timer {
            if timer.period == 0 {
                timer.period = 1000;
            }
            if timer.content_type.is_empty() {
                "text/plain".clone_into(&mut timer.content_type);
            }
        }
    }

    fn validate(&self, _: Option<&Self>, problems: &mut FieldErrors) {
        super::validate(&self.spec.sink, self.spec.ce_overrides.as_ref(), problems);
        let aws = self.spec.aws.clone().unwrap_or_default();
        let kinds = [self.spec.timer.is_some(), aws.s3.is_some(), aws.sqs.is_some(), !aws.ddb_streams.is_null()];
        let set = kinds.into_iter().filter(|set| *set).count();
        exactly_one(set, "spec", "aws.ddbStreams, aws.s3, aws.sqs, timer", problems);
        match &self.spec.timer {
            Some(timer) if timer.message.is_empty() => problems.add("spec.timer.message", MISSING),
            Some(timer) if timer.period < 0 => problems.add("spec.timer.period", "invalid value: expected at least 1"),
            Some(timer) if timer.repeat_count.is_some_and(|count| count < 0) => {
                problems.add("spec.timer.repeatCount", "invalid value: expected at least 0");
            }
            Some(_) => {}
            None if set == 1 => AwsAuth::validate(aws.auth.as_ref(), "spec.aws.auth", problems),
            None => {}
        }
        if let Some(s3) = &aws.s3 {
            s3.validate("spec.aws.s3", problems);
        }
        if let Some(sqs) = &aws.sqs {
            sqs.validate("spec.aws.sqs", problems);
        }
    }

    fn validate_settings(&self, _: Option<&Self>, settings: &Settings, problems: &mut FieldErrors) {
        super::validate_by(&self.spec.sink, settings, problems);
    }
}
