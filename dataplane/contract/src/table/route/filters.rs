//! The filters of a share: what happens to its requests besides that they go to its backend.

use std::time::Duration;

use super::access_list::AccessList;
use super::header_edits::{HeaderChanges, HeaderEdits};
use super::mirror_policy::MirrorPolicy;
use super::redirect::Redirect;
use crate::table::RequestTimeouts;

/// The filters of a share. Most shares have none.
#[derive(Debug, Clone, Default)]
pub struct RouteFilters {
    /// Edits of requests on their way to the backend.
    pub request: HeaderEdits,
    /// Changes to the heads of final responses of the backend.
    pub response: HeaderChanges,
    /// The clients that may send requests. `None`: all.
    pub access: Option<Box<AccessList>>,
    /// Sent instead of a backend's response.
    pub reply: Option<Box<RouteReply>>,
    /// At most [`MirrorSet::MIRRORS_MAX`](super::MirrorSet::MIRRORS_MAX).
    pub mirrors: Box<[MirrorPolicy]>,
    /// Instead of the backend's timeouts.
    pub timeouts: Option<Box<RequestTimeouts>>,
    /// From the time when the request has its instance to the end of the response; `Duration::ZERO` = no limit.
    pub backend_request: Duration,
}

/// A response of the gateway that a rule asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RouteReply {
    Redirect(Redirect),
    /// A status without anything else: 500 for a backend that does not exist, or may not be used.
    Status(u16),
}

impl RouteFilters {
    /// Whether requests pass unchanged.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.request.is_empty()
            && self.response.is_empty()
            && self.access.is_none()
            && self.reply.is_none()
            && self.mirrors.is_empty()
            && self.timeouts.is_none()
            && self.backend_request.is_zero()
    }
}
