//! Traffic splits, permits and the pending queue.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use ring::sim::{FaultProfile, Simulation};
use ring::{Ring, RingOptions};
use sluicegate_dataplane::core::CoreLimits;
use sluicegate_dataplane::load::BackendLoad;
use sluicegate_dataplane::signal::Signal;
use sluicegate_dataplane::table::{
    Backend, BackendShare, CorsPolicy, HeaderEdits, RequestTimeouts, Route, RouteFilters, RoutingTable,
};

use crate::fixture::{ProxyFixture, Reply, backend, instance, ok, on_every_driver, run_with_proxy, unused_address};

const QUEUE_TIMEOUT: Option<Duration> = Some(Duration::from_secs(5));

fn everywhere<F: Future<Output = ()> + 'static>(script: impl Fn(ProxyFixture) -> F + Copy + 'static) {
    on_every_driver(&CoreLimits::default(), script);
}

/// The same backend with other instances: what control publishes when one becomes ready.
fn with_load(mut backend: Backend, load: &Arc<BackendLoad>) -> Backend {
    backend.load = Arc::clone(load);
    backend
}

async fn until_waiting(fixture: &ProxyFixture, load: &BackendLoad, count: u32) {
    while load.waiting.load(Relaxed) != count {
        fixture.pause(1).await;
    }
}

/// SRV-REQ-02, SRV-REQ-07, SRV-REQ-11: one client on one connection, one instance against three.
#[test]
fn every_request_of_a_connection_is_split_independently() {
    async fn script(fixture: ProxyFixture) {
        let one = instance(&fixture.ring, |_| ok("a"));
        let many: Vec<_> = (0..3).map(|_| instance(&fixture.ring, |_| ok("b"))).collect();
        let split = |weight, backend| BackendShare::new(weight, Arc::new(backend));
        let route = Route::of(vec![split(90, backend(&[one], 0, None)), split(10, backend(&many, 0, None))]);
        let mut table = RoutingTable::default();
        table.hosts.insert("app", Arc::new(route));
        fixture.tables.publish(table);

        let mut client = fixture.client().await;
        let mut hits = 0;
        for _ in 0..2_000 {
            hits += u32::from(client.get("app", "/").await.body == b"a");
        }
        assert!((1_740..=1_860).contains(&hits), "{hits} of 2000 at 90 %");
    }
    let limits = CoreLimits::default();
    run_with_proxy(&Ring::kernel(RingOptions::default()).unwrap(), &limits, script);
    run_with_proxy(&Simulation::new(1, FaultProfile::calm()).ring(), &limits, script);
}

/// SRV-REQ-08, SRV-REQ-09: requests wait without failing, are woken by the publish, and leave in order of arrival.
#[test]
fn requests_to_a_scaled_to_zero_backend_leave_in_order() {
    everywhere(async |fixture| {
        let load = Arc::new(BackendLoad::default());
        fixture.publish("app", with_load(backend(&[], 1, QUEUE_TIMEOUT), &load));
        let order = Rc::new(RefCell::new(Vec::new()));
        let done = Rc::new(Cell::new(0));
        for n in 0..20 {
            let mut client = fixture.client().await;
            let done = Rc::clone(&done);
            fixture.ring.spawn(async move {
                assert!(client.get("app", &format!("/{n}")).await.head.starts_with("HTTP/1.1 200 "));
                done.set(done.get() + 1);
            });
            until_waiting(&fixture, &load, n + 1).await;
        }
        assert_eq!(fixture.signals.receive(), Some(Signal::Demand { backend: "default/app".into() }));
        assert_eq!(fixture.signals.receive(), None);
        assert_eq!(load.demand(), 20);

        let seen = Rc::clone(&order);
        let address = instance(&fixture.ring, move |request| {
            seen.borrow_mut().push(request.head.split(' ').nth(1).unwrap()[1..].parse::<u32>().unwrap());
            ok("")
        });
        fixture.publish("app", with_load(backend(&[address], 1, QUEUE_TIMEOUT), &load));
        while done.get() < 20 {
            fixture.pause(1).await;
            assert_eq!(fixture.ring.panicked(), 0);
        }
        assert_eq!(*order.borrow(), (0..20).collect::<Vec<_>>());
        assert_eq!((load.demand(), load.requests.load(Relaxed)), (0, 20));
    });
}

