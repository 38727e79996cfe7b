//! The events listener that speaks TLS: a certificate of our own making, who vouches for it, and its renewal.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use control::access::selfmade::SelfMade;
use control::clock::{Deadline, STEP_LOOK_EVERY, WallClock};
use control::controllers;
use dataplane::tls::{Identity, Own};
use jiff::Timestamp;

use super::sockets::Sockets;
use super::{api, outward};
use crate::config::Config;

/// Below the data folder: the authority's key and the certificate's.
const FOLDER: &str = "events-tls";
/// What the authority is called, so that nobody takes it for the API's.
const AUTHORITY: &str = "Sluicegate events authority";
/// How often the certificate is looked at, which ends weeks after it is due.
const RENEWAL_EVERY: Duration = Duration::from_secs(3600);

#[derive(Clone)]
pub(super) struct EventsTls {
    maker: SelfMade,
    own: Own,
    url_base: String,
    ca_certs: String,
}

impl EventsTls {
    /// Whether what [`EventsTls::open`] needs is there or can be made; `--events-https` names no port yet.
    pub(super) fn check(config: &Config) -> Result<()> {
        config.events_https.map_or(Ok(()), |at| Self::make(config, at).map(drop))
    }

    /// Makes what is missing, if something listens for events by TLS at all.
    pub(super) fn open(config: &Config, sockets: &Sockets) -> Result<Option<Self>> {
        let Some(listener) = sockets.events_https.first() else { return Ok(None) };
        Self::make(config, listener.local_addr().context("events-https")?).map(Some)
    }

    fn make(config: &Config, at: SocketAddr) -> Result<Self> {
        let folder = config.data.join(FOLDER);
        std::fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
        let maker = SelfMade::new(&folder, &api::names(at.ip())).signed_by(AUTHORITY);
        maker.renew(Timestamp::now()).map_err(|why| anyhow!("events-https: {why}"))?;
        let ca = maker.ca();
        let ca_certs = std::fs::read_to_string(&ca).with_context(|| ca.display().to_string())?;
        let url_base = format!("https://{}", outward::met_at(at));
        let made = Self { maker, own: Own::default(), url_base, ca_certs };
        made.show()?;
        Ok(made)
    }

    /// The certificate as the cores show it.
    pub(super) fn own(&self) -> Own {
        self.own.clone()
    }

    /// What statuses tell of it.
    pub(super) fn told(&self) -> controllers::EventsTls {
        controllers::EventsTls { url_base: self.url_base.clone(), ca_certs: self.ca_certs.clone() }
    }

    /// Shows a new certificate before the old one ends.
    pub(super) async fn keep_fresh(self) {
        let clock = WallClock::default();
        loop {
            let look_again = Deadline::new(clock.both(), RENEWAL_EVERY);
            while !look_again.has_passed(clock.both()) {
                tokio::time::sleep(STEP_LOOK_EVERY).await;
            }
            let renewed = self.maker.renew(Timestamp::now()).map_err(|why| anyhow!(why));
            match renewed.and_then(|renewed| if renewed { self.show().map(|()| true) } else { Ok(false) }) {
                Ok(false) => {}
                Ok(true) => tracing::info!("the events listener shows a new certificate"),
                Err(why) => {
                    let why = format!("{why:#}");
                    tracing::error!(why, "the events listener's certificate cannot be renewed");
                }
            }
        }
    }

    fn show(&self) -> Result<()> {
        let path = self.maker.server();
        let pem = std::fs::read(&path).with_context(|| path.display().to_string())?;
        self.own.set(&Identity::from_pem(&pem, &pem).with_context(|| path.display().to_string())?);
        Ok(())
    }
}
