//! `sluicegate kubeconfig`: what kubectl, kn and client-go need to reach the API.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, anyhow, bail};
use control::access::self_signed::SERVER_NAME;
use serde_json::{Value, json};

use crate::config::address;

#[derive(Debug, clap::Args)]
pub(crate) struct KubeconfigArgs {
    /// Data folder of an appliance on this host: address, CA certificate and token are read from there
    #[arg(long, value_name = "DIR", env = "SLUICEGATE_DATA")]
    data: Option<PathBuf>,

    /// Address of the API, as in the ready line of `sluicegate run` [default: that of --data, or
    /// 127.0.0.1:8001]
    #[arg(long, value_name = "ADDR", value_parser = address, env = "SLUICEGATE_API")]
    api: Option<SocketAddr>,

    /// CA certificate (PEM) of the API; with it clients use TLS
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,

    /// Bearer token that identifies the user
    #[arg(long, value_name = "TOKEN", env = "SLUICEGATE_TOKEN", hide_env_values = true)]
    token: Option<String>,
}

/// How a client verifies the API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ClusterAuthority {
    /// No TLS.
    Plain,
    /// A CA in the trust store of the client's host.
    System,
    File(PathBuf),
    /// The API's own CA, as PEM.
    Made(String),
}

pub(crate) fn print(args: &KubeconfigArgs) -> ExitCode {
    super::exit_code(decide(args).and_then(|text| super::tell(&text)).map(|()| true))
}

fn decide(args: &KubeconfigArgs) -> Result<String> {
    let default = SocketAddr::from(([127, 0, 0, 1], 8001));
    let authority = match &args.ca {
        Some(ca) => ClusterAuthority::File(std::fs::canonicalize(ca).context("--ca")?),
        None => ClusterAuthority::Plain,
    };
    let data = args.data.as_deref().filter(|_| args.ca.is_none());
    let Some(left) = data.map(recorded_by).transpose()?.flatten() else {
        if let Some(data) = data.filter(|_| args.api.is_none()) {
            bail!("no appliance with its own API has run on --data {}; set its address with --api", data.display());
        }
        return Ok(text(args.api.unwrap_or(default), &authority, args.token.as_deref()));
    };
    // The appliance's own token is for this host; with another address it is not used.
    let own = left.token.filter(|_| args.api.is_none());
    let token = args.token.as_deref().or(own.as_deref());
    Ok(text(args.api.unwrap_or(left.at), &left.authority, token))
}

/// Where a running API stores its kubeconfig.
pub(crate) fn path_in(data: &Path) -> PathBuf {
    data.join("api/kubeconfig")
}

/// How an appliance is reached from its own host.
#[derive(Debug, PartialEq, Eq)]
struct RecordedApi {
    at: SocketAddr,
    authority: ClusterAuthority,
    token: Option<String>,
}

/// The recorded access of the appliance on this folder; `None` if none has run yet.
fn recorded_by(data: &Path) -> Result<Option<RecordedApi>> {
    let path = path_in(data);
    let written = match std::fs::read_to_string(&path) {
        Ok(written) => written,
        Err(why) if why.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(why) => return Err(why).with_context(|| path.display().to_string()),
    };
    let read = || -> Option<RecordedApi> {
        let parsed: Value = serde_norway::from_str(&written).ok()?;
        let cluster = &parsed["clusters"][0]["cluster"];
        let (scheme, address) = cluster["server"].as_str()?.split_once("://")?;
        let made = cluster["certificate-authority-data"].as_str().and_then(|data| {
            use base64::Engine as _;
            String::from_utf8(base64::engine::general_purpose::STANDARD.decode(data).ok()?).ok()
        });
        let authority = match made {
            Some(pem) => ClusterAuthority::Made(pem),
            None if scheme == "https" => ClusterAuthority::System,
            None => ClusterAuthority::Plain,
        };
        let token = parsed["users"][0]["user"]["token"].as_str().map(str::to_owned);
        Some(RecordedApi { at: address.parse().ok()?, authority, token })
    };
    read().map(Some).ok_or_else(|| anyhow!("{} was not written by the appliance", path.display()))
}

