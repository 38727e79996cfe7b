//! The API's listener, and whom it believes.

use std::net::TcpListener;

use anyhow::{Context, Result, anyhow};
use axum::Router;
use control::access::tokens::Tokens;
use control::api::door::{Door, Papers};
use control::api::{Audit, Believed, Peer, Signer, Surroundings};

use crate::config::Config;

/// Below the data folder: what only the API may read.
const FOLDER: &str = "api";
const KEY: &str = "token.key";

/// What the API is given of the appliance around it.
pub(super) fn surroundings(config: &Config) -> Result<Surroundings> {
    let folder = config.data.join(FOLDER);
    std::fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    let key = folder.join(KEY);
    let signer = Signer::open(&key).with_context(|| key.display().to_string())?;
    let tokens = match &config.api_tokens {
        Some(path) => Tokens::read(path).map_err(|why| anyhow!("api-tokens: {why}"))?,
        None => Tokens::default(),
    };
    let audit = match &config.api_audit_log {
        Some(path) => Some(Audit::open(path).with_context(|| format!("api-audit-log: {}", path.display()))?),
        None => None,
    };
    Ok(Surroundings {
        instances: Some(config.data.join("instances")),
        believed: Believed { tokens, signer: Some(signer) },
        audit,
    })
}

/// A bound listener that knows how to speak.
pub(super) enum Entrance {
    Plain(tokio::net::TcpListener),
    Tls(Box<Door>),
}

impl Entrance {
    pub(super) fn open(listener: TcpListener, config: &Config) -> Result<Self> {
        let listener = tokio::net::TcpListener::from_std(listener).context("api")?;
        let Some(pair) = &config.api_tls_cert else { return Ok(Self::Plain(listener)) };
        let clients = config.api_client_ca.as_deref();
        let papers = Papers { certificate: &pair.certificate, key: &pair.key, clients };
        Door::open(listener, &papers)
            .map(|door| Self::Tls(Box::new(door)))
            .map_err(|why| anyhow!("the API cannot speak TLS: {why}"))
    }

    /// Serves `until` then; requests under way still end.
    pub(super) async fn serve(self, router: Router, until: impl Future<Output = ()> + Send + 'static) {
        let service = router.into_make_service_with_connect_info::<Peer>();
        let served = match self {
            Self::Plain(listener) => axum::serve(listener, service).with_graceful_shutdown(until).await,
            Self::Tls(door) => axum::serve(*door, service).with_graceful_shutdown(until).await,
        };
        if let Err(why) = served {
            tracing::error!(%why, "the API's listener ended");
        }
    }
}
