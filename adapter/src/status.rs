//! Readiness and metrics of the adapter, as `/readyz` and `/metrics` show them.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Counters, all monotonic. accepted + dead-lettered + rejected + parked + dropped + released + pending = received.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) received: Cell<u64>,
    pub(crate) accepted: Cell<u64>,
    pub(crate) retries: Cell<u64>,
    pub(crate) dead_lettered: Cell<u64>,
    pub(crate) rejected: Cell<u64>,
    pub(crate) parked: Cell<u64>,
    pub(crate) dropped: Cell<u64>,
    pub(crate) released: Cell<u64>,
    pub(crate) reconnects: Cell<u64>,
    pub(crate) reloads_failed: Cell<u64>,
}

pub(crate) fn count(counter: &Cell<u64>, by: u64) {
    counter.set(counter.get() + by);
}

#[derive(Debug)]
pub(crate) struct AdapterStatus {
    pub(crate) counters: Counters,
    responses: RefCell<BTreeMap<u16, u64>>,
    /// Why a changed configuration is not used. `None`: the newest one is.
    configuration: RefCell<Option<String>>,
    /// Why the receiver is not connected, as reason and message. `None`: it is.
    receiver: RefCell<Option<(String, String)>>,
    /// Why the sink refuses events. `None`: it does not.
    sink: RefCell<Option<(String, String)>>,
    qos: Cell<u8>,
    lag: Cell<Option<Lag>>,
}

/// What a receiver has still to take.
#[derive(Debug, Clone, Copy)]
struct Lag {
    events: u64,
    partitions: u32,
}

impl AdapterStatus {
    pub(crate) fn new(qos: u8) -> AdapterStatus {
        AdapterStatus {
            counters: Counters::default(),
            responses: RefCell::default(),
            configuration: RefCell::default(),
            receiver: RefCell::new(Some(("Connecting".to_owned(), "the adapter is connecting".to_owned()))),
            sink: RefCell::new(None),
            qos: Cell::new(qos),
            lag: Cell::new(None),
        }
    }

    pub(crate) fn set_qos(&self, qos: u8) {
        self.qos.set(qos);
    }

    pub(crate) fn set_lag(&self, events: u64, partitions: u32) {
        self.lag.set(Some(Lag { events, partitions }));
    }

    pub(crate) fn set_configuration(&self, failure: Option<&str>) {
        self.configuration.replace(failure.map(str::to_owned));
    }

    /// Returns true if the failure changed.
    pub(crate) fn set_receiver(&self, failure: Option<(&str, &str)>) -> bool {
        replace(&self.receiver, failure)
    }

    pub(crate) fn set_sink(&self, failure: Option<(&str, &str)>) -> bool {
        replace(&self.sink, failure)
    }

    pub(crate) fn count_response(&self, status: u16) {
        *self.responses.borrow_mut().entry(status).or_default() += 1;
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.configuration.borrow().is_none() && self.receiver.borrow().is_none() && self.sink.borrow().is_none()
    }

    /// The body of `/readyz`.
    pub(crate) fn to_json(&self) -> String {
        let configuration = self.configuration.borrow().clone();
        let configuration = configuration.map(|message| ("ConfigurationInvalid".to_owned(), message));
        let failure = configuration.or_else(|| self.receiver.borrow().clone()).or_else(|| self.sink.borrow().clone());
        let (reason, message) = failure.unwrap_or_default();
        let mut text = serde_json::json!({
            "ready": self.is_ready(), "reason": reason, "message": message, "live": true, "qos": self.qos.get(),
        });
        if let Some(Lag { events, partitions }) = self.lag.get() {
            text["lag"] = serde_json::json!({ "events": events, "partitions": partitions });
        }
        text.to_string()
    }

    /// The body of `/metrics` in Prometheus' text format.
    pub(crate) fn to_metrics(&self) -> String {
        let c = &self.counters;
        let mut text = String::new();
        for (name, help, counter) in [
            ("events_received_total", "Events taken from the receiving side.", &c.received),
            ("events_accepted_total", "Events that the sink accepted.", &c.accepted),
            ("events_dead_lettered_total", "Events that the dead letter sink accepted.", &c.dead_lettered),
            ("events_rejected_total", "Rejected events that the receiving protocol keeps.", &c.rejected),
            ("events_parked_total", "Rejected events that were written to the parking file.", &c.parked),
            ("events_dropped_total", "Events lost at quality of service 0.", &c.dropped),
            ("events_released_total", "Events given back to the receiving side without acknowledgement.", &c.released),
            ("send_retries_total", "Attempts after the first.", &c.retries),
            ("reconnects_total", "Connections made again after a failure.", &c.reconnects),
            ("reload_failures_total", "Changed configurations that could not be used.", &c.reloads_failed),
        ] {
            let _ = writeln!(
                text,
                "# HELP adapter_{name} {help}\n# TYPE adapter_{name} counter\nadapter_{name} {}",
                counter.get()
            );
        }
        let settled = [&c.accepted, &c.dead_lettered, &c.rejected, &c.parked, &c.dropped, &c.released];
        let pending = c.received.get().saturating_sub(settled.iter().map(|counter| counter.get()).sum());
        let _ = writeln!(
            text,
            "# HELP adapter_events_pending Events received and not settled.\n# TYPE adapter_events_pending gauge"
        );
        let _ = writeln!(text, "adapter_events_pending {pending}");
        if let Some(lag) = self.lag.get() {
            let _ = writeln!(text, "# HELP adapter_lag_events Events that are not received yet, or not settled.");
            let _ = writeln!(text, "# TYPE adapter_lag_events gauge\nadapter_lag_events {}", lag.events);
        }
        let _ = writeln!(text, "# HELP adapter_ready 1 if the adapter is ready.\n# TYPE adapter_ready gauge");
        let _ = writeln!(text, "adapter_ready {}", u8::from(self.is_ready()));
        let _ = writeln!(
            text,
            "# HELP adapter_sink_responses_total Responses of the sink.\n# TYPE adapter_sink_responses_total counter"
        );
        for (status, responses) in self.responses.borrow().iter() {
            let _ = writeln!(text, "adapter_sink_responses_total{{code=\"{status}\"}} {responses}");
        }
        text
    }
}

fn replace(cell: &RefCell<Option<(String, String)>>, failure: Option<(&str, &str)>) -> bool {
    let failure = failure.map(|(reason, message)| (reason.to_owned(), message.to_owned()));
    let mut cell = cell.borrow_mut();
    let changed = *cell != failure;
    *cell = failure;
    changed
}
