//! Sequence: steps that an event passes one after the other; each step gets the reply of the one before.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{FlowChannelStatus, FlowSubscriptionStatus, GROUP, VERSION};
use crate::delivery;
use crate::duck_types::DuckType;
use crate::eventing::delivery_features;
use crate::field_errors::{FieldErrors, MISSING};
use crate::kind;
use crate::kind_registry::{CORE, KindMeta, RequestContext, ResourceStrategy, UnknownFieldPolicy};
use crate::messaging::channel::ChannelTemplate;
use crate::printer_column::{AGE, READY, REASON, column};
use crate::role_rules::RECONCILED;
use crate::settings::Settings;
use crate::shared::{Addressable, AppliedPolicy, AuthStatus, DeliverySpec, Destination, KReference, Status, namespace};

kind! {
    /// `flows.knative.dev/v1` Sequence.
    Sequence { spec: SequenceSpec, status: SequenceStatus }
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SequenceSpec {
    pub steps: Vec<SequenceStep>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub channel_template: Option<ChannelTemplate>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reply: Option<Destination>,
}

/// A destination with delivery options. Spelled out, because a flattened one would take unknown
/// fields silently.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct SequenceStep {
    #[serde(rename = "ref", skip_serializing_if = "Option::is_none")]
    pub reference: Option<KReference>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uri: Option<String>,
    #[serde(rename = "CACerts", skip_serializing_if = "Option::is_none")]
    pub ca_certs: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub audience: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delivery: Option<DeliverySpec>,
}

impl SequenceStep {
    #[must_use]
    pub fn destination(&self) -> Destination {
        Destination {
            reference: self.reference.clone(),
            uri: self.uri.clone(),
            ca_certs: self.ca_certs.clone(),
            audience: self.audience.clone(),
        }
    }
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SequenceStatus {
    #[serde(flatten)]
    pub base: Status,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub subscription_statuses: Vec<FlowSubscriptionStatus>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub channel_statuses: Vec<FlowChannelStatus>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<Addressable>,
    /// All of them, if there are several ways or all are by TLS; the preferred one first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<Addressable>,
    /// Under which service accounts its Subscriptions send.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auth: Option<AuthStatus>,
    /// The EventPolicies that hold for it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub policies: Vec<AppliedPolicy>,
}

impl ResourceStrategy for Sequence {
    const META: KindMeta = KindMeta {
        group: GROUP,
        version: VERSION,
        kind: "Sequence",
        plural: "sequences",
        singular: "sequence",
        short_names: &[],
        categories: &["all", "knative", "flows"],
        namespaced: true,
        has_status: true,
        unknown_fields: UnknownFieldPolicy::Reject,
        user_creatable: true,
        columns: &[column("URL", ".status.address.url"), AGE, READY, REASON],
        duck_types: &[DuckType::Addressable],
        role_rules: RECONCILED,
        ..CORE
    };

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }

    fn set_defaults(&mut self, _: Option<&Self>, requester: &RequestContext) {
        let home = namespace(&self.metadata).to_owned();
        let given = || ChannelTemplate::default_for(&requester.settings, &home);
        self.spec.channel_template.get_or_insert_with(given);
        for step in &mut self.spec.steps {
            if let Some(reference) = &mut step.reference {
                delivery::default_reference(reference, &home);
            }
            if let Some(delivery) = &mut step.delivery {
                delivery::default_delivery(delivery, &home);
            }
        }
        if let Some(reply) = &mut self.spec.reply {
            delivery::default_destination(reply, &home);
        }
    }

    fn validate(&self, _: Option<&Self>, problems: &mut FieldErrors) {
        if self.spec.steps.is_empty() {
            problems.add("spec.steps", MISSING);
        }
        for (n, step) in self.spec.steps.iter().enumerate() {
            let at = format!("spec.steps[{n}]");
            delivery::validate_destination(&step.destination(), &at, problems);
            if let Some(delivery) = &step.delivery {
                delivery::validate_delivery(delivery, &format!("{at}.delivery"), problems);
            }
        }
        match &self.spec.channel_template {
            Some(template) => template.validate("spec.channelTemplate", problems),
            None => problems.add("spec.channelTemplate", MISSING),
        }
        if let Some(reply) = &self.spec.reply {
            delivery::validate_destination(reply, "spec.reply", problems);
        }
    }

    fn validate_settings(&self, _: Option<&Self>, settings: &Settings, problems: &mut FieldErrors) {
        let features = &settings.event_features;
        for (n, step) in self.spec.steps.iter().enumerate() {
            let at = format!("spec.steps[{n}]");
            delivery_features::check_destination_features(&step.destination(), &at, features, problems);
            delivery_features::check_delivery_features(
                step.delivery.as_ref(),
                &format!("{at}.delivery"),
                features,
                problems,
            );
        }
        delivery_features::check_destination_features(&self.spec.reply, "spec.reply", features, problems);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::field_errors::AdmissionError;
    use crate::kind_registry::KindEntry;

    fn admit(spec: Value) -> Result<Value, AdmissionError> {
        let object = json!({"metadata": {"name": "s", "namespace": "ns"}, "spec": spec});
        (KindEntry::of::<Sequence>().admit)(
            object,
            None,
            &RequestContext { user: "alice".into(), ..RequestContext::default() },
        )
    }

    #[test]
    fn a_sequence_gets_a_template_and_its_references_a_namespace() {
        let reference = json!({"kind": "Service", "apiVersion": "v1", "name": "s"});
        let stored = admit(json!({"steps": [{"ref": reference}, {"uri": "http://a/", "delivery": {"retry": 1}}]}));
        let spec = &stored.unwrap()["spec"];
        assert_eq!(spec["channelTemplate"]["kind"], "InMemoryChannel");
        assert_eq!(spec["steps"][0]["ref"]["namespace"], "ns");
        assert_eq!(spec["steps"][1], json!({"uri": "http://a/", "delivery": {"retry": 1}}));
    }

    #[test]
    fn every_step_leads_somewhere_and_has_no_field_that_nobody_knows() {
        for (spec, field) in [
            (json!({"steps": []}), "spec.steps"),
            (json!({"steps": [{"uri": "http://a/"}, {}]}), "spec.steps[1]"),
            (json!({"steps": [{"uri": "http://a/", "delivery": {"retry": -1}}]}), "spec.steps[0].delivery.retry"),
            (json!({"steps": [{"uri": "http://a/"}], "reply": {}}), "spec.reply"),
        ] {
            let Err(AdmissionError::Invalid(problems)) = admit(spec.clone()) else { panic!("{spec}") };
            assert_eq!(problems[0].field, field);
        }
        let unknown = admit(json!({"steps": [{"uri": "http://a/", "url": "http://b/"}]}));
        assert!(matches!(unknown, Err(AdmissionError::Malformed(_))));
    }
}
