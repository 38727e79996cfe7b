//! A subscriber that is down while millions of events arrive: the cost for the process and for the other subscribers,
//! and how fast it catches up.

use std::time::{Duration, Instant};

use kit::open_loop::OpenLoopLoad;
use kit::server::closed_address;
use kit::wait;

use crate::rig::{Sink, Stage, setup, span};
use crate::table::Table;
use crate::{CONNECTIONS, SPAN, WARM, call};

/// Unless the command line says how many.
pub(super) const EVENTS: u64 = 1_000_000;
/// Twice what the events take, and the log's own slack.
const LOG_BYTES: u64 = 48 << 30;
/// How often the backlog is checked while it grows or shrinks.
const LOOK: Duration = Duration::from_millis(500);
/// The maximum wait for a backlog.
const LONGEST: Duration = Duration::from_secs(3600);

pub(super) fn run(table: &mut Table, events: u64) {
    let (live, away) = (Sink::start(), closed_address());
    let stage = Stage::start(&setup().flag("log-bytes", &LOG_BYTES.to_string()));
    stage.subscribe("live", &live, &[]);
    // There and quick, for the rate to compare with.
    let other = Sink::start_at(away);
    stage.subscribe("other", &other, &[]);
    let pulse = OpenLoopLoad::flat_out(stage.appliance.events(), &call("kit.test"), CONNECTIONS);
    span(WARM);
    let together = rate(&other);
    pulse.stop();
    stage.conserved(2);
    table.note("both there: each", "deliveries/s", together);

    drop(other);
    let (own, all) = stage.memory();
    let pulse = OpenLoopLoad::flat_out(stage.appliance.events(), &call("kit.test"), CONNECTIONS);
    let pending = || stage.appliance.metric("sluicegate_subscriber_pending", "other");
    wait_for(|| pending() >= 50_000.min(events / 2));
    let alone = rate(&live);
    wait_for(|| pending() >= events);
    let late = rate(&live);
    pulse.stop();
    let (own_now, all_now) = stage.memory();
    let name = format!("backlog of {events}");
    table.note(&name, "MiB of all memory more, mapped files included", all_now - all);
    table.at_most(&name, "MiB of own memory more", own_now - own, 64.0);
    table.note("the other one's rate at first", "deliveries/s", alone);
    table.at_least("the other one's rate at the end, to that when both are there", "", late / together, 0.95);

    wait_for(|| stage.appliance.metric("sluicegate_subscriber_pending", "live") == 0);
    let other = Sink::start_at(away);
    let returned = Instant::now();
    wait_for(|| other.received() > 0);
    table.note("the first event after its return", "s", returned.elapsed().as_secs_f64());
    let drained = rate(&other);
    table.at_least("drain to the live rate", "", drained / together, 0.8);
    let until = Instant::now();
    wait_for(|| pending() == 0);
    let rest = until.elapsed().as_secs_f64();
    table.note("... until all is delivered", "s", rest);
    table.note("peak after the drain", "MiB of own memory more", stage.memory().0 - own);
    stage.conserved(2);
}

/// Deliveries per second over the next while.
fn rate(sink: &Sink) -> f64 {
    let before = sink.received();
    let took = span(SPAN / 2).as_secs_f64();
    (sink.received() - before) as f64 / took
}

fn wait_for(mut done: impl FnMut() -> bool) {
    let what = "the backlog";
    wait::until(LONGEST, what, || {
        let is_done = done();
        if !is_done {
            span(LOOK);
        }
        is_done.then_some(())
    });
}
