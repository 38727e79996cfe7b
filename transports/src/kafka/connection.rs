//! TLS and SASL, in the form of upstream's `net`; each secret is the path of a file.

use adapter::{Error, SecretFile};
use krafka::auth::{AuthConfig, TlsConfig};
use serde::Deserialize;

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Net {
    #[serde(default)]
    sasl: Sasl,
    #[serde(default)]
    tls: KafkaTls,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Sasl {
    #[serde(default)]
    enable: bool,
    user: Option<SecretFile>,
    password: Option<SecretFile>,
    /// PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512; PLAIN if it is absent.
    r#type: Option<SecretFile>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct KafkaTls {
    #[serde(default)]
    enable: bool,
    cert: Option<SecretFile>,
    key: Option<SecretFile>,
    ca_cert: Option<SecretFile>,
}

impl Net {
    pub(crate) fn security(&self) -> Result<AuthConfig, Error> {
        let tls = self.tls.enable.then(|| self.tls.config()).transpose()?;
        if !self.sasl.enable {
            return Ok(tls.map_or_else(AuthConfig::plaintext, AuthConfig::ssl));
        }
        let (Some(user), Some(password)) = (&self.sasl.user, &self.sasl.password) else {
            return Err(Error::config("net.sasl: user and password are needed"));
        };
        let (user, password) = (user.read()?, password.read()?);
        let mechanism = self.sasl.r#type.as_ref().map(SecretFile::read).transpose()?;
        let config = match mechanism.as_deref().unwrap_or("PLAIN") {
            "PLAIN" => AuthConfig::sasl_plain(user, password),
            "SCRAM-SHA-256" => AuthConfig::sasl_scram_sha256(user, password),
            "SCRAM-SHA-512" => AuthConfig::sasl_scram_sha512(user, password),
            other => {
                return Err(Error::config(format!(
                    "net.sasl.type: {other:?} is not supported; use PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512"
                )));
            }
        };
        Ok(match tls {
            Some(tls) => config.with_tls(tls),
            None => config,
        })
    }
}

impl KafkaTls {
    fn config(&self) -> Result<TlsConfig, Error> {
        let mut config = TlsConfig::new();
        config = match &self.ca_cert {
            Some(ca) => config.with_ca_cert_pem(ca.read_bytes()?),
            None => config.with_native_roots(),
        };
        if let (Some(cert), Some(key)) = (&self.cert, &self.key) {
            config = config.with_client_cert_pem(cert.read_bytes()?, key.read_bytes()?);
        }
        Ok(config)
    }
}
