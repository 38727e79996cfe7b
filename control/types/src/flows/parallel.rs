//! Parallel: branches that all get every event, each with an optional filter.

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
use crate::shared::{Addressable, AppliedPolicy, AuthStatus, DeliverySpec, Destination, Status, namespace};

kind! {
    /// `flows.knative.dev/v1` Parallel.
    Parallel { spec: ParallelSpec, status: ParallelStatus }
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ParallelSpec {
    pub branches: Vec<ParallelBranch>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub channel_template: Option<ChannelTemplate>,
    /// The destination of replies of branches without a `reply` of their own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reply: Option<Destination>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ParallelBranch {
    /// Gets each event; its reply, if there is one, goes to the subscriber.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub filter: Option<Destination>,
    pub subscriber: Destination,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reply: Option<Destination>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delivery: Option<DeliverySpec>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ParallelStatus {
    #[serde(flatten)]
    pub base: Status,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ingress_channel_status: Option<FlowChannelStatus>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub branch_statuses: Vec<ParallelBranchStatus>,
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

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ParallelBranchStatus {
    pub filter_subscription_status: FlowSubscriptionStatus,
    pub filter_channel_status: FlowChannelStatus,
    pub subscriber_subscription_status: FlowSubscriptionStatus,
}

impl ResourceStrategy for Parallel {
    const META: KindMeta = KindMeta {
        group: GROUP,
        version: VERSION,
        kind: "Parallel",
        plural: "parallels",
        singular: "parallel",
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
        for branch in &mut self.spec.branches {
            delivery::default_destination(&mut branch.subscriber, &home);
            for destination in [&mut branch.filter, &mut branch.reply].into_iter().flatten() {
                delivery::default_destination(destination, &home);
            }
            if let Some(delivery) = &mut branch.delivery {
                delivery::default_delivery(delivery, &home);
            }
        }
        if let Some(reply) = &mut self.spec.reply {
            delivery::default_destination(reply, &home);
        }
    }

    fn validate(&self, _: Option<&Self>, problems: &mut FieldErrors) {
        if self.spec.branches.is_empty() {
            problems.add("spec.branches", MISSING);
        }
        for (n, branch) in self.spec.branches.iter().enumerate() {
            let at = format!("spec.branches[{n}]");
            delivery::validate_destination(&branch.subscriber, &format!("{at}.subscriber"), problems);
            for (destination, field) in [(&branch.filter, "filter"), (&branch.reply, "reply")] {
                if let Some(destination) = destination {
                    delivery::validate_destination(destination, &format!("{at}.{field}"), problems);
                }
            }
            if let Some(delivery) = &branch.delivery {
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
        for (n, branch) in self.spec.branches.iter().enumerate() {
            let at = format!("spec.branches[{n}]");
            delivery_features::check_destination_features(
                &branch.subscriber,
                &format!("{at}.subscriber"),
                features,
                problems,
            );
            for (destination, field) in [(&branch.filter, "filter"), (&branch.reply, "reply")] {
                delivery_features::check_destination_features(
                    destination,
                    &format!("{at}.{field}"),
                    features,
                    problems,
                );
            }
            delivery_features::check_delivery_features(
                branch.delivery.as_ref(),
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
        let object = json!({"metadata": {"name": "p", "namespace": "ns"}, "spec": spec});
        (KindEntry::of::<Parallel>().admit)(
            object,
            None,
            &RequestContext { user: "alice".into(), ..RequestContext::default() },
        )
    }

    #[test]
    fn every_branch_has_a_subscriber_and_what_it_names_leads_somewhere() {
        let to = json!({"uri": "http://a/"});
        let stored = admit(json!({"branches": [{"subscriber": to}]})).unwrap();
        assert_eq!(stored["spec"]["channelTemplate"]["kind"], "InMemoryChannel");
        for (spec, field) in [
            (json!({"branches": []}), "spec.branches"),
            (json!({"branches": [{"filter": to}]}), "spec.branches[0].subscriber"),
            (json!({"branches": [{"subscriber": to, "filter": {}}]}), "spec.branches[0].filter"),
            (json!({"branches": [{"subscriber": to, "reply": {"uri": "/x"}}]}), "spec.branches[0].reply.uri"),
        ] {
            let Err(AdmissionError::Invalid(problems)) = admit(spec.clone()) else { panic!("{spec}") };
            assert_eq!(problems[0].field, field);
        }
    }
}
