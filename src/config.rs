//! What the appliance is told: flags over environment over file over defaults.
//!
//! Every flag of `run` is also a key of the config file (TOML or YAML, same names) and an
//! environment variable `SLUICEGATE_…`. A name nobody knows or a value that does not parse is one
//! line on stderr that names it, and exit status 2.

mod choice;
mod environment;
mod file;
mod http;
mod many;
mod program;
mod renamed;
mod route;
mod value;

use std::collections::HashSet;
use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;
use control::publish::QuotaRules;
use dataplane::http::limits::HttpLimits;
use serde::Deserialize;

pub(crate) use choice::{AccessFormat, ServerTiming, TlsVersion};
pub(crate) use many::Many;
pub(crate) use route::{RouteRule, RouteTarget};
pub(crate) use value::{
    AllowedTargetRule, Bytes, CertificateRule, FilePair, HostRule, ImageRule, ProcessRule, QuotaRule,
    UserRule, Wait, address, whole,
};

/// Flags of `sluicegate run`, and keys of its config file.
#[derive(Debug, Clone, Default, Args, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Settings {
    /// Read further settings from this file (TOML or YAML; the keys are the flags' names)
    #[arg(long, value_name = "FILE", env = "SLUICEGATE_CONFIG")]
    #[serde(skip)]
    pub(crate) config: Option<PathBuf>,

    /// Folder for objects, event logs and instance logs [default: ./sluicegate-data]
    #[arg(long, value_name = "DIR", env = "SLUICEGATE_DATA")]
    pub(crate) data: Option<PathBuf>,

    /// Cores that serve traffic, one thread each [default: all]
    #[arg(long, value_name = "N", value_parser = value::whole::<usize>, env = "SLUICEGATE_WORKERS")]
    pub(crate) workers: Option<usize>,

    /// Address for HTTP requests to routes [default: 127.0.0.1:8080]
    #[arg(long, value_name = "ADDR", value_parser = value::address, env = "SLUICEGATE_HTTP")]
    pub(crate) http: Option<SocketAddr>,

    /// Address for HTTPS requests to routes; certificates are those of --tls-cert and of Ingress objects
    /// [default: none]
    #[arg(long, value_name = "ADDR", value_parser = value::address, env = "SLUICEGATE_HTTPS")]
    pub(crate) https: Option<SocketAddr>,

    /// Certificate chain and private key (PEM) of a host, `*.PARENT` or `*`; read again at SIGHUP; may be
    /// given more than once
    #[arg(long, value_name = "HOST=CERT,KEY", env = "SLUICEGATE_TLS_CERT")]
    #[serde(default, deserialize_with = "file::one_or_many")]
    pub(crate) tls_cert: Vec<Many<CertificateRule>>,

    /// Address for callers inside, who reach cluster-local hosts too; those are 404 on the others [default:
    /// none]
    #[arg(long, value_name = "ADDR", value_parser = value::address, env = "SLUICEGATE_PRIVATE")]
    pub(crate) private: Option<SocketAddr>,

    /// Address for callers inside by TLS; `cluster-local-domain-tls` in ConfigMap `config-network` makes certificates for
    /// it [default: none]
    #[arg(long, value_name = "ADDR", value_parser = value::address, env = "SLUICEGATE_PRIVATE_HTTPS")]
    pub(crate) private_https: Option<SocketAddr>,

    /// The oldest version of TLS that clients may speak: 1.2 or 1.3 [default: 1.2]
    #[arg(long, value_name = "VERSION", value_enum, env = "SLUICEGATE_TLS_MIN_VERSION")]
    pub(crate) tls_min_version: Option<TlsVersion>,

    /// Address for events to Brokers [default: 127.0.0.1:8081]
    #[arg(long, value_name = "ADDR", value_parser = value::address, env = "SLUICEGATE_EVENTS")]
    pub(crate) events: Option<SocketAddr>,

    /// Address for events by TLS; `transport-encryption` in ConfigMap `config-features` says whether it is used
    /// [default: none]
    #[arg(long, value_name = "ADDR", value_parser = value::address, env = "SLUICEGATE_EVENTS_HTTPS")]
    pub(crate) events_https: Option<SocketAddr>,

    /// Address of the Kubernetes-style API [default: 127.0.0.1:8001]
    #[arg(long, value_name = "ADDR", value_parser = value::address, env = "SLUICEGATE_API")]
    pub(crate) api: Option<SocketAddr>,

    /// Listen on this Unix socket too, for root and the user that runs it
    #[arg(long, value_name = "PATH", env = "SLUICEGATE_API_SOCKET")]
    pub(crate) api_socket: Option<PathBuf>,

    /// Speak TLS on loopback too; beyond it, and with --api-tls-cert or --api-client-ca, the API always does
    #[arg(long, env = "SLUICEGATE_API_TLS")]
    #[serde(default)]
    pub(crate) api_tls: bool,

    /// Certificate chain and private key (PEM) with which the API speaks TLS [default: made and renewed by
    /// itself, see DATA/api/ca.pem]
    #[arg(long, value_name = "CERT,KEY", env = "SLUICEGATE_API_TLS_CERT")]
    pub(crate) api_tls_cert: Option<FilePair>,

    /// Authorities (PEM) whose client certificates the API believes: the common name is the user,
    /// organizations are groups
    #[arg(long, value_name = "FILE", env = "SLUICEGATE_API_CLIENT_CA")]
    pub(crate) api_client_ca: Option<PathBuf>,

    /// Bearer tokens that the API believes: lines of `token,user,uid,"group,group"`
    #[arg(long, value_name = "FILE", env = "SLUICEGATE_API_TOKENS")]
    pub(crate) api_tokens: Option<PathBuf>,

    /// Trust no caller for coming over loopback: every request to the API by TCP needs a token or a client certificate. The one in
    /// DATA/api/kubeconfig is the operator's
    #[arg(long, env = "SLUICEGATE_API_AUTHENTICATE")]
    #[serde(default)]
    pub(crate) api_authenticate: bool,

    /// Append a line of JSON to this file for every request to the API; opened again at SIGHUP
    #[arg(long, value_name = "FILE", env = "SLUICEGATE_API_AUDIT_LOG")]
    pub(crate) api_audit_log: Option<PathBuf>,

    /// Address of /metrics, /healthz and /readyz [default: 127.0.0.1:9090]
    #[arg(long, value_name = "ADDR", value_parser = value::address, env = "SLUICEGATE_ADMIN")]
    pub(crate) admin: Option<SocketAddr>,

    /// Name by which clients may call API and admin, beside localhost and addresses; `*.PARENT` is for every name one label below; may
    /// be given more than once
    #[arg(long, value_name = "NAME", env = "SLUICEGATE_ALLOWED_HOST")]
    #[serde(default, deserialize_with = "file::one_or_many")]
    pub(crate) allowed_host: Vec<Many<HostRule>>,

    /// Write a line for every answer: off, common (as NCSA's httpd) or json [default: off]
    #[arg(long, value_name = "FORMAT", value_enum, env = "SLUICEGATE_ACCESS_LOG")]
    pub(crate) access_log: Option<AccessFormat>,

    /// Where to, opened again at SIGHUP [default: stderr]
    #[arg(long, value_name = "FILE", env = "SLUICEGATE_ACCESS_LOG_FILE")]
    pub(crate) access_log_file: Option<PathBuf>,

    /// Send a span of every request that is traced to this collector (OTLP over HTTP, JSON), like
    /// http://127.0.0.1:4318/v1/traces [default: none]
    #[arg(long, value_name = "URL", env = "SLUICEGATE_OTLP")]
    pub(crate) otlp: Option<String>,

    /// Tell clients what a request waited for by `Server-Timing`: cold (requests that waited for an instance) or
    /// off [default: cold]
    #[arg(long, value_name = "WHICH", value_enum, env = "SLUICEGATE_SERVER_TIMING")]
    pub(crate) server_timing: Option<ServerTiming>,

    /// Take the sockets and the data folder over from the process that runs on it, without refusing a connection
    #[arg(long, env = "SLUICEGATE_HOT_RESTART")]
    #[serde(default)]
    pub(crate) hot_restart: bool,

    /// The earlier name of --hot-restart
    #[arg(long, env = "SLUICEGATE_TAKEOVER", hide = true)]
    #[serde(default)]
    pub(crate) takeover: bool,

    /// Domain below which Services get their hosts: NAME.NAMESPACE.DOMAIN [default: localhost]
    #[arg(long, value_name = "DOMAIN", env = "SLUICEGATE_DOMAIN")]
    pub(crate) domain: Option<String>,

    /// Apply the YAML manifests of this file or folder at start and when they change; may be given more than
    /// once
    #[arg(long, value_name = "PATH", env = "SLUICEGATE_MANIFESTS")]
    #[serde(default, deserialize_with = "file::one_or_many")]
    pub(crate) manifests: Vec<Many<PathBuf>>,

    /// Run images called REF as this command of this host; may be given more than once
    #[arg(long, value_name = "REF=COMMAND", env = "SLUICEGATE_IMAGE")]
    #[serde(default, deserialize_with = "file::one_or_many")]
    pub(crate) image: Vec<Many<ImageRule>>,

    /// Run instances whose manifest names no user as this one; takes root [default: the appliance's own; the group is the
    /// user's number]
    #[arg(long, value_name = "UID[:GID]", env = "SLUICEGATE_INSTANCE_USER")]
    pub(crate) instance_user: Option<UserRule>,

    /// Whether manifests may start programs of this host, by `class: process`, a `command` or an `exec` probe: deny,
    /// allow-list (service accounts that may use the policy `process`) or allow [default: allow; allow-list where the
    /// API is not on loopback and the appliance is not root]
    #[arg(long, value_name = "RULE", value_enum, env = "SLUICEGATE_PROCESS_INSTANCES")]
    pub(crate) process_instances: Option<ProcessRule>,

    /// Let instances see this host's devices; otherwise those of an appliance that is root have a /dev of their own, without
    /// hardware
    #[arg(long, env = "SLUICEGATE_HOST_DEVICES")]
    #[serde(default)]
    pub(crate) host_devices: bool,

    /// Send a host's requests straight to these addresses (`*` = any host; an address may be NAME:PORT), by http://, h2c://,
    /// https:// or h2://; options stand behind `?` with `&` between them: ca=FILE (the last two need it), name=NAME,
    /// request-body-timeout=WAIT, stream-idle-timeout=WAIT; may be given more than once
    #[arg(long, value_name = "HOST=[SCHEME://]ADDR[,ADDR...]", env = "SLUICEGATE_ROUTE")]
    #[serde(default, deserialize_with = "file::one_or_many")]
    pub(crate) route: Vec<Many<RouteRule>>,

    /// End a request whose body brings nothing for so long while there is no response (408) [default: 60s]
    #[arg(long, value_name = "WAIT", env = "SLUICEGATE_REQUEST_BODY_TIMEOUT")]
    pub(crate) request_body_timeout: Option<Wait>,

    /// Cut a stream on which nothing passes either way, or whose reader takes nothing, for so long; 0 = never [default: 5m]
    #[arg(long, value_name = "WAIT", env = "SLUICEGATE_STREAM_IDLE_TIMEOUT")]
    pub(crate) stream_idle_timeout: Option<Wait>,

    /// Let a client of HTTP/1 that has ended its side wait so long for the next bytes of its response; one that has closed
    /// its connection looks the same [default: 100ms]
    #[arg(long, value_name = "WAIT", env = "SLUICEGATE_HALF_CLOSE_TIMEOUT")]
    pub(crate) half_close_timeout: Option<Wait>,

    /// Fields that the head of a request or a response may have [default: 256]
    #[arg(long, value_name = "N", env = "SLUICEGATE_MAX_HEADER_FIELDS")]
    pub(crate) max_header_fields: Option<usize>,

    /// Size of the head of a request or a response [default: 64Ki]
    #[arg(long, value_name = "BYTES", env = "SLUICEGATE_MAX_HEADER_BYTES")]
    pub(crate) max_header_bytes: Option<Bytes>,
    /// Let objects name addresses as sinks, backends and probes that are refused otherwise: listeners of the appliance (only
    /// with their port), link-local and metadata addresses; may be given more than once
    #[arg(long, value_name = "CIDR[:PORT]", env = "SLUICEGATE_ALLOW_TARGET")]
    #[serde(default, deserialize_with = "file::one_or_many")]
    pub(crate) allow_target: Vec<Many<AllowedTargetRule>>,

    /// Files of each core's event log, together; a full log answers senders 503 [default: 8Gi]
    #[arg(long, value_name = "BYTES", env = "SLUICEGATE_LOG_BYTES")]
    pub(crate) log_bytes: Option<Bytes>,

    /// A core that has done nothing for so long is stalled: /healthz and /readyz fail and say at what (2s, 500ms; 0 = never)
    /// [default: 2s]
    #[arg(long, value_name = "DURATION", env = "SLUICEGATE_CORE_STALL_TIMEOUT")]
    pub(crate) core_stall_timeout: Option<Wait>,

    /// Undelivered events of all namespaces together; beyond it senders are answered 429 [default: none]
    #[arg(long, value_name = "BYTES", env = "SLUICEGATE_EVENT_QUOTA")]
    pub(crate) event_quota: Option<Bytes>,

    /// Undelivered events of one namespace (`*` = of each that is not named); may be given more than once
    #[arg(long, value_name = "NAMESPACE=BYTES", env = "SLUICEGATE_NAMESPACE_EVENT_QUOTA")]
    #[serde(default, deserialize_with = "file::one_or_many")]
    pub(crate) namespace_event_quota: Vec<Many<QuotaRule>>,

    /// Follow the cluster of this kubeconfig instead of serving an API of our own
    #[arg(long, value_name = "FILE", env = "SLUICEGATE_KUBECONFIG")]
    pub(crate) kubeconfig: Option<PathBuf>,
}

