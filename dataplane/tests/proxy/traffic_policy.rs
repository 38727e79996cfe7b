//! Traffic policies: session affinity and mirroring.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use sluicegate_dataplane::core::CoreLimits;
use sluicegate_dataplane::load::BackendLoad;
use sluicegate_dataplane::table::{
    Backend, BackendShare, FilterDestination, MirrorFraction, MirrorPolicy, Route, RouteFilters, RoutingTable,
    SessionKey, TrafficPolicy,
};

use crate::fixture::{ProxyFixture, Reply, Seen, backend, instance, ok, on_every_driver};

fn everywhere<F: Future<Output = ()> + 'static>(script: impl Fn(ProxyFixture) -> F + Copy + 'static) {
    on_every_driver(&CoreLimits::default(), script);
}

fn named(key: &str, backend: Backend) -> Arc<Backend> {
    Arc::new(Backend { key: key.into(), ..backend })
}

/// `app` with two equal shares.
fn halves(fixture: &ProxyFixture, sticky: SessionKey) {
    let split = |name: &'static str| {
        let address = instance(&fixture.ring, move |_| ok(name));
        BackendShare::new(50, named(name, backend(&[address], 0, None)))
    };
    let mut route = Route::of(vec![split("a"), split("b")]);
    route.traffic_policy = Some(Arc::new(TrafficPolicy { sticky: Some(sticky) }));
    let mut table = RoutingTable::default();
    table.hosts.insert("app", Arc::new(route));
    fixture.tables.publish(table);
}

async fn asked(fixture: &ProxyFixture, fields: &str) -> Seen {
    let mut client = fixture.client().await;
    client.send(format!("GET / HTTP/1.1\r\nHost: app\r\n{fields}\r\n")).await;
    client.message().await.unwrap()
}

#[test]
fn client_stays_with_the_version_of_its_header() {
    everywhere(async |fixture| {
        halves(&fixture, SessionKey::Header("X-User".into()));
        let mut versions = std::collections::BTreeSet::new();
        for user in 0..12 {
            let field = format!("X-User: {user}\r\n");
            let first = asked(&fixture, &field).await;
            assert!(!first.head.contains("Set-Cookie"), "{}", first.head);
            for _ in 0..5 {
                assert_eq!(asked(&fixture, &field).await.body, first.body);
            }
            versions.insert(first.body);
        }
        assert_eq!(versions.len(), 2, "all went to one version");
    });
}

#[test]
fn new_client_gets_a_cookie_and_stays_by_it() {
    everywhere(async |fixture| {
        halves(&fixture, SessionKey::Issued);
        for _ in 0..6 {
            let first = asked(&fixture, "").await;
            let cookie = first.head.lines().find_map(|line| line.strip_prefix("Set-Cookie: ")).unwrap();
            let pair = cookie.split(';').next().unwrap();
            for _ in 0..5 {
                let again = asked(&fixture, &format!("Cookie: x=y; {pair}\r\n")).await;
                assert_eq!(again.body, first.body);
                assert!(!again.head.contains("Set-Cookie"), "{}", again.head);
            }
        }
    });
}

/// `app` with every request mirrored to `shadow`.
fn mirrored(fixture: &ProxyFixture, own: Backend, mirror_backend: &Arc<Backend>) {
    let mut split = BackendShare::new(100, named("own", own));
    let destination = FilterDestination::Host("shadow".into());
    let mirrors = Box::new([MirrorPolicy { destination, fraction: MirrorFraction::ALL }]);
    split.filters = Some(Arc::new(RouteFilters { mirrors, ..RouteFilters::default() }));
    let mut table = RoutingTable::default();
    table.hosts.insert("app", Arc::new(Route::of(vec![split])));
    table.hosts.insert("shadow", Arc::new(Route::of(vec![BackendShare::new(1, Arc::clone(mirror_backend))])));
    fixture.tables.publish(table);
}

async fn until_compared(fixture: &ProxyFixture, load: &BackendLoad, wanted: [u64; 3]) {
    for _ in 0..60_000 {
        if load.comparisons() == Some(wanted) {
            return;
        }
        fixture.pause(1).await;
    }
    panic!("{:?} and not {wanted:?}", load.comparisons());
}

/// Head and body.
type Copied = (String, Vec<u8>);

