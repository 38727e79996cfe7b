//! Service: one program under one name, with its versions and its traffic.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::template::RevisionTemplate;
use super::traffic::{self, TrafficParent, TrafficTarget};
use super::{GROUP, VERSION, annotations, durable_requests, traffic_policy};
use crate::conditions::ConditionSet;
use crate::duck_types::DuckType;
use crate::field_errors::FieldErrors;
use crate::kind;
use crate::kind_registry::{CORE, KindMeta, RequestContext, ResourceStrategy, UnknownFieldPolicy};
use crate::printer_column::{READY, REASON, column};
use crate::role_rules::RECONCILED;
use crate::settings::Settings;
use crate::shared::{Addressable, Status};
use crate::sink_injection::BindableKind;

pub const CONFIGURATIONS_READY: &str = "ConfigurationsReady";
pub const ROUTES_READY: &str = "RoutesReady";
pub const CONDITIONS: ConditionSet = ConditionSet { dependents: &[CONFIGURATIONS_READY, ROUTES_READY] };

kind! {
    /// `serving.knative.dev/v1` Service.
    Service { spec: ServiceSpec, status: ServiceStatus }
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ServiceSpec {
    /// The next Revision; each change makes a new one.
    pub template: RevisionTemplate,
    /// How requests are divided over Revisions; by default all go to the newest ready one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub traffic: Vec<TrafficTarget>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ServiceStatus {
    #[serde(flatten)]
    pub base: Status,
    /// The newest Revision that is ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latest_ready_revision_name: Option<String>,
    /// The newest Revision.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latest_created_revision_name: Option<String>,
    /// Where the Service is reached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// Where events for the Service go.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<Addressable>,
    /// How requests are divided now.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub traffic: Vec<TrafficTarget>,
}

impl ResourceStrategy for Service {
    const META: KindMeta = KindMeta {
        group: GROUP,
        version: VERSION,
        kind: "Service",
        plural: "services",
        singular: "service",
        short_names: &["kservice", "ksvc"],
        categories: &["all", "knative", "serving"],
        namespaced: true,
        has_status: true,
        unknown_fields: UnknownFieldPolicy::Prune,
        user_creatable: true,
        columns: &[
            column("URL", ".status.url"),
            column("LatestCreated", ".status.latestCreatedRevisionName"),
            column("LatestReady", ".status.latestReadyRevisionName"),
            READY,
            REASON,
        ],
        duck_types: &[DuckType::Addressable, DuckType::Podspecable],
        role_rules: RECONCILED,
        ..CORE
    };

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }

    fn set_defaults(&mut self, before: Option<&Self>, requester: &RequestContext) {
        // Defaults change no value that is there, so a template that keeps its own name stays equal to
        // the stored one however bare the manifest is.
        self.spec.template.set_defaults(&requester.settings);
        let was = before.map(|before| &before.spec.template);
        let bound = (BindableKind::Service, &self.metadata);
        self.spec.template.inject_sink(&requester.injections, bound, was);
        if self.spec.traffic.is_empty() {
            self.spec.traffic.push(TrafficTarget::all_to_latest());
        }
        for target in &mut self.spec.traffic {
            target.set_defaults();
        }
        let changed = before.is_some_and(|b| b.spec != self.spec);
        annotations::set_user(&mut self.metadata, before.map(|b| &b.metadata), changed, requester);
    }

    fn validate(&self, before: Option<&Self>, problems: &mut FieldErrors) {
        annotations::validate_name(&self.metadata, problems);
        annotations::reject_autoscaling(&self.metadata, problems);
        annotations::validate_rollout_duration(&self.metadata, problems);
        annotations::validate_visibility(&self.metadata, before.map(|b| &b.metadata), problems);
        let changed = before.is_some_and(|b| b.spec != self.spec);
        annotations::validate_user(&self.metadata, before.map(|b| &b.metadata), changed, problems);
        self.spec.template.validate(&self.metadata, before.map(|b| &b.spec.template), problems);
        traffic::validate(&self.spec.traffic, TrafficParent::Service, problems);
        traffic_policy::validate(&self.metadata, &self.spec.traffic, problems);
        durable_requests::validate(&self.metadata, problems);
    }

    fn validate_settings(&self, _: Option<&Self>, settings: &Settings, problems: &mut FieldErrors) {
        self.spec.template.validate_settings(settings, problems);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::field_errors::AdmissionError;
    use crate::kind_registry::KindEntry;

    fn alice() -> RequestContext {
        RequestContext { user: "alice".into(), ..RequestContext::default() }
    }

    fn hello(image: &str) -> Value {
        json!({
            "apiVersion": "serving.knative.dev/v1", "kind": "Service",
            "metadata": {"name": "hello", "namespace": "default"},
            "spec": {"template": {"spec": {"containers": [{"image": image}]}}}
        })
    }

    fn admit(new: Value, before: Option<&Value>, user: &str) -> Result<Value, AdmissionError> {
        (KindEntry::of::<Service>().admit)(
            new,
            before,
            &RequestContext { user: user.into(), ..RequestContext::default() },
        )
    }

    /// SRV-SVC-12, SRV-SVC-13, SRV-EXT-05: an image is enough; all traffic goes to the latest.
    #[test]
    fn a_service_with_nothing_but_an_image_is_admitted_and_filled() {
        let stored = admit(hello("a"), None, "alice").unwrap();
        assert_eq!(stored["spec"]["traffic"], json!([{"latestRevision": true, "percent": 100}]));
        assert_eq!(stored["spec"]["template"]["spec"]["timeoutSeconds"], 300);
        assert_eq!(stored["metadata"]["annotations"]["serving.knative.dev/creator"], "alice");
        assert_eq!(stored["metadata"]["annotations"]["serving.knative.dev/lastModifier"], "alice");
    }

    /// SRV-EXT-04 (AMB-01): serving kinds drop what they do not know.
    #[test]
    fn unknown_fields_are_pruned() {
        let mut service = hello("a");
        service["spec"]["nonsense"] = json!(1);
        service["spec"]["template"]["spec"]["nodeName"] = json!("a");
        let stored = admit(service, None, "alice").unwrap();
        assert_eq!(stored["spec"].get("nonsense"), None);
        assert_eq!(stored["spec"]["template"]["spec"].get("nodeName"), None);
    }

    /// SRV-API-37: the same manifest twice changes nothing.
    #[test]
    fn the_same_manifest_again_is_the_same_object() {
        let stored = admit(hello("a"), None, "alice").unwrap();
        assert_eq!(admit(hello("a"), Some(&stored), "bob").unwrap(), stored);
    }

    #[test]
    fn the_last_modifier_follows_spec_changes_and_the_creator_stays() {
        let stored = admit(hello("a"), None, "alice").unwrap();
        let changed = admit(hello("b"), Some(&stored), "bob").unwrap();
        assert_eq!(changed["metadata"]["annotations"]["serving.knative.dev/creator"], "alice");
        assert_eq!(changed["metadata"]["annotations"]["serving.knative.dev/lastModifier"], "bob");

        let mut forged = hello("a");
        forged["metadata"]["annotations"] = json!({"serving.knative.dev/creator": "mallory"});
        assert!(matches!(admit(forged, Some(&stored), "bob"), Err(AdmissionError::Invalid(_))));
    }

    /// SRV-SVC-11: a template without containers is refused.
    #[test]
    fn a_service_without_containers_is_refused() {
        let mut service = hello("a");
        service["spec"] = json!({});
        let Err(AdmissionError::Invalid(problems)) = admit(service, None, "alice") else { panic!("admitted") };
        assert_eq!(problems[0].field, "spec.template.spec.containers");
    }

    /// An own name is kept across an apply of the same manifest, whose template lacks the defaults.
    #[test]
    fn the_same_own_name_with_the_same_manifest_is_no_change() {
        let mut service = hello("a");
        service["spec"]["template"]["metadata"] = json!({"name": "hello-one"});
        let stored = admit(service.clone(), None, "alice").unwrap();
        assert_eq!(admit(service.clone(), Some(&stored), "alice").unwrap(), stored);

        service["spec"]["template"]["spec"]["containers"][0]["image"] = json!("b");
        let Err(AdmissionError::Invalid(problems)) = admit(service, Some(&stored), "alice") else { panic!("admitted") };
        assert!(problems[0].message.contains("without a name change"));
    }

    #[test]
    fn autoscaling_annotations_belong_to_the_template() {
        let mut service: Service = serde_json::from_value(hello("a")).unwrap();
        service.set_defaults(None, &alice());
        service
            .metadata
            .annotations
            .get_or_insert_default()
            .insert("autoscaling.knative.dev/min-scale".into(), "1".into());
        let mut problems = FieldErrors::default();
        service.validate(None, &mut problems);
        assert!(problems.list[0].message.contains("spec.template.metadata.annotations"));
    }

    #[test]
    fn a_value_of_the_wrong_type_is_named() {
        let mut service = hello("a");
        service["spec"]["traffic"] = json!("all");
        let Err(AdmissionError::WrongTypes(wrong)) = admit(service, None, "alice") else { panic!("admitted") };
        assert_eq!(wrong[0].field, "spec.traffic");
    }
}
