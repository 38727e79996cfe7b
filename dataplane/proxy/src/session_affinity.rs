//! Applies a route's traffic policy to one request: affinity key and cookie.

use bytes::BytesMut;
use fastrand::Rng;

use contract::table::{AffinityCookie, Route, RouteRequest, SessionAffinity};
use protocol::http::headers::add_field;

/// The key and cookie of a request under its route's traffic policy.
pub(super) fn session_affinity(route: &Route, route_request: &RouteRequest<'_>, rng: &mut Rng) -> SessionAffinity {
    let sticky = route.traffic_policy.as_ref().and_then(|policy| policy.sticky.as_ref());
    let (Some(sticky), Some(request)) = (sticky, route_request.request) else { return SessionAffinity::default() };
    sticky.bind(request, !route_request.plain, || rng.u64(..))
}

/// Appends the cookie to the head that was written last.
pub(super) fn put_cookie(out: &mut BytesMut, cookie: Option<AffinityCookie>) {
    if let Some(cookie) = cookie {
        add_field(out, "Set-Cookie", &cookie.value());
    }
}
