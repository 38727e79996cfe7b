//! Requests whose instance is gone when they arrive on its pooled connection.

use std::cell::RefCell;
use std::net::{SocketAddr, TcpListener};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use http::{Request, Uri};
use ring::sim::{FaultProfile, Simulation};
use ring::{Ring, RingOptions};
use sluicegate_dataplane::access_log::{self, AccessLogConfig, AccessLogFormat};
use sluicegate_dataplane::core::CoreLimits;
use sluicegate_dataplane::http::limits::SENDS_MAX;
use sluicegate_dataplane::load::BackendLoad;
use sluicegate_dataplane::table::{
    Backend, BackendShare, HeaderEdits, NoEndpointPolicy, PathMatch, PathRewrite, RequestMatch, Route, RouteFilters,
    RouteMatch, RoutingTable,
};

use crate::fixture::{ProxyFixture, backend, instance, listener, ok, on_every_driver, read_through, run_with_proxy};
use crate::streams::{connect, whole};

/// An instance that answers one request, and closes its listener and connection on the next.
fn one_shot_instance(ring: &Ring) -> SocketAddr {
    let listener = listener(ring);
    let address = listener.local_addr().unwrap();
    ring.spawn(async move {
        let stream = listener.accept().await.unwrap();
        read_through(&stream, b"\r\n\r\n").await;
        stream.send(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nmortal").await.unwrap();
        read_through(&stream, b"\r\n\r\n").await;
        listener.close().await.unwrap();
    });
    address
}

/// Backends with the same load, as control publishes them one after the other.
fn of(load: &Arc<BackendLoad>, addresses: &[SocketAddr]) -> Backend {
    Backend { load: Arc::clone(load), ..backend(addresses, 0, Some(Duration::from_secs(5))) }
}

/// The instance's response to a GET over HTTP/1 or HTTP/2.
async fn ask(fixture: &ProxyFixture, by_http2: bool) -> Vec<u8> {
    if !by_http2 {
        return fixture.client().await.get("app", "/").await.body;
    }
    let mut request = Request::new(());
    *request.uri_mut() = Uri::from_static("http://app/");
    let sender = connect(fixture).await.unwrap();
    let (answer, _) = sender.ready().await.unwrap().send_request(request, true).unwrap();
    whole(answer.await.unwrap().into_body()).await.unwrap()
}

/// SRV-REQ-08: if the instance of a pooled connection is gone, another one serves the request.
#[test]
fn another_instance_serves_when_the_instance_is_gone() {
    on_every_driver(&CoreLimits::default(), async |fixture| {
        for by_http2 in [false, true] {
            let load = Arc::default();
            fixture.publish("app", of(&load, &[one_shot_instance(&fixture.ring)]));
            assert_eq!(ask(&fixture, by_http2).await, b"mortal");
            let known = fixture.tables.load().hosts["app"].splits[0].backend.endpoints.clone();
            let mut both = of(&load, &[instance(&fixture.ring, |_| ok("other"))]);
            both.endpoints = [both.endpoints, known].concat().into();
            fixture.publish("app", both);
            for _ in 0..10 {
                assert_eq!(ask(&fixture, by_http2).await, b"other");
            }
            assert_eq!(load.in_flight.load(Relaxed), 0);
        }
    });
}

/// The access log names the instance that answered, and not the one that was gone.
#[test]
fn access_log_names_the_instance_that_answered() {
    let (writer, pieces) = sync_channel(access_log::PIECES_WAITING_MAX);
    let access = AccessLogConfig { format: Some(AccessLogFormat::Json), writer };
    let limits = CoreLimits { access: Some(access), ..CoreLimits::default() };
    run_with_proxy(&Simulation::new(1, FaultProfile::calm()).ring(), &limits, async move |fixture| {
        for by_http2 in [false, true] {
            let (load, first) = (Arc::default(), one_shot_instance(&fixture.ring));
            fixture.publish("app", of(&load, &[first]));
            assert_eq!(ask(&fixture, by_http2).await, b"mortal");
            let known = fixture.tables.load().hosts["app"].splits[0].backend.endpoints.clone();
            let second = instance(&fixture.ring, |_| ok("other"));
            let mut both = of(&load, &[second]);
            both.endpoints = [both.endpoints, known].concat().into();
            fixture.publish("app", both);
            for _ in 0..10 {
                assert_eq!(ask(&fixture, by_http2).await, b"other");
            }
            fixture.ring.sleep(2 * access_log::FLUSH_EVERY).await;
            let lines = String::from_utf8(pieces.try_iter().flatten().collect()).unwrap();
            let named = |address: SocketAddr| lines.matches(&format!("\"instance\":\"{address}\"")).count();
            assert_eq!((named(first), named(second)), (1, 10), "{lines}");
        }
    });
}

/// Publishes the host's only backend; `inner`: the host that its instances get (X-KI-08), with another path.
fn publish_as(fixture: &ProxyFixture, inner: Option<&str>, backend: Backend) {
    let mut split = BackendShare::new(1, Arc::new(backend));
    split.filters = inner.map(|host| {
        let mut request = HeaderEdits::default();
        request.set_host(host).unwrap();
        request.set_path(PathRewrite::full("/inner").unwrap());
        Arc::new(RouteFilters { request, ..RouteFilters::default() })
    });
    let rule = RouteMatch::new(RequestMatch::new(PathMatch::Exact("/".into())), vec![split]);
    let mut table = RoutingTable::default();
    table.hosts.insert("app", Arc::new(Route::new(vec![rule], Vec::new())));
    fixture.tables.publish(table);
}

/// SRV-REQ-08, SRV-REQ-09: if no other instance exists, the request waits for the next one; also for a mapped domain
/// (X-RTE-13), whose instances get another host.
#[test]
fn request_waits_when_its_only_instance_is_gone() {
    on_every_driver(&CoreLimits::default(), async |fixture| {
        for (by_http2, inner) in [(false, None), (true, None), (false, Some("inner")), (true, Some("inner"))] {
            let load: Arc<BackendLoad> = Arc::default();
            publish_as(&fixture, inner, of(&load, &[one_shot_instance(&fixture.ring)]));
            assert_eq!(ask(&fixture, by_http2).await, b"mortal");

            let answer = Rc::new(RefCell::new(None));
            let (asking, observed) = (fixture.clone(), Rc::clone(&answer));
            fixture.ring.spawn(async move {
                let body = ask(&asking, by_http2).await;
                observed.replace(Some(body));
            });
            while load.waiting.load(Relaxed) == 0 {
                assert_eq!(*answer.borrow(), None, "must wait");
                fixture.pause(1).await;
            }
            publish_as(&fixture, inner, of(&load, &[instance(&fixture.ring, |_| ok("next"))]));
            while answer.borrow().is_none() {
                fixture.pause(1).await;
            }
            assert_eq!(answer.take().unwrap(), b"next");
            assert_eq!((load.in_flight.load(Relaxed), load.waiting.load(Relaxed)), (0, 0));
        }
    });
}

/// An instance that closes each connection after the request arrived, without reading it. Returns its address and the
/// number of closed connections.
fn resetting_instance() -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, ended) = (listener.local_addr().unwrap(), Arc::<AtomicUsize>::default());
    let count = Arc::clone(&ended);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            count.fetch_add(1, Relaxed);
            let _ = stream.unwrap().peek(&mut [0]); // the client may be gone
        }
    });
    (address, ended)
}

