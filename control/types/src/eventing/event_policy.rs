//! EventPolicy: which senders may send which events to an addressable object (X-FEA-09). It applies while senders
//! must authenticate.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelectorRequirement, ObjectMeta};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::GROUP;
use super::filters::{self, SubscriptionsApiFilter};
use crate::conditions::ConditionSet;
use crate::field_errors::{FieldErrors, MISSING};
use crate::kind_registry::{CORE, KindMeta, RequestContext, ResourceStrategy, UnknownFieldPolicy};
use crate::printer_column::{READY, REASON};
use crate::role_rules::RECONCILED;
use crate::settings::Settings;
use crate::shared::{Status, name, namespace};
use crate::{kind, selector};

pub const VERSION: &str = "v1alpha1";
/// Group and version as `status.policies` names them.
pub const API_VERSION: &str = "eventing.knative.dev/v1alpha1";

pub const AUTHENTICATION_ENABLED: &str = "AuthenticationEnabled";
pub const SUBJECTS_RESOLVED: &str = "SubjectsResolved";
pub const CONDITIONS: ConditionSet = ConditionSet { dependents: &[AUTHENTICATION_ENABLED, SUBJECTS_RESOLVED] };

/// Entries of `from`, and of `to`: each is read whenever the policy is compiled.
const ENTRIES_MAX: usize = 1000;

kind! {
    /// `eventing.knative.dev/v1alpha1` EventPolicy.
    EventPolicy { spec: EventPolicySpec, status: EventPolicyStatus }
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct EventPolicySpec {
    /// The protected objects; empty means all in the namespace.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub to: Vec<EventPolicySpecTo>,
    /// Senders that are allowed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub from: Vec<EventPolicySpecFrom>,
    /// The events that they may send; empty means all.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub filters: Vec<SubscriptionsApiFilter>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct EventPolicySpecTo {
    /// One object.
    #[serde(rename = "ref", skip_serializing_if = "Option::is_none")]
    pub reference: Option<EventPolicyReference>,
    /// All objects of a kind that have labels.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<EventPolicySelector>,
}

/// Spelled out, because a flattened selector would accept unknown fields silently.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct EventPolicySelector {
    pub api_version: String,
    pub kind: String,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub match_labels: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub match_expressions: Vec<LabelSelectorRequirement>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct EventPolicySpecFrom {
    /// An object that sends events under a service account of its own.
    #[serde(rename = "ref", skip_serializing_if = "Option::is_none")]
    pub reference: Option<EventPolicyReference>,
    /// A token's subject; with `*` at its end, all with that prefix.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sub: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct EventPolicyReference {
    pub api_version: String,
    pub kind: String,
    pub name: String,
    /// The namespace of a sender; by default the policy's own. The protected objects are always in the policy's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct EventPolicyStatus {
    #[serde(flatten)]
    pub base: Status,
    /// The subjects of all senders.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub from: Vec<String>,
}

/// An object that a policy may protect.
#[derive(Debug, Clone, Copy)]
pub struct PolicyTarget<'a> {
    pub group: &'a str,
    pub kind: &'a str,
    pub meta: &'a ObjectMeta,
}

impl<'a> PolicyTarget<'a> {
    #[must_use]
    pub fn of<R: ResourceStrategy>(meta: &'a ObjectMeta) -> Self {
        Self { group: R::META.group, kind: R::META.kind, meta }
    }

    /// The audience of tokens for it.
    #[must_use]
    pub fn audience(&self) -> String {
        let (ns, name) = (namespace(self.meta), name(self.meta));
        format!("{}/{}/{ns}/{name}", self.group, self.kind).to_lowercase()
    }
}

impl EventPolicy {
    /// Whether it applies to `object`, in any version of its kind.
    #[must_use]
    pub fn applies_to(&self, object: &PolicyTarget<'_>) -> bool {
        let is_kind =
            |version: &str, kind: &str| version.split('/').next() == Some(object.group) && kind == object.kind;
        let one = |to: &EventPolicySpecTo| {
            let named = to
                .reference
                .as_ref()
                .is_some_and(|one| is_kind(&one.api_version, &one.kind) && one.name == name(object.meta));
            named
                || to
                    .selector
                    .as_ref()
                    .is_some_and(|all| is_kind(&all.api_version, &all.kind) && all.matches(object.meta))
        };
        namespace(&self.metadata) == namespace(object.meta) && (self.spec.to.is_empty() || self.spec.to.iter().any(one))
    }
}

impl EventPolicySelector {
    fn matches(&self, meta: &ObjectMeta) -> bool {
        selector::matches(&self.match_labels, &self.match_expressions, meta)
    }