/// All settings, decided.
#[derive(Debug, Clone)]
pub(crate) struct Config {
    pub(crate) data: PathBuf,
    pub(crate) workers: usize,
    pub(crate) http: SocketAddr,
    /// `certificates` are never without it, `private_https` or `events_https`.
    pub(crate) https: Option<SocketAddr>,
    pub(crate) certificates: Vec<CertificateRule>,
    pub(crate) private: Option<SocketAddr>,
    pub(crate) private_https: Option<SocketAddr>,
    pub(crate) tls_min_version: TlsVersion,
    pub(crate) events: SocketAddr,
    pub(crate) events_https: Option<SocketAddr>,
    pub(crate) api: SocketAddr,
    pub(crate) api_socket: Option<PathBuf>,
    /// The API speaks TLS.
    pub(crate) api_tls: bool,
    pub(crate) api_tls_cert: Option<FilePair>,
    pub(crate) api_client_ca: Option<PathBuf>,
    pub(crate) api_tokens: Option<PathBuf>,
    /// Coming over loopback says nothing.
    pub(crate) api_authenticate: bool,
    pub(crate) api_audit_log: Option<PathBuf>,
    pub(crate) admin: SocketAddr,
    pub(crate) allowed_hosts: Vec<HostRule>,
    pub(crate) access_log: AccessFormat,
    /// Never without `access_log`.
    pub(crate) access_log_file: Option<PathBuf>,
    /// An `http://` URL.
    pub(crate) otlp: Option<String>,
    pub(crate) server_timing: ServerTiming,
    pub(crate) hot_restart: bool,
    /// One line for each setting that was given by an earlier name.
    pub(crate) deprecations: Vec<String>,
    pub(crate) domain: String,
    pub(crate) manifests: Vec<PathBuf>,
    pub(crate) images: Vec<ImageRule>,
    pub(crate) instance_user: Option<UserRule>,
    pub(crate) process_instances: Option<ProcessRule>,
    pub(crate) host_devices: bool,
    pub(crate) routes: Vec<RouteRule>,
    /// Timeouts and sizes of messages.
    pub(crate) http_limits: HttpLimits,
    pub(crate) allowed_targets: Vec<AllowedTargetRule>,
    pub(crate) log: wal::Options,
    pub(crate) core_stall_timeout: Wait,
    pub(crate) quotas: QuotaRules,
    pub(crate) kubeconfig: Option<PathBuf>,
}

