//! The response of a sink to one event, for adapters that answer requests themselves.

use bytes::Bytes;

use crate::binding::from_http;
use crate::event::Event;
use crate::server::Response;

/// The response of a sink.
#[derive(Debug)]
pub struct SinkReply {
    pub status: u16,
    pub headers: http::HeaderMap,
    pub body: Bytes,
}

impl SinkReply {
    pub fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }

    /// The event in the response, if it has one.
    pub fn event(&self) -> Result<Option<Event>, String> {
        let is_event = self.headers.contains_key("ce-specversion")
            || self
                .headers
                .get("content-type")
                .is_some_and(|kind| kind.as_bytes().starts_with(b"application/cloudevents"));
        if !is_event {
            return Ok(None);
        }
        let events = from_http(&self.headers, self.body.clone())?;
        Ok(events.into_iter().next())
    }
}

/// The response as it came, without what belongs to its connection.
impl From<SinkReply> for Response {
    fn from(response: SinkReply) -> Response {
        let is_end_to_end = |name: &str| name == "content-type" || name == "retry-after" || name.starts_with("ce-");
        let text = |value: &http::HeaderValue| value.to_str().ok().map(str::to_owned);
        let fields = response.headers.iter().filter(|(name, _)| is_end_to_end(name.as_str()));
        let headers = fields.filter_map(|(name, value)| Some((name.as_str().to_owned(), text(value)?))).collect();
        Response { headers, ..Response::new(response.status, response.body) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn response_with_an_event_is_read_in_both_modes() {
        let response = |headers: &[(&'static str, &'static str)], body: &'static str| SinkReply {
            status: 200,
            headers: headers
                .iter()
                .map(|(name, value)| (http::HeaderName::from_static(name), http::HeaderValue::from_static(value)))
                .collect(),
            body: Bytes::from_static(body.as_bytes()),
        };
        let binary = [("ce-specversion", "1.0"), ("ce-id", "1"), ("ce-source", "/s"), ("ce-type", "t")];
        let structured = r#"{"specversion":"1.0","id":"2","source":"/s","type":"t"}"#;
        let id = |response: SinkReply| response.event().map(|event| event.map(|event| event.id()));
        assert_eq!(id(response(&binary, "x")), Ok(Some("1".to_owned())));
        assert_eq!(
            id(response(&[("content-type", "application/cloudevents+json")], structured)),
            Ok(Some("2".to_owned()))
        );
        assert_eq!(id(response(&[("content-type", "application/json")], "{}")), Ok(None));
        assert!(id(response(&[("content-type", "application/cloudevents+json")], "{}")).is_err());
    }
}
