//! The API's listeners, their authentication, and the files with which clients find them.

use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow};
use axum::Router;
use control::access::host_token;
use control::access::self_signed::SelfSignedCertificates;
use control::access::static_tokens::StaticTokens;
use control::api::http_server::{serve, serve_at_most};
use control::api::listener::{self, ApiTlsListener, TlsFiles};
use control::api::{ApiServerConfig, AuditLog, AuthenticationSources, TokenSigner};
use control::cross_origin::{CrossOriginProtection, GuardedListener, OwnHosts, Rejections};
use control::expiry::Expiries;
use futures_util::future;
use jiff::Timestamp;

use super::hosts;
use crate::admin::Health;
use crate::cli::kubeconfig::{self, ClusterAuthority};
use crate::config::{AllowedHostRule, RunConfig};
use crate::console;

/// Below the data folder: files that only the API may read.
const FOLDER: &str = "api";
const KEY: &str = "service-accounts.key";
const OWN_TOKEN: &str = "own.token";

/// Signs service accounts' tokens.
pub(super) fn signer(config: &RunConfig) -> Result<Arc<TokenSigner>> {
    let folder = config.data.join(FOLDER);
    std::fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    // Its files contain credentials.
    std::fs::set_permissions(&folder, std::os::unix::fs::PermissionsExt::from_mode(0o700))
        .with_context(|| folder.display().to_string())?;
    let key = folder.join(KEY);
    Ok(Arc::new(TokenSigner::open(&key).with_context(|| key.display().to_string())?))
}

/// The token in `DATA/api/kubeconfig`, for an API that authenticates callers on this host too. Like that
/// file it is a convenience: a full disk must not prevent a start.
fn own_token(config: &RunConfig) -> Option<String> {
    let is_loopback = |at: SocketAddr| at.ip().is_loopback();
    if is_loopback(config.api) && config.console.is_none_or(is_loopback) && !config.api_authenticate {
        return None;
    }
    let path = config.data.join(FOLDER).join(OWN_TOKEN);
    host_token::load_or_create(&path).inspect_err(|why| tracing::warn!(%why, "the stored kubeconfig has no token")).ok()
}

/// The contents of the files that flags name.
#[derive(Clone)]
pub(super) struct ApiTlsFiles {
    tokens: StaticTokens,
    audit: Option<AuditLog>,
}

impl ApiTlsFiles {
    /// # Errors One of them is invalid; those for TLS are checked too.
    pub(super) fn read(config: &RunConfig) -> Result<Self> {
        let tokens = match &config.api_tokens {
            Some(path) => StaticTokens::read(path).map_err(|why| anyhow!("api-tokens: {why}"))?,
            None => StaticTokens::default(),
        };
        if (config.api_tls || config.console_tls()) && config.kubeconfig.is_none() {
            listener::check(&tls_files(config, Arc::default())).map_err(|why| without_tls(&why))?;
        }
        let audit = match &config.api_audit_log {
            Some(path) => Some(AuditLog::open(path).with_context(|| format!("api-audit-log: {}", path.display()))?),
            None => None,
        };
        Ok(Self { tokens, audit })
    }

    /// The audit log was rotated.
    pub(super) fn reopen(&self) {
        if let Some(audit) = &self.audit {
            audit.reopen();
        }
    }
}

/// Checks that the files which the API creates in the data folder are valid, or can be created.
pub(super) fn check_made(config: &RunConfig) -> Result<()> {
    if config.kubeconfig.is_some() {
        return Ok(());
    }
    signer(config)?;
    let mut certificate = tls_files(config, Arc::default());
    if let Some(maker) = certificate.self_signed.take().filter(|_| config.api_tls || config.console_tls()) {
        maker.renew(Timestamp::now()).map_err(|why| without_tls(&why))?;
        listener::check(&certificate).map_err(|why| without_tls(&why))?;
    }
    Ok(())
}

fn without_tls(why: &str) -> anyhow::Error {
    anyhow!("the API cannot use TLS: {why}")
}