/// More cores than any machine this was tried on; a typo must not start 10,000 threads.
const WORKERS_MAX: usize = 512;

impl Config {
    /// Joins flags and environment (already in `given`) with the file it may name, and the defaults.
    pub(crate) fn decide(given: Settings) -> Result<Self, String> {
        let variables = std::env::vars_os().filter_map(|(name, value)| {
            Some((name.into_string().ok()?, value.to_string_lossy().into_owned()))
        });
        environment::refuse_unknown(variables)?;
        let file = match &given.config {
            Some(path) => file::read(path)?,
            None => Settings::default(),
        };

        let http_limits = http::limits(&given, &file)?;
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let mut config = Self {
            data: given.data.or(file.data).unwrap_or_else(|| "./sluicegate-data".into()),
            workers: given.workers.or(file.workers).unwrap_or(cores),
            http: given.http.or(file.http).unwrap_or(loopback(8080)),
            https: given.https.or(file.https),
            private: given.private.or(file.private),
            private_https: given.private_https.or(file.private_https),
            certificates: either(given.tls_cert, file.tls_cert),
            tls_min_version: given.tls_min_version.or(file.tls_min_version).unwrap_or_default(),
            events: given.events.or(file.events).unwrap_or(loopback(8081)),
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
            allowed_hosts: either(given.allowed_host, file.allowed_host),
            access_log: given.access_log.or(file.access_log).unwrap_or_default(),
            access_log_file: given.access_log_file.or(file.access_log_file),
            otlp: given.otlp.or(file.otlp),
            server_timing: given.server_timing.or(file.server_timing).unwrap_or_default(),
            hot_restart: given.hot_restart || file.hot_restart || given.takeover || file.takeover,
            deprecations: renamed::deprecations(given.takeover || file.takeover),
            domain: given.domain.or(file.domain).unwrap_or_else(|| "localhost".to_owned()),
            manifests: either(given.manifests, file.manifests),
            images: located(either(given.image, file.image)),
            instance_user: given.instance_user.or(file.instance_user),
            process_instances: given.process_instances.or(file.process_instances),
            host_devices: given.host_devices || file.host_devices,
            routes: either(given.route, file.route),
            http_limits,
            allowed_targets: either(given.allow_target, file.allow_target),
            log: log_options(given.log_bytes.or(file.log_bytes))?,
            core_stall_timeout: given.core_stall_timeout.or(file.core_stall_timeout).unwrap_or_default(),
            quotas: quota_rules(
                given.event_quota.or(file.event_quota),
                either(given.namespace_event_quota, file.namespace_event_quota),
            ),
            kubeconfig: given.kubeconfig.or(file.kubeconfig),
        };
        config.api_tls |=
            !config.api.ip().is_loopback() || config.api_tls_cert.is_some() || config.api_client_ca.is_some();
        config.check()?;
        Ok(config)
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
            return Err(format!("otlp: {url}: is no URL like http://127.0.0.1:4318/v1/traces"));
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
        for (name, paths) in
            [("manifests", self.manifests.as_slice()), ("kubeconfig", self.kubeconfig.as_slice())]
        {
            if let Some(path) = paths.iter().find(|path| !path.exists()) {
                return Err(format!("{name}: {} does not exist", path.display()));
            }
        }
        Ok(())
    }
}

