//! The kinds that clients defined, beside those of the appliance.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde_json::Value;

use crate::kind::{Entry, KindMeta, Registry, Resource as _};
use crate::kinds::custom;
use crate::store::{Key, Store, Stored};

use super::errors::Refusal;
use super::{Call, object};

/// Different shapes of kinds that one run of the program takes in. Each stays in memory until the end; a
/// definition beyond is stored and not served before a restart.
pub(super) const SHAPES_MAX: usize = 2_000;

#[derive(Debug, Default)]
pub(super) struct Customs {
    last: Mutex<Last>,
}

#[derive(Debug, Default)]
struct Last {
    /// The definitions' versions, and all kinds by them.
    versions: Vec<u64>,
    registry: Option<Arc<Registry>>,
    /// By the text of their spec: a definition that is written again as it was makes no new one.
    shapes: HashMap<String, Entry>,
}

impl Customs {
    /// All kinds that are served now.
    pub(super) fn now(&self, store: &Store, fixed: &Arc<Registry>) -> Arc<Registry> {
        let listing = store.read().list(&object::resource_of(&CustomResourceDefinition::META), None);
        let theirs: Vec<Arc<Stored>> = listing.items.into_iter().filter(|one| !is_ours(fixed, one)).collect();
        if theirs.is_empty() {
            return Arc::clone(fixed);
        }
        let versions: Vec<u64> = theirs.iter().map(|one| one.resource_version).collect();
        let mut last = self.lock();
        if let Some(registry) = last.registry.clone().filter(|_| last.versions == versions) {
            return registry;
        }
        let mut registry = Registry::clone(fixed);
        registry.entries.extend(theirs.iter().filter_map(|one| last.entry(&one.value["spec"])));
        let registry = Arc::new(registry);
        last.versions = versions;
        last.registry = Some(Arc::clone(&registry));
        registry
    }

    fn lock(&self) -> MutexGuard<'_, Last> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Last {
    fn entry(&mut self, spec: &Value) -> Option<Entry> {
        let text = spec.to_string();
        if let Some(known) = self.shapes.get(&text) {
            return Some(*known);
        }
        if self.shapes.len() >= SHAPES_MAX {
            tracing::error!(kind = %spec["names"]["kind"], "too many kinds were defined; it is served after a restart");
            return None;
        }
        let entry = custom::entry(spec)?;
        self.shapes.insert(text, entry);
        Some(entry)
    }
}

/// Whether the definition is of a kind that is part of the appliance.
fn is_ours(fixed: &Registry, definition: &Stored) -> bool {
    is_fixed(fixed, &definition.key.name)
}

fn is_fixed(fixed: &Registry, name: &str) -> bool {
    let named = |meta: &KindMeta| {
        name.strip_prefix(meta.plural).and_then(|rest| rest.strip_prefix('.')) == Some(meta.group)
    };
    fixed.entries.iter().any(|entry| entry.custom.is_none() && named(entry.meta))
}

pub(super) fn is_definition(meta: &KindMeta) -> bool {
    meta.group == CustomResourceDefinition::META.group && meta.plural == CustomResourceDefinition::META.plural
}

/// The definitions of our own kinds follow from the program; nobody writes them.
pub(super) fn check(call: &Call, name: &str) -> Result<(), Refusal> {
    let meta = call.target.entry.meta;
    if is_definition(meta) && !call.server.requester.internal && is_fixed(&call.server.registry, name) {
        let why = "this kind is part of the appliance, and its definition follows from the program";
        return Err(Refusal::forbidden(meta, name, why));
    }
    Ok(())
}

/// The objects of a kind whose definition goes.
pub(super) fn objects_of(call: &Call, definition: &Key) -> Vec<Key> {
    let memory = call.server.store.read();
    let Some(stored) = memory.get(definition) else { return Vec::new() };
    let spec = &stored.value["spec"];
    let text = |value: &Value| value.as_str().unwrap_or("").to_owned();
    let resource: Arc<str> = format!("{}/{}", text(&spec["group"]), text(&spec["names"]["plural"])).into();
    memory.list(&resource, None).items.iter().map(|object| object.key.clone()).collect()
}
