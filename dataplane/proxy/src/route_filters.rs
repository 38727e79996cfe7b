//! The filters of a share, as far as the proxy applies them itself: replies, mirrors, and changes to responses in HTTP/2. The
//! writers of HTTP/1 heads apply the others (`protocol::http::headers`).

use std::sync::LazyLock;
use std::time::Instant;

use ::http::{HeaderName, HeaderValue, Response};
use codec::http::RequestView;
use contract::table::{
    BackendShare, FilterRefusal, HeaderChanges, HeaderEdits, MirrorSet, RouteFilters, RouteReply, RouteRequest,
};
use fastrand::Rng;

use super::{LocalReply, SelectedEndpoint};

/// When the process started to count: rate limits need one clock for all cores.
static CLOCK_START: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Applies the filters that act before a request goes to its backend.
///
/// # Errors
///
/// They refuse the client, or reply themselves.
pub(super) fn apply_filters(
    share: &BackendShare,
    filters: &RouteFilters,
    route_request: &RouteRequest<'_>,
    rng: &mut Rng,
) -> Result<SelectedEndpoint, LocalReply> {
    // A call into the vDSO, for shares with a rate limit only.
    let outcome = filters.admit(route_request, || CLOCK_START.elapsed()).map_err(refusal)?;
    match filters.reply.as_deref() {
        Some(RouteReply::Redirect(redirect)) => {
            let location = redirect.location(route_request).into();
            return Err(LocalReply::Redirect { status: redirect.status(), location });
        }
        Some(RouteReply::Status(status)) => {
            let backend: Box<str> = match &*share.backend.key {
                "" => "its backend".into(),
                key => key.into(),
            };
            return Err(LocalReply::FixedStatus { status: *status, backend });
        }
        None => {}
    }
    // Of a request that upgrades, the bytes that follow could not be copied.
    let may_mirror = route_request.request.is_some_and(|request| !request.head.is_upgrade());
    let mirrors =
        if may_mirror { MirrorSet::draw(&filters.mirrors, |below| rng.u32(..below)) } else { MirrorSet::default() };
    Ok(SelectedEndpoint { mirrors, response: outcome.response, ..SelectedEndpoint::from(share) })
}

fn refusal(why: FilterRefusal) -> LocalReply {
    match why {
        FilterRefusal::ClientDenied => LocalReply::ClientDenied,
        FilterRefusal::CorsPreflight(fields) => LocalReply::CorsPreflight(fields),
        FilterRefusal::RateLimited(wait) => LocalReply::RateLimited(wait),
        FilterRefusal::BodyTooLarge(most) => LocalReply::BodyTooLarge(most),
    }
}

/// What the client asked for, where the route rewrites it: the written head does not contain it any more.
#[derive(Debug)]
pub(super) struct OriginalTarget {
    pub(super) host: Box<str>,
    pub(super) path: Box<str>,
}

impl OriginalTarget {
    /// `None`: the written head contains it. Otherwise one allocation for each part.
    pub(super) fn of(edits: Option<&HeaderEdits>, request: RequestView<'_>) -> Option<Box<Self>> {
        edits.filter(|edits| edits.hides_target())?;
        Some(Box::new(Self { host: request.authority().into(), path: request.path().into() }))
    }
}

/// Changes the head of a response.
pub(super) fn change_response(answer: &mut Response<()>, changes: &HeaderChanges) {
    let headers = answer.headers_mut();
    for name in changes.dropped() {
        headers.remove(name);
    }
    for (name, value) in changes.written() {
        // Cannot fail: control has checked both.
        if let (Ok(name), Ok(value)) =
            (HeaderName::from_bytes(name.as_bytes()), HeaderValue::from_bytes(value.as_bytes()))
        {
            headers.append(name, value);
        }
    }
}