pub(crate) fn text(api: SocketAddr, authority: &ClusterAuthority, token: Option<&str>) -> String {
    use base64::Engine as _;
    let scheme = if *authority == ClusterAuthority::Plain { "http" } else { "https" };
    let mut cluster = json!({ "server": format!("{scheme}://{api}") });
    match authority {
        // There is nothing to verify, and the JavaScript client requires an explicit setting.
        ClusterAuthority::Plain => cluster["insecure-skip-tls-verify"] = json!(true),
        ClusterAuthority::System => {}
        ClusterAuthority::File(path) => cluster["certificate-authority"] = json!(path),
        ClusterAuthority::Made(pem) => {
            let data = base64::engine::general_purpose::STANDARD.encode(pem);
            cluster["certificate-authority-data"] = data.into();
            // Independent of the address that the client uses.
            cluster["tls-server-name"] = SERVER_NAME.into();
        }
    }
    let user = match token {
        Some(token) => json!({ "token": token }),
        None if *authority == ClusterAuthority::Plain => json!({}),
        // Over TLS kubectl prompts for a name when it has none; the API trusts callers on its host,
        // whatever the name.
        None => json!({ "username": "local", "password": "local" }),
    };
    let (name, context) =
        ("sluicegate", json!({ "cluster": "sluicegate", "user": "sluicegate", "namespace": "default" }));
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{ "name": name, "cluster": cluster }],
        "users": [{ "name": name, "user": user }],
        "contexts": [{ "name": name, "context": context }],
        "current-context": name,
    });
    serde_norway::to_string(&config).unwrap_or_else(|_| config.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(authority: &ClusterAuthority, token: Option<&str>) -> Value {
        serde_norway::from_str(&text("127.0.0.1:7".parse().unwrap(), authority, token)).unwrap()
    }

    #[test]
    fn current_context_has_api_address() {
        let parsed = parsed(&ClusterAuthority::Plain, None);
        assert_eq!(parsed["current-context"], parsed["contexts"][0]["name"]);
        assert_eq!(parsed["contexts"][0]["context"]["cluster"], parsed["clusters"][0]["name"]);
        assert_eq!(parsed["clusters"][0]["cluster"]["server"], "http://127.0.0.1:7");
        assert_eq!(parsed["clusters"][0]["cluster"]["insecure-skip-tls-verify"], true);
    }

    #[test]
    fn token_and_authority_are_included_and_mean_tls() {
        let parsed = parsed(&ClusterAuthority::File("/a \"b\".pem".into()), Some("t"));
        let cluster = &parsed["clusters"][0]["cluster"];
        assert_eq!(cluster["server"], "https://127.0.0.1:7");
        assert_eq!(cluster["certificate-authority"], "/a \"b\".pem");
        assert!(cluster["insecure-skip-tls-verify"].is_null());
        assert_eq!(parsed["users"][0]["user"]["token"], "t");
    }

    /// A mistyped folder must not lead to another server at the usual address.
    #[test]
    fn unused_folder_is_reported() {
        let folder = tempfile::tempdir().unwrap();
        let asked = |api: Option<SocketAddr>| {
            let data = Some(folder.path().join("none"));
            decide(&KubeconfigArgs { data, api, ca: None, token: None })
        };
        assert!(asked(None).unwrap_err().to_string().contains("none"));
        assert!(asked("127.0.0.1:7".parse().ok()).unwrap().contains("http://127.0.0.1:7"));
    }

    #[test]
    fn recorded_api_is_found() {
        let folder = tempfile::tempdir().unwrap();
        assert!(recorded_by(folder.path()).unwrap().is_none());
        std::fs::create_dir(folder.path().join("api")).unwrap();
        for authority in [ClusterAuthority::Plain, ClusterAuthority::System, ClusterAuthority::Made("PEM\n".into())] {
            let at = "[::1]:7".parse().unwrap();
            for token in [None, Some("t".to_owned())] {
                std::fs::write(path_in(folder.path()), text(at, &authority, token.as_deref())).unwrap();
                let left = RecordedApi { at, authority: authority.clone(), token };
                assert_eq!(recorded_by(folder.path()).unwrap(), Some(left));
            }
        }
        std::fs::write(path_in(folder.path()), "none").unwrap();
        assert!(recorded_by(folder.path()).is_err());
    }
}
