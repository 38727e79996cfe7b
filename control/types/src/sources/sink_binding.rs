//! SinkBinding: injects a sink into the programs of other objects.

use k8s_openapi::api::core::v1::EnvVar;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::ping::OIDC_IDENTITY_CREATED;
use super::{CloudEventOverrides, SINK_PROVIDED, SOURCE, SourceStatus};
use crate::delivery;
use crate::duck_types::DuckType;
use crate::field_errors::{FieldErrors, MISSING};
use crate::kind;
use crate::kind_registry::{KindMeta, RequestContext, ResourceStrategy};
use crate::settings::Settings;
use crate::shared::{Destination, SPEC_CHANGED, name, namespace};
use crate::sink_injection::{
    self, BindableKind, BindingSubject, CA_CERTS, InjectedSink, OVERRIDES, SINK, SinkInjection, token_secret,
};

/// The finalizer that holds a binding until its variables are removed from its subjects, by upstream's name.
pub const FINALIZER: &str = "sinkbindings.sources.knative.dev";

pub const AVAILABLE: &str = "SinkBindingAvailable";
pub const OIDC_TOKEN_SECRET_CREATED: &str = "OIDCTokenSecretCreated";
pub const TRUST_BUNDLE_PROPAGATED: &str = "TrustBundlePropagated";
/// Why a binding has no effect.
pub const NOT_BOUND: &str = "nothing here runs objects of the subject's kind: \
    Services, Configurations, Deployments, ReplicaSets and Jobs can be bound";

