//! One connection for each set of servers and credentials. It connects again by itself.

use std::collections::HashMap;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use async_nats::connection::State;
use async_nats::jetstream::context::ContextBuilder;
use async_nats::{Client, ConnectErrorKind, ConnectOptions, ServerAddr, jetstream};
use contract::event_store::{EventStoreError, StoreConnection, StoreCredentials};
use contract::limits::STORE_PUBLISHES_MAX;
use contract::target_policy::TargetPolicy;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};
use tokio::sync::Mutex as AsyncMutex;

use crate::limits::{COMMANDS_MAX, CONNECT_MAX, PING_INTERVAL, RECONNECT_INTERVAL, REQUEST_MAX, UNUSED_CONNECTION_AGE};

/// An open connection.
#[derive(Debug, Clone)]
pub(crate) struct JetStreamConnection {
    pub(crate) client: Client,
    pub(crate) context: jetstream::Context,
}

#[derive(Debug)]
pub(crate) struct Connections {
    targets: Arc<TargetPolicy>,
    /// By value, so that a changed password is another connection. Brokers are few, and so are their servers.
    entries: Mutex<HashMap<Arc<StoreConnection>, ConnectionEntry>>,
    /// Of the events that are received and not done, of all consumers.
    unfinished_bytes: Arc<AtomicUsize>,
}

#[derive(Debug)]
struct ConnectionEntry {
    open: Option<JetStreamConnection>,
    used: Instant,
    /// Held while the connection is opened; the last failure.
    opening: Arc<AsyncMutex<Option<(Instant, EventStoreError)>>>,
}

impl Connections {
    pub(crate) fn new(targets: Arc<TargetPolicy>) -> Self {
        Self { targets, entries: Mutex::default(), unfinished_bytes: Arc::default() }
    }

    /// The connection, which is opened if it is not. Of several that want it opened one does it, and all get its failure.
    pub(crate) async fn open(&self, to: &Arc<StoreConnection>) -> Result<JetStreamConnection, EventStoreError> {
        if let Some(open) = self.get(to) {
            return self.check(to, open);
        }
        let opening = Arc::clone(&self.lock().entry(Arc::clone(to)).or_insert_with(ConnectionEntry::new).opening);
        let mut failure = opening.lock().await;
        if let Some(open) = self.get(to) {
            return self.check(to, open);
        }
        if let Some((_, why)) = failure.as_ref().filter(|(at, _)| at.elapsed() < RECONNECT_INTERVAL) {
            return Err(why.clone());
        }
        let opened = connect(to, &self.targets).await;
        *failure = opened.as_ref().err().map(|why| (Instant::now(), why.clone()));
        let opened = opened?;
        let mut entries = self.lock();
        entries.entry(Arc::clone(to)).or_insert_with(ConnectionEntry::new).open = Some(opened.clone());
        Ok(opened)
    }

    pub(crate) fn unfinished_bytes(&self) -> Arc<AtomicUsize> {
        Arc::clone(&self.unfinished_bytes)
    }

    /// The connection if it works now.
    pub(crate) fn connected(&self, to: &Arc<StoreConnection>) -> Result<JetStreamConnection, EventStoreError> {
        let open = self.get(to).ok_or_else(|| unreachable(to, "it is being opened"))?;
        self.check(to, open)
    }

    /// Closes connections that no stream has used for some time: its servers or credentials are others.
    pub(crate) fn close_unused(&self) {
        self.lock().retain(|_, entry| entry.used.elapsed() < UNUSED_CONNECTION_AGE);
    }

    fn check(&self, to: &StoreConnection, open: JetStreamConnection) -> Result<JetStreamConnection, EventStoreError> {
        match open.client.connection_state() {
            State::Connected => Ok(open),
            State::Pending | State::Disconnected => {
                Err(unreachable(to, "the connection was lost, and is opened again"))
            }
        }
    }

