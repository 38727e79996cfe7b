//! Matches and filters of rules, as Gateway API has them: through HTTP/1, HTTP/2 and WebSocket handshakes.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use h2::ext::Protocol as ConnectProtocol;
use sluicegate_dataplane::core::CoreLimits;
use sluicegate_dataplane::table::{
    Backend, BackendShare, FilterDestination, HeaderChanges, HeaderEdits, MatchRegex, MirrorFraction, MirrorPolicy,
    PathMatch, PathRewrite, Redirect, RequestMatch, RequestTimeouts, Route, RouteFilters, RouteMatch, RouteReply,
    RoutingTable, ValueMatch,
};

use crate::fixture::{ProxyFixture, Reply, backend, instance, ok, on_every_driver};
use crate::streams::{connect, whole};

fn everywhere<F: Future<Output = ()> + 'static>(script: impl Fn(ProxyFixture) -> F + Copy + 'static) {
    on_every_driver(&CoreLimits::default(), script);
}

fn publish(fixture: &ProxyFixture, rules: Vec<RouteMatch>) {
    let mut table = RoutingTable::default();
    table.hosts.insert("app", Arc::new(Route::new(rules, Vec::new())));
    fixture.tables.publish(table);
}

fn share(backend: Backend, filters: RouteFilters) -> BackendShare {
    BackendShare { filters: Some(Arc::new(filters)), ..BackendShare::new(1, Arc::new(backend)) }
}

/// All requests to one share with these filters.
fn publish_share(fixture: &ProxyFixture, backend: Backend, filters: RouteFilters) {
    publish(fixture, vec![RouteMatch::new(RequestMatch::prefix("/old"), vec![share(backend, filters)])]);
}

/// Edits of all kinds.
fn request_edits() -> HeaderEdits {
    let mut edits = HeaderEdits::default();
    edits.set("X-Set", "new").unwrap();
    edits.add("X-Add", "more").unwrap();
    edits.remove("X-Gone").unwrap();
    edits.set_host("inner.test").unwrap();
    edits.set_path(PathRewrite::prefix("/old", "/new").unwrap());
    edits
}

fn response_changes() -> HeaderChanges {
    let mut changes = HeaderChanges::default();
    changes.set("X-Set", "new").unwrap();
    changes.add("X-Add", "more").unwrap();
    changes.remove("Server").unwrap();
    changes
}

/// Rules by method, header, query and expression, each with its own backend.
#[test]
fn rule_that_matches_best_gets_the_request() {
    everywhere(async |fixture| {
        let to = |name: &'static str, matches: RequestMatch| {
            let address = instance(&fixture.ring, move |_| ok(name));
            RouteMatch::new(matches, vec![BackendShare::new(1, Arc::new(backend(&[address], 0, None)))])
        };
        let regex = |pattern: &str| MatchRegex::new(pattern).unwrap();
        let exact = |value: &str| ValueMatch::Exact(value.into());
        publish(
            &fixture,
            vec![
                to("any", RequestMatch::prefix("/")),
                to("api", RequestMatch::prefix("/api")),
                to("post", RequestMatch::prefix("/api").with_method("POST")),
                to("beta", RequestMatch::prefix("/api").with_header("X-Beta", ValueMatch::Regex(regex("y|yes")))),
                to("page", RequestMatch::prefix("/api").with_query("page", exact("1"))),
                to("user", RequestMatch::new(PathMatch::Regex(regex("/api/users/[0-9]+")))),
                to("root", RequestMatch::new(PathMatch::Exact("/api/".into()))),
            ],
        );
        let mut client = fixture.client().await;
        for (first, field, body) in [
            ("GET /x", "", "any"),
            ("GET /apis", "", "any"),
            ("GET /api", "", "api"),
            ("GET /api/", "", "root"),
            ("POST /api", "X-Beta: yes", "post"),
            ("GET /api?page=1", "X-Beta: yes", "beta"),
            ("GET /api?page=1", "X-Beta: yess", "page"),
            ("POST /api/users/7?page=1", "", "user"),
        ] {
            let field = if field.is_empty() { String::new() } else { format!("{field}\r\n") };
            client.send(format!("{first} HTTP/1.1\r\nHost: app\r\nContent-Length: 0\r\n{field}\r\n")).await;
            let seen = client.message().await.unwrap();
            assert_eq!(String::from_utf8(seen.body).unwrap(), body, "{first} {field}");
        }
    });
}

