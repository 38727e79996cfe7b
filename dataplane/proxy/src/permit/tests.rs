use std::cell::RefCell;

use contract::fair_queue::AHEAD_MAX;
use contract::signal::SignalQueue;
use contract::table::{Protocol, RequestTimeouts, Route, RoutingTable};
use contract::table_publisher::TablePublisher;
use protocol::http::limits::HttpLimits;
use ring::Ring;
use ring::sim::{FaultProfile, Simulation};

use super::*;
use crate::ProxyConfig;
use crate::pending_queue::PendingQueueLimits;

const QUEUE_TIMEOUT: Duration = Duration::from_secs(60);

/// A host whose instances take `concurrency_max` requests at a time each.
fn publish(tables: &TablePublisher, host: &str, concurrency_max: u32, load: &Arc<BackendLoad>, instances: usize) {
    let endpoints = (0..instances).map(|_| Arc::new(Endpoint::new(([127, 0, 0, 1], 1).into())));
    let backend = Backend {
        key: "default/app".into(),
        endpoints: endpoints.collect(),
        concurrency_max,
        when_empty: NoEndpointPolicy::Wait { timeout: QUEUE_TIMEOUT },
        protocol: Protocol::Http1,
        tls: None,
        timeouts: RequestTimeouts::NONE,
        proxy_protocol: None,
        load: Arc::clone(load),
    };
    let mut table = RoutingTable::default();
    table.hosts.insert(host, Arc::new(Route::of(vec![BackendShare::new(1, Arc::new(backend))])));
    tables.publish(table);
}

fn core(ring: &Ring, tables: &Arc<TablePublisher>) -> Rc<Proxy> {
    Proxy::new(ProxyConfig {
        ring: ring.clone(),
        tables: Arc::clone(tables),
        signals: SignalQueue::new(|| {}),
        counters: Arc::default(),
        limits: HttpLimits::default(),
        targets: Arc::default(),
        pending_limits: PendingQueueLimits::default(),
        seed: 1,
    })
}

/// Takes a permit, records the order, and keeps it for a while.
async fn hold_permit(core: Rc<Proxy>, name: u32, served: Rc<RefCell<Vec<u32>>>) {
    let mut acquire_request =
        AcquireRequest { route_request: RouteRequest::internal("app", "/"), bytes: 1, tried: Vec::new() };
    let choice = core.route(&acquire_request.route_request).unwrap();
    let permit = core.acquire(choice, &mut acquire_request).await.unwrap();
    served.borrow_mut().push(name);
    core.ring.sleep(Duration::from_millis(1)).await;
    drop(permit);
}

/// Runs `script` with two cores on one ring. Both handle its wake-ups.
fn on_two_cores<F: Future<Output = ()>>(concurrency_max: u32, script: impl FnOnce([Rc<Proxy>; 2]) -> F) {
    let ring = Simulation::new(1, FaultProfile::calm()).ring();
    let tables = TablePublisher::new(RoutingTable::default());
    let cores = [core(&ring, &tables), core(&ring, &tables)];
    publish(&tables, "app", concurrency_max, &Arc::default(), 1);
    let (woken_cores, notify) = (cores.clone(), ring.clone());
    ring.spawn(async move {
        loop {
            notify.woken().await;
            woken_cores.iter().for_each(|core| core.on_wake());
        }
    });
    ring.block_on(script(cores));
    ring.shutdown();
}

/// SRV-REQ-08: a core with waiting requests once gave them every permit that became free, so that requests waiting
/// on another core starved.
#[test]
fn requests_on_all_cores_leave_nearly_in_arrival_order() {
    for concurrency_max in [1, 3] {
        on_two_cores(concurrency_max, async move |cores| {
            let (served, ring) = (Rc::<RefCell<Vec<u32>>>::default(), cores[0].ring.clone());
            for name in 0..40 {
                let core = Rc::clone(&cores[usize::from(name % 2 == 1)]);
                ring.spawn(hold_permit(core, name, Rc::clone(&served)));
                ring.sleep(Duration::from_micros(10)).await;
            }
            while served.borrow().len() < 40 {
                ring.sleep(Duration::from_millis(1)).await;
            }
            let served = served.borrow();
            for (position, name) in served.iter().enumerate() {
                let overtook = served[..position].iter().filter(|before| *before > name).count() as u64;
                assert!(overtook <= AHEAD_MAX, "{concurrency_max} at a time: {served:?}");
            }
        });
    }
}

/// A new request on a core without waiting requests queues behind those of other cores.
#[test]
fn frequent_requests_do_not_starve_another_core() {
    on_two_cores(1, async |cores| {
        let (served, ring) = (Rc::<RefCell<Vec<u32>>>::default(), cores[0].ring.clone());
        let (eager, own) = (Rc::clone(&cores[0]), Rc::clone(&served));
        ring.spawn(async move {
            for name in 0..50 {
                hold_permit(Rc::clone(&eager), name, Rc::clone(&own)).await;
            }
        });
        ring.sleep(Duration::from_micros(100)).await;
        hold_permit(Rc::clone(&cores[1]), 1_000, Rc::clone(&served)).await;
        assert!(served.borrow().len() as u64 <= 2 + AHEAD_MAX, "{served:?}");
    });
}

/// SRV-REQ-08: a service called by its short name is waited for like any other. Its request was once rerouted in an
/// endless loop, because only the first choice completed the name, and its core was stuck.
#[test]
fn scaled_to_zero_service_is_reached_by_short_name() {
    let ring = Simulation::new(1, FaultProfile::calm()).ring();
    let (tables, load) = (TablePublisher::new(RoutingTable::default()), Arc::<BackendLoad>::default());
    let core = core(&ring, &tables);
    publish(&tables, "app.ns.svc", 1, &load, 0);
    let (known, caller) = (Arc::clone(&load), Rc::clone(&core));
    ring.spawn(async move {
        while known.waiting.load(Relaxed) == 0 {
            caller.ring.sleep(Duration::from_millis(1)).await;
        }
        publish(&tables, "app.ns.svc", 1, &known, 1);
        caller.on_wake();
    });
    ring.block_on(async {
        let route_request = RouteRequest { domain: Some("ns.svc"), ..RouteRequest::internal("app", "/") };
        let choice = core.route(&route_request).unwrap();
        let mut acquire_request = AcquireRequest { route_request, bytes: 1, tried: Vec::new() };
        assert!(core.acquire(choice, &mut acquire_request).await.is_ok());
    });
    assert_eq!(load.demand(), 0);
    ring.shutdown();
}
