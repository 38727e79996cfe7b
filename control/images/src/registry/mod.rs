//! Client of the registries' API (OCI distribution, Docker registry v2).

mod challenge;
mod download;
mod loopback;
mod proxy;
mod retry;
mod session;
mod settings;
mod tls;
mod token;
mod transport;

use std::fs::File;
use std::path::Path;

use bytes::Bytes;
use http::Method;
use http::header::{CONTENT_TYPE, HeaderMap};

use crate::credentials::Credentials;
use crate::digest::Digest;
use crate::error::Error;
use crate::limits::MANIFEST_BYTES_MAX;
use crate::manifest::{self, ACCEPT, Descriptor};
use crate::progress::Progress;
use crate::reference::Reference;

pub use loopback::is_loopback;
pub use proxy::ProxySettings;
use session::{RegistryRequest, RegistrySession};
pub use settings::{RegistryEndpoint, RegistryEntry, RegistrySettings, Security};
use token::TokenCache;
use transport::RegistryTransport;

/// State that all pulls share: connections, tokens, settings.
#[derive(Debug)]
pub struct RegistryClient {
    settings: RegistrySettings,
    transport: RegistryTransport,
    tokens: TokenCache,
}

/// A manifest as the registry has it.
#[derive(Debug, Clone)]
pub struct ManifestBytes {
    pub digest: Digest,
    pub media_type: String,
    pub bytes: Bytes,
}

/// One image at its registry and mirrors, with the logins for each.
#[derive(Debug)]
pub struct Repository {
    reference: Reference,
    sessions: Vec<RegistrySession>,
}

impl RegistryClient {
    #[must_use]
    pub fn new(settings: RegistrySettings) -> Self {
        let transport = RegistryTransport::new(settings.limits.clone(), settings.proxy.clone());
        Self { transport, tokens: TokenCache::default(), settings }
    }

    /// Selects the endpoints and logins for `reference`. Sends no request to them.
    ///
    /// # Errors
    /// If a credential helper fails.
    pub async fn open(&self, reference: &Reference, credentials: &Credentials) -> Result<Repository, Error> {
        let mut sessions = Vec::new();
        for endpoint in self.settings.endpoints(reference) {
            let logins = credentials.logins(&endpoint.name, reference.repository()).await?;
            sessions.push(RegistrySession::new(endpoint, reference.repository(), reference.to_string(), logins));
        }
        Ok(Repository { reference: reference.clone(), sessions })
    }

    /// The digest that the reference names now: by a HEAD request if the registry supports it.
    ///
    /// # Errors
    /// If no endpoint has it, or no endpoint answers.
    pub async fn resolve(&self, repository: &Repository, progress: &dyn Progress) -> Result<Digest, Error> {
        if let Some(digest) = repository.reference.digest() {
            return Ok(digest.clone());
        }
        let registry_request = repository.manifest_request(Method::HEAD, repository.reference.manifest_name());
        let mut last = None;
        for session in &repository.sessions {
            match session.send(self, &registry_request, progress).await {
                Ok(exchange) => {
                    let digest = content_digest(exchange.response.headers());
                    exchange.reuse(&self.transport);
                    if let Some(digest) = digest {
                        return Ok(digest);
                    }
                }
                // The answer to a HEAD has no text; that to a GET says what is missing.
                Err(Error::NotFound { .. }) => {}
                Err(error) => last = Some(error),
            }
        }
        match last {
            Some(error) => Err(error),
            // Old registries send no digest with a HEAD: it is computed.
            None => Ok(self.manifest(repository, None, progress).await?.digest),
        }
    }

    /// The manifest or index that the reference names, or the one with `digest`.
    ///
    /// # Errors
    /// If no endpoint has it or answers, or its bytes do not have the digest.
    pub async fn manifest(
        &self,
        repository: &Repository,
        digest: Option<&Digest>,
        progress: &dyn Progress,
    ) -> Result<ManifestBytes, Error> {
        let wanted = digest.or(repository.reference.digest());
        let name = wanted.map_or_else(|| repository.reference.manifest_name(), ToString::to_string);
        let registry_request = repository.manifest_request(Method::GET, name);
        let mut last = None;
        for session in &repository.sessions {
            match self.manifest_from(session, repository, &registry_request, wanted, progress).await {
                Ok(manifest) => return Ok(manifest),
                Err(error) => last = Some(error),
            }
        }
        Err(last.unwrap_or_else(|| Error::Cancelled(repository.reference.to_string())))
    }

    async fn manifest_from(
        &self,
        session: &RegistrySession,
        repository: &Repository,
        registry_request: &RegistryRequest,
        wanted: Option<&Digest>,
        progress: &dyn Progress,
    ) -> Result<ManifestBytes, Error> {
        let image = repository.reference.to_string();
        let exchange = session.send(self, registry_request, progress).await?;
        let headers = exchange.response.headers();
        let announced = content_digest(headers);
        let media_type = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let media_type = media_type.split(';').next().unwrap_or_default().trim().to_owned();
        let too_large = |bytes: u64| bytes > MANIFEST_BYTES_MAX as u64;
        let length = headers.get(http::header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
        if length.is_some_and(too_large) {
            return Err(Error::TooLarge { image, what: "its manifest".into(), limit: MANIFEST_BYTES_MAX as u64 });
        }
        let bytes = session::body(exchange, self, MANIFEST_BYTES_MAX).await;
        let bytes = bytes.map_err(|detail| Error::Unreachable {
            registry: session.endpoint.name.clone(),
            detail: format!("its manifest of at most {MANIFEST_BYTES_MAX} bytes could not be read: {detail}"),
        })?;
        let digest = match wanted.or(announced.as_ref()) {
            Some(digest) if digest.matches(&bytes) => digest.clone(),
            Some(digest) => {
                let detail = format!("its bytes do not have this digest (from {})", session.endpoint.name);
                return Err(Error::Corrupt { image, part: "manifest", digest: digest.clone(), detail });
            }
            None => Digest::of(&bytes),
        };
        Ok(ManifestBytes { digest, media_type, bytes })
    }

    /// Downloads a blob to `path` and verifies it. The file is at its end.
    ///
    /// # Errors
    /// If no endpoint has the complete blob.
    pub async fn blob(
        &self,
        repository: &Repository,
        descriptor: &Descriptor,
        path: &Path,
        progress: &dyn Progress,
    ) -> Result<File, Error> {
        let image = repository.reference.to_string();
        let download = download::Download { client: self, image: &image, descriptor, progress };
        download.run(&repository.sessions, path).await
    }
}

impl Repository {
    fn manifest_request(&self, method: Method, name: String) -> RegistryRequest {
        RegistryRequest { method, path: format!("manifests/{name}"), accept: Some(ACCEPT), from: 0 }
    }

    #[must_use]
    pub fn reference(&self) -> &Reference {
        &self.reference
    }
}

impl ManifestBytes {
    /// # Errors
    /// If it is no manifest of an image.
    pub fn parse(&self, image: &Reference) -> Result<manifest::Document, Error> {
        manifest::parse(&self.bytes, &self.media_type)
            .map_err(|detail| Error::Unsupported { image: image.to_string(), detail })
    }
}

fn content_digest(headers: &HeaderMap) -> Option<Digest> {
    headers.get("docker-content-digest")?.to_str().ok()?.parse().ok()
}