    fn validate(&self, at: &str, problems: &mut FieldErrors) {
        check_required(&[("apiVersion", &self.api_version), ("kind", &self.kind)], at, problems);
        selector::validate(&self.match_expressions, at, problems);
    }
}

impl EventPolicyReference {
    fn validate(&self, at: &str, problems: &mut FieldErrors) {
        let fields = [("kind", &self.kind), ("apiVersion", &self.api_version), ("name", &self.name)];
        check_required(&fields, at, problems);
    }
}

fn check_required(fields: &[(&str, &String)], at: &str, problems: &mut FieldErrors) {
    for (field, _) in fields.iter().filter(|(_, value)| value.is_empty()) {
        problems.add(format!("{at}.{field}"), MISSING);
    }
}

/// Exactly one of the two must be set.
fn exactly_one(has: [bool; 2], of: &str, at: &str, problems: &mut FieldErrors) {
    match has {
        [true, true] => problems.add(at, format!("expected exactly one, got both: {of}")),
        [false, false] => problems.add(at, format!("expected exactly one, got neither: {of}")),
        _ => {}
    }
}

impl ResourceStrategy for EventPolicy {
    const META: KindMeta = KindMeta {
        group: GROUP,
        version: VERSION,
        kind: "EventPolicy",
        plural: "eventpolicies",
        singular: "eventpolicy",
        short_names: &[],
        categories: &["all", "knative", "eventing"],
        namespaced: true,
        has_status: true,
        unknown_fields: UnknownFieldPolicy::Reject,
        user_creatable: true,
        columns: &[READY, REASON],
        role_rules: RECONCILED,
        ..CORE
    };

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }

    fn set_defaults(&mut self, _: Option<&Self>, _: &RequestContext) {
        let home = namespace(&self.metadata).to_owned();
        for sender in self.spec.from.iter_mut().filter_map(|from| from.reference.as_mut()) {
            if sender.namespace.as_deref().unwrap_or_default().is_empty() && !home.is_empty() {
                sender.namespace = Some(home.clone());
            }
        }
    }

    fn validate(&self, before: Option<&Self>, problems: &mut FieldErrors) {
        for (list, count) in [("from", self.spec.from.len()), ("to", self.spec.to.len())] {
            if count > ENTRIES_MAX {
                problems.add(format!("spec.{list}"), format!("{count} entries, limit {ENTRIES_MAX}"));
            }
        }
        for (index, from) in self.spec.from.iter().enumerate() {
            let at = format!("spec.from[{index}]");
            let sub = from.sub.as_deref().filter(|sub| !sub.is_empty());
            exactly_one([from.reference.is_some(), sub.is_some()], "ref, sub", &at, problems);
            if let Some(reference) = &from.reference {
                reference.validate(&format!("{at}.ref"), problems);
            }
            if let Some(sub) = sub
                && sub.find('*').is_some_and(|star| star + 1 < sub.len())
            {
                problems.add(format!("{at}.sub"), format!("invalid value: {sub}: '*' is only allowed as suffix"));
            }
        }
        for (index, to) in self.spec.to.iter().enumerate() {
            let at = format!("spec.to[{index}]");
            exactly_one([to.reference.is_some(), to.selector.is_some()], "ref, selector", &at, problems);
            if let Some(reference) = &to.reference {
                reference.validate(&format!("{at}.ref"), problems);
                if reference.namespace.as_deref().is_some_and(|ns| !ns.is_empty()) {
                    let why = "must not set the field(s): a policy protects objects in its own namespace";
                    problems.add(format!("{at}.ref.namespace"), why);
                }
            }
            if let Some(selector) = &to.selector {
                selector.validate(&format!("{at}.selector"), problems);
            }
        }
        filters::validate(&self.spec.filters, "spec.filters", problems);
        let filters = before.map(|before| before.spec.filters.as_slice());
        filters::refuse_empty(&self.spec.filters, filters, "spec.filters", problems);
    }

    /// An author must not rely on a policy that is not enforced.
    fn validate_settings(&self, _: Option<&Self>, settings: &Settings, problems: &mut FieldErrors) {
        if !settings.event_features.authenticates() {
            let why = "authentication-oidc feature not enabled: set it in ConfigMap config-features of \
                       knative-eventing first";
            problems.add("spec", why);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};

    use super::*;
    use crate::eventing::broker::Broker;
    use crate::field_errors::AdmissionError;
    use crate::kind_registry::KindEntry;
    use crate::settings::{ConfigMapSetting as _, EventingFeatures};

    fn admit(spec: &Value, oidc: &str) -> Result<Value, AdmissionError> {
        let data = [("authentication-oidc".to_owned(), oidc.to_owned())].into();
        let event_features = EventingFeatures::parse(&data, &mut FieldErrors::default());
        let settings = Arc::new(Settings { event_features, ..Settings::default() });
        let object = json!({"metadata": {"name": "p", "namespace": "ns"}, "spec": spec});
        (KindEntry::of::<EventPolicy>().admit)(object, None, &RequestContext { settings, ..RequestContext::default() })
    }

    /// X-FEA-09: each entry has exactly one form, and a star is only at the end.
    #[test]
    fn what_makes_no_sense_is_refused_with_its_place() {
        let whole = json!({"apiVersion": "eventing.knative.dev/v1", "kind": "Broker", "name": "b"});
        for (spec, at) in [
            (json!({"from": [{}]}), "spec.from[0]"),
            (json!({"from": [{"sub": ""}]}), "spec.from[0]"),
            (json!({"from": [{"sub": "a", "ref": whole}]}), "spec.from[0]"),
            (json!({"from": [{"ref": {"kind": "A", "name": "b"}}]}), "spec.from[0].ref.apiVersion"),
            (json!({"from": [{"sub": "a*b"}]}), "spec.from[0].sub"),
            (json!({"to": [{}]}), "spec.to[0]"),
            (json!({"to": [{"ref": whole, "selector": {"apiVersion": "a", "kind": "b"}}]}), "spec.to[0]"),
            (json!({"to": [{"selector": {"kind": "b"}}]}), "spec.to[0].selector.apiVersion"),
            (
                json!({"to": [{"selector": {"apiVersion": "a", "kind": "b", "matchExpressions": [{"key": "k", "operator": "?"}]}}]}),
                "spec.to[0].selector.matchExpressions[0].operator",
            ),
            (json!({"filters": [{"cesql": "("}]}), "spec.filters[0].cesql"),
        ] {
            match admit(&spec, "enabled") {
                Err(AdmissionError::Invalid(problems)) => assert_eq!(problems[0].field, at, "{spec}"),
                other => panic!("{spec}: {other:?}"),
            }
        }
        let good = json!({"from": [{"sub": "system:serviceaccount:ns:*"}, {"ref": whole}], "to": [{"ref": whole}]});
        let stored = admit(&good, "enabled").unwrap();
        assert_eq!(stored["spec"]["from"][1]["ref"]["namespace"], "ns");
        assert!(admit(&json!({}), "enabled").is_ok());
        let Err(AdmissionError::Invalid(off)) = admit(&good, "disabled") else { panic!("admitted") };
        assert!(off[0].message.contains("config-features"));
    }

    /// X-FEA-09: by name, by labels, or everything in the namespace.
    #[test]
    fn a_policy_speaks_of_what_it_names() {
        let meta = |ns: &str| ObjectMeta {
            namespace: Some(ns.into()),
            name: Some("b".into()),
            labels: Some([("app".to_owned(), "shop".to_owned())].into()),
            ..ObjectMeta::default()
        };
        let (here, there) = (meta("ns"), meta("other"));
        let reference =
            |version: &str, kind: &str, name: &str| json!({"ref": {"apiVersion": version, "kind": kind, "name": name}});
        let selector = |rest: Value| {
            let mut selector = json!({"apiVersion": "eventing.knative.dev/v1", "kind": "Broker"});
            selector.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
            json!({ "selector": selector })
        };
        for (to, protects) in [
            (json!([]), true),
            (json!([reference("eventing.knative.dev/v1", "Broker", "b")]), true),
            (json!([reference("eventing.knative.dev/v1beta1", "Broker", "b")]), true),
            (json!([reference("eventing.knative.dev/v1", "Broker", "c")]), false),
            (json!([reference("messaging.knative.dev/v1", "Broker", "b")]), false),
            (json!([selector(json!({}))]), true),
            (json!([selector(json!({"matchLabels": {"app": "shop"}}))]), true),
            (json!([selector(json!({"matchLabels": {"app": "else"}}))]), false),
            (
                json!([selector(
                    json!({"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["shop"]}]})
                )]),
                false,
            ),
            (json!([selector(json!({"matchExpressions": [{"key": "x", "operator": "DoesNotExist"}]}))]), true),
        ] {
            let policy = EventPolicy::new("ns", "p", serde_json::from_value(json!({ "to": to })).unwrap());
            assert_eq!(policy.applies_to(&PolicyTarget::of::<Broker>(&here)), protects, "{to}");
            assert!(!policy.applies_to(&PolicyTarget::of::<Broker>(&there)), "{to}");
        }
        assert_eq!(PolicyTarget::of::<Broker>(&here).audience(), "eventing.knative.dev/broker/ns/b");
    }
}
