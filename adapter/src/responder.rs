//! Adapters that answer each request themselves: with an event, or with what the sink answered. Nothing is queued here, so the
//! sender of the request retries.

use std::rc::Rc;

use bytes::Bytes;
use futures_util::future::LocalBoxFuture;
use serde::de::DeserializeOwned;
use tokio::net::TcpListener;

use crate::binding::from_http;
use crate::config::{self, AdapterSettings, Context, SenderSection};
use crate::error::{Error, SendError};
use crate::event::Event;
use crate::limits::RESPONSE_TIME;
use crate::run::{Signals, health};
use crate::server::{self, Handler, Request, Response};
use crate::sink::HttpSink;
use crate::status::{AdapterStatus, count};

/// The port without `$PORT`.
const PORT_DEFAULT: u16 = 8080;

/// Answers requests on `$PORT`.
pub trait Responder: Sized + 'static {
    /// The `source` section. Derive `Deserialize` with `deny_unknown_fields`: errors then name the field.
    type Config: DeserializeOwned;

    /// `sink`: if one is configured.
    fn new(config: Self::Config, context: &Context, sink: Option<SinkClient>) -> Result<Self, Error>;

    /// Answers a request that is no health check. Many calls run at the same time.
    fn answer(&self, request: Request) -> LocalBoxFuture<'_, Response>;
}

/// Sends events to the sink, one at a time and once.
pub struct SinkClient {
    sink: HttpSink,
    overrides: Vec<(String, String)>,
    status: Rc<AdapterStatus>,
}

/// The response of a sink.
#[derive(Debug)]
pub struct SinkResponse {
    pub status: u16,
    pub headers: http::HeaderMap,
    pub body: Bytes,
}

impl SinkResponse {
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
impl From<SinkResponse> for Response {
    fn from(response: SinkResponse) -> Response {
        let is_end_to_end = |name: &str| name == "content-type" || name == "retry-after" || name.starts_with("ce-");
        let text = |value: &http::HeaderValue| value.to_str().ok().map(str::to_owned);
        let fields = response.headers.iter().filter(|(name, _)| is_end_to_end(name.as_str()));
        let headers = fields.filter_map(|(name, value)| Some((name.as_str().to_owned(), text(value)?))).collect();
        Response { headers, ..Response::new(response.status, response.body) }
    }
}

impl SinkClient {
    /// Sends the event with the overrides of the configuration.
    pub async fn send(&self, mut event: Event) -> Result<SinkResponse, SendError> {
        for (name, value) in &self.overrides {
            event.set(name, value.as_str());
        }
        count(&self.status.counters.received, 1);
        let response = self.sink.call(&event).await;
        let is_accepted = response.as_ref().is_ok_and(SinkResponse::is_success);
        let counters = &self.status.counters;
        count(if is_accepted { &counters.accepted } else { &counters.released }, 1);
        response
    }
}

/// Serves requests until SIGTERM.
pub(crate) async fn run<R: Responder>() -> Result<(), Error> {
    let mut signals = Signals::new()?;
    let settings = config::read_optional(&|name| std::env::var(name).ok())?;
    let status = Rc::new(AdapterStatus::new(1));
    let responder = Rc::new(prepare::<R>(&settings, &status)?);
    let address = (settings.listen, settings.port.unwrap_or(PORT_DEFAULT));
    let listener = TcpListener::bind(address)
        .await
        .map_err(|error| Error::config(format!("PORT: listen on {}:{}: {error}", address.0, address.1)))?;
    status.set_receiver(None);
    let handler: Handler = Rc::new(move |request| {
        let (status, responder) = (Rc::clone(&status), Rc::clone(&responder));
        Box::pin(async move {
            match health(&request, &status) {
                Some(response) => response,
                None => responder.answer(request).await,
            }
        })
    });
    tracing::info!("adapter is ready");
    tokio::select! {
        () = server::serve(listener, None, handler) => {}
        _ = signals.terminate.recv() => {}
        _ = signals.interrupt.recv() => {}
    }
    // The tasks of the connections write the last responses.
    tokio::time::sleep(RESPONSE_TIME).await;
    Ok(())
}

fn prepare<R: Responder>(settings: &AdapterSettings, status: &Rc<AdapterStatus>) -> Result<R, Error> {
    let section = settings.receiver.as_ref();
    let config = section.ok_or_else(|| Error::config("no configuration: set ADAPTER_RECEIVER to a JSON object"))?;
    let sink = match &settings.sender {
        SenderSection::Absent => None,
        SenderSection::Http(config) => Some(SinkClient {
            sink: HttpSink::new_with_status(config, Rc::clone(status))?,
            overrides: settings.overrides.clone(),
            status: Rc::clone(status),
        }),
        SenderSection::Transport(_) => {
            return Err(Error::config(
                "ADAPTER_SENDER: this adapter sends to an HTTP sink; give {\"sinkUri\": \"http://...\"}",
            ));
        }
    };
    R::new(config.parse()?, &settings.context, sink)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn response_with_an_event_is_read_in_both_modes() {
        let response = |headers: &[(&'static str, &'static str)], body: &'static str| SinkResponse {
            status: 200,
            headers: headers
                .iter()
                .map(|(name, value)| (http::HeaderName::from_static(name), http::HeaderValue::from_static(value)))
                .collect(),
            body: Bytes::from_static(body.as_bytes()),
        };
        let binary = [("ce-specversion", "1.0"), ("ce-id", "1"), ("ce-source", "/s"), ("ce-type", "t")];
        let structured = r#"{"specversion":"1.0","id":"2","source":"/s","type":"t"}"#;
        let id = |response: SinkResponse| response.event().map(|event| event.map(|event| event.id()));
        assert_eq!(id(response(&binary, "x")), Ok(Some("1".to_owned())));
        assert_eq!(
            id(response(&[("content-type", "application/cloudevents+json")], structured)),
            Ok(Some("2".to_owned()))
        );
        assert_eq!(id(response(&[("content-type", "application/json")], "{}")), Ok(None));
        assert!(id(response(&[("content-type", "application/cloudevents+json")], "{}")).is_err());
    }
}
