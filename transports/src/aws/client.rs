//! A client of one service at one endpoint.

use std::cell::RefCell;
use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use adapter::Error;
use adapter::tls::Tls;
use bytes::Bytes;
use http::{HeaderMap, Method};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;

use super::credentials::{CredentialCache, CredentialFiles};
use super::signature::{SignatureScope, SignedParts, authorization, percent_encode, sha256_hex};

/// TCP and TLS take at most this long.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// A request takes at most this long: more than the longest wait of SQS for a message (20 s).
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);
/// Bytes of a response. Objects over it are not fetched; other responses are smaller.
pub(crate) const RESPONSE_BYTES_MAX: usize = 16 << 20;
/// Idle connections that are kept.
const IDLE_CONNECTIONS_MAX: usize = 16;

/// Where a service is reached.
#[derive(Debug, Clone)]
pub(crate) struct AwsEndpoint {
    pub(crate) service: &'static str,
    pub(crate) region: String,
    /// `https://HOST[:PORT]`, without a path.
    pub(crate) url: String,
    pub(crate) tls: Option<Tls>,
}

pub(crate) struct AwsRequest {
    pub(crate) method: Method,
    /// Encoded; begins with `/`.
    pub(crate) path: String,
    pub(crate) query: Vec<(&'static str, String)>,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Bytes,
}

pub(crate) struct AwsResponse {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl AwsResponse {
    pub(crate) fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }
}

type Connection = SendRequest<Full<Bytes>>;

pub(crate) struct AwsClient {
    endpoint: AwsEndpoint,
    is_tls: bool,
    host: String,
    port: u16,
    authority: String,
    credentials: CredentialCache,
    idle: RefCell<Vec<Connection>>,
}

impl AwsClient {
    pub(crate) fn new(endpoint: AwsEndpoint, credentials: CredentialFiles) -> Result<AwsClient, Error> {
        if endpoint.url.contains('@') {
            // The URL is not part of the error, because it may have a password.
            return Err(Error::config("uriEndpointOverride: the URL has a user; give credentials as files"));
        }
        let wrong =
            || Error::config(format!("uriEndpointOverride: {:?} is no URL such as https://HOST[:PORT]", endpoint.url));
        let uri: http::Uri = endpoint.url.parse().map_err(|_| wrong())?;
        let host = uri.host().ok_or_else(wrong)?.to_owned();
        let is_tls = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err(wrong()),
        };
        // A path would not be sent.
        if !matches!(uri.path_and_query().map(http::uri::PathAndQuery::as_str), None | Some("" | "/")) {
            return Err(wrong());
        }
        let authority = uri.port().map_or_else(|| host.clone(), |port| format!("{host}:{port}"));
        // A port that is no number of 16 bits is dropped by the parser, and another would be used.
        if uri.authority().is_none_or(|whole| whole.as_str() != authority) {
            return Err(wrong());
        }
        let port = uri.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
        let host = host.trim_matches(['[', ']']).to_owned();
        let credentials = CredentialCache::new(credentials);
        Ok(AwsClient { endpoint, is_tls, host, port, authority, credentials, idle: RefCell::default() })
    }

    /// Signs and sends. Any status is a response; an error is a failure of the connection or of a secret.
    pub(crate) async fn send(&self, request: AwsRequest) -> Result<AwsResponse, Error> {
        let request = self.sign(request)?;
        let response = tokio::time::timeout(REQUEST_TIMEOUT, self.exchange(request)).await;
        let response = response.unwrap_or_else(|_| Err(self.failed("no response in time")))?;
        if matches!(response.status, 400 | 401 | 403) {
            self.credentials.forget();
        }
        Ok(response)
    }

