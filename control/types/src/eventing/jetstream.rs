//! The options of a Broker of class `SluicegateJetStream`, whose events are in a stream of NATS JetStream.
//!
//! The ConfigMap in `spec.config` names the servers and the Secret with their credentials; options of streams that
//! JetStream cannot have are rejected.

use std::collections::BTreeMap;
use std::time::Duration;

use contract::event_store::{ExternalStreamOptions, StoreCredentials};
use http::Uri;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::stream_options::{BrokerConfigMap, StreamOptions, stream_options};

/// URLs of servers, separated by commas.
const URL: &str = "nats-url";
/// Copies of each event.
const REPLICAS: &str = "replicas";
/// `file`, the only storage that survives a server's end.
const STORAGE: &str = "storage";
/// The Secret with the credentials, in the namespace of the ConfigMap.
const AUTH_SECRET: &str = "auth-secret";
/// Certificate authorities (PEM) of the servers.
const TLS_CA: &str = "tls-ca";

/// What JetStream can have.
const REPLICAS_MAX: u8 = 5;
/// One server may fail, and the others still agree.
const REPLICAS_DEFAULT: u8 = 3;
/// Servers of one Broker: the client discovers the others of a cluster.
pub const SERVERS_MAX: usize = 16;
/// Length of one URL: a host name has at most 253.
const URL_BYTES_MAX: usize = 512;
/// Bytes of the certificate authorities: some 30 of them.
const TLS_CA_BYTES_MAX: usize = 64 << 10;
/// Bytes of one value in the Secret: a credentials file has some 2 KiB.
const CREDENTIAL_BYTES_MAX: usize = 16 << 10;
/// How long a sender may repeat an event that it has no answer for, unless `deduplication-window` says otherwise: the
/// default of JetStream.
const DUPLICATE_WINDOW_DEFAULT: Duration = Duration::from_secs(120);

/// The options in a Broker's ConfigMap.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JetStreamConfig {
    pub servers: Vec<String>,
    pub replicas: u8,
    pub auth_secret: Option<String>,
    pub certificate_authorities: Option<String>,
}

impl JetStreamConfig {
    /// Reads a ConfigMap; `default_servers` are those of a Broker that names none. An error names the key.
    pub fn read(config: &BrokerConfigMap, default_servers: &[String]) -> Result<Self, String> {
        let text = |key: &str| config.get(key).map(|value| value.trim()).filter(|value| !value.is_empty());
        let servers = match text(URL) {
            Some(urls) => urls.split(',').map(server_url).collect::<Result<Vec<_>, _>>(),
            None => Ok(default_servers.to_vec()),
        };
        let servers = servers.map_err(|why| format!("{URL}: {why}"))?;
        if servers.is_empty() {
            return Err(format!("{URL} is missing: set it in the Broker's ConfigMap, or --nats-url for all Brokers"));
        }
        if servers.len() > SERVERS_MAX {
            return Err(format!("{URL}: {} servers, at most {SERVERS_MAX} are accepted", servers.len()));
        }
        let replicas = match text(REPLICAS) {
            Some(number) => {
                number.parse().ok().filter(|number| (1..=REPLICAS_MAX).contains(number)).ok_or_else(|| {
                    format!("{REPLICAS}: invalid value {number:?}: expected a number from 1 to {REPLICAS_MAX}")
                })?
            }
            None => REPLICAS_DEFAULT,
        };
        if let Some(other) = text(STORAGE).filter(|storage| *storage != "file") {
            return Err(format!("{STORAGE}: invalid value {other:?}: only file survives the end of a server"));
        }
        let certificate_authorities = text(TLS_CA).map(str::to_owned);
        if certificate_authorities.as_ref().is_some_and(|pem| pem.len() > TLS_CA_BYTES_MAX) {
            return Err(format!("{TLS_CA}: longer than {TLS_CA_BYTES_MAX} bytes"));
        }
        Ok(Self { servers, replicas, auth_secret: text(AUTH_SECRET).map(str::to_owned), certificate_authorities })
    }

    /// How the stream is stored.
    #[must_use]
    pub fn store_options(&self, options: &StreamOptions) -> ExternalStreamOptions {
        let retention = &options.retention;
        ExternalStreamOptions {
            replicas: self.replicas,
            retention_bytes: retention.retention_bytes,
            retention_time: retention.retention_time,
            duplicate_window: match retention.deduplication_window {
                Duration::ZERO => DUPLICATE_WINDOW_DEFAULT,
                window => window,
            },
        }
    }
}

/// The URL of a server, in its canonical form.
///
/// # Errors
/// It is not `nats://HOST[:PORT]` or `tls://HOST[:PORT]`.
pub fn server_url(text: &str) -> Result<String, String> {
    let text = text.trim();
    let bad =
        |why: &str| Err(format!("{text:?} is no URL of a server, like nats://HOST:4222 or tls://HOST:4222: {why}"));
    if text.len() > URL_BYTES_MAX {
        return Err(format!("a URL has {} bytes, at most {URL_BYTES_MAX} are accepted", text.len()));
    }
    if text.contains('@') {
        return Err("a URL must not hold credentials: name a Secret with auth-secret".to_owned());
    }
    let whole = if text.contains("://") { text.to_owned() } else { format!("nats://{text}") };
    let Ok(uri) = whole.parse::<Uri>() else { return bad("it cannot be read") };
    if !matches!(uri.scheme_str(), Some("nats" | "tls")) {
        return bad("the scheme is neither nats nor tls");
    }
    if uri.host().is_none_or(str::is_empty) || !matches!(uri.path(), "" | "/") || uri.query().is_some() {
        return bad("it has no host, or more than a host and a port");
    }
    Ok(whole.trim_end_matches('/').to_owned())
}

