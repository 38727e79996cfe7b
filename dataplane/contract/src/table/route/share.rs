//! The shares of a route's requests.

use std::sync::{Arc, LazyLock};

use super::filters::{RouteFilters, RouteReply};
use super::header_edits::HeaderEdits;
use crate::table::{Backend, NoEndpointPolicy, Protocol, RequestTimeouts};

/// A backend's share.
#[derive(Debug, Clone)]
pub struct BackendShare {
    /// 0 gets no traffic.
    pub weight: u32,
    pub backend: Arc<Backend>,
    /// What happens to its requests. `None`: they pass unchanged.
    pub filters: Option<Arc<RouteFilters>>,
}

impl BackendShare {
    /// A share without filters.
    #[must_use]
    pub fn new(weight: u32, backend: Arc<Backend>) -> Self {
        Self { weight, backend, filters: None }
    }

    /// A share whose requests the gateway answers.
    #[must_use]
    pub fn of_reply(weight: u32, reply: RouteReply) -> Self {
        static NO_BACKEND: LazyLock<Arc<Backend>> = LazyLock::new(|| {
            Arc::new(Backend {
                key: Box::default(),
                endpoints: Box::default(),
                concurrency_max: 0,
                when_empty: NoEndpointPolicy::Refuse,
                protocol: Protocol::Http1,
                tls: None,
                timeouts: RequestTimeouts::NONE,
                proxy_protocol: None,
                load: Arc::default(),
            })
        });
        let filters = RouteFilters { reply: Some(Box::new(reply)), ..RouteFilters::default() };
        Self { weight, backend: Arc::clone(&NO_BACKEND), filters: Some(Arc::new(filters)) }
    }

    /// The edits of its requests.
    #[must_use]
    pub fn edits(&self) -> Option<&HeaderEdits> {
        self.filters.as_deref().map(|filters| &filters.request)
    }

    /// The gateway's response to its requests, if they do not go to the backend.
    #[inline]
    #[must_use]
    pub fn reply(&self) -> Option<&RouteReply> {
        self.filters.as_ref()?.reply.as_deref()
    }
}
