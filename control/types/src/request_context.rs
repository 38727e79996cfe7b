//! What the rules of a kind may know of a request.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::adapter_schemas::AdapterTypeSpec;
use crate::settings::Settings;
use crate::sink_injection::SinkInjection;
use crate::user_info::{CONTROLLER_USER, UserInfo};

/// The user of a request, and the operator's settings at that time.
#[derive(Debug, Clone, Default)]
pub struct RequestContext {
    pub user: String,
    pub groups: Vec<String>,
    /// Empty without groups.
    pub uid: String,
    /// The user's extra attributes, by name.
    pub extra: BTreeMap<String, Vec<String>>,
    /// The authenticated user, if the request impersonates another.
    pub impersonator: Option<Arc<UserInfo>>,
    /// A controller of ours, over the in-process client.
    pub internal: bool,
    /// The current settings.
    pub settings: Arc<Settings>,
    /// The AdapterTypes, for kinds that they apply to.
    pub adapter_types: Vec<AdapterTypeSpec>,
    /// The SinkBindings in the namespace of the write, for kinds that they apply to.
    pub injections: Vec<SinkInjection>,
}

impl RequestContext {
    /// One of our controllers: in this process, or in another appliance that follows this API.
    #[must_use]
    pub fn is_controller(&self) -> bool {
        self.internal || self.user == CONTROLLER_USER
    }
}
