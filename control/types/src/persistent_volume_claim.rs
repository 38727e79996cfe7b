//! PersistentVolumeClaim: a folder of this host that outlives the Pods that mount it.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, PersistentVolumeClaimSpec};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::field_errors::FieldErrors;
use crate::kind_registry::{CORE, KindMeta, RequestContext, ResourceStrategy};
use crate::printer_column::{ACCESS_MODES, AGE, PrinterColumn, column};
use crate::quantity;
use crate::role_rules::{EDIT, VIEW};

/// Keeps a deleted claim until no Pod mounts it.
pub const PROTECTION: &str = "kubernetes.io/pvc-protection";
pub const BOUND: &str = "Bound";
const PENDING: &str = "Pending";
const FILESYSTEM: &str = "Filesystem";
const STORAGE: &str = "storage";
/// On one node, a folder is in all of these modes.
const MODES: [&str; 3] = ["ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany"];
const IMMUTABLE: &str = "Forbidden: spec is immutable after creation except resources.requests";

/// How much a claim asks for.
#[must_use]
pub fn requested_storage(claim: &PersistentVolumeClaim) -> Option<Quantity> {
    requests(claim.spec.as_ref()?)?.get(STORAGE).cloned()
}

/// The capacity in the status of a claim that is bound.
#[must_use]
pub fn capacity(storage: Quantity) -> BTreeMap<String, Quantity> {
    BTreeMap::from([(STORAGE.to_owned(), storage)])
}

fn requests(spec: &PersistentVolumeClaimSpec) -> Option<&BTreeMap<String, Quantity>> {
    spec.resources.as_ref()?.requests.as_ref()
}

/// What may not change: the volume is given once, and more may be asked for.
fn fixed(spec: &PersistentVolumeClaimSpec) -> PersistentVolumeClaimSpec {
    PersistentVolumeClaimSpec { resources: None, volume_name: None, ..spec.clone() }
}