/// The credentials in a Secret: `creds`, `token`, or `username` and `password`.
///
/// # Errors
/// It has none of them, or a value is too long.
pub fn credentials(secret: &BTreeMap<String, String>) -> Result<StoreCredentials, String> {
    if let Some((key, value)) = secret.iter().find(|(_, value)| value.len() > CREDENTIAL_BYTES_MAX) {
        return Err(format!("{key} has {} bytes, at most {CREDENTIAL_BYTES_MAX} are accepted", value.len()));
    }
    let value = |key: &str| secret.get(key).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty());
    match (value("creds"), value("token"), value("username"), value("password")) {
        (Some(text), ..) => Ok(StoreCredentials::File(text)),
        (_, Some(token), ..) => Ok(StoreCredentials::Token(token)),
        (.., Some(user), Some(password)) => Ok(StoreCredentials::Password { user, password }),
        _ => Err("it has neither creds, nor token, nor username and password".to_owned()),
    }
}

/// The option that a stream in JetStream cannot have, if one is set.
#[must_use]
pub fn unsupported_option(meta: &ObjectMeta, config: &BrokerConfigMap) -> Option<&'static str> {
    let options = stream_options(meta, config);
    if options.retention.durability.flush_interval().is_some() {
        return Some("durability: a 202 always means that the servers have the event");
    }
    if !options.retention.history_time.is_zero() {
        return Some("history-time: events that all Triggers had are not kept");
    }
    options.drain_on_delete.then_some("on-delete: a deleted Broker's stream is deleted with its events")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eventing::stream_options::{DURABILITY, HISTORY_TIME, ON_DELETE, RETENTION_BYTES};

    fn config(keys: &[(&str, &str)]) -> BrokerConfigMap {
        keys.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn config_map_names_servers_and_replicas() {
        let default = ["nats://default:4222".to_owned()];
        let read = JetStreamConfig::read(&config(&[]), &default).unwrap();
        assert_eq!((read.servers, read.replicas, read.auth_secret), (default.to_vec(), 3, None));
        let keys =
            [("nats-url", "nats://a:4222, tls://b"), ("replicas", "1"), ("storage", "file"), ("auth-secret", "s")];
        let read = JetStreamConfig::read(&config(&keys), &default).unwrap();
        assert_eq!((read.servers, read.replicas), (vec!["nats://a:4222".to_owned(), "tls://b".to_owned()], 1));
        assert_eq!(read.auth_secret.as_deref(), Some("s"));
        assert!(JetStreamConfig::read(&config(&[]), &[]).unwrap_err().contains("nats-url is missing"));
        let many = vec!["a"; SERVERS_MAX + 1].join(",");
        for (key, value, why) in [
            ("nats-url", "http://a", "neither nats nor tls"),
            ("nats-url", "nats://u:p@a", "auth-secret"),
            ("nats-url", "nats://a/path", "more than a host"),
            ("nats-url", "nats://", "no URL"),
            ("nats-url", many.as_str(), "at most 16"),
            ("replicas", "0", "from 1 to 5"),
            ("replicas", "6", "from 1 to 5"),
            ("replicas", "many", "from 1 to 5"),
            ("storage", "memory", "only file"),
        ] {
            let said = JetStreamConfig::read(&config(&[(key, value)]), &default).unwrap_err();
            assert!(said.contains(key) && said.contains(why), "{key}: {value}: {said}");
        }
    }

    #[test]
    fn secret_has_one_kind_of_credentials() {
        let password = StoreCredentials::Password { user: "u".into(), password: "p".into() };
        for (keys, wanted) in [
            (&[("username", "u"), ("password", "p")][..], Some(password)),
            (&[("token", "t\n")], Some(StoreCredentials::Token("t".into()))),
            (&[("creds", "c"), ("token", "t")], Some(StoreCredentials::File("c".into()))),
            (&[("username", "u")], None),
            (&[], None),
        ] {
            assert_eq!(credentials(&config(keys)).ok(), wanted, "{keys:?}");
        }
        assert!(credentials(&config(&[("token", &"t".repeat(CREDENTIAL_BYTES_MAX + 1))])).is_err());
    }

    #[test]
    fn options_that_jetstream_cannot_have_are_named() {
        for (key, value, named) in [
            (DURABILITY, "none", Some("durability")),
            (DURABILITY, "interval:5", Some("durability")),
            (DURABILITY, "flush", None),
            (HISTORY_TIME, "1h", Some("history-time")),
            (ON_DELETE, "drain", Some("on-delete")),
            (ON_DELETE, "drop", None),
            (RETENTION_BYTES, "1Gi", None),
        ] {
            let annotations = [(key.to_owned(), value.to_owned())].into();
            let meta = ObjectMeta { annotations: Some(annotations), ..ObjectMeta::default() };
            let found = unsupported_option(&meta, &BrokerConfigMap::new());
            assert_eq!(found.and_then(|text| text.split(':').next()), named, "{key}: {value}");
        }
    }

    #[test]
    fn deduplication_window_becomes_that_of_the_stream() {
        let read = JetStreamConfig::read(&config(&[]), &["nats://a".to_owned()]).unwrap();
        let window = |keys: &[(&str, &str)]| {
            read.store_options(&stream_options(&ObjectMeta::default(), &config(keys))).duplicate_window
        };
        assert_eq!(window(&[]), DUPLICATE_WINDOW_DEFAULT);
        assert_eq!(window(&[("deduplication-window", "10m")]), Duration::from_secs(600));
    }
}
