//! The flags of `sluicegate run`, on the command line and in the config file.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;
use serde::Deserialize;

use super::acme::HostPattern;
use super::gateway::{AddressRangesRule, ErrorPageRule, NetworkList, PortRangesRule, ProxyProtocolList};
use super::upgrade_protocols::UpgradeProtocolList;
use super::value::{
    AdvertisedHost, AllowedHostRule, AllowedTargetRule, ByteSize, CertificateRule, FilePair, ImageRule, NatsServerUrl,
    ProcessRule,
};
use super::value::{QuotaRule, UserRule, Wait};
use super::{
    AccessFormat, IoDriverRule, ManyValues, RolesRule, RouteRule, ServerTiming, TlsVersion, WorkloadRule, multi_value,
    value,
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
    #[serde(default, deserialize_with = "value::file_address")]
    pub(crate) http: Option<SocketAddr>,

    /// Address for HTTPS requests to routes; certificates are those of --tls-cert and of objects, and for other hosts of --route
    /// those of an authority of the appliance's own (DATA/https/ca.pem) [default: none]
    #[arg(long, value_name = "ADDR", value_parser = value::address, env = "SLUICEGATE_HTTPS")]
    #[serde(default, deserialize_with = "value::file_address")]
    pub(crate) https: Option<SocketAddr>,

    /// Certificate chain and private key (PEM) of a host, `*.PARENT` or `*`; reloaded at SIGHUP; may be
    /// given more than once
    #[arg(long, value_name = "HOST=CERT,KEY", env = "SLUICEGATE_TLS_CERT")]
    #[serde(default, deserialize_with = "multi_value::one_or_many")]
    pub(crate) tls_cert: Vec<ManyValues<CertificateRule>>,

    /// Get certificates by ACME for public hosts that have none, and renew them; the address is that of the account, and giving it
    /// accepts the authority's terms of service [default: none]
    #[arg(long, value_name = "ADDRESS", env = "SLUICEGATE_ACME_EMAIL")]
    pub(crate) acme_email: Option<String>,

    /// The URL of the ACME directory [default: that of Let's Encrypt]
    #[arg(long, value_name = "URL", env = "SLUICEGATE_ACME_DIRECTORY")]
    pub(crate) acme_directory: Option<String>,

    /// CA certificates (PEM) that are trusted for the ACME directory [default: the system's]
    #[arg(long, value_name = "FILE", env = "SLUICEGATE_ACME_CA")]
    pub(crate) acme_ca: Option<PathBuf>,

    /// Order by ACME for these hosts only; `*.PARENT` is for every name below; may be given more than once [default: every public
    /// host]
    #[arg(long, value_name = "HOST", env = "SLUICEGATE_ACME_HOSTS")]
    #[serde(default, deserialize_with = "multi_value::one_or_many")]
    pub(crate) acme_hosts: Vec<ManyValues<HostPattern>>,

    /// Address for internal callers, which also serves cluster-local hosts; the other listeners answer them 404
    /// [default: none]
    #[arg(long, value_name = "ADDR", value_parser = value::address, env = "SLUICEGATE_CLUSTER_LOCAL")]
    #[serde(default, deserialize_with = "value::file_address")]
    pub(crate) cluster_local: Option<SocketAddr>,

    /// The same over TLS; `cluster-local-domain-tls` in ConfigMap `config-network` issues its certificates
    /// [default: none]
    #[arg(long, value_name = "ADDR", value_parser = value::address, env = "SLUICEGATE_CLUSTER_LOCAL_HTTPS")]
    #[serde(default, deserialize_with = "value::file_address")]
    pub(crate) cluster_local_https: Option<SocketAddr>,

    /// The earlier name of `cluster-local`.
    #[arg(long, hide = true, value_parser = value::address, env = "SLUICEGATE_PRIVATE")]
    #[serde(default, deserialize_with = "value::file_address")]
    pub(crate) private: Option<SocketAddr>,

    /// The earlier name of `cluster-local-https`.
    #[arg(long, hide = true, value_parser = value::address, env = "SLUICEGATE_PRIVATE_HTTPS")]
    #[serde(default, deserialize_with = "value::file_address")]
    pub(crate) private_https: Option<SocketAddr>,

    /// The oldest version of TLS that clients may use: 1.2 or 1.3 [default: 1.2]
    #[arg(long, value_name = "VERSION", value_enum, env = "SLUICEGATE_TLS_MIN_VERSION")]
    pub(crate) tls_min_version: Option<TlsVersion>,

    /// Address for events to Brokers [default: 127.0.0.1:8081]
    #[arg(long, value_name = "ADDR", value_parser = value::address, env = "SLUICEGATE_EVENTS")]
    #[serde(default, deserialize_with = "value::file_address")]
    pub(crate) events: Option<SocketAddr>,

    /// The address that statuses name for events, instead of the listener's own: of a Service or load balancer before
    /// several replicas, `HOST` or `HOST:PORT` [default: that of --events]
    #[arg(long, value_name = "HOST[:PORT]", env = "SLUICEGATE_EVENTS_ADDRESS")]
    pub(crate) events_address: Option<AdvertisedHost>,

    /// Address for events over TLS; `transport-encryption` in ConfigMap `config-features` says whether it
    /// is used [default: none]
    #[arg(long, value_name = "ADDR", value_parser = value::address, env = "SLUICEGATE_EVENTS_HTTPS")]
    #[serde(default, deserialize_with = "value::file_address")]
    pub(crate) events_https: Option<SocketAddr>,

    /// Address of the Kubernetes-style API [default: 127.0.0.1:8001]
    #[arg(long, value_name = "ADDR", value_parser = value::address, env = "SLUICEGATE_API")]
    #[serde(default, deserialize_with = "value::file_address")]
    pub(crate) api: Option<SocketAddr>,

    /// Listen on this Unix socket too, for root and the user that runs it
    #[arg(long, value_name = "PATH", env = "SLUICEGATE_API_SOCKET")]
    pub(crate) api_socket: Option<PathBuf>,

    /// Use TLS on loopback too; beyond it, and with --api-tls-cert or --api-client-ca, the API always does
    #[arg(long, env = "SLUICEGATE_API_TLS")]
    #[serde(default)]
    pub(crate) api_tls: bool,

    /// Certificate chain and private key (PEM) of the API [default: created and renewed by itself, see
    /// DATA/api/ca.pem]
    #[arg(long, value_name = "CERT,KEY", env = "SLUICEGATE_API_TLS_CERT")]
    pub(crate) api_tls_cert: Option<FilePair>,

    /// CA certificates (PEM) for client certificates of the API: the common name is the user, organizations
    /// are groups
    #[arg(long, value_name = "FILE", env = "SLUICEGATE_API_CLIENT_CA")]
    pub(crate) api_client_ca: Option<PathBuf>,

    /// Bearer tokens that the API accepts: lines of `token,user,uid,"group,group"`
    #[arg(long, value_name = "FILE", env = "SLUICEGATE_API_TOKENS")]
    pub(crate) api_tokens: Option<PathBuf>,

    /// Authenticate callers over loopback too: every request to the API by TCP needs a token or a client
    /// certificate. The token in DATA/api/kubeconfig is the operator's
    #[arg(long, env = "SLUICEGATE_API_AUTHENTICATE")]
    #[serde(default)]
    pub(crate) api_authenticate: bool,

    /// Append a line of JSON to this file for every request to the API; reopened at SIGHUP
    #[arg(long, value_name = "FILE", env = "SLUICEGATE_API_AUDIT_LOG")]
    pub(crate) api_audit_log: Option<PathBuf>,

    /// Address of /metrics, /healthz and /readyz [default: 127.0.0.1:9090]
    #[arg(long, value_name = "ADDR", value_parser = value::address, env = "SLUICEGATE_ADMIN")]
    #[serde(default, deserialize_with = "value::file_address")]
    pub(crate) admin: Option<SocketAddr>,

    /// Address of the console, a web page that shows requests, events, objects and health; beyond loopback it uses TLS and
    /// tokens as the API does [default: none]
    #[arg(long, value_name = "ADDR", value_parser = value::address, env = "SLUICEGATE_CONSOLE")]
    #[serde(default, deserialize_with = "value::file_address")]
    pub(crate) console: Option<SocketAddr>,

    /// Host name by which clients may call API, admin and console, besides localhost and addresses; `*.PARENT`
    /// is for every name one label below; may be given more than once
    #[arg(long, value_name = "NAME", env = "SLUICEGATE_ALLOWED_HOST")]
    #[serde(default, deserialize_with = "multi_value::one_or_many")]
    pub(crate) allowed_host: Vec<ManyValues<AllowedHostRule>>,

    /// Write a line for every response: off, common (the format of NCSA's httpd) or json [default: off]
    #[arg(long, value_name = "FORMAT", value_enum, env = "SLUICEGATE_ACCESS_LOG")]
    pub(crate) access_log: Option<AccessFormat>,

    /// File of the access log, reopened at SIGHUP [default: stderr]
    #[arg(long, value_name = "FILE", env = "SLUICEGATE_ACCESS_LOG_FILE")]
    pub(crate) access_log_file: Option<PathBuf>,

    /// Send a span of every traced request to this collector (OTLP over HTTP, JSON), like
    /// http://127.0.0.1:4318/v1/traces [default: none]
    #[arg(long, value_name = "URL", env = "SLUICEGATE_OTLP")]
    pub(crate) otlp: Option<String>,

    /// Send `Server-Timing` with the phases of a request's wait: cold (requests that waited for an
    /// instance) or off [default: cold]
    #[arg(long, value_name = "WHICH", value_enum, env = "SLUICEGATE_SERVER_TIMING")]
    pub(crate) server_timing: Option<ServerTiming>,

    /// Take over the sockets and the data folder of the process that runs on it, without refusing a
    /// connection
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
    #[serde(default, deserialize_with = "multi_value::one_or_many")]
    pub(crate) manifests: Vec<ManyValues<PathBuf>>,

    /// Run images called REF as this command of this host; may be given more than once
    #[arg(long, value_name = "REF=COMMAND", env = "SLUICEGATE_IMAGE")]
    #[serde(default, deserialize_with = "multi_value::one_or_many")]
    pub(crate) image: Vec<ManyValues<ImageRule>>,

    /// A registry of images whose certificate is not verified and that may speak plain HTTP; may be given more than once
    #[arg(long, value_name = "HOST[:PORT]", env = "SLUICEGATE_INSECURE_REGISTRY")]
    #[serde(default, deserialize_with = "multi_value::one_or_many")]
    pub(crate) insecure_registry: Vec<ManyValues<String>>,

    /// Mirrors, CA files and insecure registries of images (TOML)
    #[arg(long, value_name = "FILE", env = "SLUICEGATE_REGISTRY_CONFIG")]
    pub(crate) registry_config: Option<PathBuf>,

    /// Past this size of all layers, remove the least recently used images that no Revision has [default: no limit]
    #[arg(long, value_name = "SIZE", env = "SLUICEGATE_IMAGE_QUOTA")]
    pub(crate) image_quota: Option<ByteSize>,

    /// Run instances whose manifest names no user as this one; takes root [default: the appliance's own; the group is the
    /// user's number]
    #[arg(long, value_name = "UID[:GID]", env = "SLUICEGATE_INSTANCE_USER")]
    pub(crate) instance_user: Option<UserRule>,

    /// Whether manifests may start programs of this host, by `class: process`, a `command` or an `exec` probe: deny,
    /// allow-list (service accounts that may use the policy `process`) or allow [default: allow; allow-list where the
    /// API is not on loopback and the appliance is not root]
    #[arg(long, value_name = "RULE", value_enum, env = "SLUICEGATE_PROCESS_INSTANCES")]
    pub(crate) process_instances: Option<ProcessRule>,

    /// How the cores wait for sockets and disks: auto (io_uring where the kernel and its sandbox allow it, and otherwise epoll,
    /// which takes more CPU time a request), io_uring or epoll [default: auto]
    #[arg(long, value_name = "DRIVER", value_enum, env = "SLUICEGATE_IO_DRIVER")]
    pub(crate) io_driver: Option<IoDriverRule>,

    /// Which workloads clients may write beside Services: all (Pods, ReplicaSets, Deployments, Jobs, CronJobs) or
    /// services-only [default: all]
    #[arg(long, value_name = "KINDS", value_enum, env = "SLUICEGATE_WORKLOADS")]
    pub(crate) workloads: Option<WorkloadRule>,

    /// Let instances see this host's devices; otherwise those of an appliance that is root have a /dev of their own, without
    /// hardware
    #[arg(long, env = "SLUICEGATE_HOST_DEVICES")]
    #[serde(default)]
    pub(crate) host_devices: bool,

    /// Send a host's requests straight to these addresses (`*` = any host; an address may be NAME:PORT or unix:/PATH), by http://, h2c://,
    /// https:// or h2://; options follow `?`, separated by `&`: ca=FILE (required by the last two), name=NAME,
    /// connect-timeout=WAIT, response-start-timeout=WAIT, idle-timeout=WAIT, request-timeout=WAIT, request-body-timeout=WAIT,
    /// stream-idle-timeout=WAIT, proxy-protocol=v1|v2, health-check=PATH,
    /// and filters, see docs/guides/gateway.md; may be given more than once
    #[arg(long, value_name = "HOST=[SCHEME://]ADDR[,ADDR...]", env = "SLUICEGATE_ROUTE")]
    #[serde(default, deserialize_with = "multi_value::one_or_many")]
    pub(crate) route: Vec<ManyValues<RouteRule>>,

    /// Proxies in front of the appliance: their `X-Forwarded-*` and `Forwarded` fields are accepted, and they see the reasons of
    /// failures (`Sluicegate-Reason`); those of other clients are replaced; may be given more than once [default: none]
    #[arg(long, value_name = "CIDR[,CIDR...]", env = "SLUICEGATE_TRUSTED_PROXIES")]
    #[serde(default, deserialize_with = "multi_value::one_or_many")]
    pub(crate) trusted_proxies: Vec<ManyValues<NetworkList>>,

    /// Accept at most this many entries from the end of a list that trusted proxies send [default: as many as are trusted proxies,
    /// and one more]
    #[arg(long, value_name = "N", value_parser = value::whole::<usize>, env = "SLUICEGATE_TRUSTED_HOPS")]
    pub(crate) trusted_hops: Option<usize>,

    /// Listeners where trusted proxies begin each connection with a PROXY protocol header (version 1 or 2): http, https; may be given
    /// more than once [default: none]
    #[arg(long, value_name = "LISTENER[,LISTENER...]", env = "SLUICEGATE_PROXY_PROTOCOL")]
    #[serde(default, deserialize_with = "multi_value::one_or_many")]
    pub(crate) proxy_protocol: Vec<ManyValues<ProxyProtocolList>>,

    /// The ports that Gateways may open, beside those of --http and --https: any, none, or a list; the default leaves the ports
    /// of the system's services alone [default: 80,443,1024-65535]
    #[arg(long, value_name = "PORT[-PORT][,...]", env = "SLUICEGATE_GATEWAY_PORTS")]
    pub(crate) gateway_ports: Option<PortRangesRule>,

    /// Addresses of this host for Gateways that name none: each gets one of its own, and shares no port with others [default: none,
    /// they share the address of --http]
    #[arg(long, value_name = "ADDRESS[-ADDRESS][,...]", env = "SLUICEGATE_GATEWAY_ADDRESSES")]
    pub(crate) gateway_addresses: Option<AddressRangesRule>,

    /// The body of the appliance's own responses with this status (`404`, or `5xx` for a class); may be given more than once
    /// [default: a short text]
    #[arg(long, value_name = "STATUS=FILE", env = "SLUICEGATE_ERROR_PAGE")]
    #[serde(default, deserialize_with = "multi_value::one_or_many")]
    pub(crate) error_page: Vec<ManyValues<ErrorPageRule>>,

    /// End a request whose body makes no progress for this long before the response begins (408) [default:
    /// 60s]
    #[arg(long, value_name = "WAIT", env = "SLUICEGATE_REQUEST_BODY_TIMEOUT")]
    pub(crate) request_body_timeout: Option<Wait>,

    /// Close a stream whose reader is stalled for this long, or that has no data in either direction for this long while the
    /// client can still send; 0 = never [default: 5m]
    #[arg(long, value_name = "WAIT", env = "SLUICEGATE_STREAM_IDLE_TIMEOUT")]
    pub(crate) stream_idle_timeout: Option<Wait>,

    /// Let an HTTP/1 client that has closed its sending side wait this long for the next bytes of its
    /// response; one that has closed its connection looks the same [default: 100ms]
    #[arg(long, value_name = "WAIT", env = "SLUICEGATE_HALF_CLOSE_TIMEOUT")]
    pub(crate) half_close_timeout: Option<Wait>,

    /// Maximum header fields of a request or a response [default: 256]
    #[arg(long, value_name = "N", env = "SLUICEGATE_MAX_HEADER_FIELDS")]
    pub(crate) max_header_fields: Option<usize>,

    /// Maximum size of the head of a request or a response [default: 64Ki]
    #[arg(long, value_name = "BYTES", env = "SLUICEGATE_MAX_HEADER_BYTES")]
    pub(crate) max_header_bytes: Option<ByteSize>,

    /// Let clients of HTTP/1.1 switch to these protocols by `Upgrade`, if the instance agrees; what they then send passes as it
    /// is; may be given more than once [default: WebSocket only]
    #[arg(long, value_name = "PROTOCOL[,PROTOCOL...]", env = "SLUICEGATE_UPGRADE_PROTOCOLS")]
    #[serde(default, deserialize_with = "multi_value::one_or_many")]
    pub(crate) upgrade_protocols: Vec<ManyValues<UpgradeProtocolList>>,

    /// Let objects name addresses as sinks, backends and probes that are refused otherwise: listeners of the appliance (only
    /// with their port), link-local and metadata addresses; may be given more than once
    #[arg(long, value_name = "CIDR[:PORT]", env = "SLUICEGATE_ALLOW_TARGET")]
    #[serde(default, deserialize_with = "multi_value::one_or_many")]
    pub(crate) allow_target: Vec<ManyValues<AllowedTargetRule>>,

    /// Maximum size of each core's event log; a full log answers senders 503 [default: 8Gi]
    #[arg(long, value_name = "BYTES", env = "SLUICEGATE_LOG_BYTES")]
    pub(crate) log_bytes: Option<ByteSize>,

    /// A core without progress for this long is stalled: /healthz and /readyz fail and name its work (2s,
    /// 500ms; 0 = never) [default: 2s]
    #[arg(long, value_name = "DURATION", env = "SLUICEGATE_CORE_STALL_TIMEOUT")]
    pub(crate) core_stall_timeout: Option<Wait>,

    /// Maximum undelivered events of all namespaces together; beyond it senders are answered 429 [default:
    /// none]
    #[arg(long, value_name = "BYTES", env = "SLUICEGATE_EVENT_QUOTA")]
    pub(crate) event_quota: Option<ByteSize>,

    /// Maximum undelivered events of one namespace (`*` = each that is not named); may be given more than
    /// once
    #[arg(long, value_name = "NAMESPACE=BYTES", env = "SLUICEGATE_NAMESPACE_EVENT_QUOTA")]
    #[serde(default, deserialize_with = "multi_value::one_or_many")]
    pub(crate) namespace_event_quota: Vec<ManyValues<QuotaRule>>,

    /// A server of NATS JetStream for Brokers of class SluicegateJetStream whose ConfigMap names none; may be given more than
    /// once, for the servers of a cluster [default: none]
    #[arg(long, value_name = "URL", env = "SLUICEGATE_NATS_URL")]
    #[serde(default, deserialize_with = "multi_value::one_or_many")]
    pub(crate) nats_url: Vec<ManyValues<NatsServerUrl>>,

    /// Follow the cluster of this kubeconfig instead of serving an API of our own
    #[arg(long, value_name = "FILE", env = "SLUICEGATE_KUBECONFIG")]
    pub(crate) kubeconfig: Option<PathBuf>,

    /// Take over these parts only, separated by commas: serving, ingress, broker, channel, sources, gateway-api, or all.
    /// With --kubeconfig, other controllers may have the rest, and sources is not among them [default: all; with
    /// --kubeconfig serving,ingress,broker,channel]
    #[arg(long, value_name = "ROLE,...", env = "SLUICEGATE_ROLES")]
    pub(crate) roles: Option<RolesRule>,
}

/// The names of all settings, as flags without dashes and as keys of the config file.
pub(crate) fn setting_names() -> Vec<String> {
    let flags = Settings::augment_args(clap::Command::new("run"));
    flags.get_arguments().filter_map(|flag| flag.get_long()).map(str::to_owned).collect()
}