#[test]
fn heads_are_edited_for_http1() {
    everywhere(async |fixture| {
        let address = instance(&fixture.ring, |seen| {
            assert!(seen.head.starts_with("GET /new/x?q=/old HTTP/1.1\r\nHost: inner.test\r\n"), "{}", seen.head);
            for line in
                ["\r\nX-Add: one\r\n", "\r\nX-Add: more\r\n", "\r\nX-Set: new\r\n", "\r\nX-Forwarded-Host: app\r\n"]
            {
                assert!(seen.head.contains(line), "{}", seen.head);
            }
            assert!(!seen.head.contains("X-Gone") && !seen.head.contains("client"), "{}", seen.head);
            vec![Reply::Send(b"HTTP/1.1 200 OK\r\nServer: s\r\nX-Set: old\r\nContent-Length: 2\r\n\r\nok".to_vec())]
        });
        let filters =
            RouteFilters { request: request_edits(), response: response_changes(), ..RouteFilters::default() };
        publish_share(&fixture, backend(&[address], 0, None), filters);
        let mut client = fixture.client().await;
        client
            .send("GET /old/x?q=/old HTTP/1.1\r\nHost: app\r\nx-gone: 1\r\nX-Add: one\r\nx-set: client\r\n\r\n")
            .await;
        let seen = client.message().await.unwrap();
        assert_eq!(seen.body, b"ok");
        assert!(seen.head.contains("\r\nX-Set: new\r\nX-Add: more\r\n"), "{}", seen.head);
        assert!(!seen.head.contains("Server") && !seen.head.contains("old"), "{}", seen.head);
    });
}

/// The same between HTTP/2 clients and instances of HTTP/1, and as the handshake of a WebSocket (RFC 8441).
#[test]
fn heads_are_edited_for_http2_and_websockets() {
    everywhere(async |fixture| {
        let heads: Rc<RefCell<Vec<String>>> = Rc::default();
        let seen = Rc::clone(&heads);
        let address = instance(&fixture.ring, move |request| {
            seen.borrow_mut().push(request.head.clone());
            let text: &[u8] = if request.head.contains("websocket") {
                b"HTTP/1.1 101 Switching\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nServer: s\r\n\r\n"
            } else {
                b"HTTP/1.1 200 OK\r\nServer: s\r\nX-Set: old\r\nContent-Length: 2\r\n\r\nok"
            };
            vec![Reply::Send(text.to_vec())]
        });
        let filters =
            RouteFilters { request: request_edits(), response: response_changes(), ..RouteFilters::default() };
        publish_share(&fixture, backend(&[address], 0, None), filters);
        let sender = connect(&fixture).await.unwrap();
        for method in ["GET", "CONNECT"] {
            let mut request = http::Request::builder().method(method).uri("http://app/old/x").header("x-set", "client");
            if method == "CONNECT" {
                request = request.extension(ConnectProtocol::from("websocket"));
            }
            let mut sender = sender.clone().ready().await.unwrap();
            while method == "CONNECT" && !sender.is_extended_connect_protocol_enabled() {
                fixture.pause(1).await;
            }
            let is_over = method == "GET";
            let (response, _stream) = sender.send_request(request.body(()).unwrap(), is_over).unwrap();
            let (parts, body) = response.await.unwrap().into_parts();
            assert_eq!(parts.status, 200);
            assert_eq!(parts.headers.get_all("x-set").iter().collect::<Vec<_>>(), ["new"], "{method}");
            assert_eq!(parts.headers["x-add"], "more", "{method}");
            assert!(!parts.headers.contains_key("server"), "{parts:?}");
            if method == "GET" {
                assert_eq!(whole(body).await.unwrap(), b"ok");
            }
        }
        for head in heads.borrow().iter() {
            assert!(head.starts_with("GET /new/x HTTP/1.1\r\nHost: inner.test\r\n"), "{head}");
            assert!(head.contains("\r\nX-Set: new\r\nX-Add: more\r\n") && !head.contains("client"), "{head}");
        }
        assert_eq!(heads.borrow().len(), 2);
    });
}

#[test]
fn rule_redirects_and_replies_without_a_backend() {
    everywhere(async |fixture| {
        let mut redirect = Redirect::new(308).unwrap();
        redirect.set_host("other.test").unwrap();
        redirect.port = Some(8443);
        redirect.path = Some(PathRewrite::prefix("/old", "").unwrap());
        let rule = |path: &str, reply: RouteReply| {
            RouteMatch::new(RequestMatch::prefix(path), vec![BackendShare::of_reply(1, reply)])
        };
        publish(&fixture, vec![rule("/old", RouteReply::Redirect(redirect)), rule("/bad", RouteReply::Status(500))]);
        let mut client = fixture.client().await;
        let seen = client.get("app", "/old/x?y").await;
        assert!(seen.head.starts_with("HTTP/1.1 308 "), "{}", seen.head);
        assert!(seen.head.contains("\r\nLocation: http://other.test:8443/x?y\r\n"), "{}", seen.head);
        let seen = client.get("app", "/bad").await;
        assert!(seen.head.starts_with("HTTP/1.1 500 "), "{}", seen.head);
        assert_eq!(seen.body, b"internal server error\n");
        assert!(client.get("app", "/").await.head.starts_with("HTTP/1.1 404 "));

        let sender = connect(&fixture).await.unwrap();
        let request = http::Request::builder().uri("http://app/old").body(()).unwrap();
        let (response, _) = sender.ready().await.unwrap().send_request(request, true).unwrap();
        let response = response.await.unwrap();
        assert_eq!(response.status(), 308);
        assert_eq!(response.headers()["location"], "http://other.test:8443/");
        assert_eq!(fixture.counters.refused[26].load(Relaxed), 2);
    });
}

