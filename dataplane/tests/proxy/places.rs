//! Weights, places, waiting: which instance a request meets, and when.

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
use sluicegate_dataplane::table::{Backend, BackendShare, HeaderEdits, RequestTimeouts, Route, RoutingTable};

use crate::fixture::{ProxyFixture, Reply, backend, in_house, instance, nobody, ok, on_every_machine};

const PATIENCE: Option<Duration> = Some(Duration::from_secs(5));

fn everywhere<F: Future<Output = ()> + 'static>(script: impl Fn(ProxyFixture) -> F + Copy + 'static) {
    on_every_machine(&CoreLimits::default(), script);
}

/// The same backend with other instances: what control does when one becomes ready.
fn with_load(mut backend: Backend, load: &Arc<BackendLoad>) -> Backend {
    backend.load = Arc::clone(load);
    backend
}

async fn until_waiting(house: &ProxyFixture, load: &BackendLoad, count: u32) {
    while load.waiting.load(Relaxed) != count {
        house.pause(1).await;
    }
}

/// SRV-REQ-02, SRV-REQ-07, SRV-REQ-11: one client on one connection, one instance against three.
#[test]
fn every_request_of_one_connection_is_split_anew() {
    async fn script(house: ProxyFixture) {
        let one = instance(&house.ring, |_| ok("a"));
        let many: Vec<_> = (0..3).map(|_| instance(&house.ring, |_| ok("b"))).collect();
        let split = |weight, backend| BackendShare::new(weight, Arc::new(backend));
        let route = Route::of(vec![split(90, backend(&[one], 0, None)), split(10, backend(&many, 0, None))]);
        let mut table = RoutingTable::default();
        table.hosts.insert("app", Arc::new(route));
        house.tables.publish(table);

        let mut client = house.client().await;
        let mut hits = 0;
        for _ in 0..2_000 {
            hits += u32::from(client.get("app", "/").await.body == b"a");
        }
        assert!((1_740..=1_860).contains(&hits), "{hits} of 2000 at 90 %");
    }
    let limits = CoreLimits::default();
    in_house(&Ring::kernel(RingOptions::default()).unwrap(), &limits, script);
    in_house(&Simulation::new(1, FaultProfile::calm()).ring(), &limits, script);
}

/// SRV-REQ-08, SRV-REQ-09: held, not failed, woken by the publish, in the order in which they came.
#[test]
fn requests_to_a_sleeping_backend_wait_and_leave_in_order() {
    everywhere(async |house| {
        let load = Arc::new(BackendLoad::default());
        house.publish("app", with_load(backend(&[], 1, PATIENCE), &load));
        let order = Rc::new(RefCell::new(Vec::new()));
        let done = Rc::new(Cell::new(0));
        for n in 0..20 {
            let mut client = house.client().await;
            let done = Rc::clone(&done);
            house.ring.spawn(async move {
                assert!(client.get("app", &format!("/{n}")).await.head.starts_with("HTTP/1.1 200 "));
                done.set(done.get() + 1);
            });
            until_waiting(&house, &load, n + 1).await;
        }
        assert_eq!(house.signals.receive(), Some(Signal::Demand { backend: "default/app".into() }));
        assert_eq!(house.signals.receive(), None);
        assert_eq!(load.demand(), 20);

        let seen = Rc::clone(&order);
        let address = instance(&house.ring, move |request| {
            seen.borrow_mut().push(request.head.split(' ').nth(1).unwrap()[1..].parse::<u32>().unwrap());
            ok("")
        });
        house.publish("app", with_load(backend(&[address], 1, PATIENCE), &load));
        while done.get() < 20 {
            house.pause(1).await;
            assert_eq!(house.ring.panicked(), 0);
        }
        assert_eq!(*order.borrow(), (0..20).collect::<Vec<_>>());
        assert_eq!((load.demand(), load.requests.load(Relaxed)), (0, 20));
    });
}

/// X-QP-06: what a platform asks about its health wakes no instance, reaches none and counts for none; what is not ours
/// to start gets it like any other request.
#[test]
fn a_probe_for_health_wakes_nobody() {
    everywhere(async |house| {
        let load = Arc::new(BackendLoad::default());
        let theirs = instance(&house.ring, |_| ok("theirs"));
        let mut table = RoutingTable::default();
        let ours = with_load(backend(&[], 1, PATIENCE), &load);
        for (host, backend) in [("app", ours), ("static", backend(&[theirs], 0, None))] {
            table.hosts.insert(host, Arc::new(Route::of(vec![BackendShare::new(100, Arc::new(backend))])));
        }
        house.tables.publish(table);
        let mut client = house.client().await;
        for probe in ["User-Agent: kube-probe/1.34", "k-kubelet-probe: queue", "K-Network-Probe: queue"] {
            let mut ask = async |host: &str| {
                client.send(format!("GET / HTTP/1.1\r\nHost: {host}\r\n{probe}\r\n\r\n")).await;
                client.message().await.unwrap()
            };
            let answer = ask("app").await;
            assert!(answer.head.starts_with("HTTP/1.1 200 "), "{probe}: {}", answer.head);
            assert_eq!(answer.body, b"queue", "{probe}");
            assert_eq!(ask("static").await.body, b"theirs", "{probe}");
        }
        assert_eq!((house.signals.receive(), load.demand(), load.requests.load(Relaxed)), (None, 0, 0));
    });
}

