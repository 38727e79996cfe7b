//! Kubernetes' own kinds that are kept as data: clients and controllers write them for each other, and
//! nothing here acts on them.

use k8s_openapi::api::authentication::v1::{SelfSubjectReview, TokenReview};
use k8s_openapi::api::authorization::v1::{
    LocalSubjectAccessReview, SelfSubjectAccessReview, SelfSubjectRulesReview, SubjectAccessReview,
};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Endpoints, Event};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::column;
use super::core::{AGE, CORE, CREATED_AT};
use crate::kind::{Column, Entry, KindMeta, LOWER_PAIR, PAIR, Problems, Requester, Resource};

/// Where events live, whichever group they are asked for in.
pub const EVENT: KindMeta = KindMeta {
    kind: "Event",
    plural: "events",
    singular: "event",
    short_names: &["ev"],
    columns: &[
        Column { format: "date", ..column("Last Seen", ".lastTimestamp|.eventTime|.firstTimestamp") },
        column("Type", ".type"),
        column("Reason", ".reason"),
        Column { format: LOWER_PAIR, ..column("Object", ".involvedObject.kind+.involvedObject.name") },
        wide(column("Subobject", ".involvedObject.fieldPath")),
        wide(column("Source", ".source.component|.reportingComponent")),
        column("Message", ".message"),
        wide(Column { format: "date", ..column("First Seen", ".firstTimestamp|.eventTime") }),
        wide(Column { format: "integer", ..column("Count", ".count") }),
        wide(column("Name", ".metadata.name")),
    ],
    ..CORE
};

