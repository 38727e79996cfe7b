//! The API's listeners, whom they believe, and what clients are given to find them.

use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow};
use axum::Router;
use control::access::own_token;
use control::access::selfmade::SelfMade;
use control::access::tokens::Tokens;
use control::api::door::{self, Door, Papers};
use control::api::serve::serve;
use control::api::{Audit, Believed, Signer, Surroundings};
use futures_util::future;

use super::outward;
use crate::cli::kubeconfig::{self, Authority};
use crate::config::Config;

/// Below the data folder: what only the API may read.
const FOLDER: &str = "api";
const KEY: &str = "service-accounts.key";
const OWN_TOKEN: &str = "own.token";

/// Who signs service accounts' tokens.
pub(super) fn signer(config: &Config) -> Result<Arc<Signer>> {
    let folder = config.data.join(FOLDER);
    std::fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    // Whatever lies in it says who somebody is.
    std::fs::set_permissions(&folder, std::os::unix::fs::PermissionsExt::from_mode(0o700))
        .with_context(|| folder.display().to_string())?;
    let key = folder.join(KEY);
    Ok(Arc::new(Signer::open(&key).with_context(|| key.display().to_string())?))
}

/// What `DATA/api/kubeconfig` says who uses it, where coming from this host says nothing. Like that file it is a
/// convenience: a disk that is full keeps nobody from starting.
fn own_token(config: &Config) -> Option<String> {
    if config.api.ip().is_loopback() {
        return None;
    }
    let path = config.data.join(FOLDER).join(OWN_TOKEN);
    own_token::read_or_make(&path)
        .inspect_err(|why| tracing::warn!(%why, "the kubeconfig that is left has no token"))
        .ok()
}

/// Out of the files that flags name.
#[derive(Clone)]
pub(super) struct Given {
    tokens: Tokens,
    audit: Option<Audit>,
}

impl Given {
    /// # Errors
    /// One of them is no good; those for TLS are looked at too.
    pub(super) fn read(config: &Config) -> Result<Self> {
        let tokens = match &config.api_tokens {
            Some(path) => Tokens::read(path).map_err(|why| anyhow!("api-tokens: {why}"))?,
            None => Tokens::default(),
        };
        if config.api_tls && config.kubeconfig.is_none() {
            door::check(&papers(config, config.api)).map_err(|why| without_tls(&why))?;
        }
        let audit = match &config.api_audit_log {
            Some(path) => {
                Some(Audit::open(path).with_context(|| format!("api-audit-log: {}", path.display()))?)
            }
            None => None,
        };
        Ok(Self { tokens, audit })
    }

    /// The audit log was moved away.
    pub(super) fn reopen(&self) {
        if let Some(audit) = &self.audit {
            audit.reopen();
        }
    }
}

fn without_tls(why: &str) -> anyhow::Error {
    anyhow!("the API cannot speak TLS: {why}")
}

/// What the API is given of the appliance around it.
pub(super) fn surroundings(config: &Config, signer: Arc<Signer>, given: Given) -> Surroundings {
    let Given { tokens, audit } = given;
    Surroundings {
        instances: Some(config.data.join("instances")),
        believed: Believed { tokens, own: own_token(config), signer: Some(signer) },
        audit,
    }
}

/// A bound listener that knows how to speak.
enum Entrance {
    Plain(tokio::net::TcpListener),
    Tls(Box<Door>),
    Socket(tokio::net::UnixListener),
}

/// All ways in.
pub(super) struct Entrances {
    all: Vec<Entrance>,
    /// The certificate (PEM) of the authority that the API made itself; empty where it has none.
    authority: String,
}