#[test]
fn patience_ends_and_a_full_room_says_so() {
    let mut limits = CoreLimits::default();
    limits.pending.queued_max = 1;
    on_every_machine(&limits, async |house| {
        let load = Arc::new(BackendLoad::default());
        house.publish("app", with_load(backend(&[], 0, Some(Duration::from_millis(100))), &load));
        let mut first = house.client().await;
        first.send("GET / HTTP/1.1\r\nHost: app\r\n\r\n").await;
        until_waiting(&house, &load, 1).await;

        let turned_away = house.client().await.get("app", "/").await;
        assert!(turned_away.head.starts_with("HTTP/1.1 503 ") && turned_away.head.contains("Retry-After: 1"));
        let tired = first.message().await.unwrap();
        assert!(tired.head.starts_with("HTTP/1.1 503 "));
        assert!(String::from_utf8_lossy(&tired.body).contains("became ready in time"));
        assert_eq!(load.demand(), 0);

        // X-QP-02, X-QP-03, X-QP-04: who cannot be answered in time any more does not wait on.
        let limit = Duration::from_millis(50);
        for timeouts in [
            RequestTimeouts { total: limit, ..RequestTimeouts::NONE },
            RequestTimeouts { response_start: limit, ..RequestTimeouts::NONE },
            RequestTimeouts { idle: limit, ..RequestTimeouts::NONE },
        ] {
            house.publish("app", Backend { timeouts, ..backend(&[], 0, PATIENCE) });
            let before = house.ring.now();
            assert!(first.get("app", "/").await.head.starts_with("HTTP/1.1 504 "), "{timeouts:?}");
            assert!(house.ring.now() - before >= limit);
        }

        house.publish("app", backend(&[], 0, None));
        let refused = first.get("app", "/").await;
        assert!(refused.head.starts_with("HTTP/1.1 503 ") && refused.head.contains("Retry-After"));
    });
}

/// The limit is hard, and no instance idles while a request waits.
#[test]
fn at_concurrency_one_no_instance_ever_sees_two_requests() {
    everywhere(async |house| {
        let inside = Rc::new(RefCell::new([0_u32; 2]));
        let most = Rc::new(Cell::new(0));
        let instances: Vec<_> = (0..2)
            .map(|n| {
                let (inside, most) = (Rc::clone(&inside), Rc::clone(&most));
                instance(&house.ring, move |_| {
                    inside.borrow_mut()[n] += 1;
                    most.set(most.get().max(inside.borrow()[n]));
                    let leaving = Rc::clone(&inside);
                    let leave = Reply::Do(Box::new(move || leaving.borrow_mut()[n] -= 1));
                    let mut replies = vec![Reply::Wait(Duration::from_micros(300)), leave];
                    replies.extend(ok("fine"));
                    replies
                })
            })
            .collect();
        let load = Arc::new(BackendLoad::default());
        house.publish("app", with_load(backend(&instances, 1, PATIENCE), &load));
        let answered = Rc::new(Cell::new(0));
        for _ in 0..30 {
            let mut client = house.client().await;
            let answered = Rc::clone(&answered);
            house.ring.spawn(async move {
                for _ in 0..5 {
                    assert_eq!(client.get("app", "/").await.body, b"fine");
                    answered.set(answered.get() + 1);
                }
            });
        }
        while answered.get() < 150 {
            house.pause(1).await;
            assert_eq!(house.ring.panicked(), 0);
        }
        assert_eq!(most.get(), 1);
        assert_eq!((load.demand(), load.requests.load(Relaxed)), (0, 150));
    });
}

