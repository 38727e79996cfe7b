//! Checks everything that can be wrong with the settings and with the files that they name, before another
//! process hands anything over.
//!
//! A hot restart that fails after the handover leaves the appliance without API and events, so each start
//! creates here what it can create without the data folder, and one that may follow another process checks
//! what it will open in the folder.

use std::fs::OpenOptions;
use std::os::fd::AsFd;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use control::expiry::Expiries;
use dataplane::core::IoDriver;
use dataplane::table::GatewayOptions;
use dataplane::tls::CertificateStore;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Access, AtFlags, CWD, accessat};

use super::certificates::RouteTls;
use super::events_tls::EventsTls;
use super::sockets::unix::{self, PreparedSocket};
use super::{access_log, acme, api, certificates, gateway_options, image_pulls, route_authentication};
use crate::cli::api_access;
use crate::config::{IoDriverRule, RouteRule, RunConfig};

/// Folders below the data folder that a start writes into, if they exist.
const WRITTEN: [&str; 7] = ["", "acme", "api", "log", "instances", "events-tls", "https"];

/// What comes from the files that settings of the gateway name.
pub(super) struct GatewayFiles {
    pub(super) certificates: CertificateStore,
    /// For each `--route`, in their order.
    pub(super) trust: Vec<RouteTls>,
    pub(super) options: GatewayOptions,
    /// Each `--route`, with the users and keys that it names.
    pub(super) routes: Vec<RouteRule>,
}

/// Created by a start before it takes sockets or the data folder.
pub(super) struct Preflight {
    pub(super) files: GatewayFiles,
    pub(super) given: api::ApiTlsFiles,
    pub(super) access: dataplane::access_log::AccessLogConfig,
    pub(super) access_log: access_log::AccessLogThread,
    pub(super) api_socket: Option<PreparedSocket>,
    pub(super) io_driver: IoDriver,
}

/// # Errors The first invalid setting, by the name of its flag or file.
pub(super) fn run(config: &RunConfig, expiries: &Expiries) -> Result<Preflight> {
    let io_driver = io_driver(config.io_driver)?;
    let certificates = certificates::load(&config.certificates, expiries)?;
    let trust = config.routes.iter().map(|rule| certificates::client_tls(rule, expiries)).collect::<Result<_>>()?;
    let routes = route_authentication::load(&config.routes)?;
    let files = GatewayFiles { certificates, trust, options: gateway_options::read(config)?, routes };
    let given = api::ApiTlsFiles::read(config)?;
    image_pulls::check(config)?;
    acme::check(config)?;
    if let Some(file) = &config.kubeconfig {
        api_access::check(file)?;
    }
    if config.hot_restart && config.data.exists() {
        check_data(config)?;
        check_stdout()?;
    }
    let api_socket = unix::prepare(config)?;
    let (access, access_log) = access_log::start(config)?;
    Ok(Preflight { files, given, access, access_log, api_socket, io_driver })
}

/// # Errors
///
/// io_uring is required, and this kernel or a sandbox around this process forbids it.
fn io_driver(rule: IoDriverRule) -> Result<IoDriver> {
    match (rule, dataplane::core::check_kernel()) {
        (IoDriverRule::Epoll, _) => Ok(IoDriver::Epoll),
        (_, Ok(())) => Ok(IoDriver::IoUring),
        (IoDriverRule::IoUring, Err(why)) => Err(why.into()),
        (IoDriverRule::Auto, Err(why)) => {
            tracing::warn!(%why, "using epoll instead of io_uring: a request takes more CPU time");
            Ok(IoDriver::Epoll)
        }
    }
}

/// Checks what a start opens in the data folder, as far as this is possible while another process has it.
fn check_data(config: &RunConfig) -> Result<()> {
    for folder in WRITTEN.map(|name| config.data.join(name)).iter().filter(|folder| folder.exists()) {
        accessat(CWD, folder, Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS)
            .with_context(|| format!("cannot write to {}", folder.display()))?;
    }
    writable(&config.data.join("lock"))?;
    api::check_made(config)?;
    EventsTls::check(config)
}

fn writable(file: &Path) -> Result<()> {
    if file.exists() {
        let opened = OpenOptions::new().write(true).open(file);
        opened.with_context(|| format!("cannot write to {}", file.display()))?;
    }
    Ok(())
}

/// The ready line is written there, at the very end.
fn check_stdout() -> Result<()> {
    let out = std::io::stdout();
    let mut state = [PollFd::from_borrowed_fd(out.as_fd(), PollFlags::OUT)];
    // An error: interrupted by a signal; writing the line shows the rest.
    if poll(&mut state, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok() {
        let closed = state[0].revents().intersects(PollFlags::ERR | PollFlags::NVAL);
        ensure!(!closed, "stdout is closed, so the ready line cannot be read");
    }
    Ok(())
}
