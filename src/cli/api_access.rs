//! How a command line tool reaches an API: by address, or by a kubeconfig.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow};
use kube::client::Body;
use kube::config::{KubeConfigOptions, Kubeconfig};
use tokio::runtime::{Builder, Runtime};
use ureq::http::{Request, Response};

use crate::config::address;

#[derive(Debug, clap::Args)]
pub(crate) struct ApiAccessArgs {
    /// Address of the API, as in the ready line of `sluicegate run`
    #[arg(long, value_name = "ADDR", value_parser = address, env = "SLUICEGATE_API", default_value = "127.0.0.1:8001")]
    api: SocketAddr,
    /// Bearer token that identifies the user
    #[arg(long, value_name = "TOKEN", env = "SLUICEGATE_TOKEN", hide_env_values = true)]
    token: Option<String>,
    /// A kubeconfig of the API; takes precedence over --api and --token
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
}

/// The API, as one client sees it.
pub(crate) struct ApiClient {
    client: kube::Client,
    pub(crate) runtime: Runtime,
    /// Its address, for messages.
    pub(crate) at: String,
}

impl ApiAccessArgs {
    pub(crate) fn new(api: SocketAddr, token: Option<String>, kubeconfig: Option<PathBuf>) -> Self {
        Self { api, token, kubeconfig }
    }

    pub(crate) fn of_kubeconfig(file: PathBuf) -> Self {
        Self::new(SocketAddr::from(([127, 0, 0, 1], 0)), None, Some(file))
    }

    pub(crate) fn open(&self) -> Result<ApiClient> {
        let runtime = Builder::new_current_thread().enable_all().build().context("no runtime")?;
        let mut config = match &self.kubeconfig {
            Some(file) => runtime.block_on(config(file))?,
            None => {
                let mut config = kube::Config::new(format!("http://{}", self.api).parse()?);
                config.auth_info.token = self.token.clone().map(Into::into);
                config
            }
        };
        // A restore is answered when all of it is written.
        config.read_timeout = None;
        let at = config.cluster_url.to_string();
        let inside = runtime.enter();
        let client = kube::Client::try_from(config).with_context(|| self.named())?;
        drop(inside);
        Ok(ApiClient { client, runtime, at })
    }

    fn named(&self) -> String {
        self.kubeconfig.as_deref().map_or_else(|| format!("--api {}", self.api), named)
    }
}

impl ApiClient {
    pub(crate) async fn send(&self, request: Request<Body>) -> Result<Response<Body>> {
        let unreachable = || {
            format!(
                "no API responds at {}: give --api the address of the ready line, or, if it uses TLS, --kubeconfig",
                self.at.trim_end_matches('/')
            )
        };
        self.client.send(request).await.map_err(|why| root(&why)).with_context(unreachable)
    }
}

/// The innermost reason: each layer of the client wraps it in its own words.
fn root(why: &(dyn std::error::Error + 'static)) -> anyhow::Error {
    let mut innermost = why;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    anyhow!("{innermost}")
}

/// A streamed request body. kube only builds such a body from responses, so this is one.
pub(crate) async fn streamed(body: axum::body::Body) -> Result<Body> {
    let mut body = Some(body);
    let answer = tower::service_fn(move |_| {
        let body = body.take().unwrap_or_default();
        async { Ok::<_, Infallible>(Response::new(body)) }
    });
    Ok(kube::Client::new(answer, "").send(Request::new(Body::empty())).await?.into_body())
}

/// The configuration in a kubeconfig.
pub(crate) async fn config(file: &Path) -> Result<kube::Config> {
    let read = Kubeconfig::read_from(file).with_context(|| named(file))?;
    let options = KubeConfigOptions::default();
    kube::Config::from_custom_kubeconfig(read, &options).await.with_context(|| named(file))
}

/// Whether a kubeconfig can be read and names a server; makes no request.
pub(crate) fn check(file: &Path) -> Result<()> {
    let runtime = Builder::new_current_thread().enable_all().build().context("no runtime")?;
    runtime.block_on(async { kube::Client::try_from(config(file).await?).with_context(|| named(file)) }).map(drop)
}

fn named(file: &Path) -> String {
    format!("--kubeconfig {}", file.display())
}
