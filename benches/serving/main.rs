//! The cost of Services and their start latency, through the built binary: each figure with its target.
//!
//! ```text
//! cargo bench --bench serving                    all of them: some six minutes
//! cargo bench --bench serving -- parked step     some of them
//! cargo bench --bench serving -- sleepers 200    so many scaled-to-zero Services instead of 1,000
//! cargo bench --bench serving -- restart         not part of "all": another four minutes (or `restart 1000`, a tenth of it)
//! cargo bench --bench serving -- containers 200  containers beside processes; as root
//! SLUICEGATE_BENCH_IMAGE=127.0.0.1:5000/nginx:v1 cargo bench --bench serving -- containers    a pull beside skopeo and umoci, too
//! SLUICEGATE_BENCH_PROGRAM=/tmp/tiny cargo bench --bench serving -- sleepers    of a program that starts faster
//! ```
//!
//! `cold`: the first request of a Service, compared with the same program started directly. `sleepers`: Services created until all are Ready, and their cost at zero. `parked`: requests that wait
//! at once for a Revision that starts. `frozen`: the first response of a frozen instance. `alone`: instances that
//! take one request at a time under as many clients. `containers`: cold starts, starts at once, memory and pulls of containers,
//! beside those of processes. `step`: from nothing to 3,000 requests a second. `restart`: started again with
//! 10,000 Services and 10,000 Triggers. Clients, instances and
//! the appliance share the machine's processors.
#![allow(clippy::unwrap_used, reason = "a bench may panic")]
#![allow(clippy::cast_precision_loss, reason = "rates need no 53 bits")]

mod cold;
mod containers;
mod restart;
mod stage;
#[path = "../delivery/table.rs"]
mod table;

use std::thread::scope;
use std::time::{Duration, Instant};

use kit::api::{KitApi, is_ready};
use kit::load::{LoadPlan, run};
use kit::manifest::{NAMESPACE, with};
use kit::{HttpCall, HttpConnection, OpenLoopLoad, wait};
use serde_json::json;

use stage::{HELLO, Stage, annotated, hello};
use table::Table;

const SLEEPERS: usize = 1000;
/// Services whose cost is not counted: the first of a kind bring in what all of them share.
const SLEEPERS_BEFORE: usize = 20;
/// Clients that create Services.
const CREATORS: usize = 8;
/// Between two looks at whether all are Ready: listing a thousand of them again and again would take the processors from
/// those who make them so.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// While they sleep, processor time is counted for so long.
const SLEEP: Duration = Duration::from_secs(20);

const PARKED: usize = 10_000;
/// An instance of the parked starts so slowly that all requests are there before it.
const PARKED_START_S: u32 = 10;

const FROZEN_ROUNDS: usize = 7;
/// Before a start or a thaw: whatever the last one made necessary is done then, as at any time but in a burst.
const PAUSE: Duration = Duration::from_millis(100);

/// Instances, and clients.
const ALONE: usize = 32;
const ALONE_MS: u64 = 100;
const ALONE_REQUESTS: u64 = 3200;

const STEP_RATE: u32 = 3000;
/// So many that no request waits for an answer before the next is due, while answers take less than 400 ms.
const STEP_CONNECTIONS: u32 = 1200;
const STEP_SPAN: Duration = Duration::from_secs(15);

/// Whatever a fixture waits for.
const LIMIT: Duration = Duration::from_secs(600);

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with("--")).collect();
    let count = words.iter().find_map(|word| word.parse().ok());
    let named = words.iter().any(|word| word.parse::<usize>().is_err());
    let asked = |name: &str| !named || words.iter().any(|word| word == name);
    let mut table = Table::default();
    for (name, measure) in [
        ("cold", cold::cold as fn(&mut Table)),
        ("parked", parked),
        ("frozen", frozen),
        ("alone", alone),
        ("step", step),
    ] {
        if asked(name) {
            measure(&mut table);
        }
    }
    if asked("sleepers") {
        sleepers(&mut table, count.unwrap_or(SLEEPERS));
    }
    if asked("containers") {
        containers::containers(&mut table, count.unwrap_or(SLEEPERS));
    }
    if named && asked("restart") {
        restart::restart(&mut table, count.unwrap_or(restart::OBJECTS));
    }
    table.print();
}

/// Has [`CREATORS`] clients create what will be there so many times.
fn many_times(stage: &Stage, count: usize, create: impl Fn(&KitApi, usize) + Sync) {
    scope(|scope| {
        for first in 0..CREATORS {
            let (api, create) = (stage.appliance.api(), &create);
            scope.spawn(move || (first..count).step_by(CREATORS).for_each(|n| create(&api, n)));
        }
    });
}

fn sleepers(table: &mut Table, count: usize) {
    let stage = Stage::start();
    let many = |prefix: &str, count: usize| {
        many_times(&stage, count, |api, n| drop(api.create(&hello(&format!("{prefix}-{n}")))));
        wait::until(LIMIT, "all to be Ready", || {
            wait::rest(LOOK_EVERY);
            let all = stage.appliance.api().list("Service", NAMESPACE);
            let ready = all.iter().filter(|one| one["metadata"]["name"].as_str().unwrap().starts_with(prefix));
            (ready.filter(|one| is_ready(one)).count() == count).then_some(())
        });
    };
    many("before", SLEEPERS_BEFORE);
    stage.wait_asleep();
    let (before, whole) = (stage.own_memory_kib(), stage.memory_kib());
    let begin = Instant::now();
    many("sleeper", count);
    let took = begin.elapsed().as_secs_f64();
    stage.wait_asleep();
    wait::rest(SLEEP / 4);
    let busy = stage.busy();
    wait::rest(SLEEP);
    let busy = (stage.busy() - busy).as_secs_f64() / SLEEP.as_secs_f64();
    let each = (stage.own_memory_kib() - before) / count as f64;
    let with_code = (stage.memory_kib() - whole) / count as f64;
    table.at_most(&format!("{count} Services created until all are Ready"), "s", took, 0.02 * count as f64);
    table.at_most("memory of a sleeping Service", "KiB", each, 10.24);
    table.note("the same with the code that was let go", "KiB", with_code);
    table.at_most("a processor's time while they sleep", "%", busy * 100.0, 1.0);
}

