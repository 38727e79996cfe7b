//! Configuration of the appliance: flags over environment over file over defaults.
//!
//! Every flag of `run` is also a key of the config file (TOML or YAML, same names) and an environment
//! variable `SLUICEGATE_…`. An unknown name or an invalid value is one line on stderr that names it, and
//! exit status 2.

mod acme;
mod choice;
mod environment;
mod file;
mod gateway;
mod http;
mod multi_value;
mod program;
mod renamed;
mod roles;
mod route;
mod route_authentication;
mod route_filters;
mod route_forward_auth;
mod route_target;
mod settings;
mod upgrade_protocols;
mod value;

use std::collections::HashSet;
use std::net::SocketAddr;
use std::path::PathBuf;

use control::controllers::roles::RoleSet;
use control::publish::QuotaConfig;
use dataplane::http::limits::HttpLimits;

pub(crate) use acme::AcmeConfig;
pub(crate) use choice::{AccessFormat, IoDriverRule, ServerTiming, TlsVersion, WorkloadRule};
pub(crate) use gateway::GatewayConfig;
pub(crate) use multi_value::ManyValues;
pub(crate) use roles::RolesRule;
pub(crate) use route::RouteRule;
pub(crate) use route_authentication::{AuthenticationRule, BasicAuthRule, JwtRule};
pub(crate) use route_forward_auth::ForwardAuthRule;
pub(crate) use route_target::RouteTarget;
pub(crate) use settings::{Settings, setting_names};
pub(crate) use value::{
    AdvertisedHost, AllowedHostRule, AllowedTargetRule, ByteSize, CertificateRule, FilePair, ImageRule, NatsServerUrl,
    ProcessRule, QuotaRule, UserRule, Wait, address, whole,
};

/// All settings, resolved.
#[derive(Debug, Clone)]
pub(crate) struct RunConfig {
    pub(crate) data: PathBuf,
    pub(crate) workers: usize,
    pub(crate) http: SocketAddr,
    /// `certificates`, `private_https` and `events_https` require it.
    pub(crate) https: Option<SocketAddr>,
    pub(crate) certificates: Vec<CertificateRule>,
    pub(crate) private: Option<SocketAddr>,
    pub(crate) private_https: Option<SocketAddr>,
    /// Requires `https`. `None`: ACME is off.
    pub(crate) acme: Option<AcmeConfig>,
    pub(crate) tls_min_version: TlsVersion,
    pub(crate) events: SocketAddr,
    pub(crate) events_address: Option<AdvertisedHost>,
    pub(crate) events_https: Option<SocketAddr>,
    pub(crate) api: SocketAddr,
    pub(crate) api_socket: Option<PathBuf>,
    /// The API uses TLS.
    pub(crate) api_tls: bool,
    pub(crate) api_tls_cert: Option<FilePair>,
    pub(crate) api_client_ca: Option<PathBuf>,
    pub(crate) api_tokens: Option<PathBuf>,
    /// Callers over loopback must authenticate too.
    pub(crate) api_authenticate: bool,
    pub(crate) api_audit_log: Option<PathBuf>,
    pub(crate) admin: SocketAddr,
    pub(crate) console: Option<SocketAddr>,
    pub(crate) allowed_hosts: Vec<AllowedHostRule>,
    pub(crate) access_log: AccessFormat,
    /// Requires `access_log`.
    pub(crate) access_log_file: Option<PathBuf>,
    /// An `http://` URL.
    pub(crate) otlp: Option<String>,
    pub(crate) server_timing: ServerTiming,
    pub(crate) hot_restart: bool,
    /// One line for each setting that works and is probably not what was meant.
    pub(crate) warnings: Vec<String>,
    pub(crate) domain: String,
    pub(crate) manifests: Vec<PathBuf>,
    pub(crate) images: Vec<ImageRule>,
    pub(crate) insecure_registries: Vec<String>,
    pub(crate) registry_config: Option<PathBuf>,
    pub(crate) image_quota: Option<ByteSize>,
    pub(crate) instance_user: Option<UserRule>,
    pub(crate) process_instances: Option<ProcessRule>,
    pub(crate) io_driver: IoDriverRule,
    pub(crate) workloads: WorkloadRule,
    pub(crate) host_devices: bool,
    pub(crate) routes: Vec<RouteRule>,
    pub(crate) gateway: GatewayConfig,
    /// Timeouts and sizes of messages.
    pub(crate) http_limits: HttpLimits,
    pub(crate) allowed_targets: Vec<AllowedTargetRule>,
    pub(crate) log: wal::LogOptions,
    pub(crate) core_stall_timeout: Wait,
    pub(crate) quotas: QuotaConfig,
    /// The servers of Brokers that keep their events in JetStream and name none.
    pub(crate) nats_servers: Vec<NatsServerUrl>,
    pub(crate) kubeconfig: Option<PathBuf>,
    pub(crate) roles: RoleSet,
}