kind! {
    /// `sources.knative.dev/v1` SinkBinding.
    SinkBinding { spec: SinkBindingSpec, status: SourceStatus }
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SinkBindingSpec {
    /// Where events go.
    pub sink: Destination,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ce_overrides: Option<CloudEventOverrides>,
    /// The sender of the events.
    pub subject: BindingSubject,
}

impl SinkBinding {
    #[must_use]
    pub fn has_finalizer(&self) -> bool {
        self.metadata.finalizers.iter().flatten().any(|one| one == FINALIZER)
    }

    /// Whether this binding injects into an object of the kind `runs`, or would if no older one did.
    #[must_use]
    pub fn applies_to(&self, runs: BindableKind, object: &ObjectMeta) -> bool {
        self.is_in_force()
            && self.spec.subject.bindable_kind() == Some(runs)
            && sink_injection::applies_to(&self.spec.subject, object)
    }

    /// It has its finalizer, and is not being deleted.
    fn is_in_force(&self) -> bool {
        self.metadata.deletion_timestamp.is_none() && self.has_finalizer()
    }

    /// The injection into subjects when they are written.
    #[must_use]
    pub fn injection(&self) -> Option<SinkInjection> {
        let kind = self.spec.subject.bindable_kind().filter(|_| self.is_in_force())?;
        Some(SinkInjection {
            kind,
            subject: self.spec.subject.clone(),
            created: self.metadata.creation_timestamp.clone(),
            name: name(&self.metadata).to_owned(),
            sink: self.last_sink(),
        })
    }

    /// The older one of two takes precedence.
    #[must_use]
    pub fn age(&self) -> (Option<&Time>, &str) {
        (self.metadata.creation_timestamp.as_ref(), name(&self.metadata))
    }

    /// What subjects get for a sink.
    #[must_use]
    pub fn injected_sink(&self, url: &str, ca_certs: Option<&str>, audience: Option<&str>) -> InjectedSink {
        let overrides = self.spec.ce_overrides.as_ref().and_then(|known| serde_json::to_string(known).ok());
        let one = |name: &str, value: String| EnvVar { name: name.to_owned(), value: Some(value), ..EnvVar::default() };
        let mut injected = vec![one(SINK, url.to_owned()), one(OVERRIDES, overrides.unwrap_or_default())];
        injected.extend(ca_certs.map(|known| one(CA_CERTS, known.to_owned())));
        InjectedSink { variables: injected, token_secret: audience.map(|_| token_secret(name(&self.metadata))) }
    }

    /// The same from the status of the sink.
    fn last_sink(&self) -> Option<InjectedSink> {
        let status = self.status.as_ref()?;
        let certificates = status.sink_ca_certs.as_deref();
        Some(self.injected_sink(status.sink_uri.as_deref()?, certificates, status.sink_audience.as_deref()))
    }
}

source! {
    SinkBinding {
        conditions: [
            AVAILABLE,
            SINK_PROVIDED,
            OIDC_IDENTITY_CREATED,
            OIDC_TOKEN_SECRET_CREATED,
            TRUST_BUNDLE_PROPAGATED
        ]
    }
}

/// A binding to a kind that nothing here runs gets a warning at once.
pub(super) fn warnings(object: &Value) -> Vec<String> {
    let subject = object
        .pointer("/spec/subject")
        .cloned()
        .and_then(|subject| serde_json::from_value::<BindingSubject>(subject).ok());
    let is_bound = subject.is_none_or(|subject| subject.bindable_kind().is_some());
    if is_bound { Vec::new() } else { vec![NOT_BOUND.to_owned()] }
}

impl ResourceStrategy for SinkBinding {
    const META: KindMeta = KindMeta {
        kind: "SinkBinding",
        plural: "sinkbindings",
        singular: "sinkbinding",
        categories: &["all", "knative", "sources", "bindings"],
        duck_types: &[DuckType::Source, DuckType::Binding],
        ..SOURCE
    };

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }

    fn set_defaults(&mut self, _: Option<&Self>, _: &RequestContext) {
        let home = namespace(&self.metadata).to_owned();
        delivery::default_destination(&mut self.spec.sink, &home);
        let subject = &mut self.spec.subject;
        if subject.namespace.as_deref().unwrap_or_default().is_empty() {
            subject.namespace = Some(home);
        }
    }

    fn validate(&self, old: Option<&Self>, problems: &mut FieldErrors) {
        let spec = &self.spec;
        if old.is_some_and(|old| old.spec.subject != spec.subject) {
            problems.add("spec.subject", SPEC_CHANGED);
        }
        super::validate(&spec.sink, spec.ce_overrides.as_ref(), problems);
        for (field, value) in [("apiVersion", &spec.subject.api_version), ("kind", &spec.subject.kind)] {
            if value.is_empty() {
                problems.add(format!("spec.subject.{field}"), MISSING);
            }
        }
        if spec.subject.namespace.as_deref() != Some(namespace(&self.metadata)) {
            let other = spec.subject.namespace.as_deref().unwrap_or_default();
            problems.add("spec.subject.namespace", format!("invalid value: {other}"));
        }
        let named = spec.subject.name.as_deref().is_some_and(|name| !name.is_empty());
        match (named, spec.subject.selector.is_some()) {
            (true, true) => problems.add("spec.subject", "expected exactly one, got both: name, selector"),
            (false, false) => problems.add("spec.subject", "expected exactly one, got neither: name, selector"),
            _ => {}
        }
    }

    fn validate_settings(&self, _: Option<&Self>, settings: &Settings, problems: &mut FieldErrors) {
        super::validate_by(&self.spec.sink, settings, problems);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::serving::template::RevisionTemplate;
    use crate::sink_injection::EXCLUDE;

    fn template(own_name: Option<&str>, env: Value) -> RevisionTemplate {
        let spec = json!({ "containers": [{ "name": "a", "env": env }, { "name": "b" }], "initContainers": [{ "name": "c" }] });
        serde_json::from_value(json!({ "metadata": { "name": own_name }, "spec": spec })).unwrap()
    }

    fn environments(template: &RevisionTemplate) -> Value {
        let spec = json!(template.spec);
        let env = |list: &str, nth: usize| spec[list][nth]["env"].clone();
        json!([env("containers", 0), env("containers", 1), env("initContainers", 0)])
    }

    /// SRC-16, SRC-20: all containers get the variables, once; an author's variables stay where they are, and none of ours remain.
    #[test]
    fn environment_has_only_current_sink_variables() {
        let injected = |env: &Value, injected: &[(&str, &str)]| {
            let mut template = template(None, env.clone());
            let one = |(name, value): &(&str, &str)| json!({ "name": name, "value": value });
            let injected: Vec<EnvVar> =
                injected.iter().map(|injected| serde_json::from_value(one(injected)).unwrap()).collect();
            template.set_sink(&InjectedSink { variables: injected, token_secret: None });
            environments(&template)
        };
        let sink = json!({ "name": "K_SINK", "value": "http://b" });
        let (author, last) = (json!({ "name": "A", "value": "1" }), json!({ "name": "Z", "value": "2" }));
        let old =
            json!([author, { "name": "K_SINK", "value": "http://a" }, { "name": "K_CA_CERTS", "value": "pem" }, last]);
        assert_eq!(injected(&old, &[("K_SINK", "http://b")]), json!([[author, sink, last], [sink], [sink]]));
        assert_eq!(injected(&old, &[]), json!([[author, last], null, null]));
        assert_eq!(injected(&json!(null), &[]), json!([null, null, null]));
    }

    /// X-FEA-07: the token is a file of each container, and is removed with the binding; a volume of the author stays.
    #[test]
    fn token_is_a_file_and_no_variable() {
        let mut subject = template(None, json!([{ "name": "A", "value": "1" }]));
        let own = json!({ "name": "own", "emptyDir": {} });
        subject.spec.volumes = vec![serde_json::from_value(own).unwrap()];
        let before = subject.clone();
        let one = binding("one", "01", json!({ "name": "app" }));
        let sink = one.injected_sink("http://b", None, Some("aud"));
        subject.set_sink(&sink);
        let once = subject.clone();
        subject.set_sink(&sink);
        assert_eq!(subject, once, "a second time changes nothing");
        let spec = json!(subject.spec);
        assert_eq!(spec["volumes"][1], json!({ "name": "oidc-token", "secret": { "secretName": "one-oidc-token" } }));
        let mount = json!({ "name": "oidc-token", "mountPath": "/oidc", "readOnly": true });
        for container in [&spec["containers"][0], &spec["containers"][1], &spec["initContainers"][0]] {
            assert_eq!(container["volumeMounts"][0], mount);
        }
        let names: Vec<_> = spec["containers"][1]["env"].as_array().unwrap().iter().map(|one| &one["name"]).collect();
        assert_eq!(names, ["K_SINK", "K_CE_OVERRIDES"]);
        subject.set_sink(&InjectedSink::default());
        assert_eq!(subject, before);
    }

    fn binding(name: &str, made: &str, subject: Value) -> SinkBinding {
        let mut subject = subject;
        subject["apiVersion"] = "serving.knative.dev/v1".into();
        subject["kind"] = "Service".into();
        serde_json::from_value(json!({
            "metadata": { "name": name, "finalizers": [FINALIZER],
                "creationTimestamp": format!("2026-01-01T00:00:{made}Z") },
            "spec": { "subject": subject },
            "status": { "sinkUri": format!("http://{name}") },
        }))
        .unwrap()
    }

    /// The injected `K_SINK` of the first container of a Service.
    fn sink(bindings: &[SinkBinding], object: Value, template: &mut RevisionTemplate) -> Option<String> {
        let object: ObjectMeta = serde_json::from_value(object).unwrap();
        let injected: Vec<_> = bindings.iter().filter_map(SinkBinding::injection).collect();
        template.inject_sink(&injected, (BindableKind::Service, &object), None);
        let env = template.spec.containers[0].env.iter().flatten().find(|one| one.name == SINK)?;
        env.value.clone()
    }

    /// SRC-16, X-SRC-04: an object written after the binding gets the oldest one that has a sink and stays, unless its label opts out.
    #[test]
    fn template_gets_sink_of_oldest_binding() {
        let named = |name: &str, made: &str| binding(name, made, json!({ "name": "app" }));
        let (old, young) = (named("old", "01"), named("young", "02"));
        let chosen = binding("chosen", "00", json!({ "selector": { "matchLabels": { "a": "b" } } }));
        let app = || json!({ "name": "app" });
        let injected =
            |bindings: &[SinkBinding], object: Value| sink(bindings, object, &mut template(None, json!(null)));
        let all = [young.clone(), old.clone(), chosen];
        assert_eq!(injected(&all, app()).as_deref(), Some("http://old"));
        assert_eq!(injected(&all, json!({ "name": "app", "labels": { "a": "b" } })).as_deref(), Some("http://chosen"));
        assert_eq!(injected(&all, json!({ "name": "other" })), None);
        let excluded = |value| json!({ "name": "app", "labels": { "a": "b", EXCLUDE: value } });
        assert_eq!(injected(&all, excluded("true")), None, "it asks to be left alone");
        assert!(injected(&all, excluded("false")).is_some());
        let owner = json!([{ "apiVersion": "v1", "kind": "K", "name": "n", "uid": "u", "controller": true }]);
        assert_eq!(injected(&all, json!({ "name": "app", "ownerReferences": owner })), None, "its owner is told");

        let (mut free, mut going, mut lost) = (old.clone(), old.clone(), old.clone());
        free.metadata.finalizers = None;
        going.metadata.deletion_timestamp = old.metadata.creation_timestamp.clone();
        for passed in [free, going] {
            assert_eq!(injected(&[passed, young.clone()], app()).as_deref(), Some("http://young"));
        }
        lost.status = None;
        assert_eq!(injected(&[lost, young.clone()], app()), None, "it is the older one's all the same");
    }

    /// Its author's next write would be refused otherwise: a template that keeps its name cannot change.
    #[test]
    fn named_revision_gets_sink_with_its_next_name() {
        let bindings = [binding("one", "01", json!({ "name": "app" })).injection().unwrap()];
        let app: ObjectMeta = serde_json::from_value(json!({ "name": "app" })).unwrap();
        let bare = |own_name| template(own_name, json!(null));
        let bound = |own_name, before: Option<&RevisionTemplate>| {
            let mut template = bare(own_name);
            template.inject_sink(&bindings, (BindableKind::Service, &app), before);
            template
        };
        let first = bound(Some("app-1"), None);
        assert_ne!(first, bare(Some("app-1")));
        assert_eq!(bound(Some("app-1"), Some(&first)), first, "the same manifest again is no change");
        assert_eq!(bound(Some("app-1"), Some(&bare(Some("app-1")))), bare(Some("app-1")));
        assert_ne!(bound(Some("app-2"), Some(&first)), bare(Some("app-2")));
        assert_ne!(bound(None, Some(&bare(None))), bare(None));
    }
}
