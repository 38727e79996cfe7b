//! The TLS events listener: a self-made certificate, its CA, and its renewal.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use control::access::self_signed::SelfSignedCertificates;
use control::clock::{Deadline, STEP_LOOK_EVERY, WallClock};
use control::controllers;
use dataplane::tls::{DefaultCertificate, TlsIdentity};
use jiff::Timestamp;

use super::sockets::BoundSockets;
use super::{advertised_address, hosts};
use crate::config::RunConfig;

/// Below the data folder: the keys of the CA and of the certificate.
const FOLDER: &str = "events-tls";
/// Name of the CA, distinct from the API's.
const AUTHORITY: &str = "Sluicegate events authority";
/// How often the certificate is checked, which expires weeks after it is due for renewal.
const RENEWAL_EVERY: Duration = Duration::from_secs(3600);

#[derive(Clone)]
pub(super) struct EventsTls {
    maker: SelfSignedCertificates,
    own: DefaultCertificate,
    url_base: String,
    ca_certs: String,
}

impl EventsTls {
    /// Checks that the files [`EventsTls::open`] needs are valid or can be created; `--events-https` names
    /// no port yet.
    pub(super) fn check(config: &RunConfig) -> Result<()> {
        config.events_https.map_or(Ok(()), |at| Self::make(config, at).map(drop))
    }

    /// Creates what is missing, if there is a TLS events listener at all.
    pub(super) fn open(config: &RunConfig, sockets: &BoundSockets) -> Result<Option<Self>> {
        let Some(listener) = sockets.events_https.first() else { return Ok(None) };
        Self::make(config, listener.local_addr().context("events-https")?).map(Some)
    }

    fn make(config: &RunConfig, at: SocketAddr) -> Result<Self> {
        let folder = config.data.join(FOLDER);
        std::fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
        let maker = SelfSignedCertificates::new(&folder, &hosts::names(at.ip())).with_authority_name(AUTHORITY);
        maker.renew(Timestamp::now()).map_err(|why| anyhow!("events-https: {why}"))?;
        let ca = maker.ca_path();
        let ca_certs = std::fs::read_to_string(&ca).with_context(|| ca.display().to_string())?;
        let url_base = format!("https://{}", advertised_address::met_at(at));
        let made = Self { maker, own: DefaultCertificate::default(), url_base, ca_certs };
        made.show()?;
        Ok(made)
    }

    /// The certificate for the cores.
    pub(super) fn own(&self) -> DefaultCertificate {
        self.own.clone()
    }

    /// The listener as statuses report it.
    pub(super) fn listener_state(&self) -> controllers::EventsTlsListener {
        controllers::EventsTlsListener { url_base: self.url_base.clone(), ca_certs: self.ca_certs.clone() }
    }

    /// Publishes a new certificate before the old one expires.
    pub(super) async fn keep_fresh(self) {
        let clock = WallClock::default();
        loop {
            let look_again = Deadline::new(clock.both(), RENEWAL_EVERY);
            let mut last = Timestamp::now();
            // A clock that was put back may find its certificate not yet valid.
            while !look_again.has_passed(clock.both()) && Timestamp::now() >= last {
                last = Timestamp::now();
                tokio::time::sleep(STEP_LOOK_EVERY).await;
            }
            let renewed = self.maker.renew(Timestamp::now()).map_err(|why| anyhow!(why));
            match renewed.and_then(|renewed| if renewed { self.show().map(|()| true) } else { Ok(false) }) {
                Ok(false) => {}
                Ok(true) => {
                    tracing::info!("the events listener has a new certificate");
                    if std::fs::read_to_string(self.maker.ca_path()).is_ok_and(|now| now != self.ca_certs) {
                        tracing::warn!("its authority is new, too: statuses show it after the next start");
                    }
                }
                Err(why) => {
                    let why = format!("{why:#}");
                    tracing::error!(why, "the events listener's certificate cannot be renewed");
                }
            }
        }
    }

    fn show(&self) -> Result<()> {
        let path = self.maker.server_path();
        let pem = std::fs::read(&path).with_context(|| path.display().to_string())?;
        self.own.set(&TlsIdentity::from_pem(&pem, &pem).with_context(|| path.display().to_string())?);
        Ok(())
    }
}
