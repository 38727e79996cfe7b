//! An adapter with a receiver and a sender: environment, health listener, sessions, signals.

use std::net::SocketAddr;
use std::rc::Rc;

use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use crate::binding::from_http;
use crate::config::{self, AdapterSettings, SenderSection};
use crate::delivery::{AnySender, Delivery, SinkPolicy};
use crate::error::Error;
use crate::limits::SETTLE_TIMEOUT;
use crate::parked::ParkingFile;
use crate::response::Backoff;
use crate::server::{self, Handler, Request, Response, Submissions, Submitter, submissions};
use crate::session::{self, AnyReceiver, Connects, Foreign, Requests};
use crate::sink::HttpSink;
use crate::status::{AdapterStatus, count};
use crate::traits::{Receiver, Sender};

fn read_settings() -> Result<AdapterSettings, Error> {
    config::read(&|name| std::env::var(name).ok())
}

/// A configuration that is ready to run.
struct PreparedAdapter<R> {
    receiver: Option<R>,
    sender: Rc<dyn AnySender>,
    connects: Rc<dyn Connects>,
    policy: SinkPolicy,
}

fn prepare<R: Receiver, S: Sender>(
    settings: &AdapterSettings,
    status: &Rc<AdapterStatus>,
) -> Result<PreparedAdapter<R>, Error> {
    let context = &settings.context;
    let receiver = settings.receiver.as_ref().map(|section| R::new(section.parse()?, context)).transpose()?;
    let best = receiver.as_ref().map_or(2, Receiver::qos_max);
    let qos = context.qos.unwrap_or(best.min(1));
    if qos > best {
        return Err(Error::config(format!("qos: {qos} is refused, because this transport allows at most {best} here")));
    }
    let mut policy = SinkPolicy {
        retry: None,
        backoff: Backoff::default(),
        dead_letter: None,
        parking: context.state.as_deref().map(ParkingFile::new),
        keeps_rejected: receiver.as_ref().is_some_and(Receiver::keeps_rejected),
        relays: receiver.is_none() || R::RELAYS,
        qos,
        overrides: settings.overrides.clone(),
    };
    let (sender, connects): (Rc<dyn AnySender>, Rc<dyn Connects>) = match &settings.sender {
        SenderSection::Http(config) => {
            policy.retry = config.delivery.retry;
            policy.backoff = config.backoff()?;
            let dead_letter = config.dead_letter();
            policy.dead_letter =
                dead_letter.map(|config| HttpSink::new_with_status(&config, Rc::clone(status))).transpose()?;
            let sink = Rc::new(HttpSink::new_with_status(config, Rc::clone(status))?);
            (sink.clone(), sink)
        }
        SenderSection::Absent => return Err(Error::config("no sink")), // read_settings has checked it
        SenderSection::Transport(section) => {
            let sender = Rc::new(S::new(section.parse()?, context)?);
            (sender.clone(), sender)
        }
    };
    status.set_qos(qos);
    Ok(PreparedAdapter { receiver, sender, connects, policy })
}

pub(crate) async fn run<R: Receiver, S: Sender>() -> Result<(), Error> {
    let mut signals = Signals::new()?;
    let settings = read_settings()?;
    let status = Rc::new(AdapterStatus::new(settings.context.qos.unwrap_or(1)));
    let (submitter, mut submissions) = submissions();
    let takes_events = settings.receiver.is_none();
    let port = settings.port.or(takes_events.then_some(8080));
    if let Some(port) = port {
        listen((settings.listen, port).into(), &status, takes_events.then_some(submitter)).await?;
    }
    let reload = || read_settings().and_then(|settings| prepare::<R, S>(&settings, &status));
    let mut prepared = Some(prepare::<R, S>(&settings, &status)?);
    while let Some(current) = prepared.take() {
        prepared = serve(current, &mut submissions, &status, &mut signals, &reload).await?;
    }
    Ok(())
}

pub(crate) struct Signals {
    pub(crate) terminate: Signal,
    pub(crate) interrupt: Signal,
    pub(crate) hangup: Signal,
}

impl Signals {
    pub(crate) fn new() -> Result<Signals, Error> {
        let failed = |error: std::io::Error| Error::config(format!("wait for signals: {error}"));
        Ok(Signals {
            terminate: signal(SignalKind::terminate()).map_err(failed)?,
            interrupt: signal(SignalKind::interrupt()).map_err(failed)?,
            hangup: signal(SignalKind::hangup()).map_err(failed)?,
        })
    }
}