fn parked(table: &mut Table) {
    let stage = Stage::start_slowly(PARKED_START_S);
    let one = annotated(hello("late"), "autoscaling.knative.dev/max-scale", "1");
    stage.create_and_sleep(&one, "late");
    let call = HttpCall::get("/").host("late.default.localhost");
    let plan = LoadPlan { target: stage.appliance.http(), call, connections: PARKED, requests: PARKED as u64 };
    let before = stage.memory_kib();
    let (report, most, full) = scope(|scope| {
        let load = scope.spawn(|| run(plan));
        let (mut most, mut full) = (0, before);
        while !load.is_finished() {
            let waiting = stage.metric("sluicegate_backend_queued_requests", "default/late-00001");
            if waiting >= most {
                (most, full) = (waiting, stage.memory_kib());
            }
            wait::rest(Duration::from_millis(200));
        }
        (load.join().unwrap(), most, full)
    });
    let good = report.statuses.get(&200).copied().unwrap_or(0);
    table.at_least("requests that waited at once", "", most as f64, PARKED as f64);
    table.at_least("… answered with 200", "", good as f64, PARKED as f64);
    table.at_most("… memory of each, its connection included", "KiB", (full - before) / most.max(1) as f64, 8.0);
}

fn frozen(table: &mut Table) {
    let stage = Stage::start();
    let one = annotated(hello("ice"), "sluicegate.dev/spare-instances", "1");
    stage.create_and_sleep(&one, "ice");
    let call = HttpCall::get("/").host("ice.default.localhost");
    let mut took = Vec::new();
    // The first start brings the instance that freezes.
    for round in 0..=FROZEN_ROUNDS {
        let mut connection = HttpConnection::open(stage.appliance.http());
        let left = Instant::now();
        assert_eq!(connection.call(&call).status, 200);
        if round > 0 {
            took.push(left.elapsed());
        }
        drop(connection);
        wait::until(LIMIT, "it to freeze", || {
            let frozen = stage.metric("sluicegate_backend_frozen_instances", "default/ice-00001");
            (frozen == 1 && stage.instances("default/ice-00001") == 0).then_some(())
        });
        wait::rest(PAUSE); // what the freezing itself has to write is written then
    }
    took.sort_unstable();
    let [p50, worst] = [took[took.len() / 2], took[took.len() - 1]].map(|one| one.as_secs_f64() * 1e3);
    table.at_most("the answer of a frozen instance, p50", "ms", p50, 1.0);
    table.note("… the worst", "ms", worst);
}

fn alone(table: &mut Table) {
    let stage = Stage::start();
    let scaled = annotated(hello("alone"), "autoscaling.knative.dev/min-scale", &ALONE.to_string());
    let scaled = annotated(scaled, "autoscaling.knative.dev/max-scale", &ALONE.to_string());
    let one = with(scaled, "/spec/template/spec/containerConcurrency", json!(1));
    stage.create(&one, "alone");
    wait::until(LIMIT, "all instances", || (stage.instances("default/alone-00001") == ALONE as u64).then_some(()));
    let target = stage.appliance.http();
    let call = HttpCall::get(&format!("/alone?ms={ALONE_MS}")).host("alone.default.localhost");
    let plan = |requests| LoadPlan { target, call: call.clone(), connections: ALONE, requests };
    run(plan(ALONE as u64)); // each instance has its connection then
    let report = run(plan(ALONE_REQUESTS));
    let good = report.statuses.get(&200).copied().unwrap_or(0);
    let ideal = ALONE_REQUESTS as f64 / ALONE as f64 * ALONE_MS as f64 / 1e3;
    let share = ideal / report.elapsed.as_secs_f64();
    table.at_least("one request at a time: share of what 32 instances can do", "", share, 0.97);
    table.at_most("… requests that met another, or failed", "", (ALONE_REQUESTS - good) as f64, 0.0);
}

fn step(table: &mut Table) {
    let stage = Stage::start();
    stage.create_and_sleep(&hello("step"), "step");
    let call = HttpCall::get("/slow?ms=100").host("step.default.localhost");
    let pulse = OpenLoopLoad::at_rate(stage.appliance.http(), &call, STEP_CONNECTIONS, STEP_RATE);
    wait::rest(STEP_SPAN);
    let (refused, broken) = (pulse.refused(), pulse.broken());
    let took = pulse.latencies();
    let share = |share: f64| took[(took.len() as f64 * share) as usize].as_secs_f64() * 1e3;
    table.note("a step to 3,000 requests/s: reached", "/s", took.len() as f64 / STEP_SPAN.as_secs_f64());
    table.at_most("… p95 with a backend of 100 ms", "ms", share(0.95), 115.0);
    table.note("… p99", "ms", share(0.99));
    table.at_most("… refused or broken", "", (refused + broken) as f64, 0.0);
    table.note("… instances", "", stage.instances("default/step-00001") as f64);
    println!("  ({HELLO} answers them, a thread for each connection)");
}
