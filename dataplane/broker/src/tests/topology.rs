//! Complete topologies under faults: chains of replies, loops, dead letters, subscribers that come and go,
//! restarts and power cuts, for many seeds. `SLUICEGATE_SEEDS=1000` runs more of them, `SLUICEGATE_SEED=17`
//! a single one.

use std::collections::BTreeSet;

use contract::table::DeliveryOrder;

use super::*;

/// Successful requests: by URL and event.
type DeliveredEvents = Rc<RefCell<BTreeSet<(String, String)>>>;

/// A chain: `a` makes a B of each A, `b` a C of each B, `c` ends it; `all` gets everything. And a loop:
/// `loop` makes another L of each L. Each with a dead letter sink of its own.
const CHAIN: [(&str, &str, &str); 5] =
    [("a", "A", "B"), ("b", "B", "C"), ("c", "C", ""), ("all", "", ""), ("loop", "L", "L")];
/// Hops that an L may make, and the maximum deliveries to `loop`: entering takes one.
const HOPS: &str = "4";
const ROUNDS_MAX: usize = 3;

fn subscribers(rng: &mut fastrand::Rng) -> Vec<Subscriber> {
    let one = |(name, wants, _): (&str, &str, &str), rng: &mut fastrand::Rng| {
        let plain = trigger(name, &format!("http://{name}/"));
        let mut one = if wants.is_empty() { plain } else { of_type(plain, wants) };
        one.dead_letter = Some(target(&format!("http://dead-{name}/")));
        one.delivery.retries_max = rng.u32(0..5);
        one.delivery.backoff = BackoffPolicy::Exponential(Duration::from_millis(rng.u64(1..400)));
        one.delivery.window = rng.u32(1..9);
        let sequences = [DeliveryOrder::Free, DeliveryOrder::ByKey, DeliveryOrder::Strict];
        one.delivery.sequence = sequences[rng.usize(0..3)];
        one
    };
    CHAIN.map(|link| one(link, rng)).into()
}

/// `calm`: every subscriber accepts everything at once.
fn script(seed: u64, calm: bool, taken: &DeliveredEvents) -> impl FnMut(&RecordedCall) -> ScriptedAnswer + 'static {
    let (mut rng, taken) = (fastrand::Rng::with_seed(seed), Rc::clone(taken));
    move |call| {
        // A sink that gave up too would be a drop, and drops have their own test.
        let is_sink = call.url.starts_with("http://dead-");
        if !calm && !is_sink && rng.u8(0..10) < 3 {
            let codes = [500, 404, 429, 400, 302, 999];
            return match rng.u8(0..4) {
                0 => ScriptedAnswer::Refuse,
                1 => ScriptedAnswer::After(Duration::from_millis(rng.u64(0..900)), codes[rng.usize(0..6)]),
                _ => ScriptedAnswer::Status(codes[rng.usize(0..6)]),
            };
        }
        taken.borrow_mut().insert((call.url.clone(), call.id.clone()));
        let link = CHAIN.iter().find(|(name, ..)| call.url == format!("http://{name}/"));
        match link {
            Some((_, _, "L")) => reply(&format!("{}'", call.id), "L"),
            Some((_, _, makes)) if !makes.is_empty() => reply(&format!("{makes}{}", &call.id[1..]), makes),
            _ => ScriptedAnswer::Status(202),
        }
    }
}

/// Conservation and at-least-once, at the end of a final lifetime without faults.
fn check(seed: u64, stream: &EventStream, acknowledged: &BTreeSet<String>, taken: &DeliveredEvents) {
    for (at, (name, ..)) in CHAIN.iter().enumerate() {
        let [.., dropped, pending] = ends(stream, at);
        assert_eq!(pending, 0, "seed {seed}: {name} has something left over");
        assert_eq!(dropped, 0, "seed {seed}: nothing had to be dropped in the calm");
    }
    let taken = taken.borrow();
    let has = |url: String, id: &str| taken.contains(&(url, id.to_owned()));
    for id in acknowledged {
        let first = if id.starts_with('L') { "loop" } else { "a" };
        for name in [first, "all"] {
            let succeeded = has(format!("http://{name}/"), id) || has(format!("http://dead-{name}/"), id);
            assert!(succeeded, "seed {seed}: {name} lost {id}");
        }
        if first == "loop" {
            check_loop(seed, &taken, id);
            continue;
        }
        // A dead letter ends the chain; without one it continues to its end.
        for (name, makes, next) in [("a", "B", "b"), ("b", "C", "c")] {
            let (before, after) = (if name == "a" { "A" } else { "B" }, format!("{makes}{}", &id[1..]));
            let before = format!("{before}{}", &id[1..]);
            if !has(format!("http://{name}/"), &before) || has(format!("http://dead-{name}/"), &before) {
                break;
            }
            let succeeded = has(format!("http://{next}/"), &after) || has(format!("http://dead-{next}/"), &after);
            assert!(succeeded, "seed {seed}: {next} lost {after}");
        }
    }
}