/// What the API gets from the appliance around it.
pub(super) fn api_server_config(
    config: &RunConfig,
    ApiTlsFiles { tokens, audit }: ApiTlsFiles,
    health: &Arc<Health>,
    signer: Arc<TokenSigner>,
) -> ApiServerConfig {
    ApiServerConfig {
        readiness: Some(health.readiness()),
        log_dir: Some(config.data.join("instances")),
        authentication: AuthenticationSources {
            static_tokens: tokens,
            host_token: own_token(config),
            service_accounts: Some(signer),
        },
        audit_log: audit,
        instance_streams: None,
        usage: None,
        memory: Arc::default(),
    }
}

/// A bound listener and its protocol.
enum ApiListener {
    /// `is_trusted`: its callers are on this host, and have the operator's rights.
    Plain {
        listener: tokio::net::TcpListener,
        is_trusted: bool,
    },
    Tls(Box<ApiTlsListener>),
    Socket(tokio::net::UnixListener),
}

/// Inputs for reports about the API's listeners.
pub(super) struct Reports<'a> {
    pub(super) rejections: &'a Arc<Rejections>,
    pub(super) expiries: &'a Arc<Expiries>,
}

/// All listeners of the API, and the console's.
pub(super) struct ApiListeners {
    all: Vec<(ApiListener, CrossOriginProtection)>,
    console: Option<(ApiListener, CrossOriginProtection)>,
    /// The CA certificate (PEM) that the API created itself, or empty.
    authority: String,
}

impl ApiListeners {
    pub(super) fn open(
        (tcp, socket, console): (Option<TcpListener>, Option<UnixListener>, Option<TcpListener>),
        config: &RunConfig,
        reports: &Reports<'_>,
    ) -> Result<Self> {
        let mut all = Vec::new();
        let mut made_by = String::new();
        if let Some(listener) = tcp {
            let at = listener.local_addr().context("api")?;
            let (entrance, authority) = open_tcp((listener, config.api_tls), GuardedListener::Api, config, reports)?;
            all.push(entrance);
            write_kubeconfig(config, at, &authority);
            if let ClusterAuthority::Made(pem) = authority {
                made_by = pem;
            }
        }
        if let Some(listener) = socket {
            let listener = tokio::net::UnixListener::from_std(listener).context("api-socket")?;
            let rejections = Arc::clone(reports.rejections);
            let protection = CrossOriginProtection::of_socket(GuardedListener::ApiSocket, rejections);
            all.push((ApiListener::Socket(listener), protection));
        }
        let open_console = |listener| {
            open_tcp((listener, config.console_tls()), GuardedListener::Console, config, reports).context("console")
        };
        let console = console.map(open_console).transpose()?.map(|(entrance, _)| entrance);
        Ok(Self { all, console, authority: made_by })
    }

    /// The API's CA certificate; empty where it does not use TLS, or has a certificate of another CA.
    pub(super) fn authority(&self) -> &str {
        &self.authority
    }

    /// Serves `router` at the API's listeners and `console` at its own until `until` resolves; requests in flight are still
    /// completed.
    pub(super) async fn serve<U>(self, router: Router, console: Router, until: impl Fn() -> U)
    where
        U: Future<Output = ()>,
    {
        let serve = |(one, protection): (ApiListener, _)| one.serve(router.clone(), protection, until());
        let api = future::join_all(self.all.into_iter().map(serve));
        let console = async {
            if let Some((listener, protection)) = self.console {
                listener.serve_console(console, protection, until()).await;
            }
        };
        future::join(api, console).await;
    }
}

/// A TCP listener, with TLS if that is wanted; and the authority of its certificate.
fn open_tcp(
    (listener, is_tls): (TcpListener, bool),
    which: GuardedListener,
    config: &RunConfig,
    reports: &Reports<'_>,
) -> Result<((ApiListener, CrossOriginProtection), ClusterAuthority)> {
    let at = listener.local_addr().context("api")?;
    let listener = tokio::net::TcpListener::from_std(listener).context("api")?;
    let mut hosts = hosts::own(config, at.ip());
    let (entrance, authority) = if is_tls {
        let certificate = tls_files(config, Arc::clone(reports.expiries));
        let maker = certificate.self_signed.clone();
        let tls = ApiTlsListener::new(listener, certificate).map_err(|why| without_tls(&why))?;
        hosts.extend(tls.names());
        let made = maker.map(|maker| std::fs::read_to_string(maker.ca_path())).transpose()?;
        (ApiListener::Tls(Box::new(tls)), made.map_or(ClusterAuthority::System, ClusterAuthority::Made))
    } else {
        (ApiListener::Plain { listener, is_trusted: !config.api_authenticate }, ClusterAuthority::Plain)
    };
    let (hosts, rejections) = (OwnHosts::new(at.ip(), hosts), Arc::clone(reports.rejections));
    Ok(((entrance, CrossOriginProtection::new(which, is_tls, hosts, rejections)), authority))
}

