//! A Broker with its subscribers: the setup of most tests on events.

use std::time::Duration;

use serde_json::{Value, json};

use crate::manifest::{NAMESPACE, broker, trigger, with};
use crate::{Appliance, ApplianceSetup, EventSink, HttpCall, KitApi, ReceivedRequest, TIMEOUT, TestEvent};

/// Where the Broker `main` of [`with_broker`] takes events.
pub const BROKER: &str = "/brokers/default/main";
/// Long enough for a delivery that should not be made to be made.
pub const SILENCE: Duration = Duration::from_millis(500);

/// Starts an appliance and waits until its Broker `main` is Ready.
pub fn with_broker(setup: &ApplianceSetup) -> Appliance {
    let appliance = setup.start();
    appliance.api().create(&broker("main"));
    appliance.api().wait_ready("Broker", NAMESPACE, "main", TIMEOUT);
    appliance
}

/// Creates a Trigger on `main` for everything, changed by `changes` (JSON pointer and value), and
/// waits until it is Ready.
pub fn subscribe(api: KitApi, name: &str, uri: &str, changes: &[(&str, Value)]) -> Value {
    let plain = trigger(name, "main", uri);
    let object = changes.iter().fold(plain, |object, (pointer, value)| with(object, pointer, value.clone()));
    api.create(&object);
    api.wait_ready("Trigger", NAMESPACE, name, TIMEOUT)
}

/// Posts the event to `main` in binary mode; panics unless it is accepted.
pub fn post(appliance: &Appliance, event: &TestEvent) {
    accepted(&event.binary(BROKER), appliance);
}

/// Sends the call to the events port; panics unless the answer is 202 and nothing else.
pub fn accepted(call: &HttpCall, appliance: &Appliance) {
    let response = call.send(appliance.events());
    assert_eq!((response.status, response.body.len()), (202, 0), "{response}");
}

/// A change for [`subscribe`], options that fail fast: `retries` more attempts, 10 ms apart, then to
/// `sink`.
pub fn delivery(retries: u32, sink: &EventSink) -> (&'static str, Value) {
    let options = json!({
        "retry": retries, "backoffPolicy": "linear", "backoffDelay": "PT0.01S",
        "deadLetterSink": { "uri": sink.url() },
    });
    ("/spec/delivery", options)
}

/// A change for [`subscribe`]: only events with these attributes.
pub fn only(attributes: Value) -> (&'static str, Value) {
    ("/spec/filter", json!({ "attributes": attributes }))
}

pub fn ids(received: &[ReceivedRequest]) -> Vec<String> {
    received.iter().map(ReceivedRequest::id).collect()
}
