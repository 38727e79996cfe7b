//! Kubernetes' own kinds that are only stored: clients and controllers exchange data through them, and
//! no controller here acts on them.

use k8s_openapi::api::authentication::v1::{SelfSubjectReview, TokenReview};
use k8s_openapi::api::authorization::v1::{
    LocalSubjectAccessReview, SelfSubjectAccessReview, SelfSubjectRulesReview, SubjectAccessReview,
};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Endpoints, Event};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::field_errors::FieldErrors;
use crate::kind_registry::{CORE, KindEntry, KindMeta, RequestContext, ResourceStrategy};
use crate::printer_column::{AGE, LOWER_PAIR, PrinterColumn, column};
use crate::role_rules::{DefaultRole, EDIT, RoleRule, VIEW};

/// Where events live, whichever group they are asked for in.
pub const EVENT: KindMeta = KindMeta {
    kind: "Event",
    plural: "events",
    singular: "event",
    short_names: &["ev"],
    columns: &[
        PrinterColumn { format: "date", ..column("Last Seen", ".lastTimestamp|.eventTime|.firstTimestamp") },
        column("Type", ".type"),
        column("Reason", ".reason"),
        PrinterColumn { format: LOWER_PAIR, ..column("Object", ".involvedObject.kind+.involvedObject.name") },
        wide(column("Subobject", ".involvedObject.fieldPath")),
        wide(column("Source", ".source.component|.reportingComponent")),
        column("Message", ".message"),
        wide(PrinterColumn { format: "date", ..column("First Seen", ".firstTimestamp|.eventTime") }),
        wide(PrinterColumn { format: "integer", ..column("Count", ".count") }),
        wide(column("Name", ".metadata.name")),
    ],
    role_rules: &[VIEW, EDIT, RoleRule::new(DefaultRole::Controller, &["create", "get", "patch"])],
    ..CORE
};

const fn wide(column: PrinterColumn) -> PrinterColumn {
    PrinterColumn { priority: 1, ..column }
}

/// Every user may ask about themselves.
const ASKED_BY_ALL: &[RoleRule] = &[RoleRule::new(DefaultRole::BasicUser, &["create"])];

const AUTHORIZATION: KindMeta = KindMeta { group: "authorization.k8s.io", namespaced: false, columns: &[], ..CORE };
const AUTHENTICATION: KindMeta = KindMeta { group: "authentication.k8s.io", ..AUTHORIZATION };

/// The rows of kinds that are data.
#[must_use]
pub fn entries() -> Vec<KindEntry> {
    vec![
        KindEntry::of::<Event>(),
        KindEntry::of::<Endpoints>(),
        KindEntry::of::<EndpointSlice>(),
        KindEntry::of::<Lease>(),
        KindEntry::of::<Role>(),
        KindEntry::of::<RoleBinding>(),
        KindEntry::of::<ClusterRole>(),
        KindEntry::of::<ClusterRoleBinding>(),
        KindEntry::of::<SelfSubjectAccessReview>().create_only(),
        KindEntry::of::<SubjectAccessReview>().create_only(),
        KindEntry::of::<LocalSubjectAccessReview>().create_only(),
        KindEntry::of::<SelfSubjectRulesReview>().create_only(),
        KindEntry::of::<SelfSubjectReview>().create_only(),
        KindEntry { meta: &WHO_AM_I_BETA, ..KindEntry::of::<SelfSubjectReview>().create_only() },
        KindEntry::of::<TokenReview>().create_only(),
    ]
}

/// A kind without defaults and rules of its own.
macro_rules! data {
    ($kind:ty, $meta:expr) => {
        impl ResourceStrategy for $kind {
            const META: KindMeta = $meta;

            fn metadata_mut(&mut self) -> &mut ObjectMeta {
                &mut self.metadata
            }

            fn set_defaults(&mut self, _: Option<&Self>, _: &RequestContext) {}

            fn validate(&self, _: Option<&Self>, _: &mut FieldErrors) {}
        }
    };
}

