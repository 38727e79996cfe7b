//! Adapters that answer each request themselves: with an event, or with what the sink answered. Nothing is queued here, so the
//! sender of the request retries.

use std::rc::Rc;

use futures_util::future::LocalBoxFuture;
use serde::de::DeserializeOwned;
use tokio::net::TcpListener;

use crate::config::{self, AdapterSettings, Context, SenderSection};
use crate::error::{Error, SendError};
use crate::event::Event;
use crate::limits::RESPONSE_TIME;
use crate::run::{Signals, health};
use crate::server::{self, Handler, Request, Response};
use crate::sink::HttpSink;
use crate::sink_reply::SinkReply;
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

impl SinkClient {
    /// Sends the event with the overrides of the configuration.
    pub async fn send(&self, mut event: Event) -> Result<SinkReply, SendError> {
        for (name, value) in &self.overrides {
            event.set(name, value.as_str());
        }
        count(&self.status.counters.received, 1);
        let response = self.sink.call(&event).await;
        let is_accepted = response.as_ref().is_ok_and(SinkReply::is_success);
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
