//! Where filters send requests of their own.

use std::sync::Arc;

use crate::table::Backend;

/// Where the requests of a filter go: copies, and requests to an authorization service.
#[derive(Debug, Clone)]
pub enum FilterDestination {
    /// They are routed like requests to this host.
    Host(Box<str>),
    /// They do not wait for an instance.
    Backend(Arc<Backend>),
}