/// X-QP-06: a health probe of the platform starts no instance, reaches none and is not counted; to external backends it
/// goes like any other request.
#[test]
fn health_probe_starts_no_instance() {
    everywhere(async |fixture| {
        let load = Arc::new(BackendLoad::default());
        let external = instance(&fixture.ring, |_| ok("theirs"));
        let mut table = RoutingTable::default();
        let scaled = with_load(backend(&[], 1, QUEUE_TIMEOUT), &load);
        for (host, backend) in [("app", scaled), ("static", backend(&[external], 0, None))] {
            table.hosts.insert(host, Arc::new(Route::of(vec![BackendShare::new(100, Arc::new(backend))])));
        }
        fixture.tables.publish(table);
        let mut client = fixture.client().await;
        for probe in ["User-Agent: kube-probe/1.34", "k-kubelet-probe: queue", "K-Network-Probe: queue"] {
            let mut probe_host = async |host: &str| {
                client.send(format!("GET / HTTP/1.1\r\nHost: {host}\r\n{probe}\r\n\r\n")).await;
                client.message().await.unwrap()
            };
            let answer = probe_host("app").await;
            assert!(answer.head.starts_with("HTTP/1.1 200 "), "{probe}: {}", answer.head);
            assert_eq!(answer.body, b"queue", "{probe}");
            assert_eq!(probe_host("static").await.body, b"theirs", "{probe}");
        }
        assert_eq!((fixture.signals.receive(), load.demand(), load.requests.load(Relaxed)), (None, 0, 0));
    });
}

#[test]
fn queue_timeout_and_full_queue_are_reported() {
    let mut limits = CoreLimits::default();
    limits.pending.queued_max = 1;
    on_every_driver(&limits, async |fixture| {
        let load = Arc::new(BackendLoad::default());
        fixture.publish("app", with_load(backend(&[], 0, Some(Duration::from_millis(100))), &load));
        let mut first = fixture.client().await;
        first.send("GET / HTTP/1.1\r\nHost: app\r\n\r\n").await;
        until_waiting(&fixture, &load, 1).await;

        let rejected = fixture.client().await.get("app", "/").await;
        assert!(rejected.head.starts_with("HTTP/1.1 503 ") && rejected.head.contains("Retry-After: 1"));
        let timed_out = first.message().await.unwrap();
        assert!(timed_out.head.starts_with("HTTP/1.1 503 "));
        assert!(String::from_utf8_lossy(&timed_out.body).contains("became ready in time"));
        assert_eq!(load.demand(), 0);

        // X-QP-02, X-QP-03, X-QP-04: a request whose response deadline passes stops waiting.
        let limit = Duration::from_millis(50);
        for timeouts in [
            RequestTimeouts { total: limit, ..RequestTimeouts::NONE },
            RequestTimeouts { response_start: limit, ..RequestTimeouts::NONE },
            RequestTimeouts { idle: limit, ..RequestTimeouts::NONE },
        ] {
            fixture.publish("app", Backend { timeouts, ..backend(&[], 0, QUEUE_TIMEOUT) });
            let before = fixture.ring.now();
            assert!(first.get("app", "/").await.head.starts_with("HTTP/1.1 504 "), "{timeouts:?}");
            assert!(fixture.ring.now() - before >= limit);
        }

        fixture.publish("app", backend(&[], 0, None));
        let refused = first.get("app", "/").await;
        assert!(refused.head.starts_with("HTTP/1.1 503 ") && refused.head.contains("Retry-After"));
    });
}