/// Runs one configuration. Returns the next one after SIGHUP, `None` once the adapter is done.
async fn serve<R: Receiver>(
    prepared: PreparedAdapter<R>,
    submissions: &mut Submissions,
    status: &Rc<AdapterStatus>,
    signals: &mut Signals,
    reload: &dyn Fn() -> Result<PreparedAdapter<R>, Error>,
) -> Result<Option<PreparedAdapter<R>>, Error> {
    let (stop, stopped) = watch::channel(false);
    let PreparedAdapter { receiver, sender, connects, policy } = prepared;
    let delivery = Rc::new(Delivery { sender, policy, status: Rc::clone(status), stop: stopped });
    let mut receiver: Box<dyn AnyReceiver + '_> = match receiver {
        Some(receiver) => Box::new(Foreign(receiver)),
        None => Box::new(Requests(submissions)),
    };
    let mut session = std::pin::pin!(session::run(receiver.as_mut(), connects.as_ref(), delivery));
    let mut next = None;
    let mut deadline = None;
    loop {
        tokio::select! {
            result = session.as_mut() => return result.map(|()| next),
            _ = signals.terminate.recv() => next = None,
            _ = signals.interrupt.recv() => next = None,
            _ = signals.hangup.recv(), if deadline.is_none() => match reload() {
                Ok(prepared) => {
                    status.set_configuration(None);
                    next = Some(prepared);
                }
                Err(error) => {
                    count(&status.counters.reloads_failed, 1);
                    status.set_configuration(Some(&error.message));
                    tracing::error!(error = %error.message, "the changed configuration is invalid; the adapter continues with the old one");
                    continue;
                }
            },
            () = sleep_until(deadline.unwrap_or_else(Instant::now)), if deadline.is_some() => {
                tracing::warn!("events in flight were not settled in time; the foreign system delivers them again");
                return Ok(next);
            }
        }
        tracing::info!(reload = next.is_some(), "adapter stops receiving and settles events in flight");
        deadline.get_or_insert(Instant::now() + SETTLE_TIMEOUT);
        // The session holds the other end.
        let _ = stop.send(true);
    }
}

/// Health, metrics and, if events come as requests, the events.
async fn listen(address: SocketAddr, status: &Rc<AdapterStatus>, submitter: Option<Submitter>) -> Result<(), Error> {
    let listener = TcpListener::bind(address)
        .await
        .map_err(|error| Error::config(format!("PORT: listen on {address}: {error}")))?;
    if let Ok(address) = listener.local_addr() {
        tracing::info!(port = address.port(), "health listener is open");
    }
    let status = Rc::clone(status);
    let handler: Handler = Rc::new(move |request| {
        let (status, submitter) = (Rc::clone(&status), submitter.clone());
        Box::pin(async move { answer(request, &status, submitter).await })
    });
    tokio::task::spawn_local(server::serve(listener, None, handler));
    Ok(())
}

/// The response to a health check, if the request is one.
pub(crate) fn health(request: &Request, status: &AdapterStatus) -> Option<Response> {
    match (request.method.as_str(), request.path.as_str()) {
        ("GET", "/healthz") => Some(Response::new(200, "ok")),
        ("GET", "/readyz") => {
            let code = if status.is_ready() { 200 } else { 503 };
            Some(Response { content_type: "application/json", ..Response::new(code, status.to_json()) })
        }
        ("GET", "/metrics") => {
            Some(Response { content_type: "text/plain; version=0.0.4", ..Response::new(200, status.to_metrics()) })
        }
        _ => None,
    }
}

async fn answer(request: Request, status: &AdapterStatus, submitter: Option<Submitter>) -> Response {
    if let Some(response) = health(&request, status) {
        return response;
    }
    match (request.method.as_str(), request.path.as_str(), submitter) {
        ("POST", _, Some(submitter)) => match from_http(&request.headers, request.body) {
            Ok(events) => submitter.submit(events).await,
            Err(error) => Response::new(400, error),
        },
        (_, _, None) => Response::new(404, "use GET /healthz, /readyz or /metrics"),
        _ => Response::new(405, "use POST with a CloudEvent"),
    }
}
