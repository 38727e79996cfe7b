//! Core kinds that others refer to. They hold data; nothing reconciles them.

use k8s_openapi::api::core::v1::{ConfigMap, Namespace, PersistentVolumeClaim, Secret, Service, ServiceAccount};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::Value;

use super::{secrets, settings};
use crate::field_errors::FieldErrors;
use crate::kind_registry::{CORE, KindEntry, KindMeta, RequestContext, ResourceStrategy};
use crate::printer_column::{AGE, COUNT, PrinterColumn, column};
use crate::role_rules::{CONTROLLER_READS, DefaultRole, EDIT, RoleRule, VIEW};

/// The finalizer of every namespace, until its content is deleted.
pub const NAMESPACE_FINALIZER: &str = "kubernetes";

pub const NAMESPACE: KindMeta = KindMeta {
    kind: "Namespace",
    plural: "namespaces",
    singular: "namespace",
    short_names: &["ns"],
    namespaced: false,
    has_status: true,
    columns: &[column("Status", ".status.phase"), AGE],
    role_rules: &[VIEW, CONTROLLER_READS],
    ..CORE
};

/// The core kinds' rows.
#[must_use]
pub fn core_entries() -> Vec<KindEntry> {
    vec![
        KindEntry::of::<Namespace>(),
        KindEntry::of::<ConfigMap>(),
        KindEntry::of::<Secret>(),
        KindEntry::of::<Service>().with_warnings(super::core_service::warnings),
        KindEntry::of::<ServiceAccount>(),
        KindEntry::of::<PersistentVolumeClaim>(),
    ]
}

impl ResourceStrategy for Namespace {
    const META: KindMeta = NAMESPACE;

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }

    fn set_defaults(&mut self, before: Option<&Self>, _: &RequestContext) {
        // Only the garbage collector removes this finalizer, by itself.
        let finalizers = match before {
            Some(before) => before.spec.as_ref().and_then(|spec| spec.finalizers.clone()),
            None => Some(vec![NAMESPACE_FINALIZER.into()]),
        };
        self.spec.get_or_insert_default().finalizers = finalizers;
        if before.is_none() {
            self.status.get_or_insert_default().phase = Some("Active".into());
        }
        let name = self.metadata.name.clone().unwrap_or_default();
        let labels = self.metadata.labels.get_or_insert_default();
        labels.insert("kubernetes.io/metadata.name".into(), name);
    }

    fn validate(&self, _: Option<&Self>, _: &mut FieldErrors) {}
}

impl ResourceStrategy for ConfigMap {
    const META: KindMeta = KindMeta {
        kind: "ConfigMap",
        plural: "configmaps",
        singular: "configmap",
        short_names: &["cm"],
        columns: &[PrinterColumn { format: COUNT, ..column("Data", ".data+.binaryData") }, AGE],
        role_rules: &[VIEW, EDIT, CONTROLLER_READS],
        ..CORE
    };

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }

    fn normalize_input(object: &mut Value) {
        if let Some(data) = object.get_mut("binaryData") {
            secrets::join_base64_lines(data);
        }
    }

    fn set_defaults(&mut self, _: Option<&Self>, _: &RequestContext) {}

    fn validate(&self, before: Option<&Self>, problems: &mut FieldErrors) {
        settings::validate(&self.metadata, self.data.as_ref(), problems);
        check_data(self, problems);
        let Some(before) = before.filter(|before| before.immutable == Some(true)) else { return };
        if self.immutable != Some(true) {
            problems.add("immutable", "Forbidden: field is immutable when `immutable` is set");
        }
        for (field, same) in
            [("data", self.data == before.data), ("binaryData", self.binary_data == before.binary_data)]
        {
            if !same {
                problems.add(field, "Forbidden: field is immutable when `immutable` is set");
            }
        }
    }
}

fn check_data(map: &ConfigMap, problems: &mut FieldErrors) {
    let (data, binary) = (|| map.data.iter().flatten(), || map.binary_data.iter().flatten());
    let is_twice = |key: &String| map.binary_data.as_ref().is_some_and(|binary| binary.contains_key(key));
    for (key, _) in data().filter(|(key, _)| is_twice(key)) {
        let why = format!("Invalid value: {key:?}: duplicate of key present in binaryData");
        problems.add(format!("data[{key}]"), why);
    }
    secrets::check_keys("data", data().map(|(key, _)| key.as_str()), problems);
    secrets::check_keys("binaryData", binary().map(|(key, _)| key.as_str()), problems);
    secrets::check_key_count(data().count() + binary().count(), problems);
    let texts: usize = data().map(|(_, value)| value.len()).sum();
    let bytes = texts + binary().map(|(_, value)| value.0.len()).sum::<usize>();
    if bytes > secrets::DATA_BYTES_MAX {
        problems.add("", format!("Too long: may not be more than {} bytes", secrets::DATA_BYTES_MAX));
    }
}

impl ResourceStrategy for ServiceAccount {
    const META: KindMeta = KindMeta {
        kind: "ServiceAccount",
        plural: "serviceaccounts",
        singular: "serviceaccount",
        short_names: &["sa"],
        columns: &[PrinterColumn { format: COUNT, ..column("Secrets", ".secrets") }, AGE],
        role_rules: &[
            VIEW,
            EDIT,
            RoleRule::new(DefaultRole::Edit, &["create"]).on(&["token"]),
            RoleRule::new(DefaultRole::Controller, &["create", "delete", "get", "list", "watch"]),
            RoleRule::new(DefaultRole::Controller, &["create"]).on(&["token"]),
        ],
        ..CORE
    };

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }

    fn set_defaults(&mut self, _: Option<&Self>, _: &RequestContext) {}

    fn validate(&self, _: Option<&Self>, _: &mut FieldErrors) {}
}