/// The limit is hard, and no instance idles while a request waits.
#[test]
fn concurrency_one_is_never_exceeded() {
    everywhere(async |fixture| {
        let active = Rc::new(RefCell::new([0_u32; 2]));
        let most = Rc::new(Cell::new(0));
        let instances: Vec<_> = (0..2)
            .map(|n| {
                let (active, most) = (Rc::clone(&active), Rc::clone(&most));
                instance(&fixture.ring, move |_| {
                    active.borrow_mut()[n] += 1;
                    most.set(most.get().max(active.borrow()[n]));
                    let active_now = Rc::clone(&active);
                    let finish = Reply::Do(Box::new(move || active_now.borrow_mut()[n] -= 1));
                    let mut replies = vec![Reply::Wait(Duration::from_micros(300)), finish];
                    replies.extend(ok("fine"));
                    replies
                })
            })
            .collect();
        let load = Arc::new(BackendLoad::default());
        fixture.publish("app", with_load(backend(&instances, 1, QUEUE_TIMEOUT), &load));
        let answered = Rc::new(Cell::new(0));
        for _ in 0..30 {
            let mut client = fixture.client().await;
            let answered = Rc::clone(&answered);
            fixture.ring.spawn(async move {
                for _ in 0..5 {
                    assert_eq!(client.get("app", "/").await.body, b"fine");
                    answered.set(answered.get() + 1);
                }
            });
        }
        while answered.get() < 150 {
            fixture.pause(1).await;
            assert_eq!(fixture.ring.panicked(), 0);
        }
        assert_eq!(most.get(), 1);
        assert_eq!((load.demand(), load.requests.load(Relaxed)), (0, 150));
    });
}

/// APP-08, APP-09, APP-10: tables change under load without failures; the next request uses the new one.
#[test]
fn table_change_fails_no_request_and_applies_to_the_next() {
    everywhere(async |fixture| {
        let old = instance(&fixture.ring, |_| ok("0"));
        let new = instance(&fixture.ring, |_| ok("1"));
        fixture.publish("app", backend(&[old], 0, None));
        let (running, answered) = (Rc::new(Cell::new(true)), Rc::new(Cell::new(false)));
        let (flag, observed, mut busy) = (Rc::clone(&running), Rc::clone(&answered), fixture.client().await);
        fixture.ring.spawn(async move {
            while flag.get() {
                let seen = busy.get("app", "/").await;
                assert!(seen.head.starts_with("HTTP/1.1 200 "), "{seen:?}");
            }
            observed.set(true);
        });
        let mut client = fixture.client().await;
        for round in 0..100 {
            fixture.publish("app", backend(&[[old, new][round % 2]], 0, None));
            assert_eq!(client.get("app", "/").await.body, [b'0' + (round % 2) as u8]);
        }
        running.set(false);
        // A draining core closes connections without a received byte, and a request may cross that.
        while !answered.get() {
            fixture.ring.sleep(Duration::from_millis(1)).await;
        }
    });
}

/// A waiting request whose route no longer leads to its backend is rerouted.
#[test]
fn waiting_request_follows_its_route() {
    everywhere(async |fixture| {
        let load = Arc::new(BackendLoad::default());
        fixture.publish("app", with_load(backend(&[], 0, QUEUE_TIMEOUT), &load));
        let mut client = fixture.client().await;
        client.send("GET / HTTP/1.1\r\nHost: app\r\n\r\n").await;
        until_waiting(&fixture, &load, 1).await;
        let address = instance(&fixture.ring, |_| ok("moved"));
        let mut other = backend(&[address], 0, None);
        other.key = "default/other".into();
        fixture.publish("app", other);
        assert_eq!(client.message().await.unwrap().body, b"moved");
        assert_eq!(load.demand(), 0);
    });
}

/// An instance that is listed but does not listen yet delays a waiting request without failing it.
#[test]
fn waiting_request_outlasts_a_refusing_instance() {
    everywhere(async |fixture| {
        let load = Arc::new(BackendLoad::default());
        let gone = unused_address(&fixture.ring).await;
        fixture.publish("app", with_load(backend(&[gone], 0, QUEUE_TIMEOUT), &load));
        let mut client = fixture.client().await;
        client.send("GET / HTTP/1.1\r\nHost: app\r\n\r\n").await;
        until_waiting(&fixture, &load, 1).await;
        let address = instance(&fixture.ring, |_| ok("late"));
        fixture.publish("app", with_load(backend(&[gone, address], 0, QUEUE_TIMEOUT), &load));
        assert_eq!(client.message().await.unwrap().body, b"late");
        assert_eq!(load.demand(), 0);
    });
}

