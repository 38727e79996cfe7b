//! Which branch of a route a request takes.

use codec::http::{Parsed, RequestHead, parse_request};
use proptest::prelude::*;

use super::*;
use crate::client_address::{ClientAddress, ClientScheme};

fn exact(value: &str) -> ValueMatch {
    ValueMatch::Exact(value.into())
}

fn regex(pattern: &str) -> MatchRegex {
    MatchRegex::new(pattern).unwrap()
}

/// Branches by prefix and headers.
fn branch(path: &str, headers: &[(&str, &str)]) -> RouteMatch {
    let add = |matches: RequestMatch, (name, value): &(&str, &str)| matches.with_header(name, exact(value));
    RouteMatch::new(headers.iter().fold(RequestMatch::prefix(path), add), Vec::new())
}

fn with_request<T>(text: &str, take: impl FnOnce(&RouteRequest<'_>) -> T) -> T {
    let mut head = RequestHead::default();
    assert!(matches!(parse_request(text.as_bytes(), &mut head), Parsed::Head { .. }), "{text}");
    let peer = ClientAddress::new(([127, 0, 0, 1], 1).into(), ClientScheme::Http);
    take(&RouteRequest::client(head.view(text.as_bytes()), &peer))
}

/// The matched branch, as its path and number of headers.
fn taken(route: &Route, text: &str) -> Option<(String, usize)> {
    let branch = with_request(text, |request| route.branch(request))?;
    let headers = branch.matches.conditions().map_or(0, |conditions| conditions.headers.len());
    Some((branch.matches.path().text().to_owned(), headers))
}

/// X-KI-04: whole segments, the longest first; the query is not part of the path.
#[test]
fn longest_path_of_whole_segments_wins() {
    let branches = || vec![branch("/a", &[]), branch("/a/b", &[]), branch("/c", &[])];
    for route in [Route::new(branches(), Vec::new()), Route::indexed(branches(), Vec::new(), 0)] {
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

/// X-KI-03: public requests match only public branches.
#[test]
fn cluster_local_branch_matches_no_public_request() {
    let cluster_local_branch = |path: &str| RouteMatch { cluster_local_only: true, ..branch(path, &[]) };
    let branches = || vec![cluster_local_branch("/a"), branch("/a", &[]), cluster_local_branch("/b")];
    for route in [Route::new(branches(), Vec::new()), Route::indexed(branches(), Vec::new(), 0)] {
        for (path, cluster_local, of) in
            [("/a", true, Some(true)), ("/a", false, Some(false)), ("/b", true, Some(true)), ("/b", false, None)]
        {
            let request = RouteRequest { cluster_local, ..RouteRequest::internal("a", path) };
            let found = route.branch(&request);
            assert_eq!(found.map(|branch| branch.cluster_local_only), of, "{path}, cluster-local: {cluster_local}");
        }
    }
}

/// What is attached to a listener for HTTPS alone is not served without TLS.
#[test]
fn branch_of_a_scheme_matches_its_connections_only() {
    let of = |scheme| vec![RouteMatch { scheme: Some(scheme), ..branch("/a", &[]) }];
    for (scheme, is_served) in [(ClientScheme::Https, false), (ClientScheme::Http, true)] {
        for route in [Route::new(of(scheme), Vec::new()), Route::indexed(of(scheme), Vec::new(), 0)] {
            assert_eq!(taken(&route, "GET /a HTTP/1.1\r\nHost: a\r\n\r\n").is_some(), is_served, "{scheme:?}");
            assert!(route.branch(&RouteRequest::internal("a", "/a")).is_some());
        }
    }
}

#[test]
fn redirect_to_https_exempts_its_branch() {
    let mut route = Route::new(vec![RouteMatch { by_any_scheme: true, ..branch("/a", &[]) }], Vec::new());
    route.https_redirect = Some(443);
    let redirect = |path: &str| route.redirect(route.branch(&RouteRequest::internal("a", path)));
    assert_eq!((redirect("/a"), redirect("/b")), (None, Some(443)));
}

/// One row for each kind of condition: a request that it matches, and one that it does not.
#[test]
fn conditions_match_what_they_say() {
    let any = || RequestMatch::prefix("/");
    for (matches, yes, no) in [
        (RequestMatch::new(PathMatch::Exact("/a".into())), "GET /a?b", "GET /a/"),
        (RequestMatch::new(PathMatch::Exact("/".into())), "GET http://a?b", "GET /a"),
        (RequestMatch::new(PathMatch::Regex(regex("/v[0-9]+/.*"))), "GET /v1/x?/y", "GET /x/v1/x"),
        (RequestMatch::new(PathMatch::Regex(regex(".*/b"))), "GET /a/b?c", "GET /a/c?/b"),
        (any().with_method("POST"), "POST /", "post /"),
        (any().with_header("X", exact("1")), "GET /\nx: 1", "GET /\nx: 11"),
        (any().with_header("X", exact("1")), "GET /\nx: 2\nx: 1", "GET /"),
        (any().with_header("X", ValueMatch::Regex(regex("a+"))), "GET /\nX: aa", "GET /\nX: aab"),
        (any().with_query("a", exact("b c")), "GET /?x&a=b%20c", "GET /?a=b"),
        (any().with_query("a", exact("1")), "GET /?a=1&a=2", "GET /?a=2&a=1"),
        (any().with_query("a", exact("")), "GET /?a", "GET /"),
        (any().with_query("a", ValueMatch::Regex(regex("[0-9]+"))), "GET /?a=%31", "GET /?a=%61"),
        (any().with_query("a", ValueMatch::Regex(regex("[0-9]+"))), "GET /?a=12", "GET /?A=12"),
    ] {
        for (asked, wanted) in [(yes, true), (no, false)] {
            let (first, fields) = asked.split_once('\n').unwrap_or((asked, ""));
            let fields: String = fields.lines().map(|field| format!("{field}\r\n")).collect();
            let text = format!("{first} HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
            assert_eq!(with_request(&text, |request| matches.matches(request)), wanted, "{matches:?} {asked}");
        }
    }
}

/// Deliveries of events are POST requests without a client.
#[test]
fn internal_request_has_the_method_of_deliveries() {
    let request = RouteRequest::internal("a", "/?b=1");
    let any = RequestMatch::default;
    assert!(any().with_method("POST").with_query("b", exact("1")).matches(&request));
    assert!(!any().with_method("GET").matches(&request) && !any().with_header("X", exact("")).matches(&request));
}

/// The order of HTTPRouteRule: exact path, longest prefix, method, headers, query parameters, the given order.
#[test]
fn branches_are_tried_in_the_order_of_httproute() {
    let path = |kind: fn(Box<str>) -> PathMatch, path: &str| RequestMatch::new(kind(path.into()));
    let expression = |pattern: &str| RequestMatch::new(PathMatch::Regex(regex(pattern)));
    let sorted = [
        path(PathMatch::Exact, "/a/b").with_query("q", exact("1")),
        path(PathMatch::Exact, "/a"),
        expression("/a/[a-z]"),
        expression("/a.*").with_method("GET"),
        expression("/b.*"),
        path(PathMatch::Prefix, "/a/b"),
        path(PathMatch::Prefix, "/a").with_method("GET"),
        path(PathMatch::Prefix, "/a").with_header("x", exact("1")).with_header("y", exact("1")),
        path(PathMatch::Prefix, "/a").with_header("x", exact("1")).with_query("a", exact("1")),
        path(PathMatch::Prefix, "/a").with_header("x", exact("1")),
        path(PathMatch::Prefix, "/a").with_query("a", exact("1")).with_query("b", exact("1")),
        path(PathMatch::Prefix, "/a").with_query("b", exact("2")),
        path(PathMatch::Prefix, "/a").with_query("a", exact("1")),
        path(PathMatch::Prefix, "/a"),
        RequestMatch::default(),
    ];
    let shuffled = [7, 14, 2, 5, 0, 13, 10, 3, 6, 8, 11, 12, 1, 9, 4];
    let branches = shuffled.map(|at: usize| RouteMatch::new(sorted[at].clone(), Vec::new()));
    let route = Route::new(branches.into(), Vec::new());
    let found: Vec<_> = route.branches().iter().map(|branch| branch.matches.clone()).collect();
    assert_eq!(found, sorted);
}

/// The precedence of HTTPRoute, written without a sort or an index: `first` counts from the oldest rule.
fn naive_choice(rules: &[RequestMatch], request: &RouteRequest<'_>) -> Option<usize> {
    let rank = |(first, rule): &(usize, &RequestMatch)| {
        let kind = match rule.path() {
            PathMatch::Exact(_) => 2,
            PathMatch::Regex(_) => 1,
            PathMatch::Prefix(_) => 0,
        };
        let counts = rule.conditions().map_or((false, 0, 0), |conditions| {
            (conditions.method.is_some(), conditions.headers.len(), conditions.query.len())
        });
        (kind, rule.path().text().len(), counts, std::cmp::Reverse(*first))
    };
    let matching = rules.iter().enumerate().filter(|(_, rule)| rule.matches(request));
    matching.max_by_key(rank).map(|(first, _)| first)
}

fn any_rule() -> impl Strategy<Value = RequestMatch> {
    let path = prop_oneof![
        "(/[ab]{1,2}){0,3}/?".prop_map(|path| PathMatch::Prefix(path.into())),
        "(/[ab]{1,2}){1,3}/?".prop_map(|path| PathMatch::Exact(path.into())),
        "/[ab](\\.\\*|/\\[ab\\]\\+)?".prop_map(|pattern| PathMatch::Regex(regex(&pattern))),
    ];
    let named = || prop::collection::vec(("[xy]", "[12]"), 0..2);
    (path, prop::option::of("GET|POST"), named(), named()).prop_map(|(path, method, headers, query)| {
        let mut rule = RequestMatch::new(path);
        rule = method.into_iter().fold(rule, |rule, method| rule.with_method(&method));
        rule = headers.iter().fold(rule, |rule, (name, value)| rule.with_header(name, exact(value)));
        query.iter().fold(rule, |rule, (name, value)| rule.with_query(name, exact(value)))
    })
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

    /// With and without an index, the branch is the one of the highest precedence that matches.
    #[test]
    fn taken_branch_has_the_highest_precedence(
        rules in prop::collection::vec(any_rule(), 0..24),
        (method, path, query, fields) in ("GET|POST", "(/[ab]{1,2}){0,4}/?", "(\\?[xy]=[12](&[xy]=[12])?)?", "([xy]: [12]\r\n){0,2}"),
    ) {
        let target = format!("{}{query}", if path.is_empty() { "/" } else { &path });
        let text = format!("{method} {target} HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
        // The weight tells which rule a branch was made of.
        let made = || {
            let numbered = rules.iter().enumerate().map(|(first, rule)| {
                let share = BackendShare::of_reply(u32::try_from(first).unwrap(), RouteReply::Status(500));
                RouteMatch::new(rule.clone(), vec![share])
            });
            numbered.collect::<Vec<_>>()
        };
        let wanted = with_request(&text, |request| naive_choice(&rules, request));
        for indexed_min in [0, usize::MAX] {
            let route = Route::indexed(made(), Vec::new(), indexed_min);
            let taken = |request: &RouteRequest<'_>| route.branch(request).map(|branch| branch.splits[0].weight as usize);
            let found = with_request(&text, taken);
            prop_assert_eq!(found, wanted, "indexed from {} on", indexed_min);
        }
    }
}