/// More cores than any machine this was tried on; a typo must not start 10,000 threads.
const WORKERS_MAX: usize = 512;

impl RunConfig {
    /// Merges flags and environment (already in `given`) with the file they may name, and the defaults.
    pub(crate) fn decide(given: Settings) -> Result<Self, String> {
        refuse_unknown_variables()?;
        let file = given.config.as_deref().map(file::read).transpose()?.unwrap_or_default();

        let http_limits = http::limits(&given, &file)?;
        let (images, mut warnings) = images_and_warnings(&given, &file);
        let gateway = gateway_config(&given, &file)?;
        let acme = acme_config(&given, &file)?;
        let quotas = quota_rules(&given, &file);
        let private_https = given.cluster_local_https.or(file.cluster_local_https);
        let private_https = private_https.or(given.private_https).or(file.private_https);
        let kubeconfig = given.kubeconfig.or(file.kubeconfig);
        let roles = roles::role_set(given.roles.or(file.roles), kubeconfig.is_some(), &mut warnings)?;
        let mut config = Self {
            data: given.data.or(file.data).unwrap_or_else(|| "./sluicegate-data".into()),
            workers: given.workers.or(file.workers).unwrap_or_else(cores),
            http: given.http.or(file.http).unwrap_or(loopback(8080)),
            https: given.https.or(file.https),
            private: given.cluster_local.or(file.cluster_local).or(given.private).or(file.private),
            private_https,
            certificates: either(given.tls_cert, file.tls_cert),
            acme,
            tls_min_version: given.tls_min_version.or(file.tls_min_version).unwrap_or_default(),
            events: given.events.or(file.events).unwrap_or(loopback(8081)),
            events_address: given.events_address.or(file.events_address),
            events_https: given.events_https.or(file.events_https),
            api: given.api.or(file.api).unwrap_or(loopback(8001)),
            api_socket: given.api_socket.or(file.api_socket),
            api_tls: given.api_tls || file.api_tls,
            api_tls_cert: given.api_tls_cert.or(file.api_tls_cert),
            api_client_ca: given.api_client_ca.or(file.api_client_ca),
            api_tokens: given.api_tokens.or(file.api_tokens),
            api_audit_log: given.api_audit_log.or(file.api_audit_log),
            api_authenticate: given.api_authenticate || file.api_authenticate,
            admin: given.admin.or(file.admin).unwrap_or(loopback(9090)),
            console: given.console.or(file.console),
            allowed_hosts: either(given.allowed_host, file.allowed_host),
            access_log: given.access_log.or(file.access_log).unwrap_or_default(),
            access_log_file: given.access_log_file.or(file.access_log_file),
            otlp: given.otlp.or(file.otlp),
            server_timing: given.server_timing.or(file.server_timing).unwrap_or_default(),
            hot_restart: given.hot_restart || file.hot_restart || given.takeover || file.takeover,
            warnings,
            domain: given.domain.or(file.domain).unwrap_or_else(|| "localhost".to_owned()),
            manifests: either(given.manifests, file.manifests),
            images,
            insecure_registries: either(given.insecure_registry, file.insecure_registry),
            registry_config: given.registry_config.or(file.registry_config),
            image_quota: given.image_quota.or(file.image_quota),
            instance_user: given.instance_user.or(file.instance_user),
            process_instances: given.process_instances.or(file.process_instances),
            io_driver: given.io_driver.or(file.io_driver).unwrap_or_default(),
            workloads: given.workloads.or(file.workloads).unwrap_or_default(),
            host_devices: given.host_devices || file.host_devices,
            routes: either(given.route, file.route),
            gateway,
            http_limits,
            allowed_targets: either(given.allow_target, file.allow_target),
            log: log_options(given.log_bytes.or(file.log_bytes))?,
            core_stall_timeout: given.core_stall_timeout.or(file.core_stall_timeout).unwrap_or_default(),
            quotas,
            nats_servers: either(given.nats_url, file.nats_url),
            kubeconfig,
            roles,
        };
        config.api_tls |= config.needs_api_tls();
        config.check()?;
        Ok(config)
    }