/// SRV-REQ-08: if its instance ended without reading it, an idempotent request is sent to another one and a POST is
/// not; and a request that ends all instances is not retried forever.
#[test]
fn unread_request_is_retried_on_another_instance() {
    // Only a real kernel resets a connection with unread bytes.
    let ring = Ring::kernel(RingOptions::default()).unwrap();
    run_with_proxy(&ring, &CoreLimits::default(), async |fixture| {
        let (resetting_instance, ended) = resetting_instance();
        let load = Arc::default();
        let healthy = instance(&fixture.ring, |_| ok("well"));
        for round in 0..20 {
            fixture.publish("app", of(&load, &[resetting_instance, healthy]));
            assert_eq!(ask(&fixture, round % 2 == 0).await, b"well");
        }
        assert!(ended.load(Relaxed) > 0, "both look equally idle");

        fixture.publish(
            "app",
            Backend { when_empty: NoEndpointPolicy::Refuse, ..of(&load, &[resetting_instance, resetting_instance]) },
        );
        for by_http2 in [true, false] {
            let before = ended.load(Relaxed);
            let observed = String::from_utf8(ask(&fixture, by_http2).await).unwrap();
            assert_eq!(observed, "bad gateway\n");
            assert_eq!(ended.load(Relaxed) - before, SENDS_MAX);
        }
        let before = ended.load(Relaxed);
        let mut client = fixture.client().await;
        client.send("POST / HTTP/1.1\r\nHost: app\r\n\r\n").await;
        assert!(client.message().await.unwrap().head.starts_with("HTTP/1.1 502 "));
        assert_eq!(ended.load(Relaxed) - before, 1);
    });
}