/// SRV-REQ-09: demand for an instance is sent again until control has received it.
#[test]
fn demand_is_repeated_after_a_full_signal_queue() {
    everywhere(async |fixture| {
        let noise = || Signal::Unreachable { backend: "noise".into(), endpoint: 0 };
        while fixture.signals.send(noise()) {}
        let load = Arc::new(BackendLoad::default());
        fixture.publish("app", with_load(backend(&[], 0, QUEUE_TIMEOUT), &load));
        let client = fixture.client().await;
        client.send("GET / HTTP/1.1\r\nHost: app\r\n\r\n").await;
        until_waiting(&fixture, &load, 1).await;
        fixture.pause(20).await;
        while let Some(signal) = fixture.signals.receive() {
            assert_eq!(signal, noise());
        }
        loop {
            match fixture.signals.receive() {
                Some(signal) => break assert_eq!(signal, Signal::Demand { backend: "default/app".into() }),
                None => fixture.pause(1).await,
            }
        }
    });
}

/// X-KI-07: a waiting request keeps the header edits of its share, though another share leads to the same backend.
#[test]
fn waiting_request_keeps_the_edits_of_its_share() {
    everywhere(async |fixture| {
        let observed = Rc::new(RefCell::new(Vec::new()));
        let seen = Rc::clone(&observed);
        let address = instance(&fixture.ring, move |request| {
            let share = request.head.lines().find_map(|line| line.strip_prefix("X-Share: "));
            seen.borrow_mut().push(share.unwrap().to_owned());
            ok("")
        });
        let load = Arc::new(BackendLoad::default());
        let publish = |weights: [u32; 2], instances: &[_]| {
            let backend = Arc::new(with_load(backend(instances, 0, QUEUE_TIMEOUT), &load));
            let share = |number: usize| {
                let mut request = HeaderEdits::default();
                request.set("X-Share", &number.to_string()).unwrap();
                BackendShare {
                    filters: Some(Arc::new(RouteFilters { request, ..RouteFilters::default() })),
                    ..BackendShare::new(weights[number], Arc::clone(&backend))
                }
            };
            let mut table = RoutingTable::default();
            table.hosts.insert("app", Arc::new(Route::of(vec![share(0), share(1)])));
            fixture.tables.publish(table);
        };
        for (nth, weights) in [[1, 0], [0, 1]].into_iter().enumerate() {
            publish(weights, &[]);
            let mut client = fixture.client().await;
            client.send("GET / HTTP/1.1\r\nHost: app\r\n\r\n").await;
            until_waiting(&fixture, &load, 1).await;
            publish(weights, &[address]);
            client.message().await.unwrap();
            assert_eq!(observed.borrow()[nth], nth.to_string());
        }
    });
}

/// The decision of the filters is made when the request comes, and holds for its response.
#[test]
fn waiting_request_keeps_the_cors_fields_of_its_response() {
    everywhere(async |fixture| {
        let address = instance(&fixture.ring, |_| ok(""));
        let load = Arc::new(BackendLoad::default());
        let publish = |instances: &[_]| {
            let backend = Arc::new(with_load(backend(instances, 0, QUEUE_TIMEOUT), &load));
            let mut cors = CorsPolicy::default();
            cors.allow_origin("https://a.test").unwrap();
            let filters = RouteFilters { cors: Some(Box::new(cors)), ..RouteFilters::default() };
            let share = BackendShare { filters: Some(Arc::new(filters)), ..BackendShare::new(1, backend) };
            let mut table = RoutingTable::default();
            table.hosts.insert("app", Arc::new(Route::of(vec![share])));
            fixture.tables.publish(table);
        };
        publish(&[]);
        let mut client = fixture.client().await;
        client.send("GET / HTTP/1.1\r\nHost: app\r\nOrigin: https://a.test\r\n\r\n").await;
        until_waiting(&fixture, &load, 1).await;
        publish(&[address]);
        let head = client.message().await.unwrap().head;
        assert!(head.contains("Access-Control-Allow-Origin: https://a.test\r\n"), "{head}");
    });
}