    /// Tokens must not cross a network in plain text, and certificates are for TLS.
    fn needs_api_tls(&self) -> bool {
        !self.api.ip().is_loopback() || self.api_tls_cert.is_some() || self.api_client_ca.is_some()
    }

    /// The console uses TLS where the API does, and beyond loopback: tokens must not cross a network in plain text.
    pub(crate) fn console_tls(&self) -> bool {
        self.console.is_some_and(|console| self.api_tls || !console.ip().is_loopback())
    }

    /// `None`: no core counts as stalled.
    pub(crate) fn stall_timeout(&self) -> Option<std::time::Duration> {
        Some(self.core_stall_timeout.0).filter(|timeout| !timeout.is_zero())
    }

    fn check(&self) -> Result<(), String> {
        if self.workers == 0 || self.workers > WORKERS_MAX {
            return Err(format!("workers: {} is not between 1 and {WORKERS_MAX}", self.workers));
        }
        if !value::is_domain(&self.domain) {
            return Err(format!("domain: {:?} is not a DNS name", self.domain));
        }
        if let (AccessFormat::Off, Some(path)) = (self.access_log, &self.access_log_file) {
            return Err(format!("access-log-file: {}: give --access-log common or json", path.display()));
        }
        if let Some(url) = self.otlp.as_ref().filter(|url| !value::is_http_url(url)) {
            return Err(format!("otlp: {url}: is not a URL like http://127.0.0.1:4318/v1/traces"));
        }
        self.check_api()?;
        let routes = self.routes.iter().map(|rule| ("route", &rule.host));
        let certificates = self.certificates.iter().map(|rule| ("tls-cert", &rule.host));
        let mut seen = HashSet::new();
        if let Some((name, host)) = routes.chain(certificates).find(|given| !seen.insert(*given)) {
            return Err(format!("{name}: {host} is given twice"));
        }
        let by_tls = self.https.or(self.private_https).or(self.events_https);
        if let (None, Some(rule)) = (by_tls, self.certificates.first()) {
            return Err(format!("tls-cert: {}: nothing listens for TLS; give --https", rule.host));
        }
        if let (None, Some(acme)) = (self.https, &self.acme) {
            return Err(format!("acme-email: {}: nothing listens for TLS; give --https", acme.email));
        }
        for (name, paths) in [("manifests", self.manifests.as_slice()), ("kubeconfig", self.kubeconfig.as_slice())] {
            if let Some(path) = paths.iter().find(|path| !path.exists()) {
                return Err(format!("{name}: {} does not exist", path.display()));
            }
        }
        Ok(())
    }
}

