//! Requests to one registry for one repository: authentication, redirects, retries.

use std::time::{Instant, SystemTime};

use bytes::Bytes;
use http::header::{
    ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST, HeaderMap, HeaderValue, LOCATION, RANGE, RETRY_AFTER, USER_AGENT,
    WWW_AUTHENTICATE,
};
use http::{Method, Request, StatusCode, Uri};
use http_body_util::{BodyExt as _, Full, Limited};
use tokio::sync::Mutex;

use super::RegistryClient;
use super::challenge::{self, Challenge};
use super::retry::{self, Failure};
use super::settings::{RegistryEndpoint, Security};
use super::token::{self, RegistryTokenKey};
use super::transport::{Exchange, Origin};
use crate::credentials::Login;
use crate::error::Error;
use crate::limits::{ERROR_TEXT_BYTES_MAX, REDIRECTS_MAX, TOKEN_BYTES_MAX};
use crate::progress::{Progress, ProgressEvent};

/// One pull's way to one endpoint. All downloads of the pull share its authorization.
#[derive(Debug)]
pub(crate) struct RegistrySession {
    pub(super) endpoint: RegistryEndpoint,
    repository: String,
    /// For errors.
    image: String,
    logins: Vec<Login>,
    authorization: Mutex<Authorization>,
}

#[derive(Debug, Default)]
struct Authorization {
    /// The login in use: an index of `logins`.
    login: usize,
    header: Option<HeaderValue>,
}

/// How often one request has got a new token with one login.
#[derive(Debug, Default)]
struct Renewals {
    login: usize,
    count: u32,
}

/// One for a token that has expired; one more for a new token that was used up or revoked meanwhile.
const RENEWALS_MAX: u32 = 2;

/// A request below `/v2/REPOSITORY/`.
#[derive(Debug, Clone)]
pub(super) struct RegistryRequest {
    pub(super) method: Method,
    /// Behind `/v2/REPOSITORY/`.
    pub(super) path: String,
    pub(super) accept: Option<&'static str>,
    /// The first byte that is wanted.
    pub(super) from: u64,
}

/// Why a request failed for good, or may be made again.
enum Refusal {
    Again(Failure),
    Final(Error),
}

impl From<Failure> for Refusal {
    fn from(failure: Failure) -> Self {
        Self::Again(failure)
    }
}

impl RegistrySession {
    pub(super) fn new(endpoint: RegistryEndpoint, repository: &str, image: String, logins: Vec<Login>) -> Self {
        Self { endpoint, repository: repository.into(), image, logins, authorization: Mutex::default() }
    }

    /// Sends the request until a response has a status of 2xx, or until no retry is left.
    pub(super) async fn send(
        &self,
        client: &RegistryClient,
        registry_request: &RegistryRequest,
        progress: &dyn Progress,
    ) -> Result<Exchange, Error> {
        let mut attempt = 1;
        loop {
            let failure = match self.send_once(client, registry_request).await {
                Ok(exchange) => return Ok(exchange),
                Err(Refusal::Final(error)) => return Err(error),
                Err(Refusal::Again(failure)) => failure,
            };
            let error = self.error(&failure);
            let Some(pause) = retry::decide(&failure, attempt, &client.settings.limits, fastrand::f64()) else {
                return Err(error);
            };
            progress.event(&ProgressEvent::Retrying { registry: self.endpoint.name.clone(), why: error.to_string() });
            tokio::time::sleep(pause).await;
            attempt += 1;
        }
    }

    pub(super) fn error(&self, failure: &Failure) -> Error {
        let registry = self.endpoint.name.clone();
        match failure {
            Failure::Unreachable(detail) => Error::Unreachable { registry, detail: detail.clone() },
            Failure::Timeout { what, limit } => Error::Timeout { registry, what: (*what).to_owned(), limit: *limit },
            Failure::Status { status, retry_after } if *status == StatusCode::TOO_MANY_REQUESTS => {
                Error::RateLimited { registry, retry_after: *retry_after }
            }
            Failure::Status { status, .. } => Error::Unreachable { registry, detail: format!("it answers {status}") },
        }
    }

    fn unauthorized(&self, detail: String) -> Error {
        Error::Unauthorized { image: self.image.clone(), registry: self.endpoint.name.clone(), detail }
    }

