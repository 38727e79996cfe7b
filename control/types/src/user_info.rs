//! The user of a request, as admission of a kind sees it.

use std::collections::BTreeMap;

/// The account of appliances that follow an API. It may do what only controllers may.
pub const CONTROLLER_USER: &str = "system:serviceaccount:knative-serving:sluicegate";

/// An authenticated requester.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UserInfo {
    pub name: String,
    pub groups: Vec<String>,
    /// Empty: the requester has no uid.
    pub uid: String,
    /// Further attributes by name.
    pub extra: BTreeMap<String, Vec<String>>,
}
