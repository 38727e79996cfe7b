//! A CloudEvent of a request: a borrowed view, validated at the ingress.
//!
//! [`binary`] parses headers and body, [`structured`] the JSON envelope, alone or in a batch. Both return
//! the same [`CloudEvent`]: attributes in canonical string form with their original type, and the data as
//! the bytes that were sent. Versions 1.0 and 0.3 are accepted and never converted (AMB-50).

pub mod binary;
mod rules;
pub mod structured;
mod text;

use std::borrow::Cow;

use crate::limits::ADDED_BYTES_MAX;

pub use rules::check_name;
pub(crate) use text::put_header_value;

/// Attributes that streams add: when a broker accepted the event (X-BRK-05); and the destination, code and
/// response of the failed delivery (EV-DLV-10).
pub const ADDED: [&str; 4] = ["knativearrivaltime", "knativeerrordest", "knativeerrorcode", "knativeerrordata"];

/// One event, views into the request where nothing had to be decoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CloudEvent<'a> {
    /// As received; the event is sent in the same mode.
    pub mode: ContentMode,
    /// `specversion`, `id`, `source`, `type` and the rest in the order received, including
    /// `datacontenttype`. Names are unique.
    pub attributes: Vec<CloudEventAttribute<'a>>,
    pub data: EventData<'a>,
}

/// The HTTP content mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContentMode {
    Binary,
    Structured,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CloudEventAttribute<'a> {
    /// `[a-z0-9]+`
    pub name: Cow<'a, str>,
    /// The canonical string form (AMB-45): integers decimal, booleans `true` and `false`.
    pub value: Cow<'a, str>,
    pub kind: AttributeKind,
}

/// Type of an attribute in the JSON envelope. In binary mode there are only strings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttributeKind {
    String,
    Integer,
    Boolean,
}

/// The payload, never altered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EventData<'a> {
    None,
    /// A binary-mode body, or a decoded `data_base64`.
    Bytes(Cow<'a, [u8]>),
    /// The value of `data` in a JSON envelope, unchanged.
    Json(&'a str),
}

impl EventData<'_> {
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::None => &[],
            Self::Bytes(bytes) => bytes,
            Self::Json(text) => text.as_bytes(),
        }
    }
}

impl<'a> CloudEvent<'a> {
    /// An attribute's canonical string form.
    #[inline]
    #[must_use]
    pub fn attribute(&self, name: &str) -> Option<&str> {
        self.attributes.iter().find(|attribute| attribute.name == name).map(|found| &*found.value)
    }

    /// Removes an attribute, for example a hop counter that is stored separately.
    pub fn take(&mut self, name: &str) -> Option<CloudEventAttribute<'a>> {
        let at = self.attributes.iter().position(|attribute| attribute.name == name)?;
        Some(self.attributes.remove(at))
    }

    /// Whether its JSON data is base64 of the payload: only in 0.3 does the attribute mean that, later it
    /// is an extension like others.
    #[must_use]
    pub fn is_encoded(&self) -> bool {
        self.attribute("specversion") == Some("0.3") && self.attribute("datacontentencoding").is_some()
    }

    /// Size of attributes and data together, for the limit of a stream. Attributes added by streams are not
    /// counted, or an event that one has just accepted could not continue to the next, nor to a dead letter
    /// sink (EV-DLV-08).
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.attribute_bytes() + self.data.bytes().len()
    }

    /// The part of [`CloudEvent::bytes`] that is not data.
    #[must_use]
    pub fn attribute_bytes(&self) -> usize {
        let bytes = |is_added| {
            let those = self.attributes.iter().filter(|one| one.is_added() == is_added);
            those.map(|one| one.name.len() + one.value.len()).sum::<usize>()
        };
        bytes(false) + bytes(true).saturating_sub(ADDED_BYTES_MAX)
    }
}

impl CloudEventAttribute<'_> {
    /// Whether it is one of those that streams add.
    fn is_added(&self) -> bool {
        ADDED.contains(&&*self.name)
    }
}

/// Why a request is not a CloudEvent. The sender must act.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MalformedEvent {
    #[error("attribute \"{name}\" {why}")]
    Attribute { name: Box<str>, why: &'static str },
    #[error("the envelope is not a JSON object of a CloudEvent: {why}")]
    Envelope { why: Box<str> },
    #[error("event {index} of the batch: {why}")]
    InBatch { index: usize, why: Box<MalformedEvent> },
    #[error("{why}")]
    Request { why: &'static str },
}

impl MalformedEvent {
    #[inline]
    #[must_use]
    pub fn attribute(name: impl Into<Box<str>>, why: &'static str) -> Self {
        Self::Attribute { name: name.into(), why }
    }

    fn envelope(why: impl Into<Box<str>>) -> Self {
        Self::Envelope { why: why.into() }
    }
}

/// How a request carries events, determined by its Content-Type alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContentKind {
    Binary,
    Structured,
    Batch,
    /// A CloudEvents format that is not supported.
    Unknown,
}

/// Determines the content mode; parameters such as a charset are ignored (DP-PROTO-03).
#[must_use]
pub fn carriage(content_type: Option<&[u8]>) -> ContentKind {
    const PREFIX: &[u8] = b"application/cloudevents";
    let Some(value) = content_type else { return ContentKind::Binary };
    let media = value.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
    if media.eq_ignore_ascii_case(b"application/cloudevents+json") {
        ContentKind::Structured
    } else if media.eq_ignore_ascii_case(b"application/cloudevents-batch+json") {
        ContentKind::Batch
    } else if media.get(..PREFIX.len()).is_some_and(|start| start.eq_ignore_ascii_case(PREFIX)) {
        ContentKind::Unknown
    } else {
        ContentKind::Binary
    }
}

/// The Content-Type of a request or a response. Two fields could name different modes: an intermediary may
/// have used the other one.
pub fn content_type<'a>(
    fields: impl IntoIterator<Item = (&'a str, &'a [u8])>,
) -> Result<Option<&'a [u8]>, MalformedEvent> {
    let mut found = fields.into_iter().filter(|(name, _)| name.eq_ignore_ascii_case("content-type"));
    let first = found.next().map(|(_, value)| value);
    match found.next() {
        None => Ok(first),
        Some(_) => Err(MalformedEvent::attribute("datacontenttype", "is given twice")),
    }
}

/// Whether a body has a content encoding: it is not decoded here, and the subscriber would not learn of it.
pub fn is_compressed<'a>(fields: impl IntoIterator<Item = (&'a str, &'a [u8])>) -> bool {
    let says = |(name, value): (&str, &[u8])| {
        name.eq_ignore_ascii_case("content-encoding") && !value.eq_ignore_ascii_case(b"identity")
    };
    fields.into_iter().any(says)
}

#[cfg(test)]
mod tests;
