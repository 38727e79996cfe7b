//! The rights on a kind that the default roles have. A kind lists them in its row, and the roles are made of all rows.

pub type Verbs = &'static [&'static str];

pub const READ: Verbs = &["get", "list", "watch"];
pub const WRITE: Verbs = &["create", "delete", "deletecollection", "patch", "update"];
const READ_AND_WRITE: Verbs = &["get", "list", "watch", "create", "delete", "deletecollection", "patch", "update"];
/// What our controllers do with objects that they create.
pub const MANAGE: Verbs = &["create", "delete", "get", "list", "patch", "update", "watch"];
/// What our controllers do with statuses.
const UPDATE_STATUS: Verbs = &["get", "patch", "update"];
/// `kubectl exec`, `attach` and `port-forward`: by GET and by POST.
pub const STREAM: Verbs = &["create", "get"];

/// A role that consists of rules of many kinds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DefaultRole {
    /// Kubernetes' `view`, `edit` and `admin`, each with the rules of those before it.
    View,
    Edit,
    Admin,
    /// Every authenticated user.
    BasicUser,
    /// An appliance that follows this API, or a cluster's.
    Controller,
}

impl DefaultRole {
    /// The name of the ClusterRole that has the rules.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::View => "system:aggregate-to-view",
            Self::Edit => "system:aggregate-to-edit",
            Self::Admin => "system:aggregate-to-admin",
            Self::BasicUser => "system:basic-user",
            Self::Controller => "sluicegate-controller",
        }
    }
}

/// A right of a default role on the kind whose row has it.
#[derive(Debug, Clone, Copy)]
pub struct RoleRule {
    pub role: DefaultRole,
    pub verbs: Verbs,
    /// Which parts of an object; empty text is the object itself.
    pub subresources: &'static [&'static str],
}

impl RoleRule {
    #[must_use]
    pub const fn new(role: DefaultRole, verbs: Verbs) -> Self {
        Self { role, verbs, subresources: &[""] }
    }

    /// The same right on parts of the object.
    #[must_use]
    pub const fn on(self, subresources: &'static [&'static str]) -> Self {
        Self { subresources, ..self }
    }
}

pub const VIEW: RoleRule = RoleRule::new(DefaultRole::View, READ);
pub const EDIT: RoleRule = RoleRule::new(DefaultRole::Edit, WRITE);
/// For namespaces' administrators. Not all verbs: `bind` and `escalate` would let them become any user.
pub const ADMINISTER: RoleRule = RoleRule::new(DefaultRole::Admin, READ_AND_WRITE);
/// Our controllers read the kind.
pub const CONTROLLER_READS: RoleRule = RoleRule::new(DefaultRole::Controller, READ);
/// Our controllers write the kind's statuses.
pub const CONTROLLER_REPORTS: RoleRule = RoleRule::new(DefaultRole::Controller, UPDATE_STATUS).on(&["status"]);
/// Our controllers reconcile the kind: they write objects and statuses.
pub const RECONCILED: &[RoleRule] = &[RoleRule::new(DefaultRole::Controller, MANAGE), CONTROLLER_REPORTS];