#[test]
fn mirrored_request_is_equal_and_its_status_compared() {
    everywhere(async |fixture| {
        let seen: Rc<RefCell<Vec<Copied>>> = Rc::default();
        let noted = Rc::clone(&seen);
        let other = instance(&fixture.ring, move |request| {
            noted.borrow_mut().push((request.head.clone(), request.body.clone()));
            if request.head.starts_with("POST") {
                return vec![Reply::Send(b"HTTP/1.1 500 Oops\r\nContent-Length: 3\r\n\r\nbad".to_vec())];
            }
            ok("copy")
        });
        let own = instance(&fixture.ring, |request| {
            assert!(!request.head.contains("Sluicegate-Mirrored"), "{}", request.head);
            ok("own")
        });
        let mirror_backend = named("shadow", backend(&[other], 0, None));
        mirrored(&fixture, backend(&[own], 0, None), &mirror_backend);

        let mut client = fixture.client().await;
        assert_eq!(client.get("app", "/a?b").await.body, b"own");
        until_compared(&fixture, &mirror_backend.load, [1, 0, 0]).await;
        client.send("POST /c HTTP/1.1\r\nHost: app\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n").await;
        fixture.pause(2).await;
        client.send("4\r\ndefg\r\n0\r\n\r\n").await;
        assert_eq!(client.message().await.unwrap().body, b"own");
        until_compared(&fixture, &mirror_backend.load, [1, 1, 0]).await;
        let big = vec![b'x'; 60_000];
        client.send(format!("PUT /d HTTP/1.1\r\nHost: app\r\nContent-Length: {}\r\n\r\n", big.len())).await;
        client.send(big.clone()).await;
        assert_eq!(client.message().await.unwrap().body, b"own");
        until_compared(&fixture, &mirror_backend.load, [2, 1, 0]).await;

        let seen = seen.borrow();
        let bodies: Vec<_> = seen.iter().map(|(_, body)| body.len()).collect();
        assert_eq!(bodies, [0, 7, 60_000]);
        assert!(seen[0].0.starts_with("GET /a?b HTTP/1.1\r\nHost: app\r\n"), "{}", seen[0].0);
        assert!(seen.iter().all(|(head, _)| head.contains("\r\nSluicegate-Mirrored: true\r\n")));
        assert_eq!((seen[1].1.as_slice(), &seen[2].1), (b"abcdefg".as_slice(), &big));
    });
}

/// The mirror version never answers, and then there are too many copies, or too large ones: the requests are not
/// affected.
#[test]
fn requests_never_wait_for_a_copy() {
    everywhere(async |fixture| {
        let taken = Rc::new(Cell::new(0_u64));
        let count = Rc::clone(&taken);
        let silent_instance = instance(&fixture.ring, move |_| {
            count.set(count.get() + 1);
            vec![Reply::Wait(Duration::from_secs(3600))]
        });
        let own = instance(&fixture.ring, |_| ok("own"));
        let mirror_backend = named("shadow", backend(&[silent_instance], 0, None));
        mirrored(&fixture, backend(&[own], 0, None), &mirror_backend);
        let skipped = |why: usize| fixture.counters.mirrors_skipped[why].load(Relaxed);

        let mut client = fixture.client().await;
        let big = 64 * 1024 + 1;
        client.send(format!("PUT / HTTP/1.1\r\nHost: app\r\nContent-Length: {big}\r\n\r\n")).await;
        client.send(vec![b'x'; big]).await;
        assert_eq!(client.message().await.unwrap().body, b"own");
        assert_eq!((skipped(0), taken.get()), (1, 0));
        for _ in 0..70 {
            assert_eq!(client.get("app", "/").await.body, b"own");
        }
        assert_eq!(skipped(1), 6, "64 are under way");
        assert!(mirror_backend.load.comparisons().is_none());
    });
}

/// A copy that reaches no instance is counted and dropped.
#[test]
fn copy_without_a_response_is_counted() {
    everywhere(async |fixture| {
        let own = instance(&fixture.ring, |_| ok("own"));
        let mirror_backend = named("shadow", backend(&[], 0, None));
        mirrored(&fixture, backend(&[own], 0, None), &mirror_backend);
        assert_eq!(fixture.client().await.get("app", "/").await.body, b"own");
        until_compared(&fixture, &mirror_backend.load, [0, 0, 1]).await;
    });
}
