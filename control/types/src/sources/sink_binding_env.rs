//! What the programs of a SinkBinding's subjects are told, and of which binding.
//!
//! Admission tells a template that is written, so that its first Revision has it; the controller tells those that were
//! there before.

use k8s_openapi::api::core::v1::EnvVar;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::core::{Selector, SelectorExt};

use super::BindingSubject;
use super::sink_binding::{BindableKind, SinkBinding};
use crate::kinds::serving::template::RevisionTemplate;
use crate::kinds::shared::{controller, name};

/// What holds a binding until its subjects are told nothing any more, by upstream's name.
pub const FINALIZER: &str = "sinkbindings.sources.knative.dev";

/// The label of objects that no binding changes, and of namespaces where none does.
const EXCLUDE: &str = "bindings.knative.dev/exclude";

/// Where to send, what to add to each event, and by whom the sink is believed.
const SINK: &str = "K_SINK";
const OVERRIDES: &str = "K_CE_OVERRIDES";
const CA_CERTS: &str = "K_CA_CERTS";

impl SinkBinding {
    #[must_use]
    pub fn has_finalizer(&self) -> bool {
        self.metadata.finalizers.iter().flatten().any(|one| one == FINALIZER)
    }

    /// Whether an object of the kind `runs` is told by this binding, or would be if no older one told it.
    #[must_use]
    pub fn applies_to(&self, runs: BindableKind, object: &ObjectMeta) -> bool {
        let stays = self.metadata.deletion_timestamp.is_none() && self.has_finalizer();
        stays
            && !is_excluded(object)
            && self.spec.subject.bindable_kind() == Some(runs)
            && selects(&self.spec.subject, object)
    }

    /// The older one of two goes first.
    #[must_use]
    pub fn age(&self) -> (Option<&Time>, &str) {
        (self.metadata.creation_timestamp.as_ref(), name(&self.metadata))
    }

    /// What the programs are told of a sink.
    #[must_use]
    pub fn environment(&self, url: &str, ca_certs: Option<&str>) -> Vec<EnvVar> {
        let overrides = self.spec.ce_overrides.as_ref().and_then(|known| serde_json::to_string(known).ok());
        let one = |name: &str, value: String| EnvVar { name: name.to_owned(), value: Some(value), ..EnvVar::default() };
        let mut told = vec![one(SINK, url.to_owned()), one(OVERRIDES, overrides.unwrap_or_default())];
        told.extend(ca_certs.map(|known| one(CA_CERTS, known.to_owned())));
        told
    }

    /// What they are told by what the status says of the sink.
    fn last_environment(&self) -> Option<Vec<EnvVar>> {
        let status = self.status.as_ref().filter(|status| status.sink_audience.is_none())?;
        Some(self.environment(status.sink_uri.as_deref()?, status.sink_ca_certs.as_deref()))
    }
}

/// Whether its author keeps it from being bound (X-SRC-04).
#[must_use]
pub fn is_excluded(object: &ObjectMeta) -> bool {
    object.labels.as_ref().and_then(|labels| labels.get(EXCLUDE)).is_some_and(|value| value == "true")
}

fn selects(subject: &BindingSubject, object: &ObjectMeta) -> bool {
    if let Some(named) = &subject.name {
        return named == name(object);
    }
    let selector = Selector::try_from(subject.selector.clone().unwrap_or_default());
    selector.is_ok_and(|selector| selector.matches(object.labels.as_ref().unwrap_or(&Default::default())))
}

/// Tells the template of an object that is written what the oldest of its bindings says. A Revision that its author named
/// stays as it is.
pub fn apply_bindings(
    bindings: &[SinkBinding],
    (runs, object): (BindableKind, &ObjectMeta),
    template: &mut RevisionTemplate,
    before: Option<&RevisionTemplate>,
) {
    let mine = bindings.iter().filter(|one| one.applies_to(runs, object)).min_by_key(|one| one.age());
    let Some(told) = mine.and_then(SinkBinding::last_environment) else { return };
    let mut bound = template.clone();
    set_environment(&mut bound, &told);
    let is_named =
        |before: &RevisionTemplate| before.explicit_name().is_some() && before.explicit_name() == bound.explicit_name();
    let would_change = before.is_some_and(|before| is_named(before) && *before != bound);
    if controller(object).is_none() && !would_change {
        *template = bound;
    }
}

