//! A proxied request over loopback, compared with the same request sent directly to the upstream.
//!
//! The appliance runs as the built binary with one worker; the load comes from monoio connections of
//! this process, each with one request in flight. The figure is the time per answered request, so
//! with N connections it is the inverse of the throughput. The cost of the proxy itself is the
//! difference from `direct`, and only roughly, since all share the cores of one machine.

use std::net::SocketAddr;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use kit::load::{LoadPlan, LoadReport, run};
use kit::{ApplianceSetup, HttpCall, TestUpstream};

const BIN: &str = env!("CARGO_BIN_EXE_sluicegate");
/// One connection shows latency; 64 is what the yardstick in the README uses.
const CONNECTIONS: [usize; 2] = [1, 64];
/// Fewer would time the opening of connections and the start of a thread.
const REQUESTS_MIN: u64 = 1000;
/// For quantiles. Unoptimised, the bench is only shown to work.
const REQUESTS_LOOKED_AT: u64 = if cfg!(debug_assertions) { REQUESTS_MIN } else { 20_000 };

fn proxied_and_direct(criterion: &mut Criterion) {
    let upstream = TestUpstream::start("bench");
    let appliance = ApplianceSetup::new(BIN).route("*", upstream.address()).flag("workers", "1").start();

    let mut group = criterion.benchmark_group("request");
    group.throughput(Throughput::Elements(1)).sample_size(20).measurement_time(Duration::from_secs(8));
    for connections in CONNECTIONS {
        for (name, target) in [("direct", upstream.address()), ("proxied", appliance.http())] {
            group.bench_function(BenchmarkId::new(name, connections), |bencher| {
                bencher.iter_custom(|count| time_of(count, target, connections));
            });
        }
    }
    group.finish();

    for connections in CONNECTIONS {
        for (name, target) in [("direct", upstream.address()), ("proxied", appliance.http())] {
            let report = load(REQUESTS_LOOKED_AT, target, connections);
            let [p50, p99, p999] = [0.5, 0.99, 0.999].map(|share| report.quantile(share));
            println!("latency {name}/{connections}: p50 {p50:?}, p99 {p99:?}, p99.9 {p999:?}");
        }
    }
}

/// The time that `count` requests take, measured over enough of them.
fn time_of(count: u64, target: SocketAddr, connections: usize) -> Duration {
    let requests = count.max(REQUESTS_MIN);
    #[allow(clippy::cast_precision_loss, reason = "a share of a duration needs no 53 bits")]
    let share = count as f64 / requests as f64;
    load(requests, target, connections).elapsed.mul_f64(share)
}

fn load(requests: u64, target: SocketAddr, connections: usize) -> LoadReport {
    let call = HttpCall::get("/status?code=200").host("bench.example.com");
    let report = run(LoadPlan { target, call, connections, requests });
    assert_eq!(report.statuses.get(&200), Some(&requests), "every request is answered: {:?}", report.statuses);
    report
}

criterion_group!(benches, proxied_and_direct);
criterion_main!(benches);
