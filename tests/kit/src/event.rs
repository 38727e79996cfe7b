//! CloudEvents to publish, in both content modes.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

use crate::HttpCall;

/// An event of version 1.0. Extension values are strings.
#[derive(Debug, Clone)]
pub struct TestEvent {
    attributes: Vec<(String, String)>,
    content_type: Option<String>,
    data: Vec<u8>,
}

impl TestEvent {
    /// With that id, source `/kit`, type `kit.test`, and no data.
    pub fn new(id: &str) -> Self {
        let attributes = [("specversion", "1.0"), ("id", id), ("source", "/kit"), ("type", "kit.test")];
        Self {
            attributes: attributes.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
            content_type: None,
            data: Vec::new(),
        }
    }

    /// Sets an attribute or extension, in place of the one that is there.
    pub fn with(mut self, name: &str, value: &str) -> Self {
        self = self.without(name);
        self.attributes.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Leaves an attribute out, for events that break the rules.
    pub fn without(mut self, name: &str) -> Self {
        self.attributes.retain(|(n, _)| n != name);
        self
    }

    pub fn of_type(self, value: &str) -> Self {
        self.with("type", value)
    }

    pub fn data(mut self, content_type: &str, data: impl Into<Vec<u8>>) -> Self {
        self.content_type = Some(content_type.to_owned());
        self.data = data.into();
        self
    }

    /// The POST in binary mode: attributes in headers, data as the body.
    pub fn binary(&self, path: &str) -> HttpCall {
        let mut call = HttpCall::post(path);
        for (name, value) in &self.attributes {
            call = call.header(&format!("ce-{name}"), value);
        }
        if let Some(content_type) = &self.content_type {
            call = call.header("Content-Type", content_type);
        }
        call.body(self.data.clone())
    }

    /// The POST in structured mode: one JSON object.
    pub fn structured(&self, path: &str) -> HttpCall {
        HttpCall::post(path)
            .header("Content-Type", "application/cloudevents+json; charset=utf-8")
            .body(self.envelope().to_string())
    }

    /// The event as one JSON object: JSON data as it is, UTF-8 as a string, the rest as base64.
    pub fn envelope(&self) -> Value {
        let mut envelope: Map<String, Value> =
            self.attributes.iter().map(|(name, value)| (name.clone(), json!(value))).collect();
        let Some(content_type) = &self.content_type else { return Value::Object(envelope) };
        envelope.insert("datacontenttype".to_owned(), json!(content_type));
        let as_json = || serde_json::from_slice(&self.data).ok().filter(|_| content_type.ends_with("json"));
        let as_text = || String::from_utf8(self.data.clone()).ok().map(Value::String);
        match as_json().or_else(as_text) {
            Some(value) => envelope.insert("data".to_owned(), value),
            None => envelope.insert("data_base64".to_owned(), json!(STANDARD.encode(&self.data))),
        };
        Value::Object(envelope)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_is_spelled_by_what_it_is() {
        let data = |content_type: &str, data: &[u8]| TestEvent::new("1").data(content_type, data).envelope();
        assert_eq!(data("application/json", b"{ \"a\": 1 }")["data"], json!({ "a": 1 }));
        assert_eq!(data("text/plain", b"text")["data"], "text");
        assert_eq!(data("application/octet-stream", &[0xff])["data_base64"], "/w==");
        assert_eq!(TestEvent::new("1").envelope().get("data"), None);
    }

    #[test]
    fn an_attribute_is_there_once_or_not_at_all() {
        let bytes = TestEvent::new("1").of_type("t").without("id").binary("/").to_bytes(([127, 0, 0, 1], 1).into());
        let text = String::from_utf8(bytes).unwrap();
        assert_eq!((text.matches("ce-type: t\r\n").count(), text.matches("ce-type").count()), (1, 1));
        assert!(!text.contains("ce-id"));
    }
}
