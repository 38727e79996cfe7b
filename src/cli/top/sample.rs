//! One reading of the appliance's totals.

use std::collections::BTreeMap;

use serde_json::Value;

/// Counters at one moment.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Sample {
    pub(super) time_ms: u64,
    /// Of another process all counters begin again.
    pub(super) pid: u64,
    pub(super) version: String,
    pub(super) not_ready: Option<String>,
    pub(super) connections: u64,
    /// Upper bounds of the buckets, in microseconds; one bucket more has what is longer.
    pub(super) bounds_us: Vec<u64>,
    pub(super) backends: BTreeMap<String, BackendSample>,
    pub(super) backends_omitted: u64,
    pub(super) subscribers: BTreeMap<String, SubscriberSample>,
    pub(super) subscribers_omitted: u64,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct BackendSample {
    pub(super) requests: u64,
    /// By class of status: aborted, 1xx … 5xx.
    pub(super) responses: Vec<u64>,
    pub(super) buckets: Vec<u64>,
    pub(super) active: u64,
    pub(super) queued: u64,
    pub(super) instances: u64,
    pub(super) starting: u64,
    pub(super) frozen: u64,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct SubscriberSample {
    pub(super) delivered: u64,
    pub(super) retries: u64,
    /// Dead-lettered and dropped.
    pub(super) failed: u64,
    pub(super) pending: u64,
}

impl Sample {
    pub(super) fn of(figures: &Value) -> Self {
        let mut sample = Self {
            time_ms: number(figures, "time_ms"),
            pid: number(&figures["process"], "pid"),
            version: figures["version"].as_str().unwrap_or_default().to_owned(),
            not_ready: figures["not_ready"].as_str().map(str::to_owned),
            connections: list(figures, "cores").iter().map(|core| number(core, "connections_open")).sum(),
            bounds_us: numbers(figures, "bounds_us"),
            backends_omitted: number(figures, "backends_omitted"),
            ..Self::default()
        };
        for backend in list(figures, "backends") {
            sample.backends.insert(name(backend, "key"), backend_of(backend));
        }
        for stream in list(figures, "streams") {
            sample.subscribers_omitted += number(stream, "subscribers_omitted");
            let kind = match name(stream, "path").split('/').nth(1) {
                Some("brokers") => "trigger",
                Some("requests") => "service",
                _ => "subscription",
            };
            for subscriber in list(stream, "subscribers") {
                let label = format!("{kind}/{}", name(subscriber, "label"));
                sample.subscribers.insert(label, subscriber_of(subscriber));
            }
        }
        sample
    }
}

fn backend_of(backend: &Value) -> BackendSample {
    BackendSample {
        requests: number(backend, "requests"),
        responses: numbers(backend, "responses"),
        buckets: numbers(backend, "buckets"),
        active: number(backend, "active"),
        queued: number(backend, "queued"),
        instances: number(backend, "endpoints"),
        starting: number(backend, "starting"),
        frozen: number(backend, "frozen"),
    }
}

fn subscriber_of(subscriber: &Value) -> SubscriberSample {
    SubscriberSample {
        delivered: number(subscriber, "delivered"),
        retries: number(subscriber, "retries"),
        failed: number(subscriber, "dead_lettered") + number(subscriber, "dropped"),
        pending: number(subscriber, "pending"),
    }
}

fn number(of: &Value, key: &str) -> u64 {
    of[key].as_u64().unwrap_or_default()
}

fn name(of: &Value, key: &str) -> String {
    of[key].as_str().unwrap_or_default().to_owned()
}

fn list<'v>(of: &'v Value, key: &str) -> &'v [Value] {
    of[key].as_array().map_or(&[], Vec::as_slice)
}

fn numbers(of: &Value, key: &str) -> Vec<u64> {
    list(of, key).iter().map(|number| number.as_u64().unwrap_or_default()).collect()
}