impl RunConfig {
    /// The settings that differ in `wanted` and take effect only at a start.
    pub(crate) fn needs_restart(&self, wanted: &Self) -> Vec<&'static str> {
        let differ = |key: fn(&Self) -> String| key(self) != key(wanted);
        type ShownSetting = (&'static str, fn(&RunConfig) -> String);
        let fields: [ShownSetting; 42] = [
            ("data", |config| format!("{:?}", config.data)),
            ("workers", |config| format!("{:?}", config.workers)),
            ("http", |config| format!("{:?}", config.http)),
            ("https", |config| format!("{:?}", config.https)),
            ("cluster-local", |config| format!("{:?}", config.private)),
            ("cluster-local-https", |config| format!("{:?}", config.private_https)),
            ("settings of ACME", |config| format!("{:?}", config.acme)),
            ("tls-min-version", |config| format!("{:?}", config.tls_min_version)),
            ("events", |config| format!("{:?}", config.events)),
            ("events-address", |config| format!("{:?}", config.events_address)),
            ("events-https", |config| format!("{:?}", config.events_https)),
            ("api", |config| format!("{:?}", (config.api, &config.api_socket, config.api_tls))),
            ("api-tls-cert", |config| format!("{:?}", config.api_tls_cert)),
            ("api-client-ca", |config| format!("{:?}", config.api_client_ca)),
            ("api-tokens", |config| format!("{:?}", config.api_tokens)),
            ("api-authenticate", |config| format!("{:?}", config.api_authenticate)),
            ("api-audit-log", |config| format!("{:?}", config.api_audit_log)),
            ("admin", |config| format!("{:?}", config.admin)),
            ("console", |config| format!("{:?}", config.console)),
            ("allowed-host", |config| format!("{:?}", config.allowed_hosts)),
            ("access-log", |config| format!("{:?}", (config.access_log, &config.access_log_file))),
            ("otlp", |config| format!("{:?}", config.otlp)),
            ("server-timing", |config| format!("{:?}", config.server_timing)),
            ("domain", |config| format!("{:?}", config.domain)),
            ("manifests", |config| format!("{:?}", config.manifests)),
            ("image", |config| format!("{:?}", config.images)),
            ("registry-config", |config| format!("{:?}", (&config.registry_config, &config.insecure_registries))),
            ("image-quota", |config| format!("{:?}", config.image_quota)),
            ("instance-user", |config| format!("{:?}", (config.instance_user, config.host_devices))),
            ("process-instances", |config| format!("{:?}", config.process_instances)),
            ("io-driver", |config| format!("{:?}", config.io_driver)),
            ("workloads", |config| format!("{:?}", config.workloads)),
            ("gateway-ports", |config| config.gateway.ports.to_string()),
            ("gateway-addresses", |config| config.gateway.addresses.to_string()),
            ("proxy-protocol", |config| format!("{:?}", config.gateway.proxy_protocol)),
            ("timeouts and limits of HTTP", |config| format!("{:?}", config.http_limits)),
            ("allow-target", |config| format!("{:?}", config.allowed_targets)),
            ("log-bytes or event-quota", |config| format!("{:?}", (config.log.log_bytes_max, &config.quotas))),
            ("nats-url", |config| format!("{:?}", config.nats_servers)),
            ("core-stall-timeout", |config| format!("{:?}", config.core_stall_timeout)),
            ("kubeconfig", |config| format!("{:?}", config.kubeconfig)),
            ("roles", |config| config.roles.to_string()),
        ];
        fields.into_iter().filter(|(_, key)| differ(*key)).map(|(name, _)| name).collect()
    }
}

/// Smallest event log of a core, in bytes: eight segments, each with space for two of the largest records.
const LOG_BYTES_MIN: u64 = 64 << 20;
/// Largest, in bytes: beyond it opening the log would take minutes.
const LOG_BYTES_MAX: u64 = 1 << 40;
/// Minimum number of segments of a small log, so that space is reclaimed in small pieces.
const LOG_SEGMENTS_MIN: u64 = 8;