/// Sets what all containers are told to exactly this. An entry that is there keeps its place.
pub fn set_environment(template: &mut RevisionTemplate, told: &[EnvVar]) {
    let spec = &mut template.spec;
    for container in spec.containers.iter_mut().chain(&mut spec.init_containers) {
        let mut env = container.env.take().unwrap_or_default();
        env.retain(|one| {
            let is_ours = [SINK, OVERRIDES, CA_CERTS].contains(&one.name.as_str());
            !is_ours || told.iter().any(|new| new.name == one.name)
        });
        for new in told {
            match env.iter_mut().find(|one| one.name == new.name) {
                Some(there) => there.clone_from(new),
                None => env.push(new.clone()),
            }
        }
        container.env = (!env.is_empty()).then_some(env);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn template(own_name: Option<&str>, env: Value) -> RevisionTemplate {
        let spec = json!({ "containers": [{ "name": "a", "env": env }, { "name": "b" }], "initContainers": [{ "name": "c" }] });
        serde_json::from_value(json!({ "metadata": { "name": own_name }, "spec": spec })).unwrap()
    }

    fn environments(template: &RevisionTemplate) -> Value {
        let spec = json!(template.spec);
        let env = |list: &str, nth: usize| spec[list][nth]["env"].clone();
        json!([env("containers", 0), env("containers", 1), env("initContainers", 0)])
    }

    /// SRC-16, SRC-20: all containers are told, once; an author's variables stay where they are, and nothing of ours stays behind.
    #[test]
    fn an_environment_has_what_is_told_and_nothing_older() {
        let told = |env: &Value, told: &[(&str, &str)]| {
            let mut template = template(None, env.clone());
            let one = |(name, value): &(&str, &str)| json!({ "name": name, "value": value });
            let told: Vec<EnvVar> = told.iter().map(|told| serde_json::from_value(one(told)).unwrap()).collect();
            set_environment(&mut template, &told);
            environments(&template)
        };
        let sink = json!({ "name": "K_SINK", "value": "http://b" });
        let (author, last) = (json!({ "name": "A", "value": "1" }), json!({ "name": "Z", "value": "2" }));
        let old =
            json!([author, { "name": "K_SINK", "value": "http://a" }, { "name": "K_CA_CERTS", "value": "pem" }, last]);
        assert_eq!(told(&old, &[("K_SINK", "http://b")]), json!([[author, sink, last], [sink], [sink]]));
        assert_eq!(told(&old, &[]), json!([[author, last], null, null]));
        assert_eq!(told(&json!(null), &[]), json!([null, null, null]));
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

    /// What `K_SINK` the first container of a Service is told.
    fn sink(bindings: &[SinkBinding], object: Value, template: &mut RevisionTemplate) -> Option<String> {
        let object: ObjectMeta = serde_json::from_value(object).unwrap();
        apply_bindings(bindings, (BindableKind::Service, &object), template, None);
        let env = template.spec.containers[0].env.iter().flatten().find(|one| one.name == SINK)?;
        env.value.clone()
    }

    /// SRC-16, X-SRC-04: who is written after the binding is told by the oldest that has a sink and stays, unless its label says no.
    #[test]
    fn a_template_is_told_by_the_oldest_binding_of_its_object() {
        let named = |name: &str, made: &str| binding(name, made, json!({ "name": "app" }));
        let (old, young) = (named("old", "01"), named("young", "02"));
        let chosen = binding("chosen", "00", json!({ "selector": { "matchLabels": { "a": "b" } } }));
        let app = || json!({ "name": "app" });
        let told = |bindings: &[SinkBinding], object: Value| sink(bindings, object, &mut template(None, json!(null)));
        let all = [young.clone(), old.clone(), chosen];
        assert_eq!(told(&all, app()).as_deref(), Some("http://old"));
        assert_eq!(told(&all, json!({ "name": "app", "labels": { "a": "b" } })).as_deref(), Some("http://chosen"));
        assert_eq!(told(&all, json!({ "name": "other" })), None);
        let excluded = |value| json!({ "name": "app", "labels": { "a": "b", EXCLUDE: value } });
        assert_eq!(told(&all, excluded("true")), None, "it asks to be left alone");
        assert!(told(&all, excluded("false")).is_some());
        let owner = json!([{ "apiVersion": "v1", "kind": "K", "name": "n", "uid": "u", "controller": true }]);
        assert_eq!(told(&all, json!({ "name": "app", "ownerReferences": owner })), None, "its owner is told");

        let (mut free, mut going, mut lost, mut strict) = (old.clone(), old.clone(), old.clone(), old.clone());
        free.metadata.finalizers = None;
        going.metadata.deletion_timestamp = old.metadata.creation_timestamp.clone();
        for passed in [free, going] {
            assert_eq!(told(&[passed, young.clone()], app()).as_deref(), Some("http://young"));
        }
        lost.status = None;
        strict.status.as_mut().unwrap().sink_audience = Some("a".into());
        for first in [lost, strict] {
            assert_eq!(told(&[first, young.clone()], app()), None, "it is the older one's all the same");
        }
    }

    /// Its author's next write would be refused otherwise: a template that keeps its name cannot change.
    #[test]
    fn a_revision_that_its_author_named_is_told_with_its_next_name() {
        let bindings = [binding("one", "01", json!({ "name": "app" }))];
        let app: ObjectMeta = serde_json::from_value(json!({ "name": "app" })).unwrap();
        let bare = |own_name| template(own_name, json!(null));
        let bound = |own_name, before: Option<&RevisionTemplate>| {
            let mut template = bare(own_name);
            apply_bindings(&bindings, (BindableKind::Service, &app), &mut template, before);
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