impl Entrances {
    pub(super) fn open(
        tcp: Option<TcpListener>,
        socket: Option<UnixListener>,
        config: &Config,
    ) -> Result<Self> {
        let mut all = Vec::new();
        let mut made_by = String::new();
        if let Some(listener) = tcp {
            let at = listener.local_addr().context("api")?;
            let listener = tokio::net::TcpListener::from_std(listener).context("api")?;
            let (entrance, authority) = if config.api_tls {
                let papers = papers(config, at);
                let maker = papers.made_by.clone();
                let door = Door::open(listener, papers).map_err(|why| without_tls(&why))?;
                let made = maker.map(|maker| std::fs::read_to_string(maker.ca())).transpose()?;
                (Entrance::Tls(Box::new(door)), made.map_or(Authority::Known, Authority::Made))
            } else {
                (Entrance::Plain(listener), Authority::Plain)
            };
            all.push(entrance);
            leave_kubeconfig(config, at, &authority);
            if let Authority::Made(pem) = authority {
                made_by = pem;
            }
        }
        if let Some(listener) = socket {
            all.push(Entrance::Socket(tokio::net::UnixListener::from_std(listener).context("api-socket")?));
        }
        Ok(Self { all, authority: made_by })
    }

    /// Whom to believe of the API; empty where it speaks no TLS, or has a certificate of somebody else's.
    pub(super) fn authority(&self) -> &str {
        &self.authority
    }

    /// Serves `until` then; requests under way still end.
    pub(super) async fn serve<U>(self, router: Router, until: impl Fn() -> U)
    where
        U: Future<Output = ()>,
    {
        future::join_all(self.all.into_iter().map(|one| one.serve(router.clone(), until()))).await;
    }
}

impl Entrance {
    async fn serve(self, router: Router, until: impl Future<Output = ()>) {
        match self {
            Self::Plain(listener) => serve(listener, router, door::by_address, until).await,
            Self::Tls(door) => serve(*door, router, |_, peer| peer.clone(), until).await,
            Self::Socket(listener) => serve(listener, router, door::by_user, until).await,
        }
    }
}

/// The certificate that was given, or one of our own making.
fn papers(config: &Config, at: SocketAddr) -> Papers {
    let clients = config.api_client_ca.clone();
    match &config.api_tls_cert {
        Some(pair) => {
            Papers { certificate: pair.certificate.clone(), key: pair.key.clone(), clients, made_by: None }
        }
        None => {
            let maker = SelfMade::new(&config.data.join(FOLDER), &names(at.ip()));
            Papers { certificate: maker.server(), key: maker.server(), clients, made_by: Some(maker) }
        }
    }
}

/// Where clients may meet us, as far as this host knows.
pub(super) fn names(bound: IpAddr) -> Vec<String> {
    let mut names = vec![outward::address(bound).to_string()];
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned();
    let is_name = !host.is_empty() && host.chars().all(|c| c.is_ascii_alphanumeric() || "-.".contains(c));
    names.extend(is_name.then_some(host));
    names
}

/// `DATA/api/kubeconfig`, with which kubectl on this host works at once. It is a convenience: a disk that is
/// full must not keep an appliance from starting that would deliver what it holds and make room by that.
fn leave_kubeconfig(config: &Config, at: SocketAddr, authority: &Authority) {
    let near = match at.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => SocketAddr::from(([127, 0, 0, 1], at.port())),
        IpAddr::V6(ip) if ip.is_unspecified() => {
            SocketAddr::new(std::net::Ipv6Addr::LOCALHOST.into(), at.port())
        }
        _ => at,
    };
    let path = kubeconfig::place(&config.data);
    let text = kubeconfig::text(near, authority, own_token(config).as_deref());
    if std::fs::read_to_string(&path).is_ok_and(|there| there == text) {
        return;
    }
    if let Err(why) = replace(&path, &text) {
        tracing::warn!(%why, file = %path.display(), "no kubeconfig was left; `sluicegate kubeconfig` prints one");
    }
}

/// Writes a file for its owner alone, whole or not at all.
fn replace(path: &Path, text: &str) -> std::io::Result<()> {
    use std::io::Write as _;
    let fresh = path.with_extension("new");
    let written =
        std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&fresh);
    let renamed = written
        .and_then(|mut file| file.write_all(text.as_bytes()))
        .and_then(|()| std::fs::rename(&fresh, path));
    renamed.inspect_err(|_| drop(std::fs::remove_file(&fresh)))
}
