//! The routing of one host: matches by path and header, shares by weight, and header edits.

use std::net::SocketAddr;
use std::sync::Arc;

use codec::http::{FieldName, RequestView};

use super::{Backend, Endpoint, NoEndpointPolicy, Protocol, RequestTimeouts, TrafficPolicy};
use crate::client_address::{ClientAddress, ClientScheme};
use crate::request_histograms::RouteTag;

/// The routing of one host.
#[derive(Debug, Default)]
pub struct Route {
    /// The shares of requests that no branch matches. Empty: such requests get a 404.
    pub splits: Vec<BackendShare>,
    /// Tried first, in this order; [`Route::new`] sorts them.
    pub branches: Box<[RouteMatch]>,
    /// Public clients without TLS are redirected to the same host and path over HTTPS at this port, if the table has a
    /// certificate for the host.
    pub https_redirect: Option<u16>,
    /// Not public: only cluster-local listeners and internal deliveries reach it.
    pub cluster_local_only: bool,
    /// The reply to a network probe: identifies the version of the object that this route was made of.
    pub hash: Option<Arc<str>>,
    /// Settings beyond the traffic split.
    pub traffic_policy: Option<Arc<TrafficPolicy>>,
    /// If the host is a wildcard, it matches names with any number of labels more.
    pub matches_subdomains: bool,
}

/// A match on a part of a host's requests.
#[derive(Debug)]
pub struct RouteMatch {
    /// A prefix of whole path segments: `/a` matches `/a` and `/a/b`, not `/ab`. Without a trailing slash; empty
    /// matches every path.
    pub path: Box<str>,
    /// Header names with their required values; all must match. Names are case-insensitive.
    pub headers: Vec<(Box<str>, Box<str>)>,
    pub splits: Vec<BackendShare>,
    /// Clients without TLS are served too, whatever `https_redirect` says.
    pub by_any_scheme: bool,
    /// Not public, though the route is.
    pub cluster_local_only: bool,
    /// Only for connections of this scheme, whatever a trusted proxy says of its clients.
    pub scheme: Option<ClientScheme>,
}

/// A backend's share.
#[derive(Debug)]
pub struct BackendShare {
    /// 0 gets no traffic.
    pub weight: u32,
    pub backend: Arc<Backend>,
    /// Edits of requests that go to this backend.
    pub edits: Option<Arc<HeaderEdits>>,
}

/// Changes to a request's head on the way to its instance.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HeaderEdits {
    host: Option<Box<str>>,
    set: Vec<(Box<str>, Box<str>)>,
    /// The tag that they announce to the instance.
    tag: RouteTag,
}

/// The header with the tag of a request: from clients that ask for one, and towards instances.
const TAG: &str = "Knative-Serving-Tag";
/// The header that tells an instance that a request came without a tag.
const DEFAULT_ROUTE: &str = "Knative-Serving-Default-Route";

/// Why a header may not be set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HeaderEditError {
    #[error("is not a header name")]
    Name,
    #[error("contains bytes that are invalid in a header value")]
    Value,
    #[error("is a header that the proxy writes itself")]
    Own,
    #[error("is not a host")]
    Host,
}

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

    /// The full name of a host without a dot, if a search domain is set.
    #[must_use]
    pub fn completed(&self) -> Option<String> {
        let domain = self.domain?;
        let host = super::host_name(self.host);
        // Allocates only for clients that use short names.
        (!host.contains('.')).then(|| format!("{}.{domain}", host.to_ascii_lowercase()))
    }

    fn requested_tag(&self) -> bool {
        let mut fields = self.request.into_iter().flat_map(RequestView::fields);
        fields.any(|(name, value)| name.eq_ignore_ascii_case(TAG) && !value.is_empty())
    }

    fn has_header(&self, name: &str, value: &str) -> bool {
        let fields = self.request.into_iter().flat_map(RequestView::fields);
        let mut named = fields.filter(|(found, _)| found.eq_ignore_ascii_case(name));
        named.any(|(_, found)| found == value.as_bytes())
    }
}

impl Route {
    /// All requests to these shares.
    #[must_use]
    pub fn of(splits: Vec<BackendShare>) -> Self {
        Self { splits, ..Self::default() }
    }

    /// Sorts `branches` into match order: the longest path first, then the one with more headers, then the given order.
    #[must_use]
    pub fn new(mut branches: Vec<RouteMatch>, splits: Vec<BackendShare>) -> Self {
        branches.sort_by_key(|branch| std::cmp::Reverse((branch.path.len(), branch.headers.len())));
        Self { splits, branches: branches.into(), ..Self::default() }
    }

