//! What routes do beyond dividing: clients that stay, copies that nobody waits for.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use sluicegate_dataplane::core::CoreLimits;
use sluicegate_dataplane::load::BackendLoad;
use sluicegate_dataplane::table::{
    Backend, BackendShare, MirrorPolicy, Route, RoutingTable, SessionKey, TrafficPolicy,
};

use crate::fixture::{ProxyFixture, Reply, Seen, backend, instance, ok, on_every_machine};

fn everywhere<F: Future<Output = ()> + 'static>(script: impl Fn(ProxyFixture) -> F + Copy + 'static) {
    on_every_machine(&CoreLimits::default(), script);
}

fn named(key: &str, backend: Backend) -> Arc<Backend> {
    Arc::new(Backend { key: key.into(), ..backend })
}

/// `app` with two halves.
fn halves(house: &ProxyFixture, sticky: SessionKey) {
    let split = |name: &'static str| {
        let address = instance(&house.ring, move |_| ok(name));
        BackendShare::new(50, named(name, backend(&[address], 0, None)))
    };
    let mut route = Route::of(vec![split("a"), split("b")]);
    route.traffic_policy = Some(Arc::new(TrafficPolicy { sticky: Some(sticky), mirror: None }));
    let mut table = RoutingTable::default();
    table.hosts.insert("app", Arc::new(route));
    house.tables.publish(table);
}

async fn asked(house: &ProxyFixture, fields: &str) -> Seen {
    let mut client = house.client().await;
    client.send(format!("GET / HTTP/1.1\r\nHost: app\r\n{fields}\r\n")).await;
    client.message().await.unwrap()
}

#[test]
fn a_client_stays_with_the_version_that_its_header_leads_to() {
    everywhere(async |house| {
        halves(&house, SessionKey::Header("X-User".into()));
        let mut versions = std::collections::BTreeSet::new();
        for user in 0..12 {
            let field = format!("X-User: {user}\r\n");
            let first = asked(&house, &field).await;
            assert!(!first.head.contains("Set-Cookie"), "{}", first.head);
            for _ in 0..5 {
                assert_eq!(asked(&house, &field).await.body, first.body);
            }
            versions.insert(first.body);
        }
        assert_eq!(versions.len(), 2, "all went to one version");
    });
}

#[test]
fn a_new_client_gets_a_cookie_and_stays_by_it() {
    everywhere(async |house| {
        halves(&house, SessionKey::Issued);
        for _ in 0..6 {
            let first = asked(&house, "").await;
            let cookie = first.head.lines().find_map(|line| line.strip_prefix("Set-Cookie: ")).unwrap();
            let pair = cookie.split(';').next().unwrap();
            for _ in 0..5 {
                let again = asked(&house, &format!("Cookie: x=y; {pair}\r\n")).await;
                assert_eq!(again.body, first.body);
                assert!(!again.head.contains("Set-Cookie"), "{}", again.head);
            }
        }
    });
}

/// `app` with a copy for `shadow` of every request.
fn mirrored(house: &ProxyFixture, own: Backend, shadow: &Arc<Backend>) {
    let mut route = Route::of(vec![BackendShare::new(100, named("own", own))]);
    let mirror = Arc::new(MirrorPolicy { host: "shadow".into(), percent: 100 });
    route.traffic_policy = Some(Arc::new(TrafficPolicy { sticky: None, mirror: Some(mirror) }));
    let mut table = RoutingTable::default();
    table.hosts.insert("app", Arc::new(route));
    table.hosts.insert("shadow", Arc::new(Route::of(vec![BackendShare::new(1, Arc::clone(shadow))])));
    house.tables.publish(table);
}

async fn until_compared(house: &ProxyFixture, load: &BackendLoad, wanted: [u64; 3]) {
    for _ in 0..60_000 {
        if load.comparisons() == Some(wanted) {
            return;
        }
        house.pause(1).await;
    }
    panic!("{:?} and not {wanted:?}", load.comparisons());
}

/// Head and body.
type Copied = (String, Vec<u8>);