fn log_options(bytes: Option<ByteSize>) -> Result<wal::LogOptions, String> {
    let mut options = wal::LogOptions::default();
    let Some(ByteSize(bytes)) = bytes else { return Ok(options) };
    if !(LOG_BYTES_MIN..=LOG_BYTES_MAX).contains(&bytes) {
        return Err(format!("log-bytes: {bytes} is not between {LOG_BYTES_MIN} and {LOG_BYTES_MAX}"));
    }
    options.log_bytes_max = bytes;
    while u64::from(options.segment_bytes) * LOG_SEGMENTS_MIN > bytes {
        options.segment_bytes /= 2;
    }
    Ok(options)
}

fn quota_rules(given: &Settings, file: &Settings) -> QuotaConfig {
    let all = given.event_quota.or(file.event_quota);
    let namespaces: Vec<QuotaRule> = either(given.namespace_event_quota.clone(), file.namespace_event_quota.clone());
    let namespaces = namespaces.into_iter().map(|rule| (rule.namespace, rule.bytes.0)).collect();
    QuotaConfig { total: all.map_or(0, |bytes| bytes.0), namespaces }
}

impl RunConfig {
    /// Callers on this host are trusted, so callers from elsewhere must authenticate (APP-38). TLS is
    /// implied there.
    fn check_api(&self) -> Result<(), String> {
        if let (Some(console), Some(path)) = (self.console, &self.kubeconfig) {
            return Err(format!(
                "console: {console}: the console shows the objects of the appliance's own API, and there is none with \
                 --kubeconfig {}; leave one of them out",
                path.display()
            ));
        }
        let asks = self.api_client_ca.is_some() || self.api_tokens.is_some();
        if let Some(console) = self.console.filter(|console| !console.ip().is_loopback() && !asks) {
            return Err(format!(
                "console: {console} is not a loopback address, and there is no authentication; give --api-client-ca or \
                 --api-tokens, or bind 127.0.0.1 and reach it through a tunnel"
            ));
        }
        if self.api.ip().is_loopback() || asks {
            return Ok(());
        }
        Err(format!(
            "api: {} is not a loopback address, and there is no authentication; give --api-client-ca or \
             --api-tokens, or bind 127.0.0.1 and reach it through a tunnel",
            self.api
        ))
    }
}

fn acme_config(given: &Settings, file: &Settings) -> Result<Option<AcmeConfig>, String> {
    AcmeConfig::new(
        given.acme_email.clone().or_else(|| file.acme_email.clone()),
        given.acme_directory.clone().or_else(|| file.acme_directory.clone()),
        given.acme_ca.clone().or_else(|| file.acme_ca.clone()),
        either(given.acme_hosts.clone(), file.acme_hosts.clone()),
    )
}

fn refuse_unknown_variables() -> Result<(), String> {
    let variables = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.to_string_lossy().into_owned())));
    environment::refuse_unknown(variables)
}

fn gateway_config(given: &Settings, file: &Settings) -> Result<GatewayConfig, String> {
    GatewayConfig::new(
        either(given.trusted_proxies.clone(), file.trusted_proxies.clone()),
        given.trusted_hops.or(file.trusted_hops),
        either(given.proxy_protocol.clone(), file.proxy_protocol.clone()),
        either(given.error_page.clone(), file.error_page.clone()),
        (
            given.gateway_ports.clone().or_else(|| file.gateway_ports.clone()),
            given.gateway_addresses.clone().or_else(|| file.gateway_addresses.clone()),
        ),
    )
}

/// The images, and a line for each setting that is probably not what was meant.
fn images_and_warnings(given: &Settings, file: &Settings) -> (Vec<ImageRule>, Vec<String>) {
    let (images, missing) = located(either(given.image.clone(), file.image.clone()));
    (images, renamed::deprecations(given, file).into_iter().chain(missing).collect())
}