/// Smallest event log of a core, in bytes: eight segments, each with room for the largest record twice.
const LOG_BYTES_MIN: u64 = 64 << 20;
/// Largest, in bytes: beyond it opening the log would read for minutes.
const LOG_BYTES_MAX: u64 = 1 << 40;
/// Segments that a small log is divided into at least, so that space comes back in small pieces.
const LOG_SEGMENTS_MIN: u64 = 8;

fn log_options(bytes: Option<Bytes>) -> Result<wal::Options, String> {
    let mut options = wal::Options::default();
    let Some(Bytes(bytes)) = bytes else { return Ok(options) };
    if !(LOG_BYTES_MIN..=LOG_BYTES_MAX).contains(&bytes) {
        return Err(format!("log-bytes: {bytes} is not between {LOG_BYTES_MIN} and {LOG_BYTES_MAX}"));
    }
    options.log_bytes_max = bytes;
    while u64::from(options.segment_bytes) * LOG_SEGMENTS_MIN > bytes {
        options.segment_bytes /= 2;
    }
    Ok(options)
}

fn quota_rules(all: Option<Bytes>, namespaces: Vec<QuotaRule>) -> QuotaRules {
    let namespaces = namespaces.into_iter().map(|rule| (rule.namespace, rule.bytes.0)).collect();
    QuotaRules { all: all.map_or(0, |bytes| bytes.0), namespaces }
}