    fn sign(&self, request: AwsRequest) -> Result<http::Request<Full<Bytes>>, Error> {
        let credentials = self.credentials.get()?;
        let time = jiff::Timestamp::now().strftime("%Y%m%dT%H%M%SZ").to_string();
        let payload_hash = sha256_hex(&request.body);
        let mut headers = request.headers;
        headers.push(("host".to_owned(), self.authority.clone()));
        headers.push(("x-amz-content-sha256".to_owned(), payload_hash.clone()));
        headers.push(("x-amz-date".to_owned(), time.clone()));
        if let Some(token) = &credentials.session_token {
            headers.push(("x-amz-security-token".to_owned(), token.clone()));
        }
        headers.sort();
        let mut query: Vec<(String, String)> = request
            .query
            .iter()
            .map(|(name, value)| (percent_encode(name, false), percent_encode(value, false)))
            .collect();
        query.sort();
        let query: Vec<String> = query.into_iter().map(|(name, value)| format!("{name}={value}")).collect();
        let query = query.join("&");
        let parts = SignedParts {
            method: request.method.as_str(),
            path: &request.path,
            query: &query,
            headers: &headers,
            payload_hash: &payload_hash,
        };
        let scope = SignatureScope { time: &time, region: &self.endpoint.region, service: self.endpoint.service };
        let authorization = authorization(&parts, &scope, &credentials);
        let target = if query.is_empty() { request.path } else { format!("{}?{query}", request.path) };
        let mut signed = http::Request::builder().method(request.method).uri(target);
        for (name, value) in headers {
            signed = signed.header(name, value);
        }
        let signed = signed.header("authorization", authorization).body(Full::new(request.body));
        // The text of the error names no header value.
        signed.map_err(|error| self.failed(format!("request cannot be written: {error}")))
    }

    /// An idle connection may have been closed by the service in this moment: then the request is sent again on a new one.
    async fn exchange(&self, request: http::Request<Full<Bytes>>) -> Result<AwsResponse, Error> {
        let reused = self.idle.borrow_mut().pop();
        if let Some(mut connection) = reused
            && connection.ready().await.is_ok()
            && let Ok(response) = connection.send_request(request.clone()).await
        {
            return self.read(connection, response).await;
        }
        let mut connection = self.connect().await?;
        let response = connection.send_request(request).await.map_err(|error| self.failed(error))?;
        self.read(connection, response).await
    }

    async fn read(
        &self,
        connection: Connection,
        response: http::Response<hyper::body::Incoming>,
    ) -> Result<AwsResponse, Error> {
        let (head, body) = response.into_parts();
        let body = Limited::new(body, RESPONSE_BYTES_MAX).collect().await.map_err(|error| self.failed(error))?;
        if self.idle.borrow().len() < IDLE_CONNECTIONS_MAX {
            self.idle.borrow_mut().push(connection);
        }
        Ok(AwsResponse { status: head.status.as_u16(), headers: head.headers, body: body.to_bytes() })
    }

    async fn connect(&self) -> Result<Connection, Error> {
        let connect = TcpStream::connect((self.host.as_str(), self.port));
        let stream = tokio::time::timeout(CONNECT_TIMEOUT, connect).await.map_err(|_| self.failed("timeout"))?;
        let stream = stream.map_err(|error| self.failed(error))?;
        let _ = stream.set_nodelay(true);
        if !self.is_tls {
            return self.start(stream).await;
        }
        let tls = self.endpoint.tls.clone().unwrap_or_default().client()?;
        let name = ServerName::try_from(self.host.clone()).map_err(|error| self.failed(error))?;
        let handshake = tokio_rustls::TlsConnector::from(Arc::clone(&tls)).connect(name, stream);
        let stream = tokio::time::timeout(CONNECT_TIMEOUT, handshake).await.map_err(|_| self.failed("timeout"))?;
        self.start(stream.map_err(|error| self.failed(error))?).await
    }

    async fn start<I>(&self, stream: I) -> Result<Connection, Error>
    where
        I: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + 'static,
    {
        let (sender, connection) = handshake(TokioIo::new(stream)).await.map_err(|error| self.failed(error))?;
        tokio::task::spawn_local(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "connection to the service ended");
            }
        });
        Ok(sender)
    }

    fn failed(&self, error: impl Display) -> Error {
        Error::connection(format!("{} at {}: {error}", self.endpoint.service.to_uppercase(), self.authority))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoint_with_a_user_or_a_path_is_refused() {
        let client = |url: &str| {
            let endpoint =
                AwsEndpoint { service: "s3", region: "us-east-1".to_owned(), url: url.to_owned(), tls: None };
            AwsClient::new(endpoint, CredentialFiles::default()).map(drop)
        };
        for url in ["http://127.0.0.1:9000", "https://s3.example.com/", "http://[::1]:9000"] {
            client(url).unwrap();
        }
        for url in ["", "s3.example.com", "ftp://h", "http://h/path", "http://h?x=1", "http://h:99999", "http://\u{0}"]
        {
            assert!(client(url).is_err(), "{url:?}");
        }
        for url in ["https://user:s3cret@h", "https://user:s3 cret@h", "user:s3cret@h"] {
            let error = client(url).unwrap_err();
            assert!(error.message.contains("credentials as files") && !error.message.contains("s3"), "{error}");
        }
    }
}
