//! The filters of a share: what happens to its requests besides that they go to its backend.

use std::sync::Arc;
use std::time::Duration;

use codec::http::BodyFraming;

use super::access_list::AccessList;
use super::authentication::AuthenticationPolicy;
use super::compression_policy::CompressionPolicy;
use super::cors::{CorsDecision, CorsPolicy};
use super::external_authorization::ExternalAuthorization;
use super::header_edits::{HeaderChanges, HeaderEdits};
use super::mirror_policy::MirrorPolicy;
use super::rate_limit::RateLimiter;
use super::redirect::Redirect;
use super::request::RouteRequest;
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
    pub cors: Option<Box<CorsPolicy>>,
    /// A request takes a token of each.
    pub rate_limits: Box<[Arc<RateLimiter>]>,
    /// Bytes of a request body. `None`: no limit.
    pub body_bytes_max: Option<u64>,
    /// `None`: responses go as they are.
    pub compression: Option<Box<CompressionPolicy>>,
    /// The credentials that clients need. `None`: none.
    pub authentication: Option<Arc<AuthenticationPolicy>>,
    /// A service that is asked about each request of an authenticated client. `None`: none.
    pub external_authorization: Option<Box<ExternalAuthorization>>,
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

/// What the filters ask for, besides what they say themselves.
#[derive(Debug, Default)]
pub struct FilterOutcome {
    /// Changes to the head of the response, instead of [`RouteFilters::response`].
    pub response: Option<Box<HeaderChanges>>,
}

/// Why the gateway answers a request itself.
#[derive(Debug, PartialEq, Eq)]
pub enum FilterRefusal {
    ClientDenied,
    /// A preflight is answered with these fields.
    CorsPreflight(Box<HeaderChanges>),
    /// The next request may come after this time.
    RateLimited(Duration),
    /// The request announces more bytes than this limit.
    BodyTooLarge(u64),
}

impl RouteFilters {
    /// Whether requests pass unchanged.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.request.is_empty()
            && self.response.is_empty()
            && self.access.is_none()
            && self.cors.is_none()
            && self.rate_limits.is_empty()
            && self.body_bytes_max.is_none()
            && self.compression.is_none()
            && self.authentication.is_none()
            && self.external_authorization.is_none()
            && self.reply.is_none()
            && self.mirrors.is_empty()
            && self.timeouts.is_none()
            && self.backend_request.is_zero()
    }

    /// Applies the filters that may refuse a request. `now` is the time since any moment that is the same for all cores; it is
    /// read only if there is a rate limit.
    ///
    /// # Errors
    ///
    /// One of them does.
    pub fn admit(
        &self,
        route_request: &RouteRequest<'_>,
        now: impl FnOnce() -> Duration,
    ) -> Result<FilterOutcome, FilterRefusal> {
        if self.access.as_ref().is_some_and(|access| !access.admits(route_request)) {
            return Err(FilterRefusal::ClientDenied);
        }
        let mut outcome = FilterOutcome::default();
        match self.cors.as_ref().and_then(|cors| cors.decide(route_request)) {
            Some(CorsDecision::Preflight(fields)) => return Err(FilterRefusal::CorsPreflight(Box::new(fields))),
            Some(CorsDecision::Forward(changes)) => {
                let mut all = Box::new(self.response.clone());
                all.append(&changes);
                outcome.response = Some(all);
            }
            None => {}
        }
        if !self.rate_limits.is_empty() {
            let now = now();
            for limiter in &self.rate_limits {
                limiter.admit(route_request, now).map_err(|limited| FilterRefusal::RateLimited(limited.retry_after))?;
            }
        }
        let announced = route_request.request.map(|request| request.head.framing);
        match (self.body_bytes_max, announced) {
            (Some(most), Some(BodyFraming::Length(bytes))) if bytes > most => Err(FilterRefusal::BodyTooLarge(most)),
            _ => Ok(outcome),
        }
    }

    /// Whether bodies are looked at on their way.
    #[must_use]
    pub fn reads_bodies(&self, framing: BodyFraming) -> bool {
        self.compression.is_some() || self.body_bytes_max.is_some() && framing == BodyFraming::Chunked
    }
}
