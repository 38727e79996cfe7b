//! The revision template: the next Revision, with the name, labels and annotations that it will have.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::revision_spec::RevisionSpec;
use super::{annotations, schemas};
use crate::field_errors::FieldErrors;
use crate::settings::Settings;
use crate::shared::controller;
use crate::sink_injection::{self, BindableKind, InjectedSink, SinkInjection};
use support::names::is_dns1035_label;

/// The next Revision; each change makes a new one.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct RevisionTemplate {
    /// Name (optional, has to begin with the parent's), labels and annotations of the Revision.
    #[schemars(schema_with = "schemas::metadata")]
    pub metadata: ObjectMeta,
    /// The spec of the Revision.
    pub spec: RevisionSpec,
}

impl RevisionTemplate {
    /// The name that its author gave (BYO), if any.
    #[must_use]
    pub fn explicit_name(&self) -> Option<&str> {
        self.metadata.name.as_deref().filter(|name| !name.is_empty())
    }

    pub fn set_defaults(&mut self, settings: &Settings) {
        self.spec.set_feature_defaults(settings);
    }

    /// Validates against the operator's settings.
    pub fn validate_settings(&self, settings: &Settings, problems: &mut FieldErrors) {
        self.spec.validate_settings("spec.template.spec", &settings.defaults, problems);
        self.spec.validate_features("spec.template.spec", &settings.features, problems);
        let at = "spec.template.metadata.annotations";
        annotations::validate_autoscaler_limits(&self.metadata, at, &settings.autoscaler, problems);
    }

    /// Rules of a template below `parent`; `before` is the stored one on update.
    pub fn validate(&self, parent: &ObjectMeta, before: Option<&Self>, problems: &mut FieldErrors) {
        let at = "spec.template";
        self.spec.validate(&format!("{at}.spec"), problems);
        annotations::validate_template(&self.metadata, &format!("{at}.metadata"), problems);
        annotations::reject_unknown_networking(&self.metadata, &format!("{at}.metadata"), problems);
        self.validate_own_name(parent, &format!("{at}.metadata.name"), problems);
        if let (Some(name), Some(before)) = (self.explicit_name(), before)
            && before.explicit_name() == Some(name)
            && before != self
        {
            problems.add(
                "spec.template.metadata.name",
                format!("Saw the following changes without a name change (-old +new) of \"{name}\": spec.template"),
            );
        }
    }

    /// Tells the containers where to send, as the oldest binding of the object around the template says. A Revision that its author
    /// named stays as it is.
    pub fn inject_sink(
        &mut self,
        injections: &[SinkInjection],
        (kind, object): (BindableKind, &ObjectMeta),
        before: Option<&Self>,
    ) {
        let Some(injected) = SinkInjection::sink_of(injections, kind, object) else { return };
        let mut bound = self.clone();
        bound.set_sink(injected);
        let is_named =
            |before: &Self| before.explicit_name().is_some() && before.explicit_name() == bound.explicit_name();
        let would_change = before.is_some_and(|before| is_named(before) && *before != bound);
        if controller(object).is_none() && !would_change {
            *self = bound;
        }
    }

    /// Gives all containers exactly this sink.
    pub fn set_sink(&mut self, injected: &InjectedSink) {
        let spec = &mut self.spec;
        let containers = spec.containers.iter_mut().chain(&mut spec.init_containers);
        sink_injection::set_sink(containers, &mut spec.volumes, injected);
    }

    fn validate_own_name(&self, parent: &ObjectMeta, at: &str, problems: &mut FieldErrors) {
        let Some(name) = self.explicit_name() else { return };
        if !is_dns1035_label(name) {
            problems.add(at, format!("not a DNS 1035 label: \"{name}\""));
        }
        let prefix = format!("{}-", parent.name.as_deref().unwrap_or_default());
        if !name.starts_with(&prefix) {
            problems.add(at, format!("\"{name}\" must have prefix \"{prefix}\""));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(json: serde_json::Value) -> RevisionSpec {
        serde_json::from_value(json).unwrap()
    }

    /// SRV-CFG-02: a name of its own begins with the parent's, and goes with one template only.
    #[test]
    fn an_own_name_has_the_parents_prefix_and_is_not_reused() {
        let parent = ObjectMeta { name: Some("app".into()), ..ObjectMeta::default() };
        let template = |name: &str, image: &str| RevisionTemplate {
            metadata: ObjectMeta { name: Some(name.into()), ..ObjectMeta::default() },
            spec: spec(serde_json::json!({"containers": [{"image": image, "name": "x"}]})),
        };
        let found = |now: &RevisionTemplate, before: Option<&RevisionTemplate>| {
            let mut problems = FieldErrors::default();
            now.validate(&parent, before, &mut problems);
            problems.list.into_iter().map(|p| p.message).collect::<Vec<_>>()
        };

        let one = template("app-one", "a");
        assert!(found(&one, None).is_empty());
        assert!(found(&one, Some(&one)).is_empty());
        assert!(found(&template("two", "a"), None)[0].contains("must have prefix \"app-\""));
        assert!(found(&template("app-one", "b"), Some(&one))[0].contains("without a name change"));
        assert!(found(&template("app-two", "b"), Some(&one)).is_empty());
    }
}