impl ResourceStrategy for PersistentVolumeClaim {
    const META: KindMeta = KindMeta {
        kind: "PersistentVolumeClaim",
        plural: "persistentvolumeclaims",
        singular: "persistentvolumeclaim",
        short_names: &["pvc"],
        has_status: true,
        columns: &[
            column("Status", ".status.phase"),
            column("Volume", ".spec.volumeName"),
            column("Capacity", ".status.capacity.storage"),
            PrinterColumn { format: ACCESS_MODES, ..column("Access Modes", ".status.accessModes[*]") },
            column("StorageClass", ".spec.storageClassName|=<unset>"),
            AGE,
            PrinterColumn { priority: 1, ..column("VolumeMode", ".spec.volumeMode") },
        ],
        role_rules: &[VIEW, EDIT],
        ..CORE
    };

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }

    fn set_defaults(&mut self, before: Option<&Self>, _: &RequestContext) {
        self.spec.get_or_insert_default().volume_mode.get_or_insert_with(|| FILESYSTEM.to_owned());
        let Some(before) = before else {
            let finalizers = self.metadata.finalizers.get_or_insert_default();
            if !finalizers.iter().any(|one| one == PROTECTION) {
                finalizers.push(PROTECTION.to_owned());
            }
            self.status.get_or_insert_default().phase = Some(PENDING.to_owned());
            return;
        };
        // A client that applies its manifest again does not know the volume.
        let known = before.spec.as_ref().and_then(|spec| spec.volume_name.clone());
        if let (Some(spec), Some(known)) = (&mut self.spec, known) {
            spec.volume_name.get_or_insert(known);
        }
    }

    fn validate(&self, before: Option<&Self>, problems: &mut FieldErrors) {
        let spec = self.spec.clone().unwrap_or_default();
        let modes = spec.access_modes.as_deref().unwrap_or_default();
        if modes.is_empty() {
            problems.add("spec.accessModes", "Required value: at least 1 access mode is required");
        }
        let known = MODES.map(|mode| format!("{mode:?}")).join(", ");
        for (index, mode) in modes.iter().enumerate().filter(|(_, mode)| !MODES.contains(&mode.as_str())) {
            let why = format!("Unsupported value: {mode:?}: supported values: {known}");
            problems.add(format!("spec.accessModes[{index}]"), why);
        }
        let at = "spec.resources.requests[storage]";
        let asked = requested_storage(self);
        match asked.as_ref().map(|asked| (asked, quantity::bytes(&asked.0))) {
            None => problems.add(at, "Required value"),
            Some((_, Some(bytes))) if bytes > 0 => {}
            Some((asked, _)) => problems.add(at, format!("Invalid value: {:?}: must be greater than zero", asked.0)),
        }
        if spec.volume_mode.as_deref().is_some_and(|mode| mode != FILESYSTEM) {
            problems.add("spec.volumeMode", "Forbidden: a claim is a folder of this host; use Filesystem");
        }
        for (field, set) in [
            ("dataSource", spec.data_source.is_some()),
            ("dataSourceRef", spec.data_source_ref.is_some()),
            ("selector", spec.selector.is_some()),
        ] {
            if set {
                problems.add(format!("spec.{field}"), "Forbidden: a claim is an empty folder of this host at first");
            }
        }
        let Some(was) = before.and_then(|before| before.spec.as_ref()) else { return };
        let is_other_volume = was.volume_name.is_some() && was.volume_name != spec.volume_name;
        if is_other_volume || fixed(was) != fixed(&spec) {
            problems.add("spec", IMMUTABLE);
        }
        let bytes = |storage: Option<Quantity>| storage.and_then(|storage| quantity::bytes(&storage.0));
        if bytes(asked) < bytes(before.and_then(requested_storage)) {
            problems.add(at, "Forbidden: field can not be less than previous value");
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn claim(spec: Value) -> PersistentVolumeClaim {
        serde_json::from_value(json!({ "metadata": { "name": "c", "namespace": "ns" }, "spec": spec })).unwrap()
    }

    fn fields(claim: &PersistentVolumeClaim, before: Option<&PersistentVolumeClaim>) -> Vec<String> {
        let mut problems = FieldErrors::default();
        claim.validate(before, &mut problems);
        problems.into_list().into_iter().map(|problem| problem.field).collect()
    }

    fn sized(storage: &str) -> Value {
        json!({ "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": storage } } })
    }

    #[test]
    fn claim_without_mode_or_size_is_refused() {
        assert_eq!(fields(&claim(sized("1Gi")), None), [""; 0]);
        let at = "spec.resources.requests[storage]";
        assert_eq!(fields(&claim(json!({})), None), ["spec.accessModes", at]);
        assert_eq!(fields(&claim(sized("-1")), None), [at]);
        let mut odd = sized("1Gi");
        (odd["accessModes"], odd["volumeMode"]) = (json!(["ReadWriteOncePod"]), json!("Block"));
        odd["dataSource"] = json!({ "kind": "PersistentVolumeClaim", "name": "other" });
        assert_eq!(fields(&claim(odd), None), ["spec.accessModes[0]", "spec.volumeMode", "spec.dataSource"]);
    }

    #[test]
    fn claim_may_only_grow() {
        let mut before = claim(sized("2Gi"));
        before.set_defaults(None, &RequestContext::default());
        assert_eq!(before.metadata.finalizers.as_deref(), Some(&[PROTECTION.to_owned()][..]));
        before.spec.as_mut().unwrap().volume_name = Some("pvc-1".to_owned());
        let changed = |spec: Value| {
            let mut after = claim(spec);
            after.set_defaults(Some(&before), &RequestContext::default());
            fields(&after, Some(&before))
        };
        assert_eq!(changed(sized("3Gi")), [""; 0]);
        assert_eq!(changed(sized("1Gi")), ["spec.resources.requests[storage]"]);
        let mut other = sized("2Gi");
        other["volumeName"] = json!("pvc-2");
        assert_eq!(changed(other), ["spec"]);
    }
}
