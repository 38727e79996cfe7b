//! A CloudEvent: attributes and data.

use std::fmt::{self, Display};

use bytes::Bytes;

/// The value of an attribute. Times, URIs and bytes are text in their canonical form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    Text(String),
    Integer(i32),
    Boolean(bool),
}

impl Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Text(text) => f.write_str(text),
            Value::Integer(number) => write!(f, "{number}"),
            Value::Boolean(truth) => write!(f, "{truth}"),
        }
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Value {
        Value::Text(text.to_owned())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Value {
        Value::Text(text)
    }
}

/// An event on its way from a receiver to a sender.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Event {
    attributes: Vec<(String, Value)>,
    pub data: Option<Bytes>,
    /// The W3C `traceparent` that came with the message, outside the event.
    pub traceparent: Option<String>,
    /// The content type of a structured event in a format that the adapter does not read. `data` is then the whole body,
    /// which is forwarded untouched.
    pub opaque: Option<String>,
}

impl Event {
    pub fn new(kind: impl Into<String>, source: impl Into<String>, id: impl Into<String>) -> Event {
        let mut event = Event::default();
        event.set("specversion", "1.0");
        event.set("id", id.into());
        event.set("source", source.into());
        event.set("type", kind.into());
        event
    }

    /// An event in a format that the adapter does not read.
    pub fn opaque(content_type: impl Into<String>, body: Bytes) -> Event {
        Event { data: Some(body), opaque: Some(content_type.into()), ..Event::default() }
    }

    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Event {
        self.set(name, value);
        self
    }

    #[must_use]
    pub fn with_data(mut self, content_type: &str, data: impl Into<Bytes>) -> Event {
        if !content_type.is_empty() {
            self.set("datacontenttype", content_type);
        }
        self.data = Some(data.into());
        self
    }

    /// Sets or replaces an attribute.
    pub fn set(&mut self, name: &str, value: impl Into<Value>) {
        let value = value.into();
        match self.attributes.iter_mut().find(|(known, _)| known == name) {
            Some((_, old)) => *old = value,
            None => self.attributes.push((name.to_owned(), value)),
        }
    }

    pub fn get(&self, name: &str) -> Option<&Value> {
        self.attributes.iter().find(|(known, _)| known == name).map(|(_, value)| value)
    }

    /// The attribute as text; empty if it is absent.
    pub fn text(&self, name: &str) -> String {
        self.get(name).map(ToString::to_string).unwrap_or_default()
    }

    pub fn id(&self) -> String {
        self.text("id")
    }

    pub fn attributes(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.attributes.iter().map(|(name, value)| (name.as_str(), value))
    }

    /// The approximate size in memory.
    pub fn bytes(&self) -> usize {
        let attributes: usize = self.attributes.iter().map(|(name, _)| name.len() + 32).sum();
        attributes + self.data.as_ref().map_or(0, Bytes::len)
    }

    /// Returns an error if this is not a valid CloudEvent.
    pub fn check(&self) -> Result<(), String> {
        if self.opaque.is_some() {
            return Ok(());
        }
        for name in ["id", "source", "type"] {
            if self.text(name).is_empty() {
                return Err(format!("attribute {name} is missing"));
            }
        }
        match self.text("specversion").as_str() {
            "1.0" | "0.3" => {}
            "" => return Err("attribute specversion is missing".to_owned()),
            other => return Err(format!("specversion {other} is not supported; use 1.0 or 0.3")),
        }
        match self.attributes.iter().find(|(name, _)| !is_attribute_name(name)) {
            Some((name, _)) => Err(format!("attribute name {name:?} is not lower-case letters and digits")),
            None => Ok(()),
        }
    }
}

/// Whether CloudEvents allows this attribute name.
pub(crate) fn is_attribute_name(name: &str) -> bool {
    !name.is_empty() && name != "data" && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
}

/// Whether data of this content type is JSON. No content type means JSON.
pub(crate) fn is_json(content_type: &str) -> bool {
    let media = content_type.split(';').next().unwrap_or("").trim().to_ascii_lowercase();
    media.is_empty() || media == "application/json" || media == "text/json" || media.ends_with("+json")
}