/// APP-08, APP-09, APP-10: tables change under load, and nothing fails; the next request meets the new one.
#[test]
fn a_table_change_fails_no_request_and_holds_for_the_next() {
    everywhere(async |house| {
        let old = instance(&house.ring, |_| ok("0"));
        let new = instance(&house.ring, |_| ok("1"));
        house.publish("app", backend(&[old], 0, None));
        let (running, answered) = (Rc::new(Cell::new(true)), Rc::new(Cell::new(false)));
        let (flag, told, mut busy) = (Rc::clone(&running), Rc::clone(&answered), house.client().await);
        house.ring.spawn(async move {
            while flag.get() {
                let seen = busy.get("app", "/").await;
                assert!(seen.head.starts_with("HTTP/1.1 200 "), "{seen:?}");
            }
            told.set(true);
        });
        let mut client = house.client().await;
        for round in 0..100 {
            house.publish("app", backend(&[[old, new][round % 2]], 0, None));
            assert_eq!(client.get("app", "/").await.body, [b'0' + (round % 2) as u8]);
        }
        running.set(false);
        // A core that stops closes connections on which nothing has come yet, and a request may cross that.
        while !answered.get() {
            house.ring.sleep(Duration::from_millis(1)).await;
        }
    });
}

/// A guest whose route no longer leads to its backend goes where the route leads now.
#[test]
fn a_guest_follows_its_route() {
    everywhere(async |house| {
        let load = Arc::new(BackendLoad::default());
        house.publish("app", with_load(backend(&[], 0, PATIENCE), &load));
        let mut client = house.client().await;
        client.send("GET / HTTP/1.1\r\nHost: app\r\n\r\n").await;
        until_waiting(&house, &load, 1).await;
        let address = instance(&house.ring, |_| ok("moved"));
        let mut other = backend(&[address], 0, None);
        other.key = "default/other".into();
        house.publish("app", other);
        assert_eq!(client.message().await.unwrap().body, b"moved");
        assert_eq!(load.demand(), 0);
    });
}

/// An instance that is listed and does not listen yet costs a waiting request time, not a failure.
#[test]
fn a_request_that_may_wait_outlasts_an_instance_that_refuses() {
    everywhere(async |house| {
        let load = Arc::new(BackendLoad::default());
        let gone = nobody(&house.ring).await;
        house.publish("app", with_load(backend(&[gone], 0, PATIENCE), &load));
        let mut client = house.client().await;
        client.send("GET / HTTP/1.1\r\nHost: app\r\n\r\n").await;
        until_waiting(&house, &load, 1).await;
        let address = instance(&house.ring, |_| ok("late"));
        house.publish("app", with_load(backend(&[gone, address], 0, PATIENCE), &load));
        assert_eq!(client.message().await.unwrap().body, b"late");
        assert_eq!(load.demand(), 0);
    });
}

/// SRV-REQ-09: the wish for an instance is repeated until control has it.
#[test]
fn a_demand_that_found_the_queue_full_is_said_again() {
    everywhere(async |house| {
        let noise = || Signal::Unreachable { backend: "noise".into(), endpoint: 0 };
        while house.signals.send(noise()) {}
        let load = Arc::new(BackendLoad::default());
        house.publish("app", with_load(backend(&[], 0, PATIENCE), &load));
        let client = house.client().await;
        client.send("GET / HTTP/1.1\r\nHost: app\r\n\r\n").await;
        until_waiting(&house, &load, 1).await;
        house.pause(20).await;
        while let Some(signal) = house.signals.receive() {
            assert_eq!(signal, noise());
        }
        loop {
            match house.signals.receive() {
                Some(signal) => break assert_eq!(signal, Signal::Demand { backend: "default/app".into() }),
                None => house.pause(1).await,
            }
        }
    });
}

/// X-KI-07: a guest keeps what its share changes in it, though another share leads to the same backend.
#[test]
fn a_guest_keeps_the_changes_of_its_share() {
    everywhere(async |house| {
        let told = Rc::new(RefCell::new(Vec::new()));
        let seen = Rc::clone(&told);
        let address = instance(&house.ring, move |request| {
            let share = request.head.lines().find_map(|line| line.strip_prefix("X-Share: "));
            seen.borrow_mut().push(share.unwrap().to_owned());
            ok("")
        });
        let load = Arc::new(BackendLoad::default());
        let publish = |weights: [u32; 2], instances: &[_]| {
            let backend = Arc::new(with_load(backend(instances, 0, PATIENCE), &load));
            let share = |number: usize| {
                let mut edits = HeaderEdits::default();
                edits.set("X-Share", &number.to_string()).unwrap();
                BackendShare {
                    edits: Some(Arc::new(edits)),
                    ..BackendShare::new(weights[number], Arc::clone(&backend))
                }
            };
            let mut table = RoutingTable::default();
            table.hosts.insert("app", Arc::new(Route::of(vec![share(0), share(1)])));
            house.tables.publish(table);
        };
        for (nth, weights) in [[1, 0], [0, 1]].into_iter().enumerate() {
            publish(weights, &[]);
            let mut client = house.client().await;
            client.send("GET / HTTP/1.1\r\nHost: app\r\n\r\n").await;
            until_waiting(&house, &load, 1).await;
            publish(weights, &[address]);
            client.message().await.unwrap();
            assert_eq!(told.borrow()[nth], nth.to_string());
        }
    });
}
