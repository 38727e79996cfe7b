//! Who may do what: identities, and the rules of RBAC over what is stored.
//!
//! Values in, values out, but for keys and certificates, which are files.

pub mod host_token;
pub mod jwks;
pub mod rbac;
pub mod self_signed;
pub mod service_account_tokens;
pub mod signing;
pub mod static_tokens;

use std::collections::BTreeMap;

/// The group that may do everything.
pub const MASTERS: &str = "system:masters";
/// Everybody who said who he is, and was believed.
pub const AUTHENTICATED: &str = "system:authenticated";

/// The account, in `knative-serving`, of appliances that follow this API. It may do what only controllers may.
pub const CONTROLLER_ACCOUNT: &str = "sluicegate";
/// As whom that account acts.
pub const CONTROLLER_USER: &str = "system:serviceaccount:knative-serving:sluicegate";

/// Somebody who was believed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UserInfo {
    pub name: String,
    pub groups: Vec<String>,
    /// Empty: he has none.
    pub uid: String,
    /// What else there is to him, by its name.
    pub extra: BTreeMap<String, Vec<String>>,
}

/// What somebody wants to do with objects.
#[derive(Debug, Clone, Copy)]
pub struct RequestAttributes<'a> {
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, `deletecollection`, …
    pub verb: &'a str,
    pub group: &'a str,
    pub resource: &'a str,
    /// Empty: the object itself.
    pub subresource: &'a str,
    /// Empty: a cluster-wide kind, or all namespaces.
    pub namespace: &'a str,
    /// Empty: not one by name.
    pub name: &'a str,
}
