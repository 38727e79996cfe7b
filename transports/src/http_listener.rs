//! HTTP and HTTPS listeners for CloudEvents and webhooks. The client gets the answer of the sink.

use std::path::PathBuf;
use std::rc::Rc;

use adapter::server::{Handler, PendingResponse, Request, Response, Submissions, Submitter, serve, submissions};
use adapter::tls::Tls;
use adapter::{Context, Error, Event, Intake, from_http};
use serde::Deserialize;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::hmac::{Hmac, verify};

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Config {
    service_ports: Vec<ServicePort>,
    /// Directory with `tls.crt` and `tls.key`, for ports named `https`.
    secret: Option<PathBuf>,
    /// The address to listen on.
    #[serde(default = "loopback")]
    host: String,
    hmac: Option<Hmac>,
    /// Makes events of requests that are not CloudEvents. Without it, such requests get 400.
    plain: Option<Plain>,
}

fn loopback() -> String {
    "127.0.0.1".to_owned()
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ServicePort {
    name: String,
    port: u16,
    /// The port that is listened on, if it is another one.
    target_port: Option<u16>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Plain {
    r#type: String,
    source: String,
    /// The header that holds the id of a delivery; else each request gets a new id.
    id_header: Option<String>,
    /// The header whose value is appended to `type`, after a dot.
    type_header: Option<String>,
}

pub(crate) struct HttpReceiver {
    config: Rc<Config>,
    submitter: Submitter,
    submissions: Submissions,
}

impl adapter::Receiver for HttpReceiver {
    type Config = Config;
    type Token = PendingResponse;
    const RELAYS: bool = true;

    fn new(config: Config, _: &Context) -> Result<Self, Error> {
        if config.service_ports.is_empty() {
            return Err(Error::config("ADAPTER_RECEIVER: servicePorts: at least one port is needed"));
        }
        let (submitter, submissions) = submissions();
        Ok(HttpReceiver { config: Rc::new(config), submitter, submissions })
    }

    async fn receive(&mut self, intake: &mut Intake<PendingResponse>) -> Result<(), Error> {
        let mut listeners = JoinSet::new();
        for port in &self.config.service_ports {
            let tls = match port.name.as_str() {
                "https" => Some(Tls { secret: self.config.secret.clone(), ..Tls::default() }.server()?),
                _ => None,
            };
            let address = (self.config.host.as_str(), port.target_port.unwrap_or(port.port));
            let listener = TcpListener::bind(address).await;
            let listener = listener
                .map_err(|error| Error::connection(format!("listen on {}:{}: {error}", address.0, address.1)))?;
            if let Ok(address) = listener.local_addr() {
                tracing::info!(name = port.name, port = address.port(), "listener is open");
            }
            let (config, submitter) = (Rc::clone(&self.config), self.submitter.clone());
            let handler: Handler = Rc::new(move |request| {
                let (config, submitter) = (Rc::clone(&config), submitter.clone());
                Box::pin(async move { answer(request, &config, &submitter).await })
            });
            listeners.spawn_local(serve(listener, tls, handler));
        }
        let relayed = self.submissions.relay(intake).await;
        // Then the ports are free for the next configuration.
        listeners.shutdown().await;
        relayed
    }
}

async fn answer(request: Request, config: &Config, submitter: &Submitter) -> Response {
    if request.method != http::Method::POST {
        return Response::new(405, "use POST");
    }
    if let Some(hmac) = &config.hmac
        && let Err(refusal) = verify(&request, hmac)
    {
        return refusal;
    }
    match events(request, config.plain.as_ref()) {
        Ok(events) => submitter.submit(events).await,
        Err(error) => Response::new(400, error),
    }
}

fn events(request: Request, plain: Option<&Plain>) -> Result<Vec<Event>, String> {
    let header = |name: &str| request.headers.get(name).and_then(|value| value.to_str().ok());
    let is_event = request.headers.contains_key("ce-specversion")
        || header("content-type")
            .is_some_and(|value| value.to_ascii_lowercase().starts_with("application/cloudevents"));
    let Some(plain) = plain.filter(|_| !is_event) else { return from_http(&request.headers, request.body) };
    let id =
        plain.id_header.as_deref().and_then(header).map_or_else(|| uuid::Uuid::new_v4().to_string(), str::to_owned);
    let kind = match plain.type_header.as_deref().and_then(header) {
        Some(suffix) => format!("{}.{suffix}", plain.r#type),
        None => plain.r#type.clone(),
    };
    let content_type = header("content-type").unwrap_or("application/octet-stream");
    Ok(vec![Event::new(kind, plain.source.as_str(), id).with_data(content_type, request.body.clone())])
}
