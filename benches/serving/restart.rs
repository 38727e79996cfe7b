//! The duration of a restart with much stored: Services without requests, and Triggers of one Broker.

use std::time::{Duration, Instant};

use kit::api::is_ready;
use kit::manifest::{NAMESPACE, broker, trigger, with};
use kit::wait;
use serde_json::json;

use super::stage::{Stage, annotated, hello};
use super::table::Table;
use super::{LIMIT, many_times};

/// Of each.
pub(super) const OBJECTS: usize = 10_000;
const ROUNDS: usize = 3;
/// Between two looks at whether all are Ready: a list of ten thousand is 20 MB.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// All that a start has to look at again is checked after this, and what a burst left empty is given back.
const SETTLED: Duration = Duration::from_secs(20);

pub(super) fn restart(table: &mut Table, count: usize) {
    let mut stage = Stage::start();
    let any = json!({ "data": { "allow-zero-initial-scale": "true" } });
    stage.appliance.api().patch("ConfigMap", "knative-serving", "config-autoscaler", &any);
    stage.appliance.api().create(&broker("b"));
    let began = Instant::now();
    many_times(&stage, count, |api, n| {
        let name = format!("service-{n}");
        api.create(&annotated(hello(&name), "autoscaling.knative.dev/initial-scale", "0"));
        let some = json!({ "attributes": { "type": format!("type-{n}") } });
        let trigger = trigger(&format!("trigger-{n}"), "b", "http://127.0.0.1:9/");
        api.create(&with(trigger, "/spec/filter", some));
    });
    table.note(&format!("{count} Services and as many Triggers created"), "s", began.elapsed().as_secs_f64());
    for kind in ["Trigger", "Service"] {
        wait::until(LIMIT, "all to be Ready", || {
            wait::rest(LOOK_EVERY);
            let all = stage.appliance.api().list(kind, NAMESPACE);
            (all.iter().filter(|one| is_ready(one)).count() == count).then_some(())
        });
    }
    table.note("… until all are Ready", "s", began.elapsed().as_secs_f64());
    let settled = |stage: &Stage| {
        wait::rest(SETTLED);
        stage.memory_kib() / (2 * count) as f64
    };
    table.at_most("memory for each of them, the program's own included", "KiB", settled(&stage), 15.0);
    let mut took = Vec::new();
    for _ in 0..ROUNDS {
        stage.appliance.terminate();
        let began = Instant::now();
        stage.appliance.restart_on_same_ports();
        took.push(began.elapsed().as_secs_f64());
    }
    took.sort_by(f64::total_cmp);
    table.at_most("started again until it says ready", "s", took[ROUNDS / 2], 2.0);
    table.at_most("… memory then", "KiB", settled(&stage), 15.0);
}
