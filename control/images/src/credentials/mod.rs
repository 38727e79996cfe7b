//! Registry credentials: from Kubernetes Secrets first, then from docker's configuration of this host.

pub mod docker_config;
mod helper;
mod pattern;

use std::fmt;
use std::sync::Arc;

use crate::error::Error;
use docker_config::DockerConfig;
use pattern::Pattern;

/// The type of a Secret whose `.dockerconfigjson` is a docker configuration.
pub const SECRET_TYPE_DOCKER_CONFIG_JSON: &str = "kubernetes.io/dockerconfigjson";
/// The type of a Secret whose `.dockercfg` is the older form: registries at the top.
pub const SECRET_TYPE_DOCKERCFG: &str = "kubernetes.io/dockercfg";

/// One way to log in.
#[derive(Clone, PartialEq, Eq, Hash)]
pub enum Login {
    Basic {
        username: String,
        password: String,
    },
    /// A refresh token for the registry's token service.
    IdentityToken(String),
    /// A bearer token that is sent as it is.
    RegistryToken(String),
}

/// Names the kind only: a secret is never printed.
impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Basic { username, .. } => write!(f, "Basic({username:?})"),
            Self::IdentityToken(_) => write!(f, "IdentityToken"),
            Self::RegistryToken(_) => write!(f, "RegistryToken"),
        }
    }
}

/// Logins by registry, from any number of places.
#[derive(Debug, Clone, Default)]
pub struct Credentials {
    secrets: Vec<Arc<DockerConfig>>,
    host: Option<Arc<DockerConfig>>,
}

impl Credentials {
    /// No login at all.
    #[must_use]
    pub fn anonymous() -> Self {
        Self::default()
    }

    /// Adds the payload of an image pull Secret. `secret_type` is the Secret's type.
    ///
    /// # Errors
    /// If the type is another one, or the payload cannot be read. `name` is in the text, the payload never is.
    pub fn add_secret(&mut self, name: &str, secret_type: &str, payload: &[u8]) -> Result<(), Error> {
        let config = match secret_type {
            SECRET_TYPE_DOCKER_CONFIG_JSON => DockerConfig::from_json(payload),
            SECRET_TYPE_DOCKERCFG => DockerConfig::from_dockercfg(payload),
            other => Err(format!("type {other:?} holds no login for a registry")),
        };
        let mut config = config.map_err(|detail| Error::Credentials { what: format!("pull secret {name}"), detail })?;
        // A Secret must not start programs of this host.
        config.forget_helpers();
        self.secrets.push(Arc::new(config));
        Ok(())
    }

    /// Adds docker's configuration of this host, whose credential helpers are run.
    pub fn set_host_config(&mut self, config: Arc<DockerConfig>) {
        self.host = Some(config);
    }

    /// The logins to try, in order; without any, the request is anonymous.
    ///
    /// # Errors
    /// If a credential helper of this host fails and no Secret has a login.
    pub async fn logins(&self, registry: &str, repository: &str) -> Result<Vec<Login>, Error> {
        let mut logins: Vec<Login> = Vec::new();
        for config in &self.secrets {
            logins.extend(config.logins(registry, repository));
        }
        if let Some(host) = &self.host {
            match host.helper(registry) {
                Some(helper) => match helper::get(helper, &pattern::server_name(registry)).await {
                    Ok(login) => logins.extend(login),
                    // A login of a Secret may suffice.
                    Err(why) if !logins.is_empty() => {
                        tracing::warn!(registry, %why, "a login of this host is left out")
                    }
                    Err(why) => return Err(why),
                },
                None => logins.extend(host.logins(registry, repository)),
            }
        }
        let mut seen = std::collections::HashSet::new();
        logins.retain(|login| seen.insert(login.clone()));
        Ok(logins)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(user: &str, server: &str) -> Vec<u8> {
        format!(r#"{{"auths":{{"{server}":{{"username":"{user}","password":"p"}}}}}}"#).into_bytes()
    }

    #[tokio::test]
    async fn logins_of_secrets_come_in_order_without_repeats() {
        let mut credentials = Credentials::anonymous();
        for (name, user) in [("a", "one"), ("b", "two"), ("c", "one")] {
            credentials.add_secret(name, SECRET_TYPE_DOCKER_CONFIG_JSON, &secret(user, "r.example")).expect("valid");
        }
        let logins = credentials.logins("r.example", "app").await.expect("no helper");
        assert_eq!(format!("{logins:?}"), r#"[Basic("one"), Basic("two")]"#);
        assert!(credentials.logins("other.example", "app").await.expect("no helper").is_empty());
    }

    #[tokio::test]
    async fn secret_cannot_start_a_credential_helper() {
        let mut credentials = Credentials::anonymous();
        let payload = br#"{"credsStore":"none-such","credHelpers":{"r.example":"none-such"}}"#;
        credentials.add_secret("a", SECRET_TYPE_DOCKER_CONFIG_JSON, payload).expect("valid");
        assert!(credentials.logins("r.example", "app").await.expect("no helper is run").is_empty());
    }

    #[tokio::test]
    async fn helper_that_fails_leaves_the_logins_of_secrets() {
        let host = DockerConfig::from_json(br#"{"credsStore":"none-such"}"#).expect("valid");
        let mut credentials = Credentials::anonymous();
        credentials.set_host_config(Arc::new(host));
        assert!(credentials.logins("r.example", "app").await.is_err());
        credentials.add_secret("a", SECRET_TYPE_DOCKER_CONFIG_JSON, &secret("one", "r.example")).expect("valid");
        let logins = credentials.logins("r.example", "app").await.expect("the Secret's login");
        assert_eq!(format!("{logins:?}"), r#"[Basic("one")]"#);
    }

    #[test]
    fn error_of_a_secret_shows_no_payload() {
        let mut credentials = Credentials::anonymous();
        let payload = br#"{"auths":{"r":{"auth":"c2VjcmV0"}}}"#; // no colon inside
        let error = credentials.add_secret("mine", SECRET_TYPE_DOCKER_CONFIG_JSON, payload).expect_err("malformed");
        assert!(error.to_string().contains("pull secret mine") && !error.to_string().contains("c2Vj"), "{error}");
        assert!(credentials.add_secret("mine", "Opaque", b"{}").is_err());
    }
}