    /// All requests of `host` to fixed addresses without autoscaling (`--route`).
    #[must_use]
    pub fn to_addresses(host: &str, addresses: &[SocketAddr]) -> Self {
        let backend = Backend {
            key: format!("static/{host}").into(),
            endpoints: addresses.iter().map(|address| Arc::new(Endpoint::new(*address))).collect(),
            concurrency_max: 0,
            when_empty: NoEndpointPolicy::Refuse,
            protocol: Protocol::Http1,
            tls: None,
            timeouts: RequestTimeouts::EXTERNAL,
            proxy_protocol: None,
            load: Arc::default(),
        };
        Self::of(vec![BackendShare::new(1, Arc::new(backend))])
    }

    /// The shares that a request is split over. Empty: its path has no backend.
    #[inline]
    #[must_use]
    pub fn select(&self, request: &RouteRequest<'_>) -> &[BackendShare] {
        self.branches.iter().find(|branch| branch.matches(request)).map_or(&self.splits, |branch| &branch.splits)
    }

    /// The HTTPS port to redirect clients without TLS to, for requests to these shares.
    #[inline]
    #[must_use]
    pub fn redirect(&self, splits: &[BackendShare]) -> Option<u16> {
        let port = self.https_redirect?;
        let is_exempt = |branch: &RouteMatch| branch.by_any_scheme && std::ptr::eq(branch.splits.as_slice(), splits);
        (!self.branches.iter().any(is_exempt)).then_some(port)
    }

    /// Whether these shares are the route's own, and not a branch's.
    #[must_use]
    pub fn divides_by(&self, splits: &[BackendShare]) -> bool {
        std::ptr::eq(self.splits.as_slice(), splits)
    }

    /// Concurrent requests of all ready instances, whatever the weights.
    #[must_use]
    pub fn capacity(&self, request: &RouteRequest<'_>) -> usize {
        let shares = self.select(request).iter().filter(|split| split.weight > 0);
        shares.map(|split| split.backend.capacity()).fold(0, usize::saturating_add)
    }

    /// The shares of all branches.
    pub fn all_splits(&self) -> impl Iterator<Item = &BackendShare> {
        self.branches.iter().flat_map(|branch| &branch.splits).chain(&self.splits)
    }
}

impl RouteMatch {
    fn matches(&self, request: &RouteRequest<'_>) -> bool {
        if self.cluster_local_only && !request.cluster_local {
            return false;
        }
        let is_other = |peer: &ClientAddress| self.scheme.is_some_and(|scheme| scheme != peer.scheme());
        if request.peer.is_some_and(is_other) {
            return false;
        }
        let below = request.path.strip_prefix(&*self.path);
        let whole = |rest: &str| self.path.is_empty() || rest.is_empty() || rest.starts_with(['/', '?']);
        below.is_some_and(whole) && self.headers.iter().all(|(name, value)| request.has_header(name, value))
    }
}

impl BackendShare {
    /// A share without edits.
    #[must_use]
    pub fn new(weight: u32, backend: Arc<Backend>) -> Self {
        Self { weight, backend, edits: None }
    }
}

impl HeaderEdits {
    /// Sets the Host that the instance gets.
    ///
    /// # Errors
    ///
    /// It is not a host.
    pub fn set_host(&mut self, host: &str) -> Result<(), HeaderEditError> {
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || b".-_:[]".contains(&byte);
        if host.is_empty() || !host.bytes().all(fits) {
            return Err(HeaderEditError::Host);
        }
        self.host = Some(host.into());
        Ok(())
    }

