//! Delivery through the built binary: throughput, fan-out, latency, and a long backlog.
//!
//! ```text
//! cargo bench --bench delivery                       publish, fan-out and latency
//! cargo bench --bench delivery -- publish            one of them
//! cargo bench --bench delivery -- backlog 10000000   so many events wait for a subscriber that is away
//! SLUICEGATE_BENCH_BINARY=/old/sluicegate cargo bench --bench delivery    of another version
//! cargo bench --bench delivery -- versus /old/sluicegate   fan-out of both, in turn
//! ```
//!
//! The appliance has one worker, and all of its threads run on processor 0; load, subscribers and this
//! process run on the others. Each figure is printed with its target, and with what the same
//! machine does without us, measured in the same run.
#![allow(clippy::unwrap_used, reason = "a bench may panic")]
#![allow(clippy::cast_precision_loss, reason = "rates need no 53 bits")]

mod backlog;
mod bare;
mod rig;
mod table;

use std::time::Duration;

use kit::open_loop::STAMP;
use kit::scene::{BROKER, only};
use kit::{ApplianceSetup, HttpCall, OpenLoopLoad, TestEvent};
use serde_json::json;

use rig::{Sink, Stage, median, setup, span};
use table::Table;

/// Connections that publish.
const CONNECTIONS: u32 = 64;
/// Of an event's data.
const DATA_BYTES: usize = 512;
/// Each measurement takes this long, after a start of `WARM`.
const SPAN: Duration = Duration::from_secs(8);
const WARM: Duration = Duration::from_secs(2);
/// When one build is compared with another, in turn: how often, how long each, and a start of each.
const ROUNDS: usize = 5;
const ROUND: Duration = Duration::from_secs(3);
const WARM_AGAIN: Duration = Duration::from_millis(500);
/// The same where two versions are compared, in shorter turns.
const VERSUS_ROUNDS: usize = 20;
const VERSUS_ROUND: Duration = Duration::from_secs(1);
/// Subscribers that get an event, and those on the same broker that want others.
const MATCHING: usize = 10;
const OTHERS: usize = 90;
/// Events that are published and not yet with all who want them: four windows of a subscriber, because some are being written and
/// the publishers look for room once a millisecond.
const AHEAD: u64 = 256;
/// Events per second when the time of the way is taken.
const CALM_RATE: u32 = 1000;

const MICROSECOND: f64 = 1e-6;

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with("--")).collect();
    let asked = |name: &str| words.is_empty() || words.iter().any(|word| word == name);
    let mut table = Table::default();
    if asked("publish") {
        publish(&mut table);
    }
    if asked("fan-out") {
        fan_out(&mut table);
    }
    if asked("latency") {
        latency(&mut table);
    }
    if words.iter().any(|word| word == "backlog") {
        let events = words.iter().find_map(|word| word.parse().ok());
        backlog::run(&mut table, events.unwrap_or(backlog::EVENTS));
    }
    if let Some(at) = words.iter().position(|word| word == "versus") {
        let other = words.get(at + 1).expect("versus whom: the path of another sluicegate comes next");
        versus(&mut table, other);
    }
    table.print();
}

/// The event that all benches post.
fn call(ty: &str) -> HttpCall {
    let event = TestEvent::new("4a6f9c5e-6f0d-4d3a-9d57-0a1f0c5b9e21").of_type(ty).with("left", STAMP);
    event.data("application/octet-stream", vec![b'x'; DATA_BYTES]).binary(BROKER)
}

