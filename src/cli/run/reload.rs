//! Reloads: what SIGHUP, or a change of the config file or of a file that it names, brings into force without a restart.
//!
//! All or nothing: the new routes, certificates, trusted proxies and error pages are read and checked first. If one of them is wrong,
//! everything stays as it is, and log, metric and readiness say so.

use std::sync::{Arc, mpsc};

use anyhow::{Result, anyhow};
use control::publish::Publisher;

use super::MainEvent;
use super::config_watch::ConfigWatch;
use super::routes::StaticRoutes;
use super::{certificates, gateway_options, route_authentication, targets};
use crate::admin::Health;
use crate::config::{GatewayConfig, RunConfig, Settings};

/// What a reload changes.
pub(super) struct Reloader {
    /// As given on the command line; they name the config file.
    settings: Settings,
    pub(super) publisher: Arc<Publisher>,
    routes: StaticRoutes,
    watch: ConfigWatch,
}

impl Reloader {
    /// Follows the files from now on, too.
    pub(super) fn start(
        settings: Settings,
        config: &RunConfig,
        (publisher, routes): (Arc<Publisher>, StaticRoutes),
        say: mpsc::Sender<MainEvent>,
    ) -> Self {
        let watch = ConfigWatch::start(&settings, config, say);
        Self { settings, publisher, routes, watch }
    }

    /// Reads everything again. `current` becomes what is in force now.
    pub(super) fn reload(&mut self, current: &mut RunConfig, health: &Health) {
        match self.apply(current, health) {
            Ok(()) => {
                health.config.succeeded();
                tracing::info!(
                    routes = current.routes.len(),
                    certificates = current.certificates.len(),
                    "settings read again: routes, certificates, trusted proxies and error pages"
                );
            }
            Err(why) => {
                let why = format!("{why:#}");
                tracing::error!(why, "the settings cannot be read again; the previous settings stay in force");
                health.config.failed(why);
            }
        }
    }

    fn apply(&mut self, current: &mut RunConfig, health: &Health) -> Result<()> {
        let wanted = RunConfig::decide(self.settings.clone()).map_err(|why| anyhow!(why))?;
        // Before they are read: a change meanwhile, or a file that is repaired later, must be noticed.
        self.watch.add(&self.settings, &wanted);
        let restart = current.needs_restart(&wanted);
        let next = RunConfig {
            routes: wanted.routes,
            certificates: wanted.certificates,
            // The listeners read the PROXY protocol from their start on, and the controllers have the ports.
            gateway: GatewayConfig {
                proxy_protocol: current.gateway.proxy_protocol,
                ports: current.gateway.ports.clone(),
                addresses: current.gateway.addresses.clone(),
                ..wanted.gateway
            },
            ..current.clone()
        };
        targets::check_routes(&health.targets, &next)?;
        let mut shown = certificates::load(&next.certificates, &health.expiries)?;
        certificates::add_own(&mut shown, &next)?;
        let client_tls = |rule| certificates::client_tls(rule, &health.expiries);
        let trust = next.routes.iter().map(client_tls).collect::<Result<_>>()?;
        let options = gateway_options::read(&next)?;
        let routes = route_authentication::load(&next.routes)?;

        self.publisher.set_gateway_options(options);
        self.publisher.set_certificates(shown);
        self.routes.set(&routes, trust)?;
        *current = next;
        if !restart.is_empty() {
            let keys = restart.join(", ");
            tracing::warn!(keys, "these settings have changed too; they take effect at the next start or hot restart");
        }
        Ok(())
    }
}
