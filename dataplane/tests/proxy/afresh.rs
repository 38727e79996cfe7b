//! Requests that find their instance gone on the connection that was kept to it.

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
use sluicegate_dataplane::table::{Backend, BackendShare, HeaderEdits, NoEndpointPolicy, Route, RoutingTable};

use crate::fixture::{ProxyFixture, backend, in_house, instance, listener, ok, on_every_machine, read_through};
use crate::streams::{connect, whole};

/// An instance that answers once, and is gone, with its listener, when it has the next request.
fn mortal(ring: &Ring) -> SocketAddr {
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

/// Backends of one load, as control publishes them one after the other.
fn of(load: &Arc<BackendLoad>, addresses: &[SocketAddr]) -> Backend {
    Backend { load: Arc::clone(load), ..backend(addresses, 0, Some(Duration::from_secs(5))) }
}

/// What the instance answers to a GET by HTTP/1 or HTTP/2.
async fn ask(house: &ProxyFixture, by_http2: bool) -> Vec<u8> {
    if !by_http2 {
        return house.client().await.get("app", "/").await.body;
    }
    let mut request = Request::new(());
    *request.uri_mut() = Uri::from_static("http://app/");
    let sender = connect(house).await.unwrap();
    let (answer, _) = sender.ready().await.unwrap().send_request(request, true).unwrap();
    whole(answer.await.unwrap().into_body()).await.unwrap()
}

/// SRV-REQ-08: whose instance is gone when its request comes by a kept connection is served by another.
#[test]
fn another_instance_serves_whose_instance_is_gone() {
    on_every_machine(&CoreLimits::default(), async |house| {
        for by_http2 in [false, true] {
            let load = Arc::default();
            house.publish("app", of(&load, &[mortal(&house.ring)]));
            assert_eq!(ask(&house, by_http2).await, b"mortal");
            let known = house.tables.load().hosts["app"].splits[0].backend.endpoints.clone();
            let mut both = of(&load, &[instance(&house.ring, |_| ok("other"))]);
            both.endpoints.extend(known);
            house.publish("app", both);
            for _ in 0..10 {
                assert_eq!(ask(&house, by_http2).await, b"other");
            }
            assert_eq!(load.in_flight.load(Relaxed), 0);
        }
    });
}

/// The access log names the instance that answered, and not the one that was gone.
#[test]
fn the_log_names_who_answered_in_the_end() {
    let (hand, pieces) = sync_channel(access_log::PIECES_WAITING_MAX);
    let setup = AccessLogConfig { format: Some(AccessLogFormat::Json), writer: hand };
    let limits = CoreLimits { access: Some(setup), ..CoreLimits::default() };
    in_house(&Simulation::new(1, FaultProfile::calm()).ring(), &limits, async move |house| {
        for by_http2 in [false, true] {
            let (load, first) = (Arc::default(), mortal(&house.ring));
            house.publish("app", of(&load, &[first]));
            assert_eq!(ask(&house, by_http2).await, b"mortal");
            let known = house.tables.load().hosts["app"].splits[0].backend.endpoints.clone();
            let second = instance(&house.ring, |_| ok("other"));
            let mut both = of(&load, &[second]);
            both.endpoints.extend(known);
            house.publish("app", both);
            for _ in 0..10 {
                assert_eq!(ask(&house, by_http2).await, b"other");
            }
            house.ring.sleep(2 * access_log::FLUSH_EVERY).await;
            let lines = String::from_utf8(pieces.try_iter().flatten().collect()).unwrap();
            let named = |address: SocketAddr| lines.matches(&format!("\"instance\":\"{address}\"")).count();
            assert_eq!((named(first), named(second)), (1, 10), "{lines}");
        }
    });
}

/// Publishes the host's only backend; `inner`: the host that its instances are told (X-KI-08).
fn publish_as(house: &ProxyFixture, inner: Option<&str>, backend: Backend) {
    let mut split = BackendShare::new(1, Arc::new(backend));
    split.edits = inner.map(|host| {
        let mut edits = HeaderEdits::default();
        edits.set_host(host).unwrap();
        Arc::new(edits)
    });
    let mut table = RoutingTable::default();
    table.hosts.insert("app", Arc::new(Route::of(vec![split])));
    house.tables.publish(table);
}

/// SRV-REQ-08, SRV-REQ-09: ... or waits for the one that comes; by a domain that is mapped as well (X-RTE-13), whose instances are
/// told another host.
#[test]
fn whose_only_instance_is_gone_waits_for_the_next() {
    on_every_machine(&CoreLimits::default(), async |house| {
        for (by_http2, inner) in [(false, None), (true, None), (false, Some("inner")), (true, Some("inner"))] {
            let load: Arc<BackendLoad> = Arc::default();
            publish_as(&house, inner, of(&load, &[mortal(&house.ring)]));
            assert_eq!(ask(&house, by_http2).await, b"mortal");

            let answer = Rc::new(RefCell::new(None));
            let (asking, told) = (house.clone(), Rc::clone(&answer));
            house.ring.spawn(async move {
                let body = ask(&asking, by_http2).await;
                told.replace(Some(body));
            });
            while load.waiting.load(Relaxed) == 0 {
                assert_eq!(*answer.borrow(), None, "it was to wait");
                house.pause(1).await;
            }
            publish_as(&house, inner, of(&load, &[instance(&house.ring, |_| ok("next"))]));
            while answer.borrow().is_none() {
                house.pause(1).await;
            }
            assert_eq!(answer.take().unwrap(), b"next");
            assert_eq!((load.in_flight.load(Relaxed), load.waiting.load(Relaxed)), (0, 0));
        }
    });
}

/// An instance that ends each connection when the request is there, and takes nothing of it; and how many it has ended.
fn deaf() -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, ended) = (listener.local_addr().unwrap(), Arc::<AtomicUsize>::default());
    let count = Arc::clone(&ended);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            count.fetch_add(1, Relaxed);
            let _ = stream.unwrap().peek(&mut [0]); // whoever asks may be gone
        }
    });
    (address, ended)
}

/// SRV-REQ-08: a safe request that its instance ended without reading goes to another, an unsafe one to nobody, and one that ends all of
/// them is not sent for ever.
#[test]
fn what_an_instance_ended_without_reading_goes_to_another() {
    // Only a real kernel says by a reset that nobody took what was sent.
    let ring = Ring::kernel(RingOptions::default()).unwrap();
    in_house(&ring, &CoreLimits::default(), async |house| {
        let (deaf, ended) = deaf();
        let load = Arc::default();
        let well = instance(&house.ring, |_| ok("well"));
        for round in 0..20 {
            house.publish("app", of(&load, &[deaf, well]));
            assert_eq!(ask(&house, round % 2 == 0).await, b"well");
        }
        assert!(ended.load(Relaxed) > 0, "it looks as idle as the other");

        house.publish("app", Backend { when_empty: NoEndpointPolicy::Refuse, ..of(&load, &[deaf, deaf]) });
        for by_http2 in [true, false] {
            let before = ended.load(Relaxed);
            let told = String::from_utf8(ask(&house, by_http2).await).unwrap();
            assert!(told.contains("closed the connection without a response"), "{told}");
            assert_eq!(ended.load(Relaxed) - before, SENDS_MAX);
        }
        let before = ended.load(Relaxed);
        let mut client = house.client().await;
        client.send("POST / HTTP/1.1\r\nHost: app\r\n\r\n").await;
        assert!(client.message().await.unwrap().head.starts_with("HTTP/1.1 502 "));
        assert_eq!(ended.load(Relaxed) - before, 1);
    });
}
