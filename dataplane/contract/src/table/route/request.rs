//! The properties of a request that decide its route.

use codec::http::RequestView;

use crate::client_address::{ClientAddress, ClientScheme, ListenerConnection};
use crate::table::host_name;

/// The header with the tag of a request: from clients that ask for one, and towards instances.
pub(super) const TAG: &str = "Knative-Serving-Tag";
/// Deliveries of events are the only internal requests whose method matters.
const INTERNAL_METHOD: &str = "POST";

/// The properties of a request that decide its route.
#[derive(Debug, Clone, Copy)]
pub struct RouteRequest<'a> {
    /// With port, in any case.
    pub host: &'a str,
    /// With query, which may be alone: then the path is `/`.
    pub path: &'a str,
    /// The whole head; `None` for internal requests.
    pub request: Option<RequestView<'a>>,
    /// From a cluster-local listener: may reach routes that are not public.
    pub cluster_local: bool,
    /// The search domain of hosts without a dot.
    pub domain: Option<&'a str>,
    /// Without TLS, where TLS was possible.
    pub plain: bool,
    /// `None` for internal requests.
    pub peer: Option<&'a ClientAddress>,
}

impl<'a> RouteRequest<'a> {
    /// A client's request.
    #[inline]
    #[must_use]
    pub fn client(request: RequestView<'a>, peer: &'a ClientAddress) -> Self {
        Self {
            host: request.authority(),
            path: request.path(),
            request: Some(request),
            cluster_local: peer.is_cluster_local(),
            domain: peer.domain(),
            plain: peer.is_plain() && !peer.has_forwarded_https(request),
            peer: Some(peer),
        }
    }

    /// An internal request.
    #[must_use]
    pub fn internal(host: &'a str, path: &'a str) -> Self {
        Self { host, path, request: None, cluster_local: true, domain: None, plain: false, peer: None }
    }

    /// The listener of the client's connection, if it was opened at run time.
    #[inline]
    #[must_use]
    pub fn listener(&self) -> Option<&'a ListenerConnection> {
        self.peer.and_then(ClientAddress::listener)
    }

    /// The full name of a host without a dot, if a search domain is set.
    #[must_use]
    pub fn completed(&self) -> Option<String> {
        let domain = self.domain?;
        let host = host_name(self.host);
        // Allocates only for clients that use short names.
        (!host.contains('.')).then(|| format!("{}.{domain}", host.to_ascii_lowercase()))
    }

    /// The path without its query.
    #[inline]
    #[must_use]
    pub fn path_alone(&self) -> &'a str {
        match self.path.split_once('?').map_or(self.path, |(path, _)| path) {
            "" => "/",
            path => path,
        }
    }

    pub(super) fn method(&self) -> &'a str {
        self.request.map_or(INTERNAL_METHOD, RequestView::method)
    }

    /// The scheme by which the client asked.
    #[must_use]
    pub fn scheme(&self) -> ClientScheme {
        if self.peer.is_some() && !self.plain { ClientScheme::Https } else { ClientScheme::Http }
    }

    pub(super) fn requested_tag(&self) -> bool {
        self.headers(TAG).any(|value| !value.is_empty())
    }

    /// The values of a header, by its name in any case.
    pub(super) fn headers(&self, name: &str) -> impl Iterator<Item = &'a [u8]> {
        let fields = self.request.into_iter().flat_map(RequestView::fields);
        fields.filter(move |(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    /// The first value of a query parameter, percent-encoded.
    pub(super) fn query_parameter(&self, name: &str) -> Option<&'a str> {
        let (_, query) = self.path.split_once('?')?;
        query.split('&').find_map(|pair| {
            let (found, value) = pair.split_once('=').unwrap_or((pair, ""));
            percent_decoded(found).eq(name.bytes()).then_some(value)
        })
    }
}

/// The bytes of a part of a query. What is not a valid escape stands for itself.
pub(super) fn percent_decoded(part: &str) -> impl Iterator<Item = u8> {
    let mut rest = part.as_bytes();
    std::iter::from_fn(move || {
        let (first, after) = rest.split_first()?;
        let digit = |at: usize| char::from(*after.get(at)?).to_digit(16);
        if *first == b'%'
            && let (Some(high), Some(low)) = (digit(0), digit(1))
        {
            rest = &after[2..];
            return u8::try_from(high << 4 | low).ok();
        }
        rest = after;
        Some(if *first == b'+' { b' ' } else { *first })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn query_parameter_is_decoded_and_the_first_counts() {
        let value = |path: &str, name: &str| {
            let found = RouteRequest::internal("a", path).query_parameter(name);
            found.map(|value| String::from_utf8_lossy(&percent_decoded(value).collect::<Vec<_>>()).into_owned())
        };
        for (path, name, wanted) in [
            ("/?a=1&a=2", "a", Some("1")),
            ("?b=%41+%2B", "b", Some("A +")),
            ("/?%61=x", "a", Some("x")),
            ("/?a", "a", Some("")),
            ("/?a=%zz%4", "a", Some("%zz%4")),
            ("/?ab=1", "a", None),
            ("/a=1", "a", None),
        ] {
            assert_eq!(value(path, name).as_deref(), wanted, "{path} {name}");
        }
    }
}