/// What bindings show.
const BOUND: [Column; 5] = [
    Column { format: PAIR, ..column("Role", ".roleRef.kind+.roleRef.name") },
    AGE,
    wide(column("Users", r#".subjects[?(@.kind=="User")].name"#)),
    wide(column("Groups", r#".subjects[?(@.kind=="Group")].name"#)),
    wide(Column {
        format: PAIR,
        ..column(
            "ServiceAccounts",
            r#".subjects[?(@.kind=="ServiceAccount")].namespace+.subjects[?(@.kind=="ServiceAccount")].name"#,
        )
    }),
];

const fn wide(column: Column) -> Column {
    Column { priority: 1, ..column }
}

const COORDINATION: KindMeta = KindMeta { group: "coordination.k8s.io", ..CORE };
const DISCOVERY: KindMeta = KindMeta { group: "discovery.k8s.io", ..CORE };
const RBAC: KindMeta = KindMeta { group: "rbac.authorization.k8s.io", ..CORE };
const AUTHORIZATION: KindMeta =
    KindMeta { group: "authorization.k8s.io", namespaced: false, columns: &[], ..CORE };
const AUTHENTICATION: KindMeta = KindMeta { group: "authentication.k8s.io", ..AUTHORIZATION };

/// The rows of kinds that are data.
#[must_use]
pub fn entries() -> Vec<Entry> {
    vec![
        Entry::of::<Event>(),
        Entry::of::<Endpoints>(),
        Entry::of::<EndpointSlice>(),
        Entry::of::<Lease>(),
        Entry::of::<Role>(),
        Entry::of::<RoleBinding>(),
        Entry::of::<ClusterRole>(),
        Entry::of::<ClusterRoleBinding>(),
        Entry::of::<SelfSubjectAccessReview>().create_only(),
        Entry::of::<SubjectAccessReview>().create_only(),
        Entry::of::<LocalSubjectAccessReview>().create_only(),
        Entry::of::<SelfSubjectRulesReview>().create_only(),
        Entry::of::<SelfSubjectReview>().create_only(),
        Entry::of::<TokenReview>().create_only(),
    ]
}

/// A kind without defaults and rules of its own.
macro_rules! data {
    ($kind:ty, $meta:expr) => {
        impl Resource for $kind {
            const META: KindMeta = $meta;

            fn metadata_mut(&mut self) -> &mut ObjectMeta {
                &mut self.metadata
            }

            fn set_defaults(&mut self, _: Option<&Self>, _: &Requester) {}

            fn validate(&self, _: Option<&Self>, _: &mut Problems) {}
        }
    };
}

impl Resource for Event {
    const META: KindMeta = EVENT;

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }

    fn set_defaults(&mut self, _: Option<&Self>, _: &Requester) {}

    /// Who may write events of one namespace must not tell of another's objects.
    fn validate(&self, before: Option<&Self>, problems: &mut Problems) {
        if before.is_none() {
            check_home(&self.metadata, self.involved_object.namespace.as_deref(), problems);
        }
    }
}

/// An event lives where its object does; those of objects without a namespace in the default one.
pub(super) fn check_home(metadata: &ObjectMeta, about: Option<&str>, problems: &mut Problems) {
    let (home, about) = (metadata.namespace.as_deref().unwrap_or(""), about.unwrap_or(""));
    if home != about && !(about.is_empty() && home == "default") {
        let why = format!("Invalid value: {about:?}: does not match event.namespace");
        problems.add("involvedObject.namespace", why);
    }
}

data!(
    Endpoints,
    KindMeta {
        kind: "Endpoints",
        plural: "endpoints",
        singular: "endpoints",
        short_names: &["ep"],
        columns: &[column("Endpoints", ".subsets[*].addresses[*].ip|=<none>"), AGE],
        ..CORE
    }
);
data!(
    EndpointSlice,
    KindMeta {
        kind: "EndpointSlice",
        plural: "endpointslices",
        singular: "endpointslice",
        columns: &[
            column("AddressType", ".addressType"),
            column("Ports", ".ports[*].port"),
            column("Endpoints", ".endpoints[*].addresses[*]"),
            AGE,
        ],
        ..DISCOVERY
    }
);
data!(
    Lease,
    KindMeta {
        kind: "Lease",
        plural: "leases",
        singular: "lease",
        columns: &[column("Holder", ".spec.holderIdentity"), AGE],
        ..COORDINATION
    }
);
data!(Role, KindMeta { kind: "Role", plural: "roles", singular: "role", columns: &[CREATED_AT], ..RBAC });
data!(
    RoleBinding,
    KindMeta {
        kind: "RoleBinding",
        plural: "rolebindings",
        singular: "rolebinding",
        columns: &BOUND,
        ..RBAC
    }
);
data!(
    ClusterRole,
    KindMeta {
        kind: "ClusterRole",
        plural: "clusterroles",
        singular: "clusterrole",
        namespaced: false,
        columns: &[CREATED_AT],
        ..RBAC
    }
);
data!(
    ClusterRoleBinding,
    KindMeta {
        kind: "ClusterRoleBinding",
        plural: "clusterrolebindings",
        singular: "clusterrolebinding",
        namespaced: false,
        columns: &BOUND,
        ..RBAC
    }
);
data!(
    SelfSubjectAccessReview,
    KindMeta {
        kind: "SelfSubjectAccessReview",
        plural: "selfsubjectaccessreviews",
        singular: "selfsubjectaccessreview",
        ..AUTHORIZATION
    }
);
data!(
    SubjectAccessReview,
    KindMeta {
        kind: "SubjectAccessReview",
        plural: "subjectaccessreviews",
        singular: "subjectaccessreview",
        ..AUTHORIZATION
    }
);
data!(
    LocalSubjectAccessReview,
    KindMeta {
        kind: "LocalSubjectAccessReview",
        plural: "localsubjectaccessreviews",
        singular: "localsubjectaccessreview",
        namespaced: true,
        ..AUTHORIZATION
    }
);
data!(
    SelfSubjectRulesReview,
    KindMeta {
        kind: "SelfSubjectRulesReview",
        plural: "selfsubjectrulesreviews",
        singular: "selfsubjectrulesreview",
        ..AUTHORIZATION
    }
);
data!(
    TokenReview,
    KindMeta { kind: "TokenReview", plural: "tokenreviews", singular: "tokenreview", ..AUTHENTICATION }
);
data!(
    SelfSubjectReview,
    KindMeta {
        kind: "SelfSubjectReview",
        plural: "selfsubjectreviews",
        singular: "selfsubjectreview",
        ..AUTHENTICATION
    }
);
