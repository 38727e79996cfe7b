//! Applies a route's traffic policy to one request: affinity key, cookie, mirroring.

use bytes::BytesMut;
use fastrand::Rng;

use contract::table::{AffinityCookie, BackendShare, MirrorPolicy, Route, RouteRequest, SessionAffinity};
use protocol::http::headers::add_field;

/// Mirrors only traffic that the route splits itself: a request to a tagged revision was meant for that one.
pub(super) fn session_affinity(
    route: &Route,
    splits: &[BackendShare],
    route_request: &RouteRequest<'_>,
    rng: &mut Rng,
) -> SessionAffinity {
    let (Some(policy), Some(request)) = (&route.traffic_policy, route_request.request) else {
        return SessionAffinity::default();
    };
    let affinity = policy
        .sticky
        .as_ref()
        .map(|sticky| sticky.bind(request, !route_request.plain, || rng.u64(..)))
        .unwrap_or_default();
    let mut drawn = |mirror: &MirrorPolicy| {
        route.divides_by(splits) && !request.head.is_upgrade() && rng.u8(..100) < mirror.percent
    };
    SessionAffinity { mirror: policy.mirror.as_ref().filter(|mirror| drawn(mirror)).cloned(), ..affinity }
}

/// Appends the cookie to the head that was written last.
pub(super) fn put_cookie(out: &mut BytesMut, cookie: Option<AffinityCookie>) {
    if let Some(cookie) = cookie {
        add_field(out, "Set-Cookie", &cookie.value());
    }
}