    fn get(&self, to: &Arc<StoreConnection>) -> Option<JetStreamConnection> {
        let mut entries = self.lock();
        let entry = entries.get_mut(to)?;
        entry.used = Instant::now();
        entry.open.clone()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Arc<StoreConnection>, ConnectionEntry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends what waits in the buffers.
    pub(crate) async fn flush(&self) {
        let open: Vec<_> = self.lock().values().filter_map(|entry| entry.open.clone()).collect();
        for connection in open {
            if let Err(why) = connection.client.flush().await {
                tracing::debug!(%why, "the last acknowledgements were not sent");
            }
        }
    }
}

impl ConnectionEntry {
    fn new() -> Self {
        Self { open: None, used: Instant::now(), opening: Arc::default() }
    }
}

fn unreachable(to: &StoreConnection, why: &str) -> EventStoreError {
    EventStoreError::Unreachable { servers: to.address(), why: why.to_owned() }
}

async fn connect(to: &StoreConnection, targets: &TargetPolicy) -> Result<JetStreamConnection, EventStoreError> {
    let servers: Result<Vec<ServerAddr>, _> = to.servers.iter().map(|server| server.parse()).collect();
    let servers = servers.map_err(|why| unreachable(to, &why.to_string()))?;
    for server in &servers {
        check_target(server, targets).await.map_err(|why| unreachable(to, &why))?;
    }
    let mut options = ConnectOptions::new()
        .name("sluicegate")
        .connection_timeout(CONNECT_MAX)
        .request_timeout(Some(REQUEST_MAX))
        .ping_interval(PING_INTERVAL)
        .client_capacity(COMMANDS_MAX)
        .reconnect_delay_callback(|_| RECONNECT_INTERVAL);
    options = match &to.credentials {
        StoreCredentials::None => options,
        StoreCredentials::Password { user, password } => options.user_and_password(user.clone(), password.clone()),
        StoreCredentials::Token(token) => options.token(token.clone()),
        StoreCredentials::File(text) => options.credentials(text).map_err(|why| EventStoreError::Unauthorized {
            servers: to.address(),
            why: format!("the credentials file cannot be read: {why}"),
        })?,
    };
    let by_tls = to.servers.iter().any(|server| server.starts_with("tls://"));
    if by_tls || to.certificate_authorities.is_some() {
        options = options.tls_client_config(tls(to)?).require_tls(true);
    }
    let client = options.connect(servers).await.map_err(|why| match why.kind() {
        ConnectErrorKind::Authentication | ConnectErrorKind::AuthorizationViolation => {
            EventStoreError::Unauthorized { servers: to.address(), why: why.to_string() }
        }
        _ => unreachable(to, &why.to_string()),
    })?;
    let in_flight = usize::try_from(STORE_PUBLISHES_MAX).unwrap_or(usize::MAX);
    let context = ContextBuilder::new().timeout(REQUEST_MAX).max_ack_inflight(in_flight).build(client.clone());
    Ok(JetStreamConnection { client, context })
}

/// Refuses servers that objects may not name as targets. One whose name cannot be resolved now is left to the client.
async fn check_target(server: &ServerAddr, targets: &TargetPolicy) -> Result<(), String> {
    let Ok(addresses) = tokio::net::lookup_host((server.host(), server.port())).await else { return Ok(()) };
    for address in addresses {
        targets.admit_connect(address).map_err(|why| format!("{address}: {why}"))?;
    }
    Ok(())
}

fn tls(to: &StoreConnection) -> Result<ClientConfig, EventStoreError> {
    let failed = |why: String| EventStoreError::Unreachable { servers: to.address(), why: format!("TLS: {why}") };
    let mut roots = RootCertStore::empty();
    match &to.certificate_authorities {
        Some(pem) => {
            for certificate in CertificateDer::pem_slice_iter(pem.as_bytes()) {
                let certificate = certificate.map_err(|why| failed(format!("tls-ca is no PEM: {why}")))?;
                roots.add(certificate).map_err(|why| failed(format!("tls-ca: {why}")))?;
            }
        }
        None => {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
    }
    if roots.is_empty() {
        return Err(failed("no certificate authority is trusted: set tls-ca in the Broker's ConfigMap".to_owned()));
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let builder = builder.map_err(|why| failed(why.to_string()))?;
    Ok(builder.with_root_certificates(roots).with_no_client_auth())
}