    /// Sets a header for the instance, replacing those that the client sent under its name.
    ///
    /// # Errors
    ///
    /// Not a valid header, or one that frames the message or belongs to this hop.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), HeaderEditError> {
        let token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
        if name.is_empty() || !name.bytes().all(token) {
            return Err(HeaderEditError::Name);
        }
        if value.bytes().any(|byte| byte != b'\t' && (byte < b' ' || byte == 0x7f)) || value.trim() != value {
            return Err(HeaderEditError::Value);
        }
        let reserved = !matches!(
            FieldName::of(name.as_bytes()),
            FieldName::Other
                | FieldName::ForwardedOther
                | FieldName::Date
                | FieldName::MaxForwards
                | FieldName::Internal
                | FieldName::NetworkProbe
                | FieldName::NetworkHash
                | FieldName::Platform
        );
        if reserved {
            return Err(HeaderEditError::Own);
        }
        if name.eq_ignore_ascii_case(TAG) {
            self.tag = RouteTag::Named(value.into());
        } else if name.eq_ignore_ascii_case(DEFAULT_ROUTE) {
            self.tag = RouteTag::Default;
        }
        self.set.retain(|(known, _)| !known.eq_ignore_ascii_case(name));
        self.set.push((name.into(), value.into()));
        Ok(())
    }

    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.host.is_none() && self.set.is_empty()
    }

    #[inline]
    #[must_use]
    pub fn host(&self) -> Option<&str> {
        self.host.as_deref()
    }

    /// The tag of a request with these edits (X-QP-12).
    #[inline]
    #[must_use]
    pub fn tag(&self, request: &RouteRequest<'_>) -> RouteTag {
        match &self.tag {
            RouteTag::Default if request.requested_tag() => RouteTag::Undefined,
            tag => tag.clone(),
        }
    }

    /// The headers that are set, in order.
    pub fn headers(&self) -> impl Iterator<Item = (&str, &str)> {
        self.set.iter().map(|(name, value)| (&**name, &**value))
    }

    /// Whether a client's header of that name is removed.
    #[inline]
    #[must_use]
    pub fn replaces(&self, name: &[u8]) -> bool {
        self.set.iter().any(|(known, _)| known.as_bytes().eq_ignore_ascii_case(name))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use codec::http::{Parsed, RequestHead, parse_request};

    fn branch(path: &str, headers: &[(&str, &str)]) -> RouteMatch {
        let headers = headers.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        RouteMatch {
            path: path.into(),
            headers,
            splits: Vec::new(),
            by_any_scheme: false,
            cluster_local_only: false,
            scheme: None,
        }
    }

    /// The matched branch, as its path and number of headers.
    fn taken(route: &Route, text: &str) -> Option<(String, usize)> {
        let mut head = RequestHead::default();
        assert!(matches!(parse_request(text.as_bytes(), &mut head), Parsed::Head { .. }), "{text}");
        let peer = ClientAddress::new(([127, 0, 0, 1], 1).into(), crate::client_address::ClientScheme::Http);
        let request = RouteRequest::client(head.view(text.as_bytes()), &peer);
        let branch = route.branches.iter().find(|branch| branch.matches(&request))?;
        Some((branch.path.to_string(), branch.headers.len()))
    }

    /// X-KI-04: whole segments, the longest first; the query is not part of the path.
    #[test]
    fn longest_path_of_whole_segments_wins() {
        let route = Route::new(vec![branch("/a", &[]), branch("/a/b", &[]), branch("/c", &[])], Vec::new());
        for (path, of) in [
            ("/a", Some("/a")),
            ("/a/", Some("/a")),
            ("/a?b", Some("/a")),
            ("/a/c", Some("/a")),
            ("/a/b/c", Some("/a/b")),
            ("/a/bc", Some("/a")),
            ("/ab", None),
            ("/", None),
            ("/A", None),
            ("/?/a", None),
        ] {
            let text = format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n");
            assert_eq!(taken(&route, &text).map(|(path, _)| path).as_deref(), of, "{path}");
        }
    }

    /// X-KI-05: all listed headers, names in any case, values exact; more of them come first.
    #[test]
    fn headers_decide_between_equal_paths() {
        let branches = vec![branch("", &[]), branch("", &[("tag", "x")]), branch("", &[("Tag", "x"), ("Other", "y")])];
        let route = Route::new(branches, Vec::new());
        for (fields, of) in [
            ("", 0),
            ("Tag: x\r\n", 1),
            ("TAG: x\r\nother: y\r\n", 2),
            ("Tag: X\r\n", 0),
            ("Tag: xy\r\n", 0),
            ("Other: y\r\n", 0),
        ] {
            let text = format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
            assert_eq!(taken(&route, &text), Some((String::new(), of)), "{fields:?}");
        }
    }

    /// What is attached to a listener for HTTPS alone is not served without TLS.
    #[test]
    fn branch_of_a_scheme_matches_its_connections_only() {
        let branches = vec![RouteMatch { scheme: Some(ClientScheme::Https), ..branch("/a", &[]) }, branch("/b", &[])];
        let route = Route::new(branches, Vec::new());
        let text = b"GET /a HTTP/1.1\r\nHost: a\r\n\r\n";
        let mut head = RequestHead::default();
        assert!(matches!(parse_request(text, &mut head), Parsed::Head { .. }));
        for (scheme, is_served) in [(ClientScheme::Https, true), (ClientScheme::Http, false)] {
            let peer = ClientAddress::new(([127, 0, 0, 1], 1).into(), scheme);
            let request = RouteRequest::client(head.view(text), &peer);
            assert_eq!(route.branches.iter().any(|branch| branch.matches(&request)), is_served, "{scheme:?}");
        }
        assert!(route.branches.iter().any(|branch| branch.matches(&RouteRequest::internal("a", "/a"))));
    }

    /// X-KI-03: public requests match only public branches.
    #[test]
    fn cluster_local_branch_matches_no_public_request() {
        let cluster_local_branch =
            |path: &str, headers: &[(&str, &str)]| RouteMatch { cluster_local_only: true, ..branch(path, headers) };
        let backend = Route::to_addresses("a", &[]).splits;
        let route = Route::new(
            vec![cluster_local_branch("/a", &[]), branch("/a", &[]), cluster_local_branch("/b", &[])],
            backend,
        );
        for (path, cluster_local, of) in
            [("/a", true, Some(true)), ("/a", false, Some(false)), ("/b", true, Some(true)), ("/b", false, None)]
        {
            let request = RouteRequest { cluster_local, ..RouteRequest::internal("a", path) };
            let found = route.branches.iter().find(|branch| branch.matches(&request));
            assert_eq!(found.map(|branch| branch.cluster_local_only), of, "{path}, cluster-local: {cluster_local}");
        }
    }

    #[test]
    fn header_edit_that_breaks_the_message_is_rejected() {
        let mut edits = HeaderEdits::default();
        for (name, value, why) in [
            ("", "x", HeaderEditError::Name),
            ("a b", "x", HeaderEditError::Name),
            ("a:", "x", HeaderEditError::Name),
            ("X", "a\r\nb: c", HeaderEditError::Value),
            ("X", " a", HeaderEditError::Value),
            ("Content-Length", "1", HeaderEditError::Own),
            ("transfer-encoding", "chunked", HeaderEditError::Own),
            ("Host", "a", HeaderEditError::Own),
        ] {
            assert_eq!(edits.set(name, value), Err(why), "{name}: {value}");
        }
        assert_eq!(edits.set_host("a b"), Err(HeaderEditError::Host));
        assert!(edits.is_empty());
        edits.set("X-One", "1").unwrap();
        edits.set("x-one", "2").unwrap();
        assert_eq!(edits.headers().collect::<Vec<_>>(), [("x-one", "2")]);
        assert!(edits.replaces(b"X-ONE") && !edits.replaces(b"X-On"));
    }

    /// X-QP-12: default, undefined and named tags. Where neither header is set, tags are off, whatever the client
    /// sends.
    #[test]
    fn request_tag_is_the_one_announced_to_the_instance() {
        let edits = |name: &str, value: &str| {
            let mut edits = HeaderEdits::default();
            edits.set(name, value).unwrap();
            edits
        };
        let (default, named) = (edits("knative-serving-default-route", "true"), edits(TAG, "next"));
        for (fields, edits, tag) in [
            ("", &default, RouteTag::Default),
            ("Knative-Serving-Tag:\r\n", &default, RouteTag::Default),
            ("knative-serving-tag: nobody\r\n", &default, RouteTag::Undefined),
            ("", &named, RouteTag::Named("next".into())),
            ("Knative-Serving-Tag: next\r\n", &named, RouteTag::Named("next".into())),
            ("Knative-Serving-Tag: next\r\n", &HeaderEdits::default(), RouteTag::Off),
        ] {
            let text = format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
            let mut head = RequestHead::default();
            assert!(matches!(parse_request(text.as_bytes(), &mut head), Parsed::Head { .. }), "{text}");
            let peer = ClientAddress::new(([127, 0, 0, 1], 1).into(), crate::client_address::ClientScheme::Http);
            assert_eq!(edits.tag(&RouteRequest::client(head.view(text.as_bytes()), &peer)), tag, "{fields}");
        }
    }

    proptest! {
        /// Of all branches whose segments are a prefix of the path, the longest.
        #[test]
        fn matched_rule_is_the_longest_prefix(
            paths in prop::collection::vec("(/[ab]{1,2}){0,3}", 0..12),
            asked in "(/[ab]{1,2}){1,4}/?(\\?a)?",
        ) {
            let route = Route::new(paths.iter().map(|path| branch(path, &[])).collect(), Vec::new());
            let path = asked.split('?').next().unwrap_or_default();
            let segments: Vec<_> = path.split('/').skip(1).collect();
            let fits = |branch: &&String| {
                let wanted: Vec<_> = branch.split('/').skip(1).collect();
                segments.len() >= wanted.len() && segments[..wanted.len()] == wanted[..]
            };
            let longest = paths.iter().filter(fits).max_by_key(|branch| branch.len()).cloned();
            let text = format!("GET {asked} HTTP/1.1\r\nHost: a\r\n\r\n");
            prop_assert_eq!(taken(&route, &text).map(|(path, _)| path), longest);
        }
    }
}