/// With the full paths of their programs; and a line for each program that is missing. It may be installed later.
fn located(images: Vec<ImageRule>) -> (Vec<ImageRule>, Vec<String>) {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut missing = Vec::new();
    let locate = |rule: ImageRule| {
        let command = program::located(rule.command, &path);
        missing.extend(program::problem(&command, &path).map(|why| format!("image: {}: {why}", rule.image)));
        ImageRule { command, ..rule }
    };
    let images = images.into_iter().map(locate).collect();
    (images, missing)
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn loopback(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

fn either<T>(given: Vec<ManyValues<T>>, file: Vec<ManyValues<T>>) -> Vec<T> {
    let all = |many: Vec<ManyValues<T>>| many.into_iter().flat_map(|ManyValues(some)| some).collect::<Vec<_>>();
    let given = all(given);
    if given.is_empty() { all(file) } else { given }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// APP-38: an API without authentication is only served on this host.
    #[test]
    fn api_on_public_address_is_rejected() {
        let given = Settings { api: Some("0.0.0.0:8001".parse().unwrap()), ..Settings::default() };
        assert!(RunConfig::decide(given).unwrap_err().starts_with("api: 0.0.0.0:8001"));
    }

    #[test]
    fn duplicate_host_is_rejected() {
        let route = ["a=127.0.0.1:1", "b=127.0.0.1:1", "A=127.0.0.1:2"].map(|text| text.parse().unwrap());
        let twice = Settings { route: route.to_vec(), ..Settings::default() };
        assert_eq!(RunConfig::decide(twice).unwrap_err(), "route: a is given twice");
        let both = Settings {
            https: Some(loopback(0)),
            route: route[..2].to_vec(),
            tls_cert: vec!["a=/c.pem,/k.pem".parse().unwrap()],
            ..Settings::default()
        };
        assert!(RunConfig::decide(both).is_ok());
    }

    #[test]
    fn certificate_requires_tls_listener() {
        let https = Settings { https: Some(loopback(0)), ..Settings::default() };
        assert!(RunConfig::decide(https).is_ok(), "Ingress objects bring certificates too");
        let tls_cert = vec!["a=/c.pem,/k.pem".parse().unwrap()];
        let certificate = Settings { tls_cert, ..Settings::default() };
        assert!(RunConfig::decide(certificate).unwrap_err().starts_with("tls-cert: a"));
    }

    /// APP-07: a small log has small segments, and none is too small for the largest record.
    #[test]
    fn small_log_is_divided_and_too_small_one_rejected() {
        for (text, segment) in [("64Mi", 8 << 20), ("100Mi", 8 << 20), ("128Mi", 16 << 20), ("1Ti", 64 << 20)] {
            let options = log_options(Some(text.parse().unwrap())).unwrap();
            assert_eq!(options.segment_bytes, segment, "{text}");
        }
        assert_eq!(log_options(None).unwrap().log_bytes_max, 8 << 30);
        let why = log_options(Some(ByteSize(1 << 20))).unwrap_err();
        assert!(why.starts_with("log-bytes: 1048576 is not between"), "{why}");
    }

    #[test]
    fn quotas_are_set_by_namespace() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("sluicegate.toml");
        std::fs::write(&path, "event-quota = \"1Gi\"\nnamespace-event-quota = [\"a=1Mi\", \"*=5k\"]\n").unwrap();
        let config = RunConfig::decide(Settings { config: Some(path), ..Settings::default() }).unwrap();
        let namespaces = vec![("a".to_owned(), 1 << 20), ("*".to_owned(), 5000)];
        assert_eq!(config.quotas, QuotaConfig { total: 1 << 30, namespaces });
        for bad in ["a", "=1", "A=1", "a=much"] {
            assert!(bad.parse::<QuotaRule>().is_err(), "{bad}");
        }
    }

    #[test]
    fn flags_override_file_and_file_overrides_defaults() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("sluicegate.toml");
        std::fs::write(&path, "workers = 3\ndomain = \"example.com\"\nroute = \"*=127.0.0.1:9\"\n").unwrap();
        let given = Settings { config: Some(path), workers: Some(2), ..Settings::default() };

        let config = RunConfig::decide(given).unwrap();

        assert_eq!((config.workers, config.domain.as_str(), config.routes.len()), (2, "example.com", 1));
        assert_eq!(config.http, loopback(8080));
    }
}