/// A loop is stopped after its hops, and continues while it has some and is no dead letter.
fn check_loop(seed: u64, taken: &BTreeSet<(String, String)>, id: &str) {
    let has = |url: &str, id: &str| taken.contains(&(url.to_owned(), id.to_owned()));
    for round in 0..=ROUNDS_MAX {
        let (now, next) = (format!("{id}{}", "'".repeat(round)), round + 1);
        if !has("http://loop/", &now) || has("http://dead-loop/", &now) {
            break;
        }
        assert!(round < ROUNDS_MAX, "seed {seed}: {now} has made too many hops");
        let after = format!("{id}{}", "'".repeat(next));
        let succeeded = has("http://loop/", &after) || has("http://dead-loop/", &after);
        assert!(succeeded || next == ROUNDS_MAX, "seed {seed}: loop lost {after}");
    }
}

/// Posts the event to the chain, or every fifth one to the loop; its id, if that was acknowledged.
async fn post(rig: &BrokerFixture, life: u32, n: u32) -> Option<String> {
    let ty = if n % 5 == 4 { "L" } else { "A" };
    let id = format!("{ty}{life}.{n}");
    let headers = [("ce-specversion", "1.0"), ("ce-id", &*id), ("ce-source", "/s"), ("ce-type", ty)];
    let hops = (ty == "L").then_some(("ce-knativebrokerttl", HOPS));
    let headers: Vec<_> = headers.into_iter().chain(hops).collect();
    (rig.request("POST", PATH, &headers, b"data").await.status == 202).then_some(id)
}

fn live_through(seed: u64) -> usize {
    let mut rng = fastrand::Rng::with_seed(seed);
    let (folder, taken) = (folder(), DeliveredEvents::default());
    let acknowledged = Rc::new(RefCell::new(BTreeSet::new()));
    for life in 0..rng.u32(1..4) {
        let rig = BrokerFixture::with(folder.path(), &[], rng.u64(..), FaultProfile::moderate(), options());
        rig.publish(subscribers(&mut rng));
        rig.rule(script(rng.u64(..), false, &taken));
        let (done, limit) = (Rc::clone(&acknowledged), Duration::from_millis(rng.u64(50..3000)));
        let _ = rig.run(rig.ring.timeout(limit, async {
            for n in 0_u32.. {
                if let Some(id) = post(&rig, life, n).await {
                    done.borrow_mut().insert(id);
                }
                rig.rest(Duration::from_millis(10)).await;
            }
        }));
        match rng.u8(0..3) {
            0 => rig.simulation.power_cut(),
            1 => rig.run(rig.events.drain()),
            _ => {} // a kill
        }
        rig.end();
    }
    let rig = BrokerFixture::new(folder.path());
    let stream = rig.publish(subscribers(&mut rng));
    rig.rule(script(0, true, &taken));
    rig.sync();
    rig.run(rig.rest(seconds(600)));
    check(seed, &stream, &acknowledged.borrow(), &taken);
    rig.end(); // or its files stay open, and thousands of seeds run out of descriptors
    acknowledged.borrow().len()
}

/// EV-RTE-20, EV-DLV-13, AMB-46: every acknowledged event is finished for each of its subscribers, and so
/// are the replies to it, under any faults.
#[test]
fn no_event_is_lost_under_faults() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seeds = match number("SLUICEGATE_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("SLUICEGATE_SEEDS").unwrap_or(20),
    };
    let acknowledged: usize = seeds.map(live_through).sum();
    assert!(acknowledged > 0);
}
