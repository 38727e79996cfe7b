//! The child of a Configuration: the Revision of its current template.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::owned_child::owner_references;
use support::names::LABEL_CHARS_MAX;
use types::serving::annotations as keys;
use types::serving::configuration::Configuration;
use types::serving::revision::Revision;
use types::shared::{annotation, controller, label, name, namespace};

/// The name that the current template's Revision has: its author's, or one that counts generations.
#[must_use]
pub fn revision_name(configuration: &Configuration) -> String {
    if let Some(own) = configuration.spec.template.explicit_name() {
        return own.to_owned();
    }
    let generation = configuration.metadata.generation.unwrap_or(1);
    let parent = name(&configuration.metadata);
    let suffix = format!("-{generation:05}");
    if parent.len() + suffix.len() <= LABEL_CHARS_MAX {
        return format!("{parent}{suffix}");
    }
    // Cut, and kept apart from others with the same beginning. Names are ASCII, so any cut is good.
    let suffix = format!("-{:08x}{suffix}", fingerprint(parent));
    format!("{}{suffix}", &parent[..LABEL_CHARS_MAX - suffix.len()])
}

/// FNV-1a: it must only be stable and tell names apart.
fn fingerprint(text: &str) -> u32 {
    text.bytes().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

/// With `is_routed` a Route follows the Configuration, so that the Revision is active from the start.
#[must_use]
pub fn desired_revision(configuration: &Configuration, is_routed: bool, now: Timestamp) -> Revision {
    let meta = &configuration.metadata;
    let template = &configuration.spec.template;
    let name_of_it = revision_name(configuration);
    let mut revision = Revision::new(namespace(meta), &name_of_it, template.spec.clone());
    revision.metadata = ObjectMeta {
        namespace: meta.namespace.clone(),
        name: Some(name_of_it),
        labels: Some(labels(configuration, is_routed)),
        annotations: Some(annotations(configuration, is_routed, now)),
        owner_references: owner_references(configuration),
        ..ObjectMeta::default()
    };
    revision
}

/// SRV-CFG-04, SRV-CFG-05: the template's, and where the Revision comes from. None of the
/// Configuration's own.
fn labels(configuration: &Configuration, is_routed: bool) -> BTreeMap<String, String> {
    let meta = &configuration.metadata;
    let mut labels = keys::inherited(configuration.spec.template.metadata.labels.as_ref(), &[]);
    let mut put = |key: &str, value: &str| {
        labels.insert(key.to_owned(), value.to_owned());
    };
    put(keys::CONFIGURATION, name(meta));
    put(keys::CONFIGURATION_UID, meta.uid.as_deref().unwrap_or_default());
    put(keys::CONFIGURATION_GENERATION, &meta.generation.unwrap_or(1).to_string());
    put(keys::ROUTING_STATE, if is_routed { "active" } else { "pending" });
    if let Some(service) = label(meta, keys::SERVICE) {
        put(keys::SERVICE, service);
    }
    if let Some(service) = controller(meta).filter(|owner| owner.kind == "Service") {
        put(keys::SERVICE_UID, &service.uid);
    }
    labels
}

fn annotations(configuration: &Configuration, is_routed: bool, now: Timestamp) -> BTreeMap<String, String> {
    let meta = &configuration.metadata;
    let mut annotations =
        keys::inherited(configuration.spec.template.metadata.annotations.as_ref(), &[keys::LAST_APPLIED]);
    annotations.insert(keys::ROUTING_STATE_MODIFIED.to_owned(), now.to_string());
    if let Some(user) = annotation(meta, keys::LAST_MODIFIER) {
        annotations.insert(keys::CREATOR.to_owned(), user.to_owned());
    }
    if let Some(routes) = annotation(meta, keys::ROUTES).filter(|_| is_routed) {
        annotations.insert(keys::ROUTES.to_owned(), routes.to_owned());
    }
    annotations
}
