//! A subscriber: it records every CloudEvent that it gets and answers by a script.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use crate::message::HttpRequest;
use crate::server::{HandlerReply, ReceivedMessage, TestServer};

const STRUCTURED: &str = "application/cloudevents+json";

/// One request that arrived.
#[derive(Debug, Clone)]
pub struct ReceivedRequest {
    pub request: HttpRequest,
    /// How often this event (its source and id) has come by now, this time included.
    pub attempt: u32,
    pub at: Instant,
}

impl ReceivedRequest {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.request.headers.get(name)
    }

    pub fn is_structured(&self) -> bool {
        self.header("content-type").is_some_and(|value| value.starts_with(STRUCTURED))
    }

    /// A context attribute's string form, in both content modes. Values are taken as they are in
    /// the headers: tests use ASCII where they compare.
    pub fn attribute(&self, name: &str) -> Option<String> {
        if !self.is_structured() {
            let header = match name {
                "datacontenttype" => "content-type".to_owned(),
                other => format!("ce-{other}"),
            };
            return self.header(&header).map(str::to_owned);
        }
        match self.envelope().get(name)? {
            Value::String(text) => Some(text.clone()),
            other => Some(other.to_string()),
        }
    }

    pub fn id(&self) -> String {
        self.attribute("id").unwrap_or_default()
    }

    /// The event's data: the body in binary mode, `data` as it is spelled or `data_base64` decoded in
    /// structured mode. A `data` string is given without its quotes.
    pub fn data(&self) -> Vec<u8> {
        if !self.is_structured() {
            return self.request.body.clone();
        }
        let envelope = self.envelope();
        match (envelope.get("data_base64"), envelope.get("data")) {
            (Some(Value::String(text)), _) => STANDARD.decode(text).unwrap_or_default(),
            (_, Some(Value::String(text))) => text.clone().into_bytes(),
            (_, Some(other)) => other.to_string().into_bytes(),
            _ => Vec::new(),
        }
    }

    fn envelope(&self) -> Value {
        serde_json::from_slice(&self.request.body).unwrap_or_default()
    }
}

/// What the script wants answered.
#[derive(Debug, Clone)]
pub struct SinkResponse {
    delay: Duration,
    reply: HandlerReply,
}

impl SinkResponse {
    pub fn status(code: u16) -> Self {
        Self { delay: Duration::ZERO, reply: HandlerReply::Send(ReceivedMessage::new(code)) }
    }

    /// A status with a body and the type of that body.
    pub fn body(code: u16, content_type: &str, body: &str) -> Self {
        let message = ReceivedMessage::new(code).header("Content-Type", content_type).body(body);
        Self { delay: Duration::ZERO, reply: HandlerReply::Send(message) }
    }

    /// A status and an event in binary mode: attributes without `ce-`, data as JSON.
    pub fn event(code: u16, attributes: &[(&str, &str)], data: &Value) -> Self {
        let mut message = ReceivedMessage::new(code).header("Content-Type", "application/json");
        for (name, value) in attributes {
            message = message.header(&format!("Ce-{name}"), value);
        }
        Self { delay: Duration::ZERO, reply: HandlerReply::Send(message.body(data.to_string())) }
    }

    /// A status and an event in structured mode.
    pub fn structured(code: u16, envelope: &Value) -> Self {
        Self::body(code, STRUCTURED, &envelope.to_string())
    }

    pub fn hang_up() -> Self {
        Self { delay: Duration::ZERO, reply: HandlerReply::HangUp }
    }

    pub fn raw(bytes: &[u8]) -> Self {
        Self { delay: Duration::ZERO, reply: HandlerReply::Raw(bytes.to_vec()) }
    }

    pub fn header(mut self, name: &str, value: &str) -> Self {
        if let HandlerReply::Send(message) = self.reply {
            self.reply = HandlerReply::Send(message.header(name, value));
        }
        self
    }

    pub fn after(mut self, delay: Duration) -> Self {
        self.delay = delay;
        self
    }
}

#[derive(Debug)]
pub struct EventSink {
    server: TestServer,
    book: Arc<SinkRecords>,
}

#[derive(Debug, Default)]
struct SinkRecords {
    pages: Mutex<SinkRecordPages>,
    arrived: Condvar,
}

#[derive(Debug, Default)]
struct SinkRecordPages {
    received: Vec<ReceivedRequest>,
    /// By source and id.
    attempts: HashMap<(String, String), u32>,
}

impl EventSink {
    /// Answers 202 to everything.
    pub fn start() -> Self {
        Self::answering(|_| SinkResponse::status(202))
    }

    /// Answers by `script`, which is asked after the request is noted.
    pub fn answering(script: impl Fn(&ReceivedRequest) -> SinkResponse + Send + 'static) -> Self {
        Self::start_at(SocketAddr::from(([127, 0, 0, 1], 0)), script)
    }