impl ResourceStrategy for Event {
    const META: KindMeta = EVENT;

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }

    fn set_defaults(&mut self, _: Option<&Self>, _: &RequestContext) {}

    /// A user who may write events of one namespace must not report about objects of another.
    fn validate(&self, before: Option<&Self>, problems: &mut FieldErrors) {
        if before.is_none() {
            check_event_namespace(&self.metadata, self.involved_object.namespace.as_deref(), problems);
        }
    }
}

/// An event lives where its object does; those of objects without a namespace in the default one.
pub(super) fn check_event_namespace(metadata: &ObjectMeta, about: Option<&str>, problems: &mut FieldErrors) {
    let (home, about) = (metadata.namespace.as_deref().unwrap_or(""), about.unwrap_or(""));
    if home != about && !(about.is_empty() && home == "default") {
        let why = format!("Invalid value: {about:?}: does not match event.namespace");
        problems.add("involvedObject.namespace", why);
    }
}

impl ResourceStrategy for Lease {
    const META: KindMeta = KindMeta {
        group: "coordination.k8s.io",
        kind: "Lease",
        plural: "leases",
        singular: "lease",
        columns: &[column("Holder", ".spec.holderIdentity"), AGE],
        role_rules: &[
            RoleRule::new(DefaultRole::Edit, &["*"]),
            RoleRule::new(DefaultRole::Controller, &["create", "delete", "get", "list", "update"]),
        ],
        ..CORE
    };

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }

    fn set_defaults(&mut self, _: Option<&Self>, _: &RequestContext) {}

    fn validate(&self, _: Option<&Self>, problems: &mut FieldErrors) {
        let Some(spec) = &self.spec else { return };
        if let Some(seconds) = spec.lease_duration_seconds.filter(|seconds| *seconds <= 0) {
            let why = format!("Invalid value: {seconds}: must be greater than 0");
            problems.add("spec.leaseDurationSeconds", why);
        }
        if let Some(count) = spec.lease_transitions.filter(|count| *count < 0) {
            let why = format!("Invalid value: {count}: must be greater than or equal to 0");
            problems.add("spec.leaseTransitions", why);
        }
    }
}

data!(
    SelfSubjectAccessReview,
    KindMeta {
        kind: "SelfSubjectAccessReview",
        plural: "selfsubjectaccessreviews",
        singular: "selfsubjectaccessreview",
        role_rules: ASKED_BY_ALL,
        ..AUTHORIZATION
    }
);
data!(
    SubjectAccessReview,
    KindMeta {
        kind: "SubjectAccessReview",
        plural: "subjectaccessreviews",
        singular: "subjectaccessreview",
        role_rules: &[RoleRule::new(DefaultRole::Controller, &["create"])],
        ..AUTHORIZATION
    }
);
data!(
    LocalSubjectAccessReview,
    KindMeta {
        kind: "LocalSubjectAccessReview",
        plural: "localsubjectaccessreviews",
        singular: "localsubjectaccessreview",
        role_rules: &[RoleRule::new(DefaultRole::Admin, &["create"])],
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
        role_rules: ASKED_BY_ALL,
        ..AUTHORIZATION
    }
);
data!(TokenReview, KindMeta { kind: "TokenReview", plural: "tokenreviews", singular: "tokenreview", ..AUTHENTICATION });
/// The review that kubectl before 1.28 sends for `auth whoami`.
const WHO_AM_I_BETA: KindMeta = KindMeta { version: "v1beta1", ..SelfSubjectReview::META };
data!(
    SelfSubjectReview,
    KindMeta {
        kind: "SelfSubjectReview",
        plural: "selfsubjectreviews",
        singular: "selfsubjectreview",
        role_rules: ASKED_BY_ALL,
        ..AUTHENTICATION
    }
);
