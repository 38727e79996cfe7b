//! The rules of CloudEvents 1.0 and 0.3 for attributes, in every mode.

use super::{CloudEventAttribute, MalformedEvent, text};
use crate::limits::{ATTRIBUTE_NAME_BYTES_MAX, ATTRIBUTES_MAX};

/// Rejects a name that is not lower-case letters and digits.
pub fn check_name(name: &str) -> Result<(), MalformedEvent> {
    let fits = (1..=ATTRIBUTE_NAME_BYTES_MAX).contains(&name.len());
    if fits && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit()) {
        return Ok(());
    }
    let shown: String = name.chars().take(64).collect(); // a response must not echo a whole request
    Err(MalformedEvent::attribute(shown, "has a name other than 1 to 255 characters of a-z and 0-9"))
}

/// Rejects an event whose attributes break the rules of its version.
pub(super) fn check(attributes: &[CloudEventAttribute<'_>]) -> Result<(), MalformedEvent> {
    if attributes.iter().filter(|one| !one.is_added()).count() > ATTRIBUTES_MAX {
        return Err(MalformedEvent::Request { why: "the event has more than 256 attributes" });
    }
    let version = value(attributes, "specversion");
    let v03 = match version {
        Some("1.0") => false,
        Some("0.3") => true,
        Some(_) => return Err(MalformedEvent::attribute("specversion", "is not 1.0 or 0.3")),
        None => return Err(MalformedEvent::attribute("specversion", "is missing")),
    };
    for required in ["id", "source", "type"] {
        if value(attributes, required).is_none() {
            return Err(MalformedEvent::attribute(required, "is missing"));
        }
    }
    for (at, attribute) in attributes.iter().enumerate() {
        if attributes[..at].iter().any(|before| before.name == attribute.name) {
            return Err(MalformedEvent::attribute(&*attribute.name, "is given twice"));
        }
        check_value(attribute, v03).map_err(|why| MalformedEvent::attribute(&*attribute.name, why))?;
    }
    Ok(())
}

fn value<'e>(attributes: &'e [CloudEventAttribute<'_>], name: &str) -> Option<&'e str> {
    attributes.iter().find(|attribute| attribute.name == name).map(|found| &*found.value)
}

fn check_value(attribute: &CloudEventAttribute<'_>, v03: bool) -> Result<(), &'static str> {
    let value = &*attribute.value;
    let known = if v03 {
        matches!(
            &*attribute.name,
            "id" | "source" | "type" | "subject" | "time" | "datacontenttype" | "schemaurl" | "datacontentencoding"
        )
    } else {
        matches!(&*attribute.name, "id" | "source" | "type" | "subject" | "time" | "datacontenttype" | "dataschema")
    };
    if known && attribute.kind != super::AttributeKind::String {
        return Err("is not a string");
    }
    if known && value.is_empty() {
        return Err("is empty");
    }
    if !text::is_clean(value) {
        return Err("has control characters or noncharacters");
    }
    match &*attribute.name {
        "source" if !text::is_uri_reference(value) => Err("is not a URI reference (RFC 3986)"),
        "dataschema" if !v03 && !text::is_uri(value) => Err("is not an absolute URI (RFC 3986)"),
        "schemaurl" if v03 && !text::is_uri_reference(value) => Err("is not a URI reference (RFC 3986)"),
        "datacontentencoding" if v03 && !value.eq_ignore_ascii_case("base64") => Err("is not base64"),
        "time" if !text::is_time(value) => Err("is not a time (RFC 3339)"),
        "datacontenttype" if !text::is_media_type(value) => Err("is not a media type (RFC 2046)"),
        "data" => Err("has a name that CloudEvents reserves for the payload"),
        _ => Ok(()),
    }
}