    /// As [`EventSink::answering`], at a given address.
    pub fn start_at(address: SocketAddr, script: impl Fn(&ReceivedRequest) -> SinkResponse + Send + 'static) -> Self {
        let book = Arc::new(SinkRecords::default());
        let notes = Arc::clone(&book);
        let server = TestServer::start(address, move || {
            move |request| {
                let SinkResponse { delay, reply } = script(&notes.note(request));
                async move {
                    if !delay.is_zero() {
                        monoio::time::sleep(delay).await;
                    }
                    reply
                }
            }
        });
        Self { server, book }
    }

    pub fn address(&self) -> SocketAddr {
        self.server.address()
    }

    /// The URL to subscribe with.
    pub fn url(&self) -> String {
        format!("http://{}/", self.address())
    }

    /// Connections accepted so far.
    pub fn connections(&self) -> u64 {
        self.server.connections()
    }

    /// Everything that came so far, in order.
    pub fn received(&self) -> Vec<ReceivedRequest> {
        self.book.pages.lock().unwrap().received.clone()
    }

    /// Waits until `count` requests have come, and returns all there are.
    pub fn wait_for(&self, count: usize, limit: Duration) -> Vec<ReceivedRequest> {
        match self.wait_until(limit, |received| received.len() >= count) {
            Ok(received) => received,
            Err(received) => panic!("{count} events wanted in {limit:?}, got {}", ids(&received)),
        }
    }

    /// Waits until `enough` holds; what has come is in both results.
    pub fn wait_until(
        &self,
        limit: Duration,
        enough: impl Fn(&[ReceivedRequest]) -> bool,
    ) -> Result<Vec<ReceivedRequest>, Vec<ReceivedRequest>> {
        let pages = self.book.pages.lock().unwrap();
        let waited = self.book.arrived.wait_timeout_while(pages, limit, |pages| !enough(&pages.received)).unwrap();
        let received = waited.0.received.clone();
        if waited.1.timed_out() && !enough(&received) { Err(received) } else { Ok(received) }
    }
}

impl SinkRecords {
    fn note(&self, request: HttpRequest) -> ReceivedRequest {
        let mut received = ReceivedRequest { request, attempt: 0, at: Instant::now() };
        let key = (received.attribute("source").unwrap_or_default(), received.id());
        let mut pages = self.pages.lock().unwrap();
        let attempt = pages.attempts.entry(key).or_insert(0);
        *attempt += 1;
        received.attempt = *attempt;
        pages.received.push(received.clone());
        self.arrived.notify_all();
        received
    }
}

/// What came, for messages: `3: a b b`.
fn ids(received: &[ReceivedRequest]) -> String {
    let ids: Vec<_> = received.iter().map(ReceivedRequest::id).collect();
    format!("{}: {}", ids.len(), ids.join(" "))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{HttpCall, TIMEOUT};

    fn binary(id: &str) -> HttpCall {
        HttpCall::post("/")
            .header("Ce-Specversion", "1.0")
            .header("Ce-Id", id)
            .header("Ce-Source", "/test")
            .header("Ce-Type", "t")
            .header("Content-Type", "text/plain")
            .body("data")
    }

    #[test]
    fn both_content_modes_read_the_same() {
        let sink = EventSink::start();
        binary("1").send(sink.address());
        let envelope = json!({ "specversion": "1.0", "id": "1", "source": "/test", "type": "t",
                               "datacontenttype": "text/plain", "data": "data" });
        HttpCall::post("/").header("Content-Type", STRUCTURED).body(envelope.to_string()).send(sink.address());

        let received = sink.wait_for(2, TIMEOUT);
        assert_eq!((received[0].is_structured(), received[1].is_structured()), (false, true));
        assert_eq!((received[0].attempt, received[1].attempt), (1, 2));
        for event in received {
            for (name, value) in [("id", "1"), ("type", "t"), ("datacontenttype", "text/plain")] {
                assert_eq!(event.attribute(name).as_deref(), Some(value), "{name}");
            }
            assert_eq!(event.attribute("subject"), None);
            assert_eq!(event.data(), b"data");
        }
    }

    #[test]
    fn the_script_sees_the_event_and_its_attempt() {
        let sink = EventSink::answering(|event| match (event.id().as_str(), event.attempt) {
            ("a", 1 | 2) => SinkResponse::status(503),
            ("b", _) => SinkResponse::event(200, &[("id", "c")], &json!({})),
            _ => SinkResponse::status(202),
        });
        let send = |id: &str| binary(id).send(sink.address());
        assert_eq!([send("a"), send("a"), send("a")].map(|answer| answer.status), [503, 503, 202]);
        let reply = send("b");
        assert_eq!((reply.status, reply.header("ce-id")), (200, Some("c")));
    }

    #[test]
    fn waiting_for_events_that_do_not_come_says_what_came() {
        let sink = EventSink::start();
        binary("1").send(sink.address());
        let came = sink.wait_until(Duration::from_millis(10), |received| received.len() == 2).unwrap_err();
        assert_eq!(ids(&came), "1: 1");
    }
}