/// One Trigger, and ten of the same kind: what is published is what is delivered, as fast as both go.
fn publish(table: &mut Table) {
    for triggers in [1, MATCHING] {
        let sink = Sink::start();
        let stage = Stage::start(&setup());
        for n in 0..triggers {
            stage.subscribe(&format!("t{n}"), &sink, &[]);
        }
        let pulse = OpenLoopLoad::flat_out(stage.appliance.events(), &call("kit.test"), CONNECTIONS);
        span(WARM);
        let before = (pulse.accepted(), sink.received(), stage.cpu());
        let took = span(SPAN).as_secs_f64();
        let accepted = (pulse.accepted() - before.0) as f64;
        let delivered = (sink.received() - before.1) as f64;
        let cpu = stage.cpu() - before.2;
        pulse.stop();
        // What was published faster than it was delivered is a backlog, and no throughput.
        let events = accepted.min(delivered / triggers as f64);
        let name = format!("{triggers} Trigger(s), {CONNECTIONS} connections");
        table.at_least(&name, "events/s", events / took, if triggers == 1 { 20_000.0 } else { 4_000.0 });
        table.note(&format!("{name}: accepted"), "events/s", accepted / took);
        table.note(&format!("{name}: delivered"), "deliveries/s", delivered / took);
        if triggers == 1 {
            table.at_most(&name, "CPU s per million events", cpu / events * 1e6, 45.0);
        } else {
            table.note(&name, "CPU s per million deliveries", cpu / delivered * 1e6);
        }
        stage.conserved(triggers);
    }
}

/// Ten of a hundred subscribers want the event. Compared with: the data plane's client alone with the same
/// subscriber, and a request proxied to it. In turn, because a shared host does not give the same from one half minute to the next.
fn fan_out(table: &mut Table) {
    let sink = Sink::start();
    let listener = Stage::start(&setup().route("*", sink.address()));
    let broker = start_with_subscribers(&setup(), &sink);
    let [mut bare, mut proxied, mut delivered] = [const { Vec::new() }; 3];
    for _ in 0..ROUNDS {
        bare.push(bare::rate(sink.address(), MATCHING * 64, ROUND));
        let pulse = OpenLoopLoad::flat_out(listener.appliance.http(), &call("x"), CONNECTIONS);
        proxied.push(rate(&listener, || pulse.accepted()));
        pulse.stop();
        let pulse = in_step(&broker, &sink);
        delivered.push(rate(&broker, sink.counter()));
        pulse.stop();
    }

    let ratio = |part: Part, others: &[(f64, f64)]| ratio(part, &delivered, others);
    table.note("bare client", "requests/s", middle(&bare, |round| round.0));
    table.note("bare client", "CPU s per million requests", middle(&bare, |round| round.1) * 1e6);
    let name = "proxied request, same event and subscriber";
    table.note(name, "CPU s per million", middle(&proxied, |round| round.1) * 1e6);
    let name = format!("{MATCHING} of {} Triggers match", MATCHING + OTHERS);
    table.note(&name, "deliveries/s", middle(&delivered, |round| round.0));
    table.at_least(&name, "deliveries/s to the bare client's requests/s", ratio(|round| round.0, &bare), 0.8);
    let cpu = middle(&delivered, |round| round.1) * 1e6;
    table.note(&name, "CPU s per million deliveries, publishing included", cpu);
    table.at_most(&name, "CPU per delivery to a proxied request's", ratio(|round| round.1, &proxied), 1.3);
}

/// Two versions with the same subscribers, in turn: a shared host's good and bad seconds come to both.
fn versus(table: &mut Table, other: &str) {
    let sink = Sink::start();
    let brokers = [start_with_subscribers(&setup(), &sink), start_with_subscribers(&ApplianceSetup::new(other), &sink)];
    let mut rates = [const { Vec::new() }; 2];
    let mut bare = Vec::new();
    for round in 0..VERSUS_ROUNDS {
        bare.push(bare::rate(sink.address(), MATCHING * 64, VERSUS_ROUND));
        for nth in [round % 2, 1 - round % 2] {
            let pulse = in_step(&brokers[nth], &sink);
            span(WARM_AGAIN);
            rates[nth].push(rate_for(VERSUS_ROUND, &brokers[nth], sink.counter()));
            pulse.stop();
        }
    }
    let [ours, theirs] = &rates;
    for (name, rounds) in [("this version", ours), (other, theirs)] {
        table.note(name, "deliveries/s", middle(rounds, |round| round.0));
        table.note(name, "CPU s per million deliveries", middle(rounds, |round| round.1) * 1e6);
        table.note(name, "deliveries/s to the bare client's requests/s", ratio(|round| round.0, rounds, &bare));
    }
    table.note("this version", "deliveries/s to the other's", ratio(|round| round.0, ours, theirs));
    table.note("this version", "CPU per delivery to the other's", ratio(|round| round.1, ours, theirs));
}