/// A backend that does not exist takes its weight in errors.
#[test]
fn share_without_a_backend_fails_in_proportion() {
    everywhere(async |fixture| {
        let address = instance(&fixture.ring, |_| ok("ok"));
        let good = BackendShare::new(3, Arc::new(backend(&[address], 0, None)));
        let shares = vec![good, BackendShare::of_reply(1, RouteReply::Status(500))];
        publish(&fixture, vec![RouteMatch::new(RequestMatch::default(), shares)]);
        let mut client = fixture.client().await;
        let mut failed = 0;
        for _ in 0..200 {
            failed += usize::from(client.get("app", "/").await.head.contains(" 500 "));
        }
        assert!((20..90).contains(&failed), "{failed} of 200");
    });
}

/// Several mirrors, to a host and to backends; one that has no instance costs nothing else.
#[test]
fn request_is_copied_to_each_of_its_mirrors() {
    everywhere(async |fixture| {
        let own = instance(&fixture.ring, |_| ok("own"));
        let shadow = |key: &str, addresses: &[std::net::SocketAddr]| {
            Arc::new(Backend { key: key.into(), ..backend(addresses, 0, None) })
        };
        let shadows = [
            shadow(
                "one",
                &[instance(&fixture.ring, |seen| {
                    assert!(seen.head.contains("Sluicegate-Mirrored: true"), "{}", seen.head);
                    ok("copy")
                })],
            ),
            shadow("two", &[instance(&fixture.ring, |_| ok("copy"))]),
            shadow("three", &[]),
            shadow("four", &[instance(&fixture.ring, |_| ok("copy"))]),
        ];
        let to = |destination, percent| MirrorPolicy { destination, fraction: MirrorFraction::percent(percent) };
        let backend_of = |at: usize| FilterDestination::Backend(Arc::clone(&shadows[at]));
        let mirrors = [
            to(FilterDestination::Host("shadow".into()), 100),
            to(backend_of(1), 100),
            to(backend_of(2), 100),
            to(backend_of(3), 0),
        ];
        let filters = RouteFilters { mirrors: mirrors.into(), ..RouteFilters::default() };
        let mut table = RoutingTable::default();
        let rule = RouteMatch::new(RequestMatch::default(), vec![share(backend(&[own], 0, None), filters)]);
        table.hosts.insert("app", Arc::new(Route::new(vec![rule], Vec::new())));
        table.hosts.insert("shadow", Arc::new(Route::of(vec![BackendShare::new(1, Arc::clone(&shadows[0]))])));
        fixture.tables.publish(table);

        let mut client = fixture.client().await;
        client.send("POST /x HTTP/1.1\r\nHost: app\r\nContent-Length: 3\r\n\r\nabc").await;
        assert_eq!(client.message().await.unwrap().body, b"own");
        let wanted = [Some([1, 0, 0]), Some([1, 0, 0]), Some([0, 0, 1]), None];
        let compared = || [0, 1, 2, 3].map(|at: usize| shadows[at].load.comparisons());
        for _ in 0..60_000 {
            if compared() == wanted {
                break;
            }
            fixture.pause(1).await;
        }
        assert_eq!(compared(), wanted);
    });
}

/// The timeouts of a rule replace those of its backend.
#[test]
fn timeouts_of_a_rule_replace_those_of_the_backend() {
    everywhere(async |fixture| {
        let slow = instance(&fixture.ring, |_| {
            let Some(Reply::Send(answer)) = ok("late").pop() else { unreachable!() };
            vec![Reply::Wait(Duration::from_millis(200)), Reply::Send(answer)]
        });
        let limit = |total| RequestTimeouts { total, ..RequestTimeouts::NONE };
        let strict = || Backend { timeouts: limit(Duration::from_millis(50)), ..backend(&[slow], 0, None) };
        let rule = |path: &str, filters| RouteMatch::new(RequestMatch::prefix(path), vec![share(strict(), filters)]);
        let total = |wait| RouteFilters { timeouts: Some(Box::new(limit(wait))), ..RouteFilters::default() };
        let backend_request = RouteFilters { backend_request: Duration::from_millis(50), ..total(Duration::ZERO) };
        publish(
            &fixture,
            vec![
                rule("/backend", RouteFilters::default()),
                rule("/none", total(Duration::ZERO)),
                rule("/long", total(Duration::from_secs(100))),
                rule("/request", backend_request),
            ],
        );
        for (path, status) in [("/backend", 504), ("/none", 200), ("/long", 200), ("/request", 504)] {
            let seen = fixture.client().await.get("app", path).await;
            assert!(seen.head.starts_with(&format!("HTTP/1.1 {status} ")), "{path}: {}", seen.head);
        }
    });
}
