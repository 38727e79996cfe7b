//! The kinds that clients defined, beside those of the appliance.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde_json::Value;

use crate::kind::{Entry, KindMeta, Registry, Resource as _};
use crate::kinds::custom;
use crate::store::lifecycle::{DEFINITIONS, definition_key};
use crate::store::{Key, Store, View};

use super::errors::Refusal;
use super::{Call, naming};

/// Different shapes of kinds that one run of the program takes in. Each stays in memory until the end; a
/// definition beyond is stored and not served before a restart.
pub(super) const SHAPES_MAX: usize = 2_000;

#[derive(Debug, Default)]
pub(super) struct Customs {
    last: Mutex<Last>,
}

#[derive(Debug, Default)]
struct Last {
    /// The last change of any definition, and all kinds after it.
    registry: Option<(u64, Arc<Registry>)>,
    /// By the text of their spec, and of the versions that were stored: a definition that is written again as it was makes
    /// no new ones.
    shapes: HashMap<String, Vec<Entry>>,
}

impl Customs {
    /// All kinds that are served now.
    pub(super) fn now(&self, store: &Store, fixed: &Arc<Registry>) -> Arc<Registry> {
        let memory = store.read();
        let changed = memory.last_change(DEFINITIONS);
        let mut last = self.lock();
        if let Some((_, registry)) = last.registry.as_ref().filter(|(at, _)| *at == changed) {
            return Arc::clone(registry);
        }
        let mut all = memory.list(&DEFINITIONS.into(), None).items();
        drop(memory);
        all.retain(|one| !is_fixed(fixed, &one.key.name));
        let mut registry = Arc::clone(fixed);
        if !all.is_empty() {
            let served = all.iter().filter_map(|one| naming::served(one.value()));
            let theirs = served.flat_map(|definition| last.entries(&definition));
            Arc::make_mut(&mut registry).entries.extend(theirs);
        }
        last.registry = Some((changed, Arc::clone(&registry)));
        registry
    }

    fn lock(&self) -> MutexGuard<'_, Last> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Last {
    fn entries(&mut self, definition: &Value) -> Vec<Entry> {
        let spec = &definition["spec"];
        let is_first = custom::is_first(definition);
        let text = format!("{spec}{}{is_first}", definition["status"]["storedVersions"]);
        if let Some(known) = self.shapes.get(&text) {
            return known.clone();
        }
        if self.shapes.len() >= SHAPES_MAX {
            tracing::error!(kind = %spec["names"]["kind"], "too many kinds were defined; it is served after a restart");
            return Vec::new();
        }
        let entries = custom::entries(definition);
        self.shapes.insert(text, entries.clone());
        entries
    }
}

/// Whether the definition is of a kind that is part of the appliance.
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

/// Nothing new comes into a kind that goes, or has gone since the request came in.
pub(super) fn check_stays(view: &View, entry: &Entry, key: &Key) -> Result<(), Refusal> {
    if entry.custom.is_none() {
        return Ok(());
    }
    let definition = view.get(&definition_key(&key.resource)).ok_or_else(Refusal::unknown_path)?;
    if definition.head.deleting {
        let why = "create not allowed while custom resource definition is terminating";
        return Err(Refusal::forbidden(entry.meta, &key.name, why));
    }
    Ok(())
}
