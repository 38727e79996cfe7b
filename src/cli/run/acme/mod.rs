//! Certificates by ACME (RFC 8555): orders and renews one for each public host that has no other, and publishes them to the cores.
//!
//! A thread of its own makes one order at a time. The cores see ready certificates, and routes for open challenges.

mod http_client;
mod limits;
mod order;
mod responder;
mod schedule;
mod storage;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::sync::Arc;
use std::thread::JoinHandle;

use anyhow::{Context as _, Result};
use control::bounded_file;
use control::publish::{ObjectCertificates, Publisher};
use instant_acme::Account;
use jiff::Timestamp;
use tokio::sync::watch;
use tokio::time::sleep;

use self::http_client::DirectoryClient;
use self::limits::{CHECK_INTERVAL, FILE_BYTES_MAX, HOSTS_MAX};
use self::responder::ChallengeResponder;
use self::schedule::OrderSchedule;
use self::storage::{AcmeStorage, StoredCertificate};
use crate::admin::AcmeCounters;
use crate::config::{AcmeConfig, RunConfig};

/// The owner of the certificates in the publisher. Objects have a namespace in theirs.
const OWNER: &str = "acme";

const SCHEDULE: &str = "schedule.json";

/// Certificates, settings and past orders.
struct AcmeManager {
    config: AcmeConfig,
    publisher: Arc<Publisher>,
    counters: Arc<AcmeCounters>,
    client: DirectoryClient,
    storage: AcmeStorage,
    certificates: BTreeMap<String, StoredCertificate>,
    schedule: OrderSchedule,
    /// The hosts to have certificates, as of this count of changes.
    hosts: (u64, BTreeSet<String>),
    account: Option<Account>,
}

/// The running thread.
pub(super) struct AcmeThread {
    stop: watch::Sender<bool>,
    thread: JoinHandle<()>,
}

/// Publishes the stored certificates, and orders from now on. `None`: ACME is off.
pub(super) fn start(
    config: &RunConfig,
    publisher: &Arc<Publisher>,
    counters: &Arc<AcmeCounters>,
) -> Result<Option<AcmeThread>> {
    let start = |acme| AcmeManager::open(acme, &config.data, publisher, counters)?.start();
    config.acme.as_ref().map(start).transpose()
}

/// Checks the files that the settings name, before another process hands anything over.
pub(super) fn check(config: &RunConfig) -> Result<()> {
    config.acme.as_ref().map_or(Ok(()), |acme| client(acme).map(drop))
}

fn client(config: &AcmeConfig) -> Result<DirectoryClient> {
    let ca = config.ca.as_ref().map(|path| {
        let read = bounded_file::read(path, FILE_BYTES_MAX).with_context(|| path.display().to_string())?;
        read.with_context(|| format!("{} has more than {FILE_BYTES_MAX} bytes", path.display()))
    });
    DirectoryClient::new(ca.transpose().context("acme-ca")?.as_deref()).context("acme-ca")
}

impl AcmeThread {
    /// Ends an order that is being made.
    pub(super) fn finish(self) {
        self.stop.send_replace(true);
        if self.thread.join().is_err() {
            tracing::error!("the thread of ACME panicked, see its message above");
        }
    }
}

impl AcmeManager {
    /// Reads what earlier processes have stored.
    fn open(
        config: &AcmeConfig,
        data: &std::path::Path,
        publisher: &Arc<Publisher>,
        counters: &Arc<AcmeCounters>,
    ) -> Result<Self> {
        let client = client(config)?;
        let storage = AcmeStorage::open(data, &config.directory).context("the state of ACME")?;
        Ok(Self {
            config: config.clone(),
            publisher: Arc::clone(publisher),
            counters: Arc::clone(counters),
            client,
            certificates: storage.certificates()?,
            schedule: OrderSchedule::default(),
            storage,
            hosts: (0, BTreeSet::new()),
            account: None,
        })
    }

