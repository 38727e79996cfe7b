//! Authorization services that are asked about each request: what passes, what the client gets, and failures.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use h2::server::SendResponse;
use sluicegate_dataplane::core::CoreLimits;
use sluicegate_dataplane::table::{
    AuthorizationFailureMode, AuthorizationService, Backend, BackendShare, ExternalAuthorization, FilterDestination,
    Protocol, RequestMatch, Route, RouteFilters, RouteMatch, RoutingTable,
};

use crate::fixture::{ProxyFixture, Reply, Seen, backend, instance, ok, on_every_driver, unused_address};
use crate::sharing::serving;
use crate::streams::{connect, whole};

/// Indices among the reasons of `sluicegate_refused_total`.
const DENIED: usize = 34;
const UNAVAILABLE: usize = 35;

fn everywhere<F: Future<Output = ()> + 'static>(script: impl Fn(ProxyFixture) -> F + Copy + 'static) {
    on_every_driver(&CoreLimits::default(), script);
}

fn service() -> AuthorizationService {
    let mut service = AuthorizationService::new("auth.test", "/verify").unwrap();
    service.copy_header("X-User").unwrap();
    service
}

/// Requests for `app` go to `address`, if the service at `destination` permits them.
fn publish(fixture: &ProxyFixture, address: SocketAddr, service: AuthorizationService, destination: FilterDestination) {
    let external_authorization = Some(Box::new(ExternalAuthorization { destination, service: service.into() }));
    let filters = Some(Arc::new(RouteFilters { external_authorization, ..RouteFilters::default() }));
    let share = BackendShare { filters, ..BackendShare::new(1, Arc::new(backend(&[address], 0, None))) };
    let mut table = RoutingTable::default();
    table
        .hosts
        .insert("app", Arc::new(Route::new(vec![RouteMatch::new(RequestMatch::default(), vec![share])], vec![])));
    fixture.tables.publish(table);
}

fn at(address: SocketAddr) -> FilterDestination {
    FilterDestination::Backend(Arc::new(backend(&[address], 0, None)))
}

/// An application that tells which user it sees.
fn application(fixture: &ProxyFixture) -> (SocketAddr, Rc<Cell<usize>>) {
    let count = Rc::new(Cell::new(0));
    let seen = Rc::clone(&count);
    let address = instance(&fixture.ring, move |request: &Seen| {
        seen.set(seen.get() + 1);
        let users: Vec<_> =
            request.head.lines().filter(|line| line.to_ascii_lowercase().starts_with("x-user:")).collect();
        ok(&format!("{} {}", users.join("|"), request.body.len()))
    });
    (address, count)
}

fn reply(text: &str) -> Vec<Reply> {
    vec![Reply::Send(text.as_bytes().to_vec())]
}

/// Permits requests with `Cookie: ann`, and sends others to a login.
fn login(request: &Seen) -> Vec<Reply> {
    assert!(request.head.starts_with("GET /verify HTTP/1.1\r\nHost: auth.test\r\n"), "{}", request.head);
    assert!(request.body.is_empty() && !request.head.contains("Content-Length"), "{}", request.head);
    if request.head.to_ascii_lowercase().contains("cookie: ann") {
        reply("HTTP/1.1 204 No Content\r\nX-User: ann\r\nX-Other: no\r\n\r\n")
    } else {
        reply(
            "HTTP/1.1 302 Found\r\nLocation: https://login.test/?a=b\r\nSet-Cookie: s=1\r\nSet-Cookie: t=2\r\n\
             Content-Type: text/html\r\nContent-Length: 6\r\n\r\nlog in",
        )
    }
}

#[test]
fn permitted_request_passes_with_the_headers_of_the_service() {
    everywhere(async |fixture| {
        let (address, _) = application(&fixture);
        let asked: Rc<RefCell<Vec<String>>> = Rc::default();
        let heads = Rc::clone(&asked);
        let auth = instance(&fixture.ring, move |request| {
            heads.borrow_mut().push(request.head.clone());
            login(request)
        });
        publish(&fixture, address, service(), at(auth));
        let mut client = fixture.client().await;
        for _ in 0..3 {
            client
                .send(
                    "POST /a?b HTTP/1.1\r\nHost: app\r\nCookie: ann\r\nX-User: root\r\nx-user: admin\r\n\
                     X-Other: mine\r\nContent-Length: 3\r\n\r\nabc",
                )
                .await;
            let seen = client.message().await.unwrap();
            assert_eq!(String::from_utf8(seen.body).unwrap(), "X-User: ann 3");
        }
        for head in asked.borrow().iter() {
            for line in ["X-Forwarded-Method: POST", "X-Forwarded-Uri: /a?b", "X-Forwarded-Host: app"] {
                assert!(head.contains(&format!("\r\n{line}\r\n")), "{head}");
            }
        }
        assert_eq!(asked.borrow().len(), 3);
        // Both connections are used again.
        assert_eq!(fixture.counters.upstream_opened.load(Relaxed), 2);
    });
}

