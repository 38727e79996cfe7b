//! The registry of built-in and custom kinds.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::Value;

use crate::store::lifecycle::{DEFINITIONS, definition_key};
use crate::store::{ObjectKey, ObjectStore, StagedView, WriteOperation};
use types::crd::versions;
use types::kind_registry::{KindEntry, KindMeta, KindRegistry};

use super::crd_status::is_definition;
use super::errors::StatusError;
use super::{ApiRequest, crd_names};

/// Distinct schemas of custom kinds that one process loads. Each stays in memory until the end, so a
/// definition that needs one more is rejected.
const CRD_SPECS_MAX: usize = 2_000;
/// ... of definitions that were admitted before their schemas were counted: writes in progress.
const SHAPES_BEYOND_MAX: usize = 256;

#[derive(Debug, Default)]
pub(super) struct CrdRegistry {
    snapshot: Mutex<CrdSnapshot>,
}

#[derive(Debug, Default)]
struct CrdSnapshot {
    /// The last change of any definition, and all kinds after it.
    registry: Option<(u64, Arc<KindRegistry>)>,
    /// Schemas by the text of their spec, and of the stored versions: a definition that is rewritten unchanged creates
    /// no new ones.
    entries_by_spec: HashMap<String, Vec<KindEntry>>,
}

impl CrdRegistry {
    /// All kinds that are served.
    pub(super) fn registry(&self, store: &ObjectStore, fixed: &Arc<KindRegistry>) -> Arc<KindRegistry> {
        let memory = store.read();
        let changed = memory.last_change(DEFINITIONS);
        let mut last = self.lock();
        if let Some((_, registry)) = last.registry.as_ref().filter(|(at, _)| *at == changed) {
            return Arc::clone(registry);
        }
        let mut all = memory.list(&DEFINITIONS.into(), None).items();
        drop(memory);
        all.retain(|one| !is_built_in(fixed, &one.key.name));
        let mut registry = Arc::clone(fixed);
        if !all.is_empty() {
            let served = all.iter().filter_map(|one| crd_names::with_accepted_names(one.value()));
            let theirs = served.flat_map(|definition| last.entries(&definition));
            Arc::make_mut(&mut registry).entries.extend(theirs);
        }
        last.registry = Some((changed, Arc::clone(&registry)));
        registry
    }

    /// Rejects a definition that could not be served, so that no status claims that it is.
    pub(super) fn check_capacity(&self, meta: &KindMeta, change: &WriteOperation) -> Result<(), StatusError> {
        let WriteOperation::Put(key, definition) = change else { return Ok(()) };
        if !is_definition(meta) {
            return Ok(());
        }
        let text = text_of(definition);
        let last = self.lock();
        if last.entries_by_spec.len() < CRD_SPECS_MAX || last.entries_by_spec.contains_key(&text) {
            return Ok(());
        }
        let why = format!(
            "this run has taken in {CRD_SPECS_MAX} different definitions, and each stays in memory; delete those that \
             are not needed and restart"
        );
        Err(StatusError::forbidden(meta, &key.name, &why))
    }

    fn lock(&self) -> MutexGuard<'_, CrdSnapshot> {
        self.snapshot.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CrdSnapshot {
    fn entries(&mut self, definition: &Value) -> Vec<KindEntry> {
        let text = text_of(definition);
        if let Some(known) = self.entries_by_spec.get(&text) {
            return known.clone();
        }
        if self.entries_by_spec.len() >= CRD_SPECS_MAX + SHAPES_BEYOND_MAX {
            let kind = &definition["spec"]["names"]["kind"];
            tracing::error!(%kind, "too many kinds were defined; it is served after a restart");
            return Vec::new();
        }
        let entries = versions::entries(definition);
        self.entries_by_spec.insert(text, entries.clone());
        entries
    }
}

/// The key of a compiled schema.
fn text_of(definition: &Value) -> String {
    let (spec, is_first) = (&definition["spec"], versions::is_original(definition));
    format!("{spec}{}{is_first}", definition["status"]["storedVersions"])
}

/// Whether the definition is of a built-in kind.
fn is_built_in(fixed: &KindRegistry, name: &str) -> bool {
    let named =
        |meta: &KindMeta| name.strip_prefix(meta.plural).and_then(|rest| rest.strip_prefix('.')) == Some(meta.group);
    fixed.entries.iter().any(|entry| entry.custom.is_none() && named(entry.meta))
}

/// The definitions of our own kinds follow from the program and are read-only.
pub(super) fn check_not_built_in(call: &ApiRequest, name: &str) -> Result<(), StatusError> {
    let meta = call.target.entry.meta;
    if is_definition(meta) && !call.server.default_requester.internal && is_built_in(&call.server.registry, name) {
        let why = "this kind is part of the appliance, and its definition follows from the program";
        return Err(StatusError::forbidden(meta, name, why));
    }
    Ok(())
}

/// Rejects new objects of a kind that is being deleted, or was deleted after the request arrived.
pub(super) fn check_still_defined(view: &StagedView, entry: &KindEntry, key: &ObjectKey) -> Result<(), StatusError> {
    if entry.custom.is_none() {
        return Ok(());
    }
    let definition = view.get(&definition_key(&key.resource)).ok_or_else(StatusError::unknown_path)?;
    if definition.head.deleting {
        let why = "create not allowed while custom resource definition is terminating";
        return Err(StatusError::forbidden(entry.meta, &key.name, why));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
    use serde_json::json;
    use types::kind_registry::ResourceStrategy as _;

    use super::*;

    /// No status claims that a kind is served if it is not: one definition too many is rejected.
    #[test]
    fn definition_beyond_the_limit_of_shapes_is_refused() {
        let meta = &CustomResourceDefinition::META;
        let change = |group: &str| {
            let key =
                ObjectKey { resource: DEFINITIONS.into(), namespace: "".into(), name: format!("as.{group}").into() };
            WriteOperation::Put(key, json!({ "metadata": { "generation": 1 }, "spec": { "group": group } }))
        };
        let crds = CrdRegistry::default();
        let known = |number: usize| format!(r#"{{"group":"g{number}"}}nulltrue"#);
        crds.lock().entries_by_spec.extend((0..CRD_SPECS_MAX).map(|number| (known(number), Vec::new())));
        assert_eq!(crds.check_capacity(meta, &change("g7")), Ok(()));
        let refused = crds.check_capacity(meta, &change("new")).unwrap_err();
        assert!(refused.code == 403 && refused.message.contains("2000"), "{refused:?}");
        crds.lock().entries_by_spec.remove(&known(0));
        assert_eq!(crds.check_capacity(meta, &change("new")), Ok(()));
    }
}
