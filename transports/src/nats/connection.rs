//! The connection to the servers.

use std::time::Duration;

use adapter::tls::Tls;
use adapter::{Error, SecretFile};
use async_nats::{Client, ConnectOptions, ServerAddr};

/// Built from the flat fields of a configuration, so that errors there have their path.
#[derive(Debug, Clone)]
pub(crate) struct NatsConnection {
    /// `nats://HOST:PORT` or `HOST:PORT`.
    pub(super) servers: Vec<String>,
    pub(super) user: Option<String>,
    pub(super) password: Option<SecretFile>,
    pub(super) token: Option<SecretFile>,
    /// A `.creds` file with JWT and seed.
    pub(super) credentials: Option<SecretFile>,
    pub(super) nkey: Option<SecretFile>,
    pub(super) tls: Option<Tls>,
}

impl NatsConnection {
    /// The first server, without credentials.
    pub(crate) fn authority(&self) -> String {
        let first = self.servers.first().map(String::as_str).unwrap_or("nats");
        let first = first.rsplit('@').next().unwrap_or(first);
        format!("nats://{}", first.trim_start_matches("nats://").trim_start_matches("tls://"))
    }

    pub(crate) async fn open(&self) -> Result<Client, Error> {
        if self.servers.iter().any(|server| server.contains('@')) {
            return Err(Error::config("servers: must not hold credentials; use user and password with a secret file"));
        }
        let servers: Result<Vec<ServerAddr>, _> = self.servers.iter().map(|server| server.parse()).collect();
        let servers = servers.map_err(|error| Error::config(format!("servers: {error}")))?;
        // The adapter makes a new connection after a failure; then nothing of the old one is pending.
        let mut options = ConnectOptions::new()
            .connection_timeout(Duration::from_secs(5))
            .max_reconnects(Some(1))
            .ping_interval(Duration::from_secs(5))
            .subscription_capacity(4096);
        if let (Some(user), Some(password)) = (&self.user, &self.password) {
            options = options.user_and_password(user.clone(), password.read()?);
        }
        if let Some(token) = &self.token {
            options = options.token(token.read()?);
        }
        if let Some(nkey) = &self.nkey {
            options = options.nkey(nkey.read()?);
        }
        if let Some(credentials) = &self.credentials {
            let parsed = options.credentials(&credentials.read()?);
            options = parsed.map_err(|_| Error::secret(format!("{credentials:?} holds no NATS credentials")))?;
        }
        if let Some(tls) = self.tls.as_ref().filter(|tls| tls.is_enabled()) {
            options = options.tls_client_config((*tls.client()?).clone()).require_tls(true);
        }
        options
            .connect(servers)
            .await
            .map_err(|error| Error::connection(format!("connect to NATS {}: {error}", self.authority())))
    }
}
