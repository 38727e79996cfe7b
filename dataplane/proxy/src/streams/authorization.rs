//! Asks the authorization service of a rule about each request, before the request can start an instance.
//!
//! A request that is permitted goes on with headers of the service's response; any other response is the client's. The client's
//! body stays where it is meanwhile. Probes of the platform are answered before, and never get here.

use std::rc::Rc;
use std::time::Duration;

use ::http::{HeaderMap, Response};
use bytes::{Bytes, BytesMut};
use codec::http::{FieldName, LocalResponse, RequestView};
use contract::client_address::ClientAddress;
use contract::table::ExternalAuthorization;
use protocol::http::authorization_request::put_authorization_request;
use protocol::http::buffers::by;

use super::collected_response::{CollectedResponse, ask};
use crate::{LocalReply, Proxy, SelectedEndpoint};

/// Bytes of the body of a refusal that the client gets: a page with a form for a login. A larger one is left out.
const REFUSAL_BODY_BYTES_MAX: usize = 64 << 10;

/// Between two log lines about an authorization service that cannot be asked: each request meets it.
const FAILURE_LOG_INTERVAL: Duration = Duration::from_secs(10);

/// Asks the authorization service of the rule, if there is one.
///
/// # Errors
///
/// It does not permit the request, or cannot be asked.
pub(crate) async fn authorize(
    proxy: &Rc<Proxy>,
    choice: &mut SelectedEndpoint,
    request: RequestView<'_>,
    peer: &ClientAddress,
) -> Result<(), LocalReply> {
    let Some(filters) = choice.filters.clone() else { return Ok(()) };
    let Some(ExternalAuthorization { destination, service }) = filters.external_authorization.as_deref() else {
        return Ok(());
    };
    let mut head = BytesMut::new();
    put_authorization_request(&mut head, request, peer, service);
    let (head, due) = (head.freeze(), proxy.ring.now() + service.timeout());
    let asked = by(&proxy.ring, Some(due), ask(proxy, destination, &head, REFUSAL_BODY_BYTES_MAX)).await;
    let failure = match asked {
        Ok(Ok(Some(response))) if response.head.status().is_success() => {
            let values = |name: &str| values(response.head.headers(), name);
            match service.edits(Some(&values)) {
                Ok(edits) => {
                    choice.identify_also(&edits);
                    return Ok(());
                }
                Err(why) => why.to_string(),
            }
        }
        Ok(Ok(Some(response))) => return Err(LocalReply::AuthorizationDenied(Box::new(refusal(response)))),
        Ok(Ok(None)) => "the response broke off".to_owned(),
        Ok(Err(local_reply)) => local_reply.to_string(),
        Err(_) => format!("no response within {:?}", service.timeout()),
    };
    let status = service.failure_mode.status();
    log_failure(proxy, service.host(), status, &failure);
    match status {
        Some(status) => Err(LocalReply::AuthorizationUnavailable { status }),
        None => {
            // Cannot fail: nothing is copied. The client's own headers must not pass for those of the service.
            choice.identify_also(&service.edits(None).unwrap_or_default());
            Ok(())
        }
    }
}

fn values<'a>(headers: &'a HeaderMap, name: &str) -> Vec<&'a [u8]> {
    headers.get_all(name).iter().map(::http::HeaderValue::as_bytes).collect()
}

/// The response for the client, without what belongs to the connection to the service.
fn refusal(CollectedResponse { head, body }: CollectedResponse) -> LocalResponse {
    let (parts, ()) = Response::into_parts(head);
    let is_kept = |name: &str| match FieldName::of(name.as_bytes()) {
        FieldName::Other => body.is_some() || !matches!(name, "content-type" | "content-encoding"),
        FieldName::TraceParent | FieldName::TraceState | FieldName::ForwardedOther => true,
        _ => false,
    };
    let fields = parts.headers.iter().filter(|(name, _)| is_kept(name.as_str()));
    let headers = fields.map(|(name, value)| (name.as_str().into(), Bytes::copy_from_slice(value.as_bytes())));
    LocalResponse { status: parts.status.as_u16(), headers: headers.collect(), body: body.clone().unwrap_or_default() }
}

fn log_failure(proxy: &Proxy, service: &str, status: Option<u16>, why: &str) {
    let now = proxy.ring.now();
    if proxy.authorization_failure_logged.get().is_some_and(|logged| now - logged < FAILURE_LOG_INTERVAL) {
        return;
    }
    proxy.authorization_failure_logged.set(Some(now));
    match status {
        Some(status) => {
            tracing::warn!(service, status, why, "authorization service cannot be asked: requests are refused")
        }
        None => tracing::warn!(service, why, "authorization service cannot be asked: requests pass unauthorized"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn response(body: Option<&'static str>) -> CollectedResponse {
        let head = Response::builder()
            .status(302)
            .header("location", "https://login.test/")
            .header("set-cookie", "a=1")
            .header("set-cookie", "b=2")
            .header("content-type", "text/html")
            .header("content-length", "9")
            .header("connection", "close")
            .header("sluicegate-reason", "x")
            .header("date", "now")
            .body(())
            .unwrap();
        CollectedResponse { head, body: body.map(|text| Bytes::from_static(text.as_bytes())) }
    }

    #[test]
    fn refusal_has_what_is_for_the_client() {
        let made = refusal(response(Some("log in")));
        let names: Vec<_> = made.headers.iter().map(|(name, _)| &**name).collect();
        assert_eq!(names, ["location", "set-cookie", "set-cookie", "content-type"]);
        assert_eq!((made.status, &made.body[..]), (302, &b"log in"[..]));
    }

    #[test]
    fn body_that_is_too_large_is_left_out() {
        let made = refusal(response(None));
        assert!(made.body.is_empty() && made.header("content-type").is_none());
        assert_eq!(made.header("location"), Some(b"https://login.test/".as_slice()));
    }
}