    /// One request with the redirects and challenges that belong to it.
    async fn send_once(
        &self,
        client: &RegistryClient,
        registry_request: &RegistryRequest,
    ) -> Result<Exchange, Refusal> {
        let first = self.url(registry_request);
        let endpoint_origin = self.origin(client, &first)?;
        let (mut url, mut redirects, mut renewed) = (first, 0, Renewals::default());
        loop {
            let origin = self.origin(client, &url)?;
            let header = if origin == endpoint_origin { self.authorization.lock().await.header.clone() } else { None };
            let exchange =
                client.transport.send(&origin, self.request(registry_request, &url, header.as_ref())?).await?;
            let status = exchange.response.status();
            if status.is_success() {
                return Ok(exchange);
            }
            if status == StatusCode::UNAUTHORIZED && origin == endpoint_origin {
                let headers = exchange.response.headers();
                let values = headers.get_all(WWW_AUTHENTICATE).into_iter().filter_map(|value| value.to_str().ok());
                let challenge = challenge::parse(values);
                let detail = error_text(exchange, client).await;
                self.authorize(client, challenge, header, &mut renewed, detail).await?;
            } else if status == StatusCode::FORBIDDEN
                && origin == endpoint_origin
                && self.next_login(header.as_ref()).await
            {
                drop(error_text(exchange, client).await); // so that its connection can be reused
            } else if status.is_redirection() && redirects < REDIRECTS_MAX {
                redirects += 1;
                url = self.redirect(&url, exchange.response.headers()).map_err(|detail| self.refused(detail))?;
            } else {
                return Err(self.refusal(client, exchange).await);
            }
        }
    }

    /// Switches to the next login, because the last one may not read this repository. False if it was the last.
    async fn next_login(&self, used: Option<&HeaderValue>) -> bool {
        let mut authorization = self.authorization.lock().await;
        if authorization.header.as_ref() != used {
            return true; // another download of this pull was faster
        }
        let has_next = authorization.login + 1 < self.logins.len();
        if has_next {
            authorization.login += 1;
            authorization.header = None; // the next response has the challenge for it
        }
        has_next
    }

    fn refused(&self, detail: String) -> Refusal {
        Refusal::Final(Error::Unreachable { registry: self.endpoint.name.clone(), detail })
    }

