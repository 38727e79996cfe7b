//! Fetches a JSON Web Key Set: one GET over HTTP/1.1, with TLS for `https`.

use std::io;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use contract::target_policy::TargetPolicy;
use futures_util::future::join;
use http::{Request, StatusCode, Uri, header};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::crypto::ring;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, lookup_host};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use types::gateway_policies::security_policy::{JWKS_BYTES_MAX, jwks_uri};

/// From the look-up of the name to the end of the response. A server that takes longer is asked again soon.
const FETCH_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) struct JwksFetcher {
    targets: Arc<TargetPolicy>,
    tls: OnceLock<Arc<ClientConfig>>,
}

impl JwksFetcher {
    pub(super) fn new(targets: Arc<TargetPolicy>) -> Self {
        Self { targets, tls: OnceLock::new() }
    }

    pub(super) async fn fetch(&self, uri: &str, authorities: impl FnOnce() -> RootCertStore) -> Result<Value, String> {
        let uri = jwks_uri(uri)?;
        let tls = (uri.scheme_str() == Some("https")).then(|| self.tls_config(authorities)).transpose()?;
        match timeout(FETCH_TIMEOUT, self.get(&uri, tls)).await {
            Ok(body) => serde_json::from_slice(&body?).map_err(|why| format!("the response is not JSON: {why}")),
            Err(_) => Err(format!("no response in {FETCH_TIMEOUT:?}")),
        }
    }

    async fn get(&self, uri: &Uri, tls: Option<Arc<ClientConfig>>) -> Result<Bytes, String> {
        let host = uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
        let port = uri.port_u16().unwrap_or(if tls.is_some() { 443 } else { 80 });
        let stream = self.connect(host, port).await?;
        let Some(config) = tls else { return exchange(uri, stream).await };
        let name = ServerName::try_from(host.to_owned()).map_err(|_| format!("{host} is not a host name"))?;
        let stream = TlsConnector::from(config).connect(name, stream).await.map_err(|why| format!("TLS: {why}"))?;
        exchange(uri, stream).await
    }

    /// Connects to the first address that takes the connection and is a permitted target.
    async fn connect(&self, host: &str, port: u16) -> Result<TcpStream, String> {
        let addresses = lookup_host((host, port)).await.map_err(|why| format!("{host} cannot be resolved: {why}"))?;
        let mut last = io::Error::other("the name has no address");
        for address in addresses {
            let admitted = self.targets.admit_connect(address);
            match admitted.map(|()| TcpStream::connect(address)) {
                Ok(connect) => match connect.await {
                    Ok(stream) => return Ok(stream),
                    Err(why) => last = why,
                },
                Err(why) => last = why,
            }
        }
        Err(format!("no connection to {host}:{port}: {last}"))
    }

    fn tls_config(&self, authorities: impl FnOnce() -> RootCertStore) -> Result<Arc<ClientConfig>, String> {
        if let Some(config) = self.tls.get() {
            return Ok(Arc::clone(config));
        }
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
        let builder = builder.with_safe_default_protocol_versions().map_err(|why| why.to_string())?;
        let config = Arc::new(builder.with_root_certificates(authorities()).with_no_client_auth());
        Ok(Arc::clone(self.tls.get_or_init(|| config)))
    }
}

async fn exchange(uri: &Uri, stream: impl AsyncRead + AsyncWrite + Unpin) -> Result<Bytes, String> {
    let broken = |why: hyper::Error| format!("the connection broke: {why}");
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
    let authority = uri.authority().map_or("", |authority| authority.as_str());
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    let request = Request::get(path)
        .header(header::HOST, authority)
        .header(header::ACCEPT, "application/json")
        .header(header::CONNECTION, "close")
        .body(Empty::<Bytes>::new())
        .map_err(|why| why.to_string())?;
    let response = async move {
        let response = sender.send_request(request).await.map_err(broken)?;
        match response.status() {
            StatusCode::OK => {}
            status if status.is_redirection() => {
                return Err(format!("the status is {status}; redirects are not followed, so name the final URI"));
            }
            status => return Err(format!("the status is {status}")),
        }
        let body = Limited::new(response.into_body(), JWKS_BYTES_MAX).collect().await;
        let body =
            body.map_err(|why| format!("the body cannot be read, or has more than {JWKS_BYTES_MAX} bytes: {why}"));
        Ok(body?.to_bytes())
        // Drops the sender, which ends the connection.
    };
    join(response, connection).await.0
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;

    /// The result of a fetch from a server that sends `response`.
    async fn fetched(response: String) -> Result<Value, String> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let uri = format!("http://{}/keys?a=b", listener.local_addr().unwrap());
        let serve = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            let (mut request, mut byte) = (Vec::new(), [0]);
            while !request.ends_with(b"\r\n\r\n") {
                stream.read_exact(&mut byte).await.unwrap();
                request.push(byte[0]);
            }
            assert!(request.starts_with(b"GET /keys?a=b HTTP/1.1\r\n"));
            let _ = stream.write_all(response.as_bytes()).await; // the client may have had enough
        };
        let fetcher = JwksFetcher::new(Arc::default());
        join(fetcher.fetch(&uri, RootCertStore::empty), serve).await.0
    }

    #[tokio::test]
    async fn document_is_read_within_its_limit() {
        let with_body = |body: &str| format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        assert_eq!(fetched(with_body("{\"keys\":[]}")).await.unwrap(), serde_json::json!({ "keys": [] }));
        assert!(fetched(with_body("<html>")).await.unwrap_err().contains("not JSON"));
        let large = " ".repeat(JWKS_BYTES_MAX + 1);
        assert!(fetched(with_body(&large)).await.unwrap_err().contains("more than"));
        let redirect = "HTTP/1.1 302 Found\r\nLocation: http://a.test/\r\nContent-Length: 0\r\n\r\n".to_owned();
        assert!(fetched(redirect).await.unwrap_err().contains("redirects are not followed"));
        assert!(fetched("HTTP/1.1 404 Not Found\r\n\r\n".to_owned()).await.unwrap_err().contains("404"));
        assert!(fetched("x".to_owned()).await.unwrap_err().contains("connection broke"));
    }

    #[tokio::test]
    async fn metadata_service_is_not_asked() {
        let fetcher = JwksFetcher::new(Arc::default());
        let why = fetcher.fetch("http://169.254.169.254/keys", RootCertStore::empty).await.unwrap_err();
        assert!(why.contains("refused"), "{why}");
    }
}