#[test]
fn a_copy_is_the_same_request_and_its_answer_is_compared_and_dropped() {
    everywhere(async |house| {
        let seen: Rc<RefCell<Vec<Copied>>> = Rc::default();
        let noted = Rc::clone(&seen);
        let other = instance(&house.ring, move |request| {
            noted.borrow_mut().push((request.head.clone(), request.body.clone()));
            if request.head.starts_with("POST") {
                return vec![Reply::Send(b"HTTP/1.1 500 Oops\r\nContent-Length: 3\r\n\r\nbad".to_vec())];
            }
            ok("copy")
        });
        let own = instance(&house.ring, |request| {
            assert!(!request.head.contains("Sluicegate-Mirrored"), "{}", request.head);
            ok("own")
        });
        let shadow = named("shadow", backend(&[other], 0, None));
        mirrored(&house, backend(&[own], 0, None), &shadow);

        let mut client = house.client().await;
        assert_eq!(client.get("app", "/a?b").await.body, b"own");
        until_compared(&house, &shadow.load, [1, 0, 0]).await;
        client.send("POST /c HTTP/1.1\r\nHost: app\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n").await;
        house.pause(2).await;
        client.send("4\r\ndefg\r\n0\r\n\r\n").await;
        assert_eq!(client.message().await.unwrap().body, b"own");
        until_compared(&house, &shadow.load, [1, 1, 0]).await;
        let big = vec![b'x'; 60_000];
        client.send(format!("PUT /d HTTP/1.1\r\nHost: app\r\nContent-Length: {}\r\n\r\n", big.len())).await;
        client.send(big.clone()).await;
        assert_eq!(client.message().await.unwrap().body, b"own");
        until_compared(&house, &shadow.load, [2, 1, 0]).await;

        let seen = seen.borrow();
        let bodies: Vec<_> = seen.iter().map(|(_, body)| body.len()).collect();
        assert_eq!(bodies, [0, 7, 60_000]);
        assert!(seen[0].0.starts_with("GET /a?b HTTP/1.1\r\nHost: app\r\n"), "{}", seen[0].0);
        assert!(seen.iter().all(|(head, _)| head.contains("\r\nSluicegate-Mirrored: true\r\n")));
        assert_eq!((seen[1].1.as_slice(), &seen[2].1), (b"abcdefg".as_slice(), &big));
    });
}

/// The copies' version never answers, and then there are too many of them, or too large ones: the requests do not
/// notice.
#[test]
fn nobody_waits_for_a_copy() {
    everywhere(async |house| {
        let taken = Rc::new(Cell::new(0_u64));
        let count = Rc::clone(&taken);
        let mute = instance(&house.ring, move |_| {
            count.set(count.get() + 1);
            vec![Reply::Wait(Duration::from_secs(3600))]
        });
        let own = instance(&house.ring, |_| ok("own"));
        let shadow = named("shadow", backend(&[mute], 0, None));
        mirrored(&house, backend(&[own], 0, None), &shadow);
        let skipped = |why: usize| house.counters.mirrors_skipped[why].load(Relaxed);

        let mut client = house.client().await;
        let big = 64 * 1024 + 1;
        client.send(format!("PUT / HTTP/1.1\r\nHost: app\r\nContent-Length: {big}\r\n\r\n")).await;
        client.send(vec![b'x'; big]).await;
        assert_eq!(client.message().await.unwrap().body, b"own");
        assert_eq!((skipped(0), taken.get()), (1, 0));
        for _ in 0..70 {
            assert_eq!(client.get("app", "/").await.body, b"own");
        }
        assert_eq!(skipped(1), 6, "64 are under way");
        assert!(shadow.load.comparisons().is_none());
    });
}

/// A copy that finds nobody is counted and forgotten.
#[test]
fn a_copy_without_an_answer_counts_as_such() {
    everywhere(async |house| {
        let own = instance(&house.ring, |_| ok("own"));
        let shadow = named("shadow", backend(&[], 0, None));
        mirrored(&house, backend(&[own], 0, None), &shadow);
        assert_eq!(house.client().await.get("app", "/").await.body, b"own");
        until_compared(&house, &shadow.load, [0, 0, 1]).await;
    });
}