impl Config {
    /// Whoever is on this host is believed, so nobody else may come in unasked (APP-38). TLS goes without
    /// saying there.
    fn check_api(&self) -> Result<(), String> {
        let asks = self.api_client_ca.is_some() || self.api_tokens.is_some();
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

fn located(images: Vec<ImageRule>) -> Vec<ImageRule> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let locate = |rule: ImageRule| ImageRule { command: program::located(rule.command, &path), ..rule };
    images.into_iter().map(locate).collect()
}

fn loopback(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

fn either<T>(given: Vec<Many<T>>, file: Vec<Many<T>>) -> Vec<T> {
    let all = |many: Vec<Many<T>>| many.into_iter().flat_map(|Many(some)| some).collect::<Vec<_>>();
    let given = all(given);
    if given.is_empty() { all(file) } else { given }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// APP-38: an API without authentication does not leave this host.
    #[test]
    fn an_api_on_a_public_address_is_refused() {
        let given = Settings { api: Some("0.0.0.0:8001".parse().unwrap()), ..Settings::default() };
        assert!(Config::decide(given).unwrap_err().starts_with("api: 0.0.0.0:8001"));
    }

    #[test]
    fn a_host_is_given_once() {
        let route = ["a=127.0.0.1:1", "b=127.0.0.1:1", "A=127.0.0.1:2"].map(|text| text.parse().unwrap());
        let twice = Settings { route: route.to_vec(), ..Settings::default() };
        assert_eq!(Config::decide(twice).unwrap_err(), "route: a is given twice");
        let both = Settings {
            https: Some(loopback(0)),
            route: route[..2].to_vec(),
            tls_cert: vec!["a=/c.pem,/k.pem".parse().unwrap()],
            ..Settings::default()
        };
        assert!(Config::decide(both).is_ok());
    }

    #[test]
    fn a_certificate_needs_tls_and_tls_may_wait_for_one() {
        let https = Settings { https: Some(loopback(0)), ..Settings::default() };
        assert!(Config::decide(https).is_ok(), "Ingress objects bring certificates too");
        let tls_cert = vec!["a=/c.pem,/k.pem".parse().unwrap()];
        let certificate = Settings { tls_cert, ..Settings::default() };
        assert!(Config::decide(certificate).unwrap_err().starts_with("tls-cert: a"));
    }

    /// APP-07: a small log has small segments, and none is too small for the largest record.
    #[test]
    fn a_small_log_is_divided_and_one_too_small_is_refused() {
        for (text, segment) in [("64Mi", 8 << 20), ("100Mi", 8 << 20), ("128Mi", 16 << 20), ("1Ti", 64 << 20)]
        {
            let options = log_options(Some(text.parse().unwrap())).unwrap();
            assert_eq!(options.segment_bytes, segment, "{text}");
        }
        assert_eq!(log_options(None).unwrap().log_bytes_max, 8 << 30);
        let why = log_options(Some(Bytes(1 << 20))).unwrap_err();
        assert!(why.starts_with("log-bytes: 1048576 is not between"), "{why}");
    }

    #[test]
    fn quotas_are_named_by_namespace() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("sluicegate.toml");
        std::fs::write(&path, "event-quota = \"1Gi\"\nnamespace-event-quota = [\"a=1Mi\", \"*=5k\"]\n")
            .unwrap();
        let config = Config::decide(Settings { config: Some(path), ..Settings::default() }).unwrap();
        let namespaces = vec![("a".to_owned(), 1 << 20), ("*".to_owned(), 5000)];
        assert_eq!(config.quotas, QuotaRules { all: 1 << 30, namespaces });
        for bad in ["a", "=1", "A=1", "a=much"] {
            assert!(bad.parse::<QuotaRule>().is_err(), "{bad}");
        }
    }

    #[test]
    fn flags_win_over_the_file_and_the_file_over_defaults() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("sluicegate.toml");
        std::fs::write(&path, "workers = 3\ndomain = \"example.com\"\nroute = \"*=127.0.0.1:9\"\n").unwrap();
        let given = Settings { config: Some(path), workers: Some(2), ..Settings::default() };

        let config = Config::decide(given).unwrap();

        assert_eq!((config.workers, config.domain.as_str(), config.routes.len()), (2, "example.com", 1));
        assert_eq!(config.http, loopback(8080));
    }
}
