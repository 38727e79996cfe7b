//! IntegrationSource: upstream's kind. Its timer runs here, by the built-in transport `timer`.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::adapter::{AdapterBacked, AdapterPlan, AdapterProgram};
use super::{CloudEventAttributes, CloudEventOverrides, SINK_PROVIDED, SOURCE, SourceStatus};
use crate::delivery;
use crate::field_errors::{FieldErrors, MISSING};
use crate::kind;
use crate::kind_registry::{KindMeta, RequestContext, ResourceStrategy};
use crate::settings::Settings;
use crate::shared::{Destination, name, namespace};

const CONTAINER_READY: &str = "ContainerSourceReady";

/// The events that it sends.
const EVENT_TYPES: &str =
    r#"[{"type":"dev.knative.connector.event.timer","description":"The message of a timer, in a fixed period"}]"#;

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
        let source = format!("/apis/v1/namespaces/{}/integrationsources/{}", namespace(meta), name(meta));
        AdapterPlan {
            program: AdapterProgram::transport("timer"),
            source: self.spec.timer.as_ref().map_or(Value::Null, |timer| json!(timer)),
            ce_overrides: self.spec.ce_overrides.clone(),
            event_types: vec![CloudEventAttributes { kind: "dev.knative.connector.event.timer".to_owned(), source }],
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
        match &self.spec.timer {
            None => problems.add("spec.timer", MISSING),
            Some(timer) if timer.message.is_empty() => problems.add("spec.timer.message", MISSING),
            Some(timer) if timer.period < 0 => problems.add("spec.timer.period", "invalid value: expected at least 1"),
            Some(timer) if timer.repeat_count.is_some_and(|count| count < 0) => {
                problems.add("spec.timer.repeatCount", "invalid value: expected at least 0");
            }
            Some(_) => {}
        }
    }

    fn validate_settings(&self, _: Option<&Self>, settings: &Settings, problems: &mut FieldErrors) {
        super::validate_by(&self.spec.sink, settings, problems);
    }
}