#[test]
fn refusal_of_the_service_goes_to_the_client_as_it_is() {
    everywhere(async |fixture| {
        let (address, count) = application(&fixture);
        let auth = instance(&fixture.ring, login);
        publish(&fixture, address, service(), at(auth));
        let mut client = fixture.client().await;
        for _ in 0..2 {
            let seen = client.get("app", "/").await;
            assert!(seen.head.starts_with("HTTP/1.1 302 "), "{}", seen.head);
            for line in ["location: https://login.test/?a=b", "set-cookie: s=1", "set-cookie: t=2"] {
                assert!(seen.head.to_ascii_lowercase().contains(&format!("\r\n{line}\r\n")), "{}", seen.head);
            }
            assert_eq!(seen.body, b"log in");
        }
        // A body that is not read ends the connection after the reply.
        client.send("POST / HTTP/1.1\r\nHost: app\r\nContent-Length: 3\r\n\r\nabc").await;
        assert!(client.message().await.unwrap().head.starts_with("HTTP/1.1 302 "));
        assert_eq!(client.message().await.map(|seen| seen.head), None);
        assert_eq!((count.get(), fixture.counters.refused[DENIED].load(Relaxed)), (0, 3));
    });
}

#[test]
fn http2_streams_and_upgrades_are_authorized() {
    everywhere(async |fixture| {
        let (address, count) = application(&fixture);
        let auth = instance(&fixture.ring, login);
        publish(&fixture, address, service(), at(auth));
        let sender = connect(&fixture).await.unwrap();
        for (cookie, status, text) in [("ann", 200, "X-User: ann 0"), ("bob", 302, "log in")] {
            let request = http::Request::builder().uri("http://app/").header("cookie", cookie).header("x-user", "root");
            let mut sender = sender.clone().ready().await.unwrap();
            let (response, _) = sender.send_request(request.body(()).unwrap(), true).unwrap();
            let (parts, body) = response.await.unwrap().into_parts();
            assert_eq!(parts.status, status);
            assert_eq!(whole(body).await.unwrap(), text.as_bytes());
        }
        let mut client = fixture.client().await;
        let upgrade = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
        client.send(format!("GET / HTTP/1.1\r\nHost: app\r\n{upgrade}\r\n")).await;
        assert!(client.message().await.unwrap().head.starts_with("HTTP/1.1 302 "));
        assert_eq!(count.get(), 1);
    });
}

