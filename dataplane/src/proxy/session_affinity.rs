//! What a route's manners make of one request: its key, its cookie, its copy.

use bytes::BytesMut;
use fastrand::Rng;

use crate::http::headers::add_field;
use crate::table::{AffinityCookie, BackendShare, MirrorPolicy, Route, RouteRequest, SessionAffinity};

/// Copies are of what the route divides itself: what was sent to a branch was meant for there.
pub(super) fn session_affinity(
    route: &Route,
    splits: &[BackendShare],
    ask: &RouteRequest<'_>,
    rng: &mut Rng,
) -> SessionAffinity {
    let (Some(manners), Some(request)) = (&route.traffic_policy, ask.request) else {
        return SessionAffinity::default();
    };
    let bond =
        manners.sticky.as_ref().map(|sticky| sticky.bind(request, !ask.plain, || rng.u64(..))).unwrap_or_default();
    let mut drawn = |mirror: &MirrorPolicy| {
        route.divides_by(splits) && !request.head.is_upgrade() && rng.u8(..100) < mirror.percent
    };
    SessionAffinity { mirror: manners.mirror.as_ref().filter(|mirror| drawn(mirror)).cloned(), ..bond }
}

/// Adds the cookie to the head that was written last.
pub(super) fn put_cookie(out: &mut BytesMut, cookie: Option<AffinityCookie>) {
    if let Some(cookie) = cookie {
        add_field(out, "Set-Cookie", &cookie.value());
    }
}