    /// Publishes the stored certificates, and orders from now on.
    fn start(mut self) -> Result<AcmeThread> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        self.update_hosts();
        self.publish();
        let (stop, stopped) = watch::channel(false);
        let run = move || runtime.block_on(self.run(stopped));
        let thread = std::thread::Builder::new().name("acme".to_owned()).spawn(run).context("no thread for ACME")?;
        Ok(AcmeThread { stop, thread })
    }

    async fn run(mut self, mut stopped: watch::Receiver<bool>) {
        tokio::select! {
            ended = self.manage() => if let Err(why) = ended {
                tracing::error!(why = format!("{why:#}"), "ACME stopped: no certificate is ordered or renewed until a restart");
            },
            _ = stopped.wait_for(|stop| *stop) => {}
        }
    }

    async fn manage(&mut self) -> Result<()> {
        let responder = ChallengeResponder::start(Arc::clone(&self.publisher)).await?;
        let _lock = self.acquire_lock().await?;
        // The previous process may have changed both until now.
        self.certificates.extend(self.storage.certificates()?);
        self.schedule = self.read_schedule();
        self.publish();
        loop {
            if self.update_hosts() {
                self.publish();
            }
            let hosts = self.hosts.1.iter();
            let hosts = hosts.map(|host| (host.as_str(), self.certificates.get(host).map(|known| known.validity)));
            match self.schedule.next(hosts, Timestamp::now()).map(str::to_owned) {
                Some(host) => self.order(&responder, &host).await,
                None => sleep(CHECK_INTERVAL).await,
            }
        }
    }

    /// Waits for the end of the process that this one replaces.
    async fn acquire_lock(&mut self) -> Result<File> {
        loop {
            if let Some(lock) = self.storage.try_lock()? {
                return Ok(lock);
            }
            if self.update_hosts() {
                self.publish();
            }
            sleep(CHECK_INTERVAL).await;
        }
    }

    /// Returns whether other hosts are to have certificates.
    fn update_hosts(&mut self) -> bool {
        let changes = self.publisher.changes();
        if changes == self.hosts.0 {
            return false;
        }
        let mut hosts = self.publisher.hosts_without_certificate(OWNER);
        hosts.retain(|host| self.config.allows(host));
        if hosts.len() > HOSTS_MAX {
            let (hosts_total, limit) = (hosts.len(), HOSTS_MAX);
            tracing::warn!(hosts_total, limit, "more hosts than ACME manages; the first by name get certificates");
            hosts = hosts.into_iter().take(HOSTS_MAX).collect();
        }
        let is_other = hosts != self.hosts.1;
        self.hosts = (changes, hosts);
        is_other
    }

    /// Certificates of hosts that are gone stay stored, and are used when their hosts come back.
    fn publish(&self) {
        let known = self.hosts.1.iter().filter_map(|host| Some((host, self.certificates.get(host)?)));
        let public: Vec<_> = known.map(|(host, certificate)| (host.clone(), certificate.identity.clone())).collect();
        let earliest =
            self.hosts.1.iter().filter_map(|host| self.certificates.get(host)).map(|known| known.validity.not_after);
        self.counters.set_certificates(self.hosts.1.len(), public.len(), earliest.min());
        let certificates = ObjectCertificates { public, yields: true, ..ObjectCertificates::default() };
        self.publisher.set_object_certificates(OWNER, certificates);
        self.publisher.publish_now();
    }

    async fn order(&mut self, responder: &ChallengeResponder, host: &str) {
        self.schedule.retain(|known| self.hosts.1.contains(known));
        self.schedule.order_began(Timestamp::now());
        self.save_schedule();
        self.counters.order_began();
        tracing::info!(host, directory = self.config.directory, "ordering a certificate by ACME");
        match self.try_order(responder, host).await {
            Ok(certificate) => {
                let renewal = certificate.validity.renew_at();
                tracing::info!(host, expires = %certificate.validity.not_after, %renewal, "a certificate was issued by ACME");
                self.certificates.insert(host.to_owned(), certificate);
                self.schedule.succeeded(host);
                self.publish();
            }
            Err(why) => self.failed(host, &why),
        }
        self.save_schedule();
    }

    async fn try_order(&mut self, responder: &ChallengeResponder, host: &str) -> Result<StoredCertificate> {
        let account = match &self.account {
            Some(account) => account,
            None => self.account.insert(order::account(&self.client, &self.storage, &self.config).await?),
        };
        let pem = order::order(account, responder, host).await?;
        let certificate = StoredCertificate::parse(host, pem.as_bytes()).context("the directory's certificate")?;
        self.storage.write_certificate(host, &pem)?;
        Ok(certificate)
    }

    fn failed(&mut self, host: &str, why: &anyhow::Error) {
        self.counters.order_failed();
        let now = Timestamp::now();
        let (failures, mut next) = self.schedule.failed(host, now, fastrand::f64());
        if let Some(retry_after) = self.client.rate_limit().take() {
            next = next.max(self.schedule.rate_limited(retry_after, now));
        }
        let expires = self.certificates.get(host).map(|known| known.validity.not_after.to_string());
        let (why, expires) = (format!("{why:#}"), expires.as_deref().unwrap_or("none"));
        tracing::warn!(host, why, failures, %next, expires, "no certificate was issued by ACME; it is tried again");
    }

    fn read_schedule(&self) -> OrderSchedule {
        self.storage.read_json(SCHEDULE).map(Option::unwrap_or_default).unwrap_or_else(|why| {
            tracing::warn!(why = format!("{why:#}"), "the schedule of ACME cannot be read; it begins empty");
            OrderSchedule::default()
        })
    }

    fn save_schedule(&self) {
        if let Err(why) = self.storage.write_json(SCHEDULE, &self.schedule) {
            tracing::error!(why = format!("{why:#}"), "the schedule of ACME cannot be stored");
        }
    }
}