/// 503 by default, 403 or a pass if the rule wants that; a client's own header never passes for one of the service.
#[test]
fn failure_of_the_service_is_answered_as_the_rule_says() {
    everywhere(async |fixture| {
        let (address, _) = application(&fixture);
        let nowhere = unused_address(&fixture.ring).await;
        let hung = instance(&fixture.ring, |_| vec![Reply::Wait(Duration::from_secs(3600))]);
        let closes = instance(&fixture.ring, |_| vec![Reply::Close]);
        let broken = instance(&fixture.ring, |_| reply("HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n"));
        let cut = instance(&fixture.ring, |_| {
            vec![Reply::Send(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc".to_vec()), Reply::Close]
        });
        let long = instance(&fixture.ring, |_| {
            reply(&format!("HTTP/1.1 200 OK\r\nX-User: {}\r\nContent-Length: 0\r\n\r\n", "a".repeat(17 << 10)))
        });
        let empty = FilterDestination::Backend(Arc::new(backend(&[], 0, None)));
        let refused = "169.254.169.254:80".parse().unwrap();
        let destinations = [nowhere, hung, closes, broken, cut, long, refused].map(at);
        for destination in destinations.into_iter().chain([empty, FilterDestination::Host("missing".into())]) {
            for (mode, status) in [
                (AuthorizationFailureMode::Unavailable, 503),
                (AuthorizationFailureMode::Forbidden, 403),
                (AuthorizationFailureMode::Allow, 200),
            ] {
                let mut service = service();
                service.set_timeout(Duration::from_millis(500)).unwrap();
                service.failure_mode = mode;
                publish(&fixture, address, service, destination.clone());
                let before = fixture.counters.refused[UNAVAILABLE].load(Relaxed);
                let mut client = fixture.client().await;
                client.send("GET / HTTP/1.1\r\nHost: app\r\nX-User: root\r\n\r\n").await;
                let seen = client.message().await.unwrap();
                let text = String::from_utf8(seen.body).unwrap();
                assert!(seen.head.starts_with(&format!("HTTP/1.1 {status} ")), "{destination:?}: {} {text}", seen.head);
                assert_eq!(seen.head.contains("Retry-After"), status == 503, "{}", seen.head);
                assert_eq!(text == " 0", status == 200, "{text}");
                let after = fixture.counters.refused[UNAVAILABLE].load(Relaxed);
                assert_eq!(after - before, u64::from(status != 200));
            }
        }
    });
}

/// A service that closes its connections after each response costs no request, and one that refuses with a large page is not
/// taken for one that cannot be asked.
#[test]
fn connection_that_the_service_closed_is_replaced() {
    everywhere(async |fixture| {
        let (address, _) = application(&fixture);
        let auth = instance(&fixture.ring, |request| {
            let mut actions = if request.head.contains("/large") {
                reply(&format!(
                    "HTTP/1.1 401 No\r\nWWW-Authenticate: Bearer\r\nContent-Length: {0}\r\n\r\n{1}",
                    70 << 10,
                    "x".repeat(70 << 10)
                ))
            } else {
                reply("HTTP/1.1 200 OK\r\nX-User: ann\r\nContent-Length: 2\r\n\r\nok")
            };
            actions.push(Reply::Close);
            actions
        });
        let mut service = service();
        service.failure_mode = AuthorizationFailureMode::Allow;
        publish(&fixture, address, service, at(auth));
        let mut client = fixture.client().await;
        for _ in 0..5 {
            assert_eq!(client.get("app", "/").await.body, b"X-User: ann 0");
        }
        let seen = client.get("app", "/large").await;
        assert!(
            seen.head.starts_with("HTTP/1.1 401 ") && seen.head.contains("www-authenticate: Bearer"),
            "{}",
            seen.head
        );
        assert!(seen.body.is_empty());
    });
}

/// The service may be another host of the table, or speak HTTP/2.
#[test]
fn service_is_reached_by_route_and_by_http2() {
    everywhere(async |fixture| {
        let (address, _) = application(&fixture);
        let auth = instance(&fixture.ring, login);
        publish(&fixture, address, service(), FilterDestination::Host("auth.internal".into()));
        let mut table = RoutingTable::clone(&fixture.tables.load());
        let share = BackendShare::new(1, Arc::new(backend(&[auth], 0, None)));
        table.hosts.insert("auth.internal", Arc::new(Route::of(vec![share])));
        fixture.tables.publish(table);
        let mut client = fixture.client().await;
        client.send("GET / HTTP/1.1\r\nHost: app\r\nCookie: ann\r\n\r\n").await;
        assert_eq!(client.message().await.unwrap().body, b"X-User: ann 0");
        assert!(client.get("app", "/").await.head.starts_with("HTTP/1.1 302 "));

        let http2 =
            serving(&fixture.ring, &Rc::default(), |request, mut respond: SendResponse<bytes::Bytes>| async move {
                assert_eq!(
                    (request.uri().path(), request.headers()["x-forwarded-uri"].to_str().unwrap()),
                    ("/verify", "/by-http2")
                );
                let response = http::Response::builder().status(200).header("x-user", "bob").body(()).unwrap();
                let _ = respond.send_response(response, true);
            });
        let by_http2 = Backend { protocol: Protocol::H2c, ..backend(&[http2], 0, None) };
        publish(&fixture, address, service(), FilterDestination::Backend(Arc::new(by_http2)));
        assert_eq!(fixture.client().await.get("app", "/by-http2").await.body, b"X-User: bob 0");
    });
}

/// A client that goes while its request waits for the service ends the wait.
#[test]
fn client_that_disconnects_ends_the_wait() {
    everywhere(async |fixture| {
        let (address, count) = application(&fixture);
        let asked = Rc::new(Cell::new(0));
        let seen = Rc::clone(&asked);
        let auth = instance(&fixture.ring, move |_| {
            seen.set(seen.get() + 1);
            vec![
                Reply::Wait(Duration::from_millis(200)),
                Reply::Send(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n".to_vec()),
            ]
        });
        publish(&fixture, address, service(), at(auth));
        let client = fixture.client().await;
        client.send("GET / HTTP/1.1\r\nHost: app\r\n\r\n").await;
        while asked.get() == 0 {
            fixture.pause(1).await;
        }
        drop(client);
        fixture.pause(1000).await;
        assert_eq!((asked.get(), count.get()), (1, 0));
    });
}