impl ApiListener {
    async fn serve(self, router: Router, protection: CrossOriginProtection, until: impl Future<Output = ()>) {
        match self {
            Self::Plain { listener, is_trusted: true } => {
                serve(listener, router, protection, listener::tcp_peer, until).await;
            }
            Self::Plain { listener, is_trusted: false } => {
                serve(listener, router, protection, listener::by_token, until).await;
            }
            Self::Tls(tls) => serve(*tls, router, protection, |_, peer| peer.clone(), until).await,
            Self::Socket(listener) => serve(listener, router, protection, listener::unix_peer, until).await,
        }
    }

    /// The same within the console's limit of connections.
    async fn serve_console(self, router: Router, protection: CrossOriginProtection, until: impl Future<Output = ()>) {
        const MOST: u32 = console::limits::CONNECTIONS_MAX;
        match self {
            Self::Plain { listener, is_trusted: true } => {
                serve_at_most(MOST, listener, router, protection, listener::tcp_peer, until).await;
            }
            Self::Plain { listener, is_trusted: false } => {
                serve_at_most(MOST, listener, router, protection, listener::by_token, until).await;
            }
            Self::Tls(tls) => serve_at_most(MOST, *tls, router, protection, |_, peer| peer.clone(), until).await,
            Self::Socket(listener) => {
                serve_at_most(MOST, listener, router, protection, listener::unix_peer, until).await;
            }
        }
    }
}

/// The configured certificate, or a self-made one.
fn tls_files(config: &RunConfig, expiries: Arc<Expiries>) -> TlsFiles {
    let (certificate, key, made_by) = match &config.api_tls_cert {
        Some(pair) => (pair.certificate.clone(), pair.key.clone(), None),
        None => {
            let mut names = hosts::names(config.api.ip());
            names.extend(config.console.into_iter().flat_map(|console| hosts::names(console.ip())));
            names.extend(config.allowed_hosts.iter().map(|AllowedHostRule(host)| host.clone()));
            let maker = SelfSignedCertificates::new(&config.data.join(FOLDER), &names);
            (maker.server_path(), maker.server_path(), Some(maker))
        }
    };
    let (clients, authenticates) = (config.api_client_ca.clone(), config.api_authenticate);
    TlsFiles { certificate, key, client_ca: clients, self_signed: made_by, authenticates, expiries }
}

/// `DATA/api/kubeconfig`, with which kubectl on this host works at once. It is a convenience: a full disk
/// must not prevent the start of an appliance that would deliver its events and thereby free space.
fn write_kubeconfig(config: &RunConfig, at: SocketAddr, authority: &ClusterAuthority) {
    let near = match at.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => SocketAddr::from(([127, 0, 0, 1], at.port())),
        IpAddr::V6(ip) if ip.is_unspecified() => SocketAddr::new(std::net::Ipv6Addr::LOCALHOST.into(), at.port()),
        _ => at,
    };
    let path = kubeconfig::path_in(&config.data);
    let text = kubeconfig::text(near, authority, own_token(config).as_deref());
    if std::fs::read_to_string(&path).is_ok_and(|there| there == text) {
        return;
    }
    if let Err(why) = replace(&path, &text) {
        tracing::warn!(%why, file = %path.display(), "no kubeconfig was stored; `sluicegate kubeconfig` prints one");
    }
}

/// Writes a file for its owner alone, atomically.
fn replace(path: &Path, text: &str) -> std::io::Result<()> {
    use std::io::Write as _;
    let fresh = path.with_extension("new");
    let written = std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&fresh);
    let renamed =
        written.and_then(|mut file| file.write_all(text.as_bytes())).and_then(|()| std::fs::rename(&fresh, path));
    renamed.inspect_err(|_| drop(std::fs::remove_file(&fresh)))
}
