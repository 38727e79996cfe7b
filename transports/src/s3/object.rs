//! An object of S3 as an event, and an event as an object.

use adapter::{Event, Headers, MessageMode, SendError, encode_value, from_headers, to_json};
use bytes::Bytes;

use super::bucket::S3Object;
use crate::aws::{AwsResponse, percent_encode};

/// Upstream's attributes of an IntegrationSource for S3.
const TYPE: &str = "dev.knative.connector.event.aws-s3";
const SOURCE: &str = "dev.knative.eventing.aws-s3-source";
const SUBJECT: &str = "aws-s3-source";
/// What S3 says of an object that was written without a content type.
const DEFAULT_CONTENT_TYPE: &str = "binary/octet-stream";
/// S3's prefix of what a user says about an object.
const METADATA: &str = "x-amz-meta-";

/// An object that the sender wrote is its event again; any other becomes upstream's event, with the key in `s3key`.
pub(super) fn event_of(bucket: &str, object: &S3Object, response: Option<&AwsResponse>) -> Event {
    let content_type = response.and_then(|response| response.header("content-type"));
    if let Some(response) = response {
        let pairs = response.headers.iter().filter_map(|(name, value)| {
            let (name, value) = (name.as_str(), value.to_str().ok()?);
            let is_default = name == "content-type" && value == DEFAULT_CONTENT_TYPE;
            (!is_default).then_some((name.strip_prefix(METADATA).unwrap_or(name), value))
        });
        match from_headers(pairs, Some(response.body.clone()).filter(|body| !body.is_empty())) {
            Ok(Some(event)) => return event,
            Ok(None) => {}
            Err(error) => {
                tracing::warn!(error, key = object.key, "malformed CloudEvent is passed on as a plain object")
            }
        }
    }
    let id = format!("{}:{}:{}", object.key, object.etag.trim_matches('"'), object.modified);
    let mut event = Event::new(TYPE, SOURCE, id)
        .with("subject", SUBJECT)
        .with("s3bucket", bucket)
        .with("s3key", object.key.as_str());
    if !object.modified.is_empty() {
        event.set("time", object.modified.as_str());
    }
    match response {
        Some(response) => {
            let known = content_type.filter(|content_type| !content_type.is_empty());
            event.with_data(known.unwrap_or("application/octet-stream"), response.body.clone())
        }
        None => event,
    }
}

/// Where an event goes if the configuration names no key: the attributes that identify it, so that a retry writes the same
/// object.
pub(super) fn key_of(event: &Event, prefix: &str, key: Option<&str>) -> String {
    let named = ["s3key", "key", "file"].iter().map(|name| event.text(name)).find(|name| !name.is_empty());
    match (key, named) {
        (Some(key), _) => format!("{prefix}{key}"),
        (None, Some(named)) => format!("{prefix}{named}"),
        (None, None) => {
            let source = event.text("source");
            format!("{prefix}{}/{}", source.trim_start_matches('/'), percent_encode(&event.id(), false))
        }
    }
}

/// Headers and body of the PUT.
pub(super) fn object_of(event: &Event, mode: MessageMode) -> Result<(Headers, Bytes), SendError> {
    let header = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    // Another value cannot be written, at no attempt.
    let content_type_header = |value: &str| match http::HeaderValue::try_from(value) {
        Ok(_) if value.is_ascii() => Ok(header("content-type", value)),
        _ => Err(SendError::rejected(format!("content type {value:?} is not printable ASCII"))),
    };
    if let Some(content_type) = &event.opaque {
        return Ok((vec![content_type_header(content_type)?], event.data.clone().unwrap_or_default()));
    }
    if mode == MessageMode::Structured {
        return Ok((vec![header("content-type", "application/cloudevents+json")], to_json(event).into()));
    }
    let mut headers = Headers::new();
    for (name, value) in event.attributes() {
        let value = value.to_string();
        match name {
            "datacontenttype" => headers.push(content_type_header(&value)?),
            _ => headers.push((format!("{METADATA}ce-{name}"), encode_value(&value))),
        }
    }
    Ok((headers, event.data.clone().unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(key: &str) -> S3Object {
        S3Object { key: key.to_owned(), etag: "\"e\"".to_owned(), modified: "2026-01-01T00:00:00Z".to_owned(), size: 1 }
    }

    fn response(headers: &Headers, body: Bytes) -> AwsResponse {
        let mut map = http::HeaderMap::new();
        for (name, value) in headers {
            map.insert(name.parse::<http::HeaderName>().unwrap(), value.parse().unwrap());
        }
        AwsResponse { status: 200, headers: map, body }
    }

    #[test]
    fn plain_object_has_upstreams_attributes() {
        let headers = vec![("content-type".to_owned(), "text/plain".to_owned())];
        let event = event_of("b", &object("a/ü"), Some(&response(&headers, Bytes::from_static(b"x"))));
        let attributes: Vec<String> =
            ["type", "source", "subject", "s3bucket", "s3key", "datacontenttype"].map(|name| event.text(name)).to_vec();
        assert_eq!(attributes, [TYPE, SOURCE, SUBJECT, "b", "a/ü", "text/plain"]);
        assert_eq!(event.id(), "a/ü:e:2026-01-01T00:00:00Z");
        assert_eq!(event_of("b", &object("k"), None).data, None);
    }

    #[test]
    fn event_survives_the_round_trip_in_both_modes() {
        let event = Event::new("t", "/s", "1").with("subject", "Zoë").with_data("text/plain", "x");
        for mode in [MessageMode::Binary, MessageMode::Structured] {
            let (headers, body) = object_of(&event, mode).unwrap();
            assert_eq!(event_of("b", &object("k"), Some(&response(&headers, body))), event);
        }
    }

    #[test]
    fn content_type_that_is_no_header_value_is_rejected() {
        for content_type in ["a\nb: c", "t/ü", "\0"] {
            let event = Event::new("t", "/s", "1").with_data(content_type, "x");
            let rejected = object_of(&event, MessageMode::Binary);
            assert!(matches!(rejected, Err(SendError::Rejected { .. })), "{rejected:?}");
            let opaque = object_of(&Event::opaque(content_type, Bytes::new()), MessageMode::Binary);
            assert!(matches!(opaque, Err(SendError::Rejected { .. })), "{opaque:?}");
        }
    }

    #[test]
    fn key_identifies_the_event() {
        let event = Event::new("t", "/a/b", "x/y");
        assert_eq!(key_of(&event, "in/", None), "in/a/b/x%2Fy");
        assert_eq!(key_of(&event.clone().with("file", "f.txt"), "", None), "f.txt");
        assert_eq!(key_of(&event, "", Some("latest")), "latest");
    }
}
