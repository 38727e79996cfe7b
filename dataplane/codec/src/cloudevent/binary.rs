//! Binary mode: attributes are `ce-` headers, `datacontenttype` is Content-Type, the body is the data.
//!
//! The HTTP binding percent-encodes what a header cannot carry, but many SDKs (npm's, PyPI's 1.x) do not.
//! `text::header_value` and `text::uri_header_value` decode the values of both kinds of senders.

use std::borrow::Cow;

use super::{AttributeKind, CloudEvent, CloudEventAttribute, ContentMode, EventData, MalformedEvent, rules, text};

/// Number of attributes of most events, so that the list seldom grows.
const ATTRIBUTES_USUAL: usize = 8;

/// Parses an event from a request's headers (names in any case) and body (DP-PROTO-02).
pub fn parse<'a>(
    headers: impl IntoIterator<Item = (&'a str, &'a [u8])>,
    body: &'a [u8],
) -> Result<CloudEvent<'a>, MalformedEvent> {
    let mut attributes = Vec::with_capacity(ATTRIBUTES_USUAL);
    for (name, raw) in headers {
        if let Some(attribute) = attribute(name, raw)? {
            attributes.push(attribute);
        }
    }
    rules::check(&attributes)?;
    let data = if body.is_empty() { EventData::None } else { EventData::Bytes(Cow::Borrowed(body)) };
    Ok(CloudEvent { mode: ContentMode::Binary, attributes, data })
}

/// Whether headers claim to be an event at all: a reply without the claim is just a body.
pub fn is_claimed<'a>(headers: impl IntoIterator<Item = (&'a str, &'a [u8])>) -> bool {
    headers.into_iter().any(|(name, _)| is_prefixed(name))
}

/// Whether a value has bytes that are not valid UTF-8 and were read as Latin-1.
pub fn has_latin1<'a>(headers: impl IntoIterator<Item = (&'a str, &'a [u8])>) -> bool {
    let is_read = |name: &str| is_prefixed(name) || name.eq_ignore_ascii_case("content-type");
    let mut read = headers.into_iter().filter(|(name, value)| !value.is_ascii() && is_read(name));
    read.any(|(_, value)| std::str::from_utf8(value).is_err())
}

fn is_prefixed(name: &str) -> bool {
    name.as_bytes().get(..3).is_some_and(|start| start.eq_ignore_ascii_case(b"ce-"))
}

fn attribute<'a>(header: &'a str, raw: &'a [u8]) -> Result<Option<CloudEventAttribute<'a>>, MalformedEvent> {
    let name = if is_prefixed(header) {
        let name = lower_case(&header[3..]);
        rules::check_name(&name)?;
        if name == "datacontenttype" {
            return Err(MalformedEvent::attribute(name, "travels as Content-Type in binary mode"));
        }
        name
    } else if header.eq_ignore_ascii_case("content-type") {
        Cow::Borrowed("datacontenttype")
    } else {
        return Ok(None);
    };
    let value = match &*name {
        // A media type is taken unchanged: quotes belong to its parameters.
        "datacontenttype" => Some(text::characters(raw.trim_ascii())),
        "source" | "schemaurl" => text::uri_header_value(raw, text::is_uri_reference),
        "dataschema" => text::uri_header_value(raw, text::is_uri),
        _ => text::header_value(raw),
    };
    match value {
        Some(value) => Ok(Some(CloudEventAttribute { name, value, kind: AttributeKind::String })),
        None => Err(MalformedEvent::attribute(name, "is not percent-encoded UTF-8")),
    }
}

fn lower_case(name: &str) -> Cow<'_, str> {
    if name.bytes().any(|byte| byte.is_ascii_uppercase()) {
        Cow::Owned(name.to_ascii_lowercase()) // allocates only for clients that send `Ce-Id`
    } else {
        Cow::Borrowed(name)
    }
}
