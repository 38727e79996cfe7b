//! GitHub's webhooks: a request with a valid signature becomes an event, and is answered once the sink has taken it.

mod attributes;

use adapter::server::{Request, Response};
use adapter::{Context, Error, Event, Responder, SecretFile, SinkClient};
use futures_util::future::LocalBoxFuture;
use serde::Deserialize;
use serde_json::Value;

use crate::hmac::{Hmac, verify};

const EVENT: &str = "X-GitHub-Event";
const DELIVERY: &str = "X-GitHub-Delivery";
/// GitHub sends it when the webhook is made.
const PING: &str = "ping";

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Config {
    owner_and_repository: String,
    /// The names of the events that are passed on.
    event_types: Vec<String>,
    /// The secret of the webhook.
    secret_token: SecretFile,
}

pub(crate) struct Webhook {
    source: String,
    event_types: Vec<String>,
    hmac: Hmac,
    sink: SinkClient,
}

impl Responder for Webhook {
    type Config = Config;

    fn new(config: Config, _: &Context, sink: Option<SinkClient>) -> Result<Self, Error> {
        let sink = sink.ok_or_else(|| Error::config("no sink: set ADAPTER_SENDER to {\"sinkUri\": \"http://...\"}"))?;
        Ok(Webhook {
            source: format!("https://github.com/{}", config.owner_and_repository),
            event_types: config.event_types,
            hmac: Hmac::of(config.secret_token),
            sink,
        })
    }

    fn answer(&self, request: Request) -> LocalBoxFuture<'_, Response> {
        Box::pin(async move { self.take(&request).await.unwrap_or_else(|refusal| refusal) })
    }
}

impl Webhook {
    async fn take(&self, request: &Request) -> Result<Response, Response> {
        if request.method != http::Method::POST {
            return Err(Response::new(405, "use POST"));
        }
        verify(request, &self.hmac)?;
        let name = header(request, EVENT)?;
        if !self.event_types.iter().any(|wanted| wanted == name) {
            let status = if name == PING { 200 } else { 202 };
            return Ok(Response::new(
                status,
                format!("{name} is not one of spec.eventTypes; the event is not passed on"),
            ));
        }
        let event = event(&self.source, name, request)?;
        let id = event.id();
        // GitHub shows the response to the owner of the webhook, and delivers again on request.
        match self.sink.send(event).await {
            Ok(response) if response.is_success() => Ok(Response::new(202, "accepted")),
            Ok(response) => {
                tracing::warn!(id, status = response.status, "the sink did not take the event");
                Err(Response::new(502, format!("the sink answered {}", response.status)))
            }
            Err(why) => {
                tracing::warn!(id, %why, "the sink did not take the event");
                Err(Response::new(502, "the sink cannot be reached"))
            }
        }
    }
}

fn header<'a>(request: &'a Request, name: &str) -> Result<&'a str, Response> {
    let value = request.headers.get(name).and_then(|value| value.to_str().ok()).filter(|value| !value.is_empty());
    value.ok_or_else(|| Response::new(400, format!("header {name} is not set")))
}

/// The event of a request whose signature is valid.
fn event(source: &str, name: &str, request: &Request) -> Result<Event, Response> {
    let id = header(request, DELIVERY)?;
    let content_type = request.headers.get("content-type").and_then(|value| value.to_str().ok()).unwrap_or_default();
    if !content_type.to_ascii_lowercase().starts_with("application/json") {
        return Err(Response::new(415, "set the content type of the webhook to application/json"));
    }
    let payload: Value = serde_json::from_slice(&request.body)
        .map_err(|error| Response::new(400, format!("the payload is not JSON: {error}")))?;
    let mut event = Event::new(format!("dev.knative.source.github.{name}"), source, id)
        .with_data("application/json", request.body.clone());
    if let Some(subject) = attributes::subject(name, &payload) {
        event.set("subject", subject);
    }
    for (extension, value) in attributes::extensions(name, &payload) {
        event.set(extension, value);
    }
    Ok(event)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(headers: &[(&'static str, &'static str)], body: &'static str) -> Request {
        let headers = headers.iter().map(|(name, value)| {
            let name = http::HeaderName::from_bytes(name.as_bytes()).unwrap();
            (name, http::HeaderValue::from_static(value))
        });
        Request { method: http::Method::POST, path: "/".to_owned(), headers: headers.collect(), body: body.into() }
    }

    #[test]
    fn payload_becomes_the_data_of_an_event() {
        let body = r#"{"action":"opened","issue":{"number":7},"sender":{"login":"me"}}"#;
        let sent = request(&[(DELIVERY, "d-1"), ("Content-Type", "application/json; charset=utf-8")], body);
        let event = event("https://github.com/o/r", "issues", &sent).unwrap();
        assert_eq!((event.id().as_str(), event.text("type").as_str()), ("d-1", "dev.knative.source.github.issues"));
        assert_eq!((event.text("subject").as_str(), event.text("action").as_str()), ("7", "opened"));
        assert_eq!(event.data.as_deref(), Some(body.as_bytes()));
    }

    #[test]
    fn request_that_is_no_delivery_is_refused() {
        let json = ("Content-Type", "application/json");
        for (sent, status) in [
            (request(&[json], "{}"), 400),
            (request(&[(DELIVERY, "1"), json], "{"), 400),
            (request(&[(DELIVERY, "1"), ("Content-Type", "application/x-www-form-urlencoded")], "payload=%7B%7D"), 415),
        ] {
            assert_eq!(event("s", "push", &sent).unwrap_err().status, status, "{sent:?}");
        }
    }
}