/// A broker with [`MATCHING`] subscribers that want the event and [`OTHERS`] that do not.
fn start_with_subscribers(setup: &ApplianceSetup, sink: &Sink) -> Stage {
    let broker = Stage::start(setup);
    for n in 0..MATCHING + OTHERS {
        let ty = if n < MATCHING { "wanted".to_owned() } else { format!("other-{n}") };
        broker.subscribe(&format!("t{n}"), sink, &[only(json!({ "type": ty }))]);
    }
    broker
}

/// Of a round: what was counted a second, or the processor seconds for each.
type Part = fn(&(f64, f64)) -> f64;

fn middle(of: &[(f64, f64)], part: Part) -> f64 {
    median(&mut of.iter().map(part).collect::<Vec<_>>())
}

/// Of what was measured in turn, round by round.
fn ratio(part: Part, these: &[(f64, f64)], others: &[(f64, f64)]) -> f64 {
    let rounds = these.iter().zip(others);
    median(&mut rounds.map(|(one, other)| part(one) / part(other)).collect::<Vec<_>>())
}

/// What is counted a second, and the appliance's processor seconds for each.
fn rate(stage: &Stage, counted: impl Fn() -> u64) -> (f64, f64) {
    span(WARM_AGAIN);
    rate_for(ROUND, stage, counted)
}

fn rate_for(round: Duration, stage: &Stage, counted: impl Fn() -> u64) -> (f64, f64) {
    let before = (counted(), stage.cpu());
    let took = span(round).as_secs_f64();
    let done = (counted() - before.0) as f64;
    (done / took, (stage.cpu() - before.1) / done)
}

/// Publishes what is delivered and no more, some events ahead, so that every window stays full as the bare client's is. What is
/// published faster than that is a longer backlog, and takes the processor from what is measured.
fn in_step(stage: &Stage, sink: &Sink) -> OpenLoopLoad {
    let (received, matching) = (sink.counter(), MATCHING as u64);
    let begun = received();
    let may_send = move |sent| sent < (received() - begun) / matching + AHEAD;
    OpenLoopLoad::while_so(stage.appliance.events(), &call("wanted"), CONNECTIONS, may_send)
}

/// From the moment at which the publisher sends to the first byte at the subscriber, at an easy rate.
fn latency(table: &mut Table) {
    let sink = Sink::start();
    let stage = Stage::start(&setup());
    stage.subscribe("t", &sink, &[]);
    let folder = stage.appliance.setup().data();
    let flush_before = rig::flush(&folder);
    let pulse = OpenLoopLoad::at_rate(stage.appliance.events(), &call("kit.test"), 16, CALM_RATE);
    span(WARM);
    sink.forget_times();
    let accepted = pulse.accepted();
    let took = span(SPAN).as_secs_f64();
    let accepted = (pulse.accepted() - accepted) as f64;
    let mut times = sink.times();
    pulse.stop();
    let flush = median(&mut [flush_before, rig::flush(&folder)]);
    times.sort_unstable();
    let at = |share: usize| times.get(times.len() * share / 100).copied().unwrap_or_default();
    table.note("one Trigger at an easy rate", "events/s", accepted / took);
    table.note("the disk's own write and flush, p50", "µs", flush / MICROSECOND);
    let limit = (2.0 * flush + 200.0 * MICROSECOND) / MICROSECOND;
    let p50 = Duration::from_nanos(at(50)).as_secs_f64() / MICROSECOND;
    let p99 = Duration::from_nanos(at(99)).as_secs_f64() / MICROSECOND;
    table.at_most("publish to the subscriber, p50", "µs", p50, limit);
    table.note("publish to the subscriber, p99", "µs", p99);
}
