//! Core kinds that others refer to. They hold data; nothing reconciles them.

use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Secret, Service, ServiceAccount};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::{column, settings};
use crate::kind::{
    COUNT, Column, Entry, KindMeta, LABELS, PAIR, Problems, Requester, Resource, STAMP, UnknownFields,
};

pub(super) const AGE: Column =
    Column { name: "Age", path: ".metadata.creationTimestamp", format: "date", priority: 0 };

pub(super) const CREATED_AT: Column =
    Column { name: "Created At", path: ".metadata.creationTimestamp", format: STAMP, priority: 0 };

/// What all core kinds have in common.
pub(super) const CORE: KindMeta = KindMeta {
    group: "",
    version: "v1",
    kind: "",
    plural: "",
    singular: "",
    short_names: &[],
    categories: &[],
    namespaced: true,
    has_status: false,
    unknown_fields: UnknownFields::Prune,
    developers_create: true,
    columns: &[AGE],
};

pub const NAMESPACE: KindMeta = KindMeta {
    kind: "Namespace",
    plural: "namespaces",
    singular: "namespace",
    short_names: &["ns"],
    namespaced: false,
    has_status: true,
    columns: &[column("Status", ".status.phase"), AGE],
    ..CORE
};

/// Holds a namespace that is being deleted until it is empty.
pub const NAMESPACE_FINALIZER: &str = "kubernetes";

/// The core kinds' rows.
#[must_use]
pub fn entries() -> Vec<Entry> {
    vec![
        Entry::of::<Namespace>(),
        Entry::of::<ConfigMap>(),
        Entry::of::<Secret>(),
        Entry::of::<Service>(),
        Entry::of::<ServiceAccount>(),
    ]
}

impl Resource for Namespace {
    const META: KindMeta = NAMESPACE;

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }

    fn set_defaults(&mut self, before: Option<&Self>, _: &Requester) {
        // Nobody but the collector takes the finalizer away, and it does so by itself.
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

    fn validate(&self, _: Option<&Self>, _: &mut Problems) {}
}

impl Resource for ConfigMap {
    const META: KindMeta = KindMeta {
        kind: "ConfigMap",
        plural: "configmaps",
        singular: "configmap",
        short_names: &["cm"],
        columns: &[Column { format: COUNT, ..column("Data", ".data+.binaryData") }, AGE],
        ..CORE
    };

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }

    fn set_defaults(&mut self, _: Option<&Self>, _: &Requester) {}

    fn validate(&self, before: Option<&Self>, problems: &mut Problems) {
        settings::validate(&self.metadata, self.data.as_ref(), problems);
        let Some(before) = before.filter(|before| before.immutable == Some(true)) else { return };
        if self.immutable != Some(true) {
            problems.add("immutable", "Forbidden: field is immutable when `immutable` is set");
        }
        if self.data != before.data || self.binary_data != before.binary_data {
            problems.add("data", "Forbidden: field is immutable when `immutable` is set");
        }
    }
}

impl Resource for Secret {
    const META: KindMeta = KindMeta {
        kind: "Secret",
        plural: "secrets",
        singular: "secret",
        columns: &[column("Type", ".type"), Column { format: COUNT, ..column("Data", ".data") }, AGE],
        ..CORE
    };

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }

    fn set_defaults(&mut self, _: Option<&Self>, _: &Requester) {
        for (key, text) in self.string_data.take().into_iter().flatten() {
            let data = self.data.get_or_insert_default();
            data.insert(key, k8s_openapi::ByteString(text.into_bytes()));
        }
        self.type_.get_or_insert_with(|| "Opaque".into());
    }

    fn validate(&self, before: Option<&Self>, problems: &mut Problems) {
        let Some(before) = before else { return };
        if self.type_ != before.type_ {
            problems.add("type", "Invalid value: field is immutable");
        }
        if before.immutable == Some(true) && (self.data != before.data || self.immutable != Some(true)) {
            problems.add("data", "Forbidden: field is immutable when `immutable` is set");
        }
    }
}

impl Resource for Service {
    const META: KindMeta = KindMeta {
        kind: "Service",
        plural: "services",
        singular: "service",
        short_names: &["svc"],
        categories: &["all"],
        has_status: true,
        columns: &[
            column("Type", ".spec.type"),
            column("Cluster-IP", ".spec.clusterIP|=<none>"),
            column("External-IP", ".spec.externalName|=<none>"),
            Column { format: PAIR, ..column("Port(s)", ".spec.ports[*].port+.spec.ports[*].protocol") },
            AGE,
            Column { format: LABELS, priority: 1, ..column("Selector", ".spec.selector|=<none>") },
        ],
        ..CORE
    };

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }

    fn set_defaults(&mut self, _: Option<&Self>, _: &Requester) {
        let Some(spec) = &mut self.spec else { return };
        spec.type_.get_or_insert_with(|| "ClusterIP".into());
        for port in spec.ports.iter_mut().flatten() {
            port.protocol.get_or_insert_with(|| "TCP".into());
        }
    }

    fn validate(&self, _: Option<&Self>, problems: &mut Problems) {
        let Some(spec) = &self.spec else { return problems.add("spec", "Required value") };
        if spec.type_.as_deref() == Some("ExternalName")
            && spec.external_name.as_deref().unwrap_or("").is_empty()
        {
            problems.add("spec.externalName", "Required value");
        }
        for (index, port) in spec.ports.iter().flatten().enumerate() {
            if !(1..=65535).contains(&port.port) {
                let why = format!("Invalid value: {}: must be between 1 and 65535, inclusive", port.port);
                problems.add(format!("spec.ports[{index}].port"), why);
            }
        }
    }
}

impl Resource for ServiceAccount {
    const META: KindMeta = KindMeta {
        kind: "ServiceAccount",
        plural: "serviceaccounts",
        singular: "serviceaccount",
        short_names: &["sa"],
        columns: &[Column { format: COUNT, ..column("Secrets", ".secrets") }, AGE],
        ..CORE
    };

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }

    fn set_defaults(&mut self, _: Option<&Self>, _: &Requester) {}

    fn validate(&self, _: Option<&Self>, _: &mut Problems) {}
}
