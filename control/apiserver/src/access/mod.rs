//! Identities, and role-based access control over the stored roles and bindings.
//!
//! Values in, values out, except keys and certificates, which are files.

mod gateway_tokens;
pub mod host_token;
pub mod jwks;
pub mod rbac;
pub mod self_signed;
pub mod service_account_tokens;
pub mod signing;
pub mod static_tokens;
mod token_claims;

pub use types::user_info::{CONTROLLER_USER, UserInfo};

/// The group that may do everything.
pub const MASTERS: &str = "system:masters";
/// The group of all authenticated users.
pub const AUTHENTICATED: &str = "system:authenticated";

/// The account, in `knative-serving`, of appliances that follow this API. It may do what only controllers may.
pub const CONTROLLER_ACCOUNT: &str = "sluicegate";

/// The action that a request wants to perform.
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
