//! Docker's `config.json`, and the Secrets of Kubernetes that have the same content.

use std::collections::BTreeMap;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;

use super::{Login, Pattern};
use crate::limits::CREDENTIALS_BYTES_MAX;

/// Logins and credential helpers by registry.
#[derive(Debug, Default)]
pub struct DockerConfig {
    /// The most specific first.
    logins: Vec<(Pattern, Login)>,
    helper_of_all: Option<String>,
    helpers: BTreeMap<String, String>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct ConfigFile {
    auths: BTreeMap<String, AuthEntry>,
    creds_store: Option<String>,
    cred_helpers: BTreeMap<String, String>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct AuthEntry {
    auth: Option<String>,
    username: Option<String>,
    password: Option<String>,
    identitytoken: Option<String>,
    registrytoken: Option<String>,
}

impl DockerConfig {
    /// Reads `config.json`.
    ///
    /// # Errors
    /// The reason, without any part of the content.
    pub fn from_json(bytes: &[u8]) -> Result<Self, String> {
        let file: ConfigFile = read(bytes)?;
        let mut config = Self::from_entries(file.auths)?;
        config.helper_of_all = file.creds_store.filter(|name| !name.is_empty());
        config.helpers = file.cred_helpers;
        Ok(config)
    }

    /// Reads the older form, which has the registries at the top.
    ///
    /// # Errors
    /// The reason, without any part of the content.
    pub fn from_dockercfg(bytes: &[u8]) -> Result<Self, String> {
        Self::from_entries(read(bytes)?)
    }

    /// Reads docker's configuration of this host from `folder`; a missing file is an empty configuration.
    ///
    /// # Errors
    /// If there is a file that cannot be read.
    pub fn load(folder: &Path) -> Result<Self, String> {
        let path = folder.join("config.json");
        let too_large = std::fs::metadata(&path).is_ok_and(|about| about.len() > CREDENTIALS_BYTES_MAX as u64);
        if too_large {
            return Err(format!("{}: larger than {CREDENTIALS_BYTES_MAX} bytes", path.display()));
        }
        match std::fs::read(&path) {
            Ok(bytes) => Self::from_json(&bytes).map_err(|why| format!("{}: {why}", path.display())),
            Err(why) if why.kind() == std::io::ErrorKind::NotFound => Ok(Self::default()),
            Err(why) => Err(format!("{}: {why}", path.display())),
        }
    }

    fn from_entries(entries: BTreeMap<String, AuthEntry>) -> Result<Self, String> {
        let mut logins = Vec::new();
        for (key, entry) in entries {
            if let Some(login) = entry.login().map_err(|why| format!("entry {key:?}: {why}"))? {
                logins.push((Pattern::new(&key), login));
            }
        }
        logins.sort_by_key(|(pattern, _)| std::cmp::Reverse(pattern.path_length()));
        Ok(Self { logins, ..Self::default() })
    }

    pub(super) fn forget_helpers(&mut self) {
        self.helper_of_all = None;
        self.helpers.clear();
    }

    pub(super) fn logins(&self, registry: &str, repository: &str) -> impl Iterator<Item = Login> {
        self.logins
            .iter()
            .filter(move |(pattern, _)| pattern.matches(registry, repository))
            .map(|(_, login)| login.clone())
    }

    /// The helper that knows this registry's login: its own, or the one of all registries.
    pub(super) fn helper(&self, registry: &str) -> Option<&str> {
        let own = self.helpers.iter().find(|(key, _)| Pattern::new(key).matches(registry, ""));
        own.map(|(_, helper)| helper.as_str()).or(self.helper_of_all.as_deref())
    }
}

fn read<T: for<'de> Deserialize<'de>>(bytes: &[u8]) -> Result<T, String> {
    if bytes.len() > CREDENTIALS_BYTES_MAX {
        return Err(format!("larger than {CREDENTIALS_BYTES_MAX} bytes"));
    }
    // The cause may quote the content, so the error has only its position.
    serde_json::from_slice(bytes)
        .map_err(|why| format!("no valid docker configuration: line {}, column {}", why.line(), why.column()))
}

impl AuthEntry {
    /// Docker's order: a token first, then `auth`, then the two fields. An empty entry points to the credential store.
    fn login(self) -> Result<Option<Login>, String> {
        let given = |text: Option<String>| text.filter(|text| !text.is_empty());
        if let Some(token) = given(self.registrytoken) {
            return Ok(Some(Login::RegistryToken(token)));
        }
        if let Some(token) = given(self.identitytoken) {
            return Ok(Some(Login::IdentityToken(token)));
        }
        if let Some(auth) = given(self.auth) {
            let decoded = STANDARD.decode(auth.trim()).map_err(|_| "`auth` is not base64".to_owned())?;
            let text = String::from_utf8(decoded).map_err(|_| "`auth` is not UTF-8".to_owned())?;
            let (username, password) = text.split_once(':').ok_or("`auth` is not USER:PASSWORD")?;
            let password = password.trim_end_matches('\0');
            return Ok(Some(Login::Basic { username: username.into(), password: password.into() }));
        }
        Ok(given(self.username).map(|username| Login::Basic { username, password: self.password.unwrap_or_default() }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_entry_is_read() {
        let config = DockerConfig::from_json(
            br#"{"auths":{"a.b":{"auth":"dXNlcjpwYTpzcw=="},"c.d":{"username":"u","password":"p"},
            "e.f":{"identitytoken":"i"},"g.h":{"registrytoken":"r"},"i.j":{}},"HttpHeaders":{"x":"y"}}"#,
        )
        .expect("valid");
        let login = |registry| config.logins(registry, "x").next();
        let basic = |username: &str, password: &str| {
            Some(Login::Basic { username: username.into(), password: password.into() })
        };
        assert_eq!(login("a.b"), basic("user", "pa:ss"));
        assert_eq!(login("c.d"), basic("u", "p"));
        assert_eq!(login("e.f"), Some(Login::IdentityToken("i".into())));
        assert_eq!(login("g.h"), Some(Login::RegistryToken("r".into())));
        assert_eq!(login("i.j"), None);
    }

    #[test]
    fn longer_path_comes_first() {
        let config = DockerConfig::from_dockercfg(
            br#"{"a.b":{"username":"all"},"a.b/team":{"username":"team"},"a.b/team/app":{"username":"app"}}"#,
        )
        .expect("valid");
        let names: Vec<String> = config.logins("a.b", "team/app").map(|login| format!("{login:?}")).collect();
        assert_eq!(names, [r#"Basic("app")"#, r#"Basic("team")"#, r#"Basic("all")"#]);
    }

    #[test]
    fn helper_of_a_registry_wins_over_the_store() {
        let config = DockerConfig::from_json(br#"{"credsStore":"all","credHelpers":{"a.b":"own"}}"#).expect("valid");
        assert_eq!((config.helper("a.b"), config.helper("c.d")), (Some("own"), Some("all")));
    }
}
