//! The objects that tests create.

use serde_json::{Value, json};

/// The namespace that every appliance has.
pub const NAMESPACE: &str = "default";

/// A Service of the image, with `TARGET` for the example application to greet.
pub fn service(name: &str, image: &str, target: &str) -> Value {
    json!({
        "apiVersion": "serving.knative.dev/v1",
        "kind": "Service",
        "metadata": { "name": name, "namespace": NAMESPACE },
        "spec": { "template": { "spec": { "containers": [{
            "image": image,
            "env": [{ "name": "TARGET", "value": target }],
        }] } } },
    })
}

/// The patch that changes what [`service`]'s application greets, and with it the template.
pub fn greets(image: &str, target: &str) -> Value {
    json!({ "spec": { "template": { "spec": { "containers": [{
        "image": image,
        "env": [{ "name": "TARGET", "value": target }],
    }] } } } })
}

pub fn broker(name: &str) -> Value {
    json!({
        "apiVersion": "eventing.knative.dev/v1",
        "kind": "Broker",
        "metadata": { "name": name, "namespace": NAMESPACE },
        "spec": {},
    })
}

/// A Trigger for every event of the Broker, sent to `uri`.
pub fn trigger(name: &str, broker: &str, uri: &str) -> Value {
    json!({
        "apiVersion": "eventing.knative.dev/v1",
        "kind": "Trigger",
        "metadata": { "name": name, "namespace": NAMESPACE },
        "spec": { "broker": broker, "subscriber": { "uri": uri } },
    })
}

pub fn channel(name: &str) -> Value {
    json!({
        "apiVersion": "messaging.knative.dev/v1",
        "kind": "Channel",
        "metadata": { "name": name, "namespace": NAMESPACE },
        "spec": {},
    })
}

/// A Subscription to the Channel, sent to `uri`.
pub fn subscription(name: &str, channel: &str, uri: &str) -> Value {
    json!({
        "apiVersion": "messaging.knative.dev/v1",
        "kind": "Subscription",
        "metadata": { "name": name, "namespace": NAMESPACE },
        "spec": {
            "channel": { "apiVersion": "messaging.knative.dev/v1", "kind": "Channel", "name": channel },
            "subscriber": { "uri": uri },
        },
    })
}

/// The object with `value` put at a JSON pointer, whose parents are made as needed.
pub fn with(mut object: Value, pointer: &str, value: Value) -> Value {
    let mut place = &mut object;
    for key in pointer.split('/').skip(1) {
        // In JSON pointers `~1` stands for a slash, which annotations have in their names.
        place = &mut place[key.replace("~1", "/")];
    }
    *place = value;
    object
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_put_where_its_parents_are_missing() {
        let object = with(json!({ "a": 1 }), "/metadata/annotations/x.dev~1y", json!("z"));
        assert_eq!(object, json!({ "a": 1, "metadata": { "annotations": { "x.dev/y": "z" } } }));
    }
}