    async fn refusal(&self, client: &RegistryClient, exchange: Exchange) -> Refusal {
        let status = exchange.response.status();
        let after = exchange.response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok());
        let retry_after = after.and_then(|value| retry::retry_after(value, SystemTime::now()));
        let detail = error_text(exchange, client).await;
        let (image, registry) = (self.image.clone(), self.endpoint.name.clone());
        match status.as_u16() {
            404 => Refusal::Final(Error::NotFound { image, registry, detail }),
            401 | 403 => Refusal::Final(Error::Unauthorized { image, registry, detail }),
            408 | 429 | 500.. => Refusal::Again(Failure::Status { status, retry_after }),
            300..=399 => self.refused(format!("more than {REDIRECTS_MAX} redirects")),
            _ => Refusal::Final(Error::Unsupported { image, detail: format!("{registry} answers {status}{detail}") }),
        }
    }

    fn url(&self, registry_request: &RegistryRequest) -> String {
        let scheme = if self.endpoint.security == Security::Plain { "http" } else { "https" };
        let mirrored = if self.endpoint.is_mirror { "?ns=" } else { "" };
        let of = if self.endpoint.is_mirror { self.image.split('/').next().unwrap_or_default() } else { "" };
        format!("{scheme}://{}/v2/{}/{}{mirrored}{of}", self.endpoint.authority, self.repository, registry_request.path)
    }

    /// The origin of `url`: with the configured security if it is the endpoint's, else by its scheme.
    fn origin(&self, client: &RegistryClient, url: &str) -> Result<Origin, Refusal> {
        let uri: Uri = url.parse().map_err(|_| self.refused(format!("{url:?} is not a valid URL")))?;
        let authority = uri.authority().map(http::uri::Authority::as_str).unwrap_or_default();
        let is_endpoint = authority == self.endpoint.authority;
        let security = match uri.scheme_str() {
            _ if is_endpoint => self.endpoint.security,
            Some("http") => Security::Plain,
            _ if client.settings.insecure_registries.contains(authority) => Security::Insecure,
            _ => Security::Verified,
        };
        // Object stores of a private registry mostly have a certificate of the same authority.
        let own = client.settings.ca_file(authority);
        let ca_file = own.or_else(|| client.settings.ca_file(&self.endpoint.name)).cloned();
        Origin::new(&uri, security, ca_file).map_err(|detail| self.refused(detail))
    }

    fn request(
        &self,
        registry_request: &RegistryRequest,
        url: &str,
        header: Option<&HeaderValue>,
    ) -> Result<Request<Full<Bytes>>, Refusal> {
        let uri: Uri = url.parse().map_err(|_| self.refused(format!("{url:?} is not a valid URL")))?;
        let mut request = head(registry_request.method.clone(), uri);
        if let Some(accept) = registry_request.accept {
            request = request.header(ACCEPT, accept);
        }
        if registry_request.from > 0 {
            request = request.header(RANGE, format!("bytes={}-", registry_request.from));
        }
        if let Some(header) = header {
            request = request.header(AUTHORIZATION, header);
        }
        request.body(Full::default()).map_err(|why| self.refused(why.to_string()))
    }

    /// The next address. A registry that is spoken to securely cannot lead to plain HTTP.
    fn redirect(&self, from: &str, headers: &HeaderMap) -> Result<String, String> {
        let to = headers.get(LOCATION).and_then(|value| value.to_str().ok()).ok_or("a redirect without an address")?;
        let base: Uri = from.parse().map_err(|_| "a redirect from an invalid address")?;
        let (scheme, authority) = (base.scheme_str().unwrap_or("https"), base.authority().map(|name| name.as_str()));
        let url = if to.starts_with("//") {
            format!("{scheme}:{to}")
        } else if to.starts_with('/') {
            format!("{scheme}://{}{to}", authority.unwrap_or_default())
        } else {
            to.to_owned()
        };
        if url.starts_with("https://") {
            return Ok(url);
        }
        match (url.starts_with("http://"), self.endpoint.security) {
            (true, Security::Plain | Security::Insecure) => Ok(url),
            (true, Security::Verified) => Err("it redirects from HTTPS to plain HTTP".into()),
            (false, _) => Err("it redirects to an address that is neither HTTP nor HTTPS".into()),
        }
    }

    /// Sets the header that the challenge asks for. `used` is the header of the refused request.
    async fn authorize(
        &self,
        client: &RegistryClient,
        challenge: Option<Challenge>,
        used: Option<HeaderValue>,
        renewed: &mut Renewals,
        detail: String,
    ) -> Result<(), Refusal> {
        let mut authorization = self.authorization.lock().await;
        // Another download of this pull was refused for the same reason and has a new token by now.
        if authorization.header != used && authorization.header.is_some() {
            return Ok(());
        }
        let refused = || Refusal::Final(self.unauthorized(detail.clone()));
        let challenge = challenge.ok_or_else(refused)?;
        if renewed.login == authorization.login && renewed.count >= RENEWALS_MAX {
            authorization.login += 1;
        }
        loop {
            let login = self.logins.get(authorization.login);
            // Anonymous access is tried only if there is no login.
            if login.is_none() && (authorization.login > 0 || renewed.count >= RENEWALS_MAX) {
                authorization.login = 0;
                return Err(refused());
            }
            renewed.count = if renewed.login == authorization.login { renewed.count + 1 } else { 1 };
            renewed.login = authorization.login;
            // A password that was refused is not renewed by sending it again.
            if matches!(challenge, Challenge::Basic) {
                renewed.count = RENEWALS_MAX;
            }
            let header = match (&challenge, login) {
                (_, Some(Login::RegistryToken(token))) => Some(format!("Bearer {token}")),
                (Challenge::Basic, Some(Login::Basic { username, password })) => Some(token::basic(username, password)),
                (Challenge::Basic, _) => None,
                (Challenge::Bearer { realm, service, scope }, login) => {
                    let own = || format!("repository:{}:pull", self.repository);
                    let key = RegistryTokenKey {
                        realm: realm.clone(),
                        service: service.clone(),
                        scope: scope.clone().unwrap_or_else(own),
                        login: login.cloned(),
                    };
                    self.token(client, key, used.as_ref()).await?
                }
            };
            match header.and_then(|header| HeaderValue::from_str(&header).ok()) {
                Some(mut header) => {
                    header.set_sensitive(true);
                    authorization.header = Some(header);
                    return Ok(());
                }
                None => authorization.login += 1,
            }
        }
    }

    /// A token from the cache or the token service; none if the service refuses the login.
    async fn token(
        &self,
        client: &RegistryClient,
        key: RegistryTokenKey,
        used: Option<&HeaderValue>,
    ) -> Result<Option<String>, Refusal> {
        if let Some(token) = client.tokens.get(&key, Instant::now()) {
            let header = format!("Bearer {token}");
            if used.is_none_or(|used| used.as_bytes() != header.as_bytes()) {
                return Ok(Some(header));
            }
            client.tokens.remove(&key); // it was refused, whatever it says about its expiry
        }
        let origin = self.origin(client, &key.realm)?;
        if origin.security == Security::Plain && self.endpoint.security == Security::Verified {
            return Err(self.refused("its token service is reached by plain HTTP only".into()));
        }
        let request = match &key.login {
            Some(Login::IdentityToken(identity)) => {
                let form = token::refresh_form(&key, identity);
                let request = head(Method::POST, self.uri(&key.realm)?);
                request.header(CONTENT_TYPE, "application/x-www-form-urlencoded").body(Full::from(form))
            }
            Some(Login::Basic { username, password }) => {
                let request = head(Method::GET, self.uri(&token::query(&key))?);
                request.header(AUTHORIZATION, token::basic(username, password)).body(Full::default())
            }
            _ => head(Method::GET, self.uri(&token::query(&key))?).body(Full::default()),
        };
        let exchange = client.transport.send(&origin, request.map_err(|why| self.refused(why.to_string()))?).await?;
        match exchange.response.status().as_u16() {
            200 => {
                let bytes = body(exchange, client, TOKEN_BYTES_MAX).await.map_err(Failure::Unreachable)?;
                let token = token::parse(&bytes).map_err(|detail| self.refused(detail))?;
                let header = format!("Bearer {}", token.text);
                client.tokens.put(key, &token, Instant::now());
                Ok(Some(header))
            }
            400 | 401 | 403 => Ok(None),
            404 => Err(self.refused(format!("no token service at {}", key.realm))),
            _ => Err(self.refusal(client, exchange).await),
        }
    }

    fn uri(&self, url: &str) -> Result<Uri, Refusal> {
        url.parse().map_err(|_| self.refused(format!("{url:?} is not a valid URL")))
    }
}

