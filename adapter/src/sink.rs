//! The sink over HTTP: binary or structured events, or batches that are accepted as a whole.

use std::cell::RefCell;
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;

use crate::binding::{Headers, MessageMode, to_batched, to_binary, to_structured};
use crate::error::{Error, SendError};
use crate::event::Event;
use crate::limits::{
    BATCH_EVENTS_MAX, BODY_BYTES_MAX, CONNECT_TIMEOUT, IDLE_CONNECTIONS_MAX, RESPONSE_BYTES_MAX, SINK_TIMEOUT,
    TOKEN_AGE_MAX,
};
use crate::response::{retry_after, verdict};
use crate::secret::SecretFile;
use crate::sink_config::{SinkConfig, duration};
use crate::sink_reply::SinkReply;
use crate::status::AdapterStatus;
use crate::tls::client_config;
use crate::traits::Sender;

struct Address {
    tls: Option<Arc<rustls::ClientConfig>>,
    host: String,
    port: u16,
    authority: String,
    path: String,
}

pub(crate) struct HttpSink {
    address: Address,
    mode: MessageMode,
    batch: bool,
    timeout: Duration,
    token: Option<SecretFile>,
    token_value: RefCell<Option<(Instant, String)>>,
    idle: RefCell<Vec<SendRequest<Full<Bytes>>>>,
    status: Rc<AdapterStatus>,
}

impl HttpSink {
    pub(crate) fn new_with_status(config: &SinkConfig, status: Rc<AdapterStatus>) -> Result<HttpSink, Error> {
        Ok(HttpSink {
            address: Address::parse(config)?,
            mode: config.mode,
            batch: config.batch,
            timeout: duration("delivery.timeout", config.delivery.timeout.as_deref())?.unwrap_or(SINK_TIMEOUT),
            token: config.token.clone(),
            token_value: RefCell::new(None),
            idle: RefCell::default(),
            status,
        })
    }

    fn token(&self) -> Result<Option<String>, SendError> {
        let Some(file) = &self.token else { return Ok(None) };
        let mut cached = self.token_value.borrow_mut();
        if let Some((read, token)) = &*cached
            && read.elapsed() < TOKEN_AGE_MAX
        {
            return Ok(Some(token.clone()));
        }
        let token = file.read().map_err(|error| SendError::Refused { status: None, message: error.message })?;
        *cached = Some((Instant::now(), token.clone()));
        Ok(Some(token))
    }

    fn request(
        &self,
        headers: Headers,
        body: Bytes,
        traceparent: String,
    ) -> Result<http::Request<Full<Bytes>>, SendError> {
        let mut request =
            http::Request::post(self.address.path.as_str()).header("host", self.address.authority.as_str());
        for (name, value) in headers {
            request = request.header(name, value);
        }
        request = request.header("traceparent", traceparent);
        if let Some(token) = self.token()? {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        request
            .body(Full::new(body))
            .map_err(|error| SendError::rejected(format!("event does not fit into headers: {error}")))
    }

    async fn post(&self, headers: Headers, body: Bytes, traceparent: String) -> Result<(), SendError> {
        let request = self.request(headers, body, traceparent)?;
        let exchange = async {
            let (connection, response) = self.exchange(request).await?;
            self.answer(connection, response).await
        };
        self.within_timeout(exchange).await
    }

    /// Sends an event in structured mode, and returns the response whatever its status is.
    pub(crate) async fn call(&self, event: &Event) -> Result<SinkReply, SendError> {
        let (headers, body) = to_structured(event);
        let request = self.request(headers, body, crate::child_of(event))?;
        let exchange = async {
            let (connection, response) = self.exchange(request).await?;
            let (head, body) = response.into_parts();
            self.note_status(head.status.as_u16());
            let body = Limited::new(body, BODY_BYTES_MAX).collect().await;
            let failed = |error| SendError::unavailable(format!("response of sink {}: {error}", self.name()));
            let body = body.map_err(failed)?.to_bytes();
            self.keep(connection);
            Ok(SinkReply { status: head.status.as_u16(), headers: head.headers, body })
        };
        self.within_timeout(exchange).await
    }

    async fn within_timeout<T>(&self, exchange: impl Future<Output = Result<T, SendError>>) -> Result<T, SendError> {
        tokio::time::timeout(self.timeout, exchange).await.unwrap_or_else(|_| {
            Err(SendError::unavailable(format!("sink {} did not answer within {:?}", self.name(), self.timeout)))
        })
    }

    /// An idle connection may have been closed by the sink in this moment: then the request is sent again on a new one.
    async fn exchange(
        &self,
        request: http::Request<Full<Bytes>>,
    ) -> Result<(SendRequest<Full<Bytes>>, http::Response<hyper::body::Incoming>), SendError> {
        let reused = self.idle.borrow_mut().pop();
        if let Some(mut connection) = reused
            && connection.ready().await.is_ok()
            && let Ok(response) = connection.send_request(request.clone()).await
        {
            return Ok((connection, response));
        }
        let failed = |error: hyper::Error| SendError::unavailable(format!("sink {}: {error}", self.name()));
        let mut connection = self.connect_now().await?;
        let response = connection.send_request(request).await.map_err(failed)?;
        Ok((connection, response))
    }

    async fn answer(
        &self,
        connection: SendRequest<Full<Bytes>>,
        response: http::Response<hyper::body::Incoming>,
    ) -> Result<(), SendError> {
        let status = response.status().as_u16();
        self.note_status(status);
        let pause = response.headers().get("retry-after").and_then(|value| value.to_str().ok());
        let pause = pause.and_then(|value| retry_after(value, SystemTime::now()));
        let body = Limited::new(response.into_body(), RESPONSE_BYTES_MAX).collect().await;
        let mut text = String::new();
        if let Ok(body) = body {
            self.keep(connection);
            if status >= 300 {
                text = String::from_utf8_lossy(&body.to_bytes()).chars().take(200).collect();
            }
        }
        verdict(status, pause, format!("sink {} answered {status} {}", self.name(), text.trim()).trim_end().to_owned())
    }

    fn note_status(&self, status: u16) {
        self.status.count_response(status);
        if status == 401 {
            self.token_value.borrow_mut().take();
        }
    }

    fn keep(&self, connection: SendRequest<Full<Bytes>>) {
        if self.idle.borrow().len() < IDLE_CONNECTIONS_MAX {
            self.idle.borrow_mut().push(connection);
        }
    }

    async fn connect_now(&self) -> Result<SendRequest<Full<Bytes>>, SendError> {
        let address = &self.address;
        let failed =
            |error: &dyn std::fmt::Display| SendError::unavailable(format!("connect to sink {}: {error}", self.name()));
        let connect = TcpStream::connect((address.host.as_str(), address.port));
        let stream = tokio::time::timeout(CONNECT_TIMEOUT, connect)
            .await
            .map_err(|_| failed(&"timeout"))?
            .map_err(|error| failed(&error))?;
        let _ = stream.set_nodelay(true);
        let Some(tls) = &address.tls else { return self.start(stream).await };
        let name = ServerName::try_from(address.host.clone()).map_err(|error| failed(&error))?;
        let connector = tokio_rustls::TlsConnector::from(Arc::clone(tls));
        let handshake = tokio::time::timeout(CONNECT_TIMEOUT, connector.connect(name, stream)).await;
        self.start(handshake.map_err(|_| failed(&"timeout"))?.map_err(|error| failed(&error))?).await
    }

    async fn start<I>(&self, stream: I) -> Result<SendRequest<Full<Bytes>>, SendError>
    where
        I: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + 'static,
    {
        let made = handshake(TokioIo::new(stream)).await;
        let (sender, connection) =
            made.map_err(|error| SendError::unavailable(format!("sink {}: {error}", self.name())))?;
        tokio::task::spawn_local(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "connection to the sink ended");
            }
        });
        Ok(sender)
    }

    /// Without path and query, which may hold credentials.
    fn name(&self) -> &str {
        &self.address.authority
    }
}

