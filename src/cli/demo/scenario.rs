//! The scenario of the demo, step by step, and its results.

use std::fmt;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use cloudevents::{EventBuilder, EventBuilderV10};

use super::client::DemoClient;
use super::wait_for;

const SERVING: &str = "serving.knative.dev/v1";
const EVENTING: &str = "eventing.knative.dev/v1";

const REQUESTS: usize = 1000;
const EVENTS: usize = 200;

/// The results.
pub(super) struct DemoReport {
    blue: usize,
    green: usize,
    cold_start: Duration,
    warm: Duration,
    accepted: usize,
    subscribers: Vec<DemoSubscriber>,
    acknowledged_p50: Duration,
    acknowledged_p99: Duration,
}

struct DemoSubscriber {
    trigger: &'static str,
    delivered: u64,
    filtered: u64,
    dead_lettered: u64,
    dropped: u64,
    retries: u64,
}

/// Applies the examples and drives traffic through them.
pub(super) fn tell(client: &DemoClient) -> Result<DemoReport> {
    step("two revisions of a Service, split 80/20");
    client.apply(include_str!("../../../examples/1-hello.yaml"))?;
    client.wait_ready(SERVING, "services", "hello")?;
    client.apply(include_str!("../../../examples/next/hello-v2.yaml"))?;
    client.apply(include_str!("../../../examples/2-sleepy.yaml"))?;
    client.apply(include_str!("../../../examples/3-orders.yaml"))?;
    for name in ["hello", "sleepy", "order-processor", "audit", "dead-letters"] {
        client.wait_ready(SERVING, "services", name)?;
    }
    let (blue, green, warm) = split(client)?;

    step("a Broker, three Triggers, one of them failing into a dead letter sink");
    for name in ["orders", "payments", "audit"] {
        client.wait_ready(EVENTING, "triggers", name)?;
    }
    let mut acknowledged = publish(client)?;
    let subscribers = settle(client)?;

    step("a Service that was scaled to zero");
    let cold_start = wake(client)?;

    acknowledged.sort();
    Ok(DemoReport {
        blue,
        green,
        cold_start,
        warm,
        accepted: acknowledged.len(),
        subscribers,
        acknowledged_p50: percentile(&acknowledged, 50),
        acknowledged_p99: percentile(&acknowledged, 99),
    })
}

/// Progress goes to stderr, so that stdout has the report alone.
fn step(what: &str) {
    complain!("demo: {what} …");
}

fn split(client: &DemoClient) -> Result<(usize, usize, Duration)> {
    let (mut blue, mut green, mut took) = (0, 0, Vec::new());
    for _ in 0..REQUESTS {
        let begin = Instant::now();
        let (status, body) = client.get("hello.default.localhost", "/")?;
        took.push(begin.elapsed());
        ensure!(status == 200, "hello answered {status}: {body}");
        blue += usize::from(body.contains("blue"));
        green += usize::from(body.contains("green"));
    }
    took.sort();
    Ok((blue, green, percentile(&took, 50)))
}

fn publish(client: &DemoClient) -> Result<Vec<Duration>> {
    let mut took = Vec::new();
    for number in 0..EVENTS {
        let kind = if number % 2 == 0 { "com.example.order" } else { "com.example.payment" };
        let event = EventBuilderV10::new()
            .id(format!("demo-{number}"))
            .ty(kind)
            .source("/sluicegate/demo")
            .data("application/json", serde_json::json!({ "number": number }))
            .build()?;
        let begin = Instant::now();
        let status = client.post_event("shop", &event)?;
        ensure!(status == 202, "the Broker answered {status}");
        took.push(begin.elapsed());
    }
    Ok(took)
}

/// Waits until each Trigger has finished each event.
fn settle(client: &DemoClient) -> Result<Vec<DemoSubscriber>> {
    let mut settled = Vec::new();
    for trigger in ["orders", "payments", "audit"] {
        let subscriber = wait_for(&format!("trigger {trigger} settled"), Duration::from_secs(60), || {
            let label = format!("subscriber=\"default/{trigger}\"");
            let count = |what: &str| client.metric(&format!("sluicegate_subscriber_{what}_total"), &label);
            let subscriber = DemoSubscriber {
                trigger,
                delivered: count("delivered")?,
                filtered: count("filtered")?,
                dead_lettered: count("dead_lettered")?,
                dropped: count("dropped")?,
                retries: count("retries")?,
            };
            let ended = subscriber.delivered + subscriber.filtered + subscriber.dead_lettered + subscriber.dropped;
            Ok((ended >= EVENTS as u64).then_some(subscriber))
        })?;
        settled.push(subscriber);
    }
    Ok(settled)
}

/// Waits until no instance runs, then sends a request. It asks the cores, because a status may lag.
fn wake(client: &DemoClient) -> Result<Duration> {
    let service = client.object(SERVING, "services", "sleepy")?;
    let revision = service["status"]["latestReadyRevisionName"].as_str().unwrap_or_default().to_owned();
    wait_for("sleepy asleep", Duration::from_secs(60), || {
        let label = format!("backend=\"default/{revision}\"");
        Ok((client.metric("sluicegate_backend_instances", &label)? == 0).then_some(()))
    })?;
    let begin = Instant::now();
    let (status, body) = client.get("sleepy.default.localhost", "/")?;
    let took = begin.elapsed();
    ensure!(status == 200, "sleepy answered {status}: {body}");
    Ok(took)
}

/// Of a sorted list.
fn percentile(sorted: &[Duration], percent: usize) -> Duration {
    sorted.get(sorted.len() * percent / 100).or(sorted.last()).copied().unwrap_or_default()
}

impl fmt::Display for DemoReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = |d: Duration| d.as_secs_f64() * 1e3;
        let share = |n: usize| n as f64 * 100.0 / REQUESTS as f64;
        writeln!(f)?;
        writeln!(
            f,
            "split       hello-v1 {:.1} %, hello-v2 {:.1} % of {REQUESTS} requests (asked for 80/20)",
            share(self.blue),
            share(self.green)
        )?;
        writeln!(f, "warm        {:.2} ms p50", ms(self.warm))?;
        writeln!(f, "cold start  {:.1} ms from request to answer, process start included", ms(self.cold_start))?;
        writeln!(
            f,
            "events      {} accepted; durable acknowledgement p50 {:.2} ms, p99 {:.2} ms",
            self.accepted,
            ms(self.acknowledged_p50),
            ms(self.acknowledged_p99)
        )?;
        writeln!(f, "\ntrigger     delivered  filtered  dead-lettered  dropped  retries")?;
        for s in &self.subscribers {
            writeln!(
                f,
                "{:<11} {:>9}  {:>8}  {:>13}  {:>7}  {:>7}",
                s.trigger, s.delivered, s.filtered, s.dead_lettered, s.dropped, s.retries
            )?;
        }
        Ok(())
    }
}
