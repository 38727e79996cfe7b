//! The HTTP client for the directory: HTTPS only, no redirects, and limits for time and size.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use anyhow::{Context as _, Result, anyhow, bail};
use bytes::Bytes;
use http::header::{HOST, HeaderValue, RETRY_AFTER};
use http::{Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt as _, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use instant_acme::{BodyWrapper, BytesResponse, Error, HttpClient};
use jiff::SignedDuration;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::limits::{REQUEST_TIMEOUT, RESPONSE_BYTES_MAX};

/// A connection for each request: an order takes about fifteen, within weeks.
#[derive(Clone)]
pub(super) struct DirectoryClient {
    tls: TlsConnector,
    rate_limit: RateLimitNotice,
}

/// Whether the directory has refused a request for now, and for how long.
#[derive(Debug, Clone, Default)]
pub(super) struct RateLimitNotice(Arc<Mutex<Option<Option<SignedDuration>>>>);

impl RateLimitNotice {
    /// Takes the notice of the last 429 or 503: its `Retry-After`, if it had one.
    pub(super) fn take(&self) -> Option<Option<SignedDuration>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn read(&self, response: &http::response::Parts) {
        if matches!(response.status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) {
            let value = response.headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok());
            let wait = value.and_then(|text| parse_retry_after(text, SystemTime::now()));
            *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(wait);
        }
    }
}

/// Seconds, or a date.
fn parse_retry_after(text: &str, now: SystemTime) -> Option<SignedDuration> {
    if let Ok(seconds) = text.trim().parse::<u32>() {
        return Some(SignedDuration::from_secs(seconds.into()));
    }
    let date = httpdate::parse_http_date(text.trim()).ok()?;
    SignedDuration::try_from(date.duration_since(now).unwrap_or_default()).ok()
}

impl DirectoryClient {
    /// Trusts the CAs in `ca` (PEM), or those of the system.
    pub(super) fn new(ca: Option<&[u8]>) -> Result<Self> {
        let mut roots = RootCertStore::empty();
        match ca {
            Some(pem) => {
                for certificate in CertificateDer::pem_slice_iter(pem) {
                    roots.add(certificate.context("the certificates are not valid PEM")?)?;
                }
            }
            None => drop(roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs)),
        }
        if roots.is_empty() {
            bail!("no certificate of a CA was found; install ca-certificates, or give --acme-ca");
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Self { tls: TlsConnector::from(Arc::new(config)), rate_limit: RateLimitNotice::default() })
    }

    pub(super) fn rate_limit(&self) -> RateLimitNotice {
        self.rate_limit.clone()
    }
}

impl HttpClient for DirectoryClient {
    fn request(
        &self,
        request: Request<BodyWrapper<Bytes>>,
    ) -> Pin<Box<dyn Future<Output = Result<BytesResponse, Error>> + Send>> {
        let client = self.clone();
        Box::pin(async move {
            let url = request.uri().clone();
            let sent = timeout(REQUEST_TIMEOUT, send(&client.tls, request)).await;
            let sent = sent.unwrap_or_else(|_| Err(anyhow!("no complete response within {REQUEST_TIMEOUT:?}")));
            let response = sent.map_err(|why| Error::Other(format!("{url}: {why:#}").into()))?;
            let (parts, body) = response.into_parts();
            client.rate_limit.read(&parts);
            Ok(BytesResponse { parts, body: Box::new(body) })
        })
    }
}

async fn send(tls: &TlsConnector, mut request: Request<BodyWrapper<Bytes>>) -> Result<Response<Bytes>> {
    let url = request.uri().clone();
    if url.scheme_str() != Some("https") {
        bail!("the directory names a URL that is not https://");
    }
    let authority = url.authority().context("the URL has no host")?;
    let (host, port) = (authority.host().trim_matches(['[', ']']), authority.port_u16().unwrap_or(443));
    request.headers_mut().insert(HOST, HeaderValue::from_str(authority.as_str())?);
    let path = url.path_and_query().map_or("/", |path| path.as_str());
    *request.uri_mut() = path.parse::<Uri>()?;

    let name = ServerName::try_from(host.to_owned()).context("the URL's host is not a valid name")?;
    let stream = TcpStream::connect((host, port)).await.context("connect")?;
    let stream = tls.connect(name, stream).await.context("TLS handshake")?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.context("HTTP")?;
    let exchange = async {
        let response = sender.send_request(request).await.context("request")?;
        let (parts, body) = response.into_parts();
        let large = |why| anyhow!("read a response of at most {RESPONSE_BYTES_MAX} bytes: {why}");
        let body = Limited::new(body, RESPONSE_BYTES_MAX).collect().await.map_err(large)?;
        Ok(Response::from_parts(parts, body.to_bytes()))
    };
    tokio::pin!(exchange);
    tokio::select! {
        biased;
        response = &mut exchange => response,
        ended = connection => {
            ended.context("connection")?;
            exchange.await // the response may be complete
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn retry_after_is_seconds_or_a_date() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_717);
        for (text, seconds) in [
            ("120", Some(120)),
            (" 7 ", Some(7)),
            ("Sun, 06 Nov 1994 08:49:37 GMT", Some(60)),
            ("Sun, 06 Nov 1994 08:00:00 GMT", Some(0)),
            ("99999999999999999999", None),
            ("-1", None),
            ("soon", None),
        ] {
            assert_eq!(parse_retry_after(text, now).map(|wait| wait.as_secs()), seconds, "{text}");
        }
    }

    #[test]
    fn trust_needs_a_certificate() {
        assert!(DirectoryClient::new(Some(b"no PEM")).is_err());
        let made = rcgen::generate_simple_self_signed(["a".to_owned()]).unwrap();
        assert!(DirectoryClient::new(Some(made.cert.pem().as_bytes())).is_ok());
    }
}