impl Address {
    fn parse(config: &SinkConfig) -> Result<Address, Error> {
        let wrong = |why: &str| Error::config(format!("sinkUri: {why}; give a URL such as http://HOST[:PORT]/PATH"));
        let uri: http::Uri = config.sink_uri.parse().map_err(|_| wrong("the text is not a URL"))?;
        let host = uri.host().ok_or_else(|| wrong("the URL has no host"))?;
        let https = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err(wrong("the scheme is neither http nor https")),
        };
        let port = uri.port_u16().unwrap_or(if https { 443 } else { 80 });
        Ok(Address {
            tls: https.then(|| tls(config)).transpose()?,
            host: host.trim_matches(['[', ']']).to_owned(),
            port,
            authority: uri.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}")),
            path: uri.path_and_query().map_or("/", |path| path.as_str()).to_owned(),
        })
    }
}

fn tls(config: &SinkConfig) -> Result<Arc<rustls::ClientConfig>, Error> {
    let ca = match &config.ca_certs {
        Some(pem) if pem.contains("-----BEGIN") => Some(pem.clone().into_bytes()),
        Some(path) => Some(SecretFile::new(std::path::PathBuf::from(path)).read_bytes()?),
        None => None,
    };
    let identity = match (&config.cert, &config.key) {
        (Some(cert), Some(key)) => Some((cert.read_bytes()?, key.read_bytes()?)),
        _ => None,
    };
    client_config(ca.as_deref(), identity)
}

impl Sender for HttpSink {
    type Config = SinkConfig;

    fn new(config: SinkConfig, context: &crate::Context) -> Result<Self, Error> {
        HttpSink::new_with_status(&config, Rc::new(AdapterStatus::new(context.qos.unwrap_or(1))))
    }

    async fn connect(&self) -> Result<(), Error> {
        Ok(())
    }

    async fn send(&self, event: &Event) -> Result<(), SendError> {
        let (headers, body) = match self.mode {
            MessageMode::Binary => to_binary(event),
            MessageMode::Structured => to_structured(event),
        };
        self.post(headers, body, crate::child_of(event)).await
    }

    fn batch_max(&self) -> usize {
        if self.batch { BATCH_EVENTS_MAX } else { 1 }
    }

    async fn send_batch(&self, events: &[&Event]) -> Result<(), SendError> {
        if events.iter().any(|event| event.opaque.is_some()) {
            for event in events {
                self.send(event).await?;
            }
            return Ok(());
        }
        let (headers, body) = to_batched(events);
        let trace = events.first().map(|event| crate::child_of(event)).unwrap_or_default();
        self.post(headers, body, trace).await
    }
}
