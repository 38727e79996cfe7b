//! A controller's filters for a rule or a share, before they are compiled.

use std::sync::Arc;
use std::time::Duration;

use contract::table::authentication::AuthenticationPolicy;
use contract::table::{
    AccessList, AuthorizationService, CompressionPolicy, CorsPolicy, HeaderChanges, HeaderEdits, MirrorFraction,
    RateLimiter, RequestTimeouts, RouteReply,
};

/// The filters of a rule or of a share. Those of a share come after those of its rule.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RouteFilterRule {
    /// Edits of requests, also of their host and path.
    pub request: HeaderEdits,
    /// Changes to the heads of responses.
    pub response: HeaderChanges,
    /// The clients that may send requests. Those of a share replace those of its rule.
    pub access: AccessList,
    /// That of a share replaces that of its rule.
    pub cors: Option<CorsPolicy>,
    /// Those of a share are applied after those of its rule.
    pub rate_limits: Vec<Arc<RateLimiter>>,
    /// Bytes of a request body.
    pub body_bytes_max: Option<u64>,
    /// That of a share replaces that of its rule.
    pub compression: Option<CompressionPolicy>,
    /// The credentials that clients need. Those of a share replace those of its rule.
    pub authentication: Option<Arc<AuthenticationPolicy>>,
    /// A service that is asked about each request. That of a share replaces that of its rule.
    pub external_authorization: Option<ExternalAuthorizationRule>,
    /// Sent instead of a backend's response. A rule with it needs no shares.
    pub reply: Option<RouteReply>,
    /// At most `MirrorSet::MIRRORS_MAX` for a rule and a share together.
    pub mirrors: Vec<MirrorRule>,
    pub timeouts: RuleTimeouts,
}

/// Copies of requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MirrorRule {
    pub destination: FilterRuleDestination,
    pub fraction: MirrorFraction,
}

/// An authorization service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExternalAuthorizationRule {
    pub destination: FilterRuleDestination,
    pub service: Arc<AuthorizationService>,
}

/// Where the requests of a filter go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FilterRuleDestination {
    /// They are routed like requests to this host.
    Host(String),
    /// The key of a backend.
    Backend(String),
}

/// The timeouts of a rule, as in an HTTPRoute. `None`: those of its backends apply. Zero: there is no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RuleTimeouts {
    /// From the request's head to the end of the response.
    pub request: Option<Duration>,
    /// The same, from the time when the request has its instance.
    pub backend_request: Option<Duration>,
}

impl RuleTimeouts {
    /// These, and `later` where it sets one.
    #[must_use]
    pub(super) fn overridden_by(self, later: Self) -> Self {
        Self {
            request: later.request.or(self.request),
            backend_request: later.backend_request.or(self.backend_request),
        }
    }

    /// The timeouts of a backend's requests under this rule, if they are not the backend's. The rule says how long a response may
    /// take: it may begin as late, and pause as long.
    pub(super) fn applied_to(self, backend: &RequestTimeouts) -> Option<RequestTimeouts> {
        let longest = self.request.max(self.backend_request)?;
        let idle = if backend.idle.is_zero() { Duration::ZERO } else { backend.idle.max(longest) };
        let total = self.request.unwrap_or(backend.total);
        Some(RequestTimeouts { total, response_start: Duration::ZERO, idle, ..*backend })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeout_of_a_rule_replaces_those_of_the_backend() {
        let seconds = Duration::from_secs;
        let timeouts = |request: Option<u64>, backend_request: Option<u64>| RuleTimeouts {
            request: request.map(seconds),
            backend_request: backend_request.map(seconds),
        };
        let applied = |rule: RuleTimeouts| {
            let made = rule.applied_to(&RequestTimeouts { total: seconds(9), ..RequestTimeouts::EXTERNAL });
            made.map(|made| (made.total, made.response_start, made.idle))
        };
        assert_eq!(applied(timeouts(None, None)), None);
        assert_eq!(applied(timeouts(Some(5), None)), Some((seconds(5), seconds(0), seconds(300))));
        assert_eq!(applied(timeouts(Some(600), Some(400))), Some((seconds(600), seconds(0), seconds(600))));
        assert_eq!(applied(timeouts(None, Some(400))), Some((seconds(9), seconds(0), seconds(400))));
        assert_eq!(applied(timeouts(Some(0), None)), Some((seconds(0), seconds(0), seconds(300))));
        let share = timeouts(Some(5), None).overridden_by(timeouts(None, Some(2)));
        assert_eq!(share, timeouts(Some(5), Some(2)));
    }
}