fn head(method: Method, uri: Uri) -> http::request::Builder {
    let host = uri.authority().map(|authority| authority.as_str().rsplit('@').next().unwrap_or_default().to_owned());
    Request::builder()
        .method(method)
        .uri(uri)
        .header(HOST, host.unwrap_or_default())
        .header(USER_AGENT, concat!("sluicegate/", env!("CARGO_PKG_VERSION")))
}

/// A whole body of at most `limit` bytes; its connection is kept for the next request.
pub(super) async fn body(mut exchange: Exchange, client: &RegistryClient, limit: usize) -> Result<Bytes, String> {
    let pause = client.settings.limits.response_timeout;
    let body = Limited::new(exchange.response.body_mut(), limit).collect();
    let bytes = tokio::time::timeout(pause, body)
        .await
        .map_err(|_| format!("the response did not end in {pause:?}"))?
        .map_err(|why| super::transport::with_causes(&*why))?
        .to_bytes();
    exchange.reuse(&client.transport);
    Ok(bytes)
}

/// The registry's message about a rejected request, after a colon; empty if it is not in OCI's error format.
async fn error_text(exchange: Exchange, client: &RegistryClient) -> String {
    #[derive(serde::Deserialize)]
    struct Errors {
        errors: Vec<Entry>,
    }
    #[derive(serde::Deserialize)]
    struct Entry {
        #[serde(default)]
        code: String,
        #[serde(default)]
        message: String,
    }
    let Ok(bytes) = body(exchange, client, TOKEN_BYTES_MAX).await else { return String::new() };
    let Ok(answer) = serde_json::from_slice::<Errors>(&bytes) else { return String::new() };
    let Some(entry) = answer.errors.into_iter().next() else { return String::new() };
    let text = format!("{} {}", entry.code, entry.message);
    let text: String = text.trim().chars().filter(|char| !char.is_control()).take(ERROR_TEXT_BYTES_MAX).collect();
    if text.is_empty() { text } else { format!(" ({text})") }
}
