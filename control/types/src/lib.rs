#![forbid(unsafe_code)]
//! The kinds: the objects of users, with their defaults, rules and columns.
//!
//! One file contains everything about one kind and does no I/O. A kind reaches the API server as a row of its group, which
//! [`registry`] joins, and the controllers as a Rust type that `kube::Api` takes.

pub mod adapter_program;
pub mod adapter_schemas;
pub mod autoscaling;
pub mod aws;
pub mod classes;
pub mod conditions;
pub mod core_kinds;
pub mod core_service;
pub mod crd;
pub mod custom_kinds;
pub mod delivery;
pub mod duck_types;
pub mod duration;
pub mod endpoints;
pub mod eventing;
pub mod events_v1;
#[cfg(test)]
pub mod example_kind;
pub mod field_errors;
pub mod flows;
pub mod gateway_api;
pub mod gateway_policies;
pub mod items;
pub mod kafka;
pub mod kind_registry;
pub mod known_keys;
pub mod limits;
pub mod messaging;
pub mod metrics;
pub mod networking;
pub mod node;
mod nulls;
pub mod object_reader;
pub mod persistent_volume_claim;
pub mod printer_column;
pub mod quantity;
pub mod rbac;
pub mod request_context;
pub mod role_rules;
pub mod schema;
pub mod secret_reference;
pub mod secrets;
pub mod selector;
pub mod serving;
pub mod settings;
pub mod shared;
pub mod sink_injection;
pub mod sinks;
pub mod sources;
pub mod storage_only;
mod strict_deserializer;
pub mod user_info;
pub mod workloads;

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;

use crate::kind_registry::{KindEntry, KindRegistry};
use crate::workloads::WorkloadKinds;

/// All kinds that the appliance serves.
#[must_use]
pub fn registry() -> KindRegistry {
    registry_with(WorkloadKinds::All)
}

/// The same, with the workloads that clients may write.
#[must_use]
pub fn registry_with(workloads: WorkloadKinds) -> KindRegistry {
    let groups = [
        core_kinds::core_entries(),
        serving::entries(),
        autoscaling::entries(),
        eventing::entries(),
        vec![KindEntry::of::<CustomResourceDefinition>().with_items_max(items::DEFINITION_ITEMS_MAX)],
        workloads::entries(workloads),
        messaging::entries(),
        flows::entries(),
        networking::entries(),
        gateway_api::entries(),
        gateway_policies::entries(),
        sources::entries(),
        sinks::entries(),
        vec![KindEntry::of::<sources::adapter_type::AdapterType>()],
        vec![KindEntry::of::<Node>().derived()],
        metrics::entries(),
        storage_only::entries(),
        vec![events_v1::entry()],
    ];
    KindRegistry { entries: groups.into_iter().flatten().collect() }
}

/// Declares the outer type of a kind: Kubernetes' five fields, and what `kube` asks of a resource.
macro_rules! resource {
    ($(#[$doc:meta])* $kind:ident: $scope:ty { spec: $spec:ty, status: $status:ty }) => {
        $(#[$doc])*
        #[derive(
            Debug, Clone, Default, PartialEq, serde::Serialize, serde::Deserialize, schemars::JsonSchema,
        )]
        #[serde(rename_all = "camelCase")]
        pub struct $kind {
            #[serde(default)]
            pub api_version: String,
            #[serde(default)]
            pub kind: String,
            #[serde(default)]
            pub metadata: k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta,
            /// The desired state.
            #[serde(default)]
            pub spec: $spec,
            /// The observed state. Written by the controllers.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub status: Option<$status>,
        }

        impl $kind {
            /// An object as a client would write it.
            #[must_use]
            pub fn new(namespace: &str, name: &str, spec: $spec) -> Self {
                use crate::kind_registry::ResourceStrategy as _;
                Self {
                    api_version: format!("{}/{}", Self::META.group, Self::META.version),
                    kind: Self::META.kind.to_owned(),
                    metadata: k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta {
                        namespace: Self::META.namespaced.then(|| namespace.to_owned()),
                        name: Some(name.to_owned()),
                        ..Default::default()
                    },
                    spec,
                    status: None,
                }
            }
        }

        impl kube::Resource for $kind {
            type DynamicType = ();
            type Scope = $scope;

            fn kind((): &()) -> std::borrow::Cow<'_, str> {
                <Self as crate::kind_registry::ResourceStrategy>::META.kind.into()
            }
            fn group((): &()) -> std::borrow::Cow<'_, str> {
                <Self as crate::kind_registry::ResourceStrategy>::META.group.into()
            }
            fn version((): &()) -> std::borrow::Cow<'_, str> {
                <Self as crate::kind_registry::ResourceStrategy>::META.version.into()
            }
            fn plural((): &()) -> std::borrow::Cow<'_, str> {
                <Self as crate::kind_registry::ResourceStrategy>::META.plural.into()
            }
            fn meta(&self) -> &k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta {
                &self.metadata
            }
            fn meta_mut(&mut self) -> &mut k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta {
                &mut self.metadata
            }
        }
    };
}
pub(crate) use resource;

/// The same for a kind whose status has Knative's conditions.
macro_rules! kind {
    ($(#[$doc:meta])* $kind:ident { spec: $spec:ty, status: $status:ty }) => {
        crate::resource! {
            $(#[$doc])*
            $kind: k8s_openapi::NamespaceResourceScope { spec: $spec, status: $status }
        }

        impl crate::shared::HasConditions for $kind {
            fn status_base(&self) -> Option<&crate::shared::Status> {
                self.status.as_ref().map(|status| &status.base)
            }
        }
    };
}
pub(crate) use kind;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_is_found_by_its_plural_and_none_is_listed_twice() {
        let registry = registry();
        for entry in &registry.entries {
            let meta = entry.meta;
            let same = registry
                .entries
                .iter()
                .filter(|other| (other.meta.group, other.meta.plural) == (meta.group, meta.plural))
                .filter(|other| other.meta.version == meta.version)
                .count();
            assert_eq!(same, 1, "{}", meta.plural);
            assert!(registry.find(meta.group, meta.version, meta.plural).is_some());
        }
    }

    /// SRV-API-09: only the Configuration controller creates Revisions (AMB-62).
    #[test]
    fn revisions_are_the_only_kind_that_developers_do_not_create() {
        let closed = |kinds| -> Vec<_> {
            let entries = registry_with(kinds).entries;
            entries.iter().filter(|entry| !entry.meta.user_creatable).map(|entry| entry.meta.kind).collect()
        };
        assert_eq!(closed(WorkloadKinds::All), ["Revision"]);
        assert_eq!(closed(WorkloadKinds::ServicesOnly), ["Revision", "Pod", "Deployment"]);
    }
}
