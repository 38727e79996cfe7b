//! `sluicegate kubeconfig`: what kubectl, kn and client-go need to find the API.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde_json::json;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Address of the API, as the ready line of `sluicegate run` names it
    #[arg(long, value_name = "ADDR", env = "SLUICEGATE_API", default_value = "127.0.0.1:8001")]
    api: SocketAddr,

    /// Certificate (PEM) of the API's authority; with it the API is asked over TLS
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,

    /// Bearer token by which the API knows its user
    #[arg(long, value_name = "TOKEN", env = "SLUICEGATE_TOKEN", hide_env_values = true)]
    token: Option<String>,
}

pub(crate) fn print(args: &Args) -> ExitCode {
    let ca = match args.ca.as_ref().map(std::fs::canonicalize).transpose() {
        Ok(ca) => ca,
        Err(why) => {
            eprintln!("error: --ca: {why}");
            return ExitCode::FAILURE;
        }
    };
    print!("{}", text(args.api, ca.as_deref(), args.token.as_deref()));
    ExitCode::SUCCESS
}

fn text(api: SocketAddr, ca: Option<&Path>, token: Option<&str>) -> String {
    let server = match ca {
        Some(ca) => format!("https://{api}\n    certificate-authority: {}", json!(ca)),
        None => format!("http://{api}"),
    };
    let user = token.map_or("{}".to_owned(), |token| format!("{{ token: {} }}", json!(token)));
    format!(
        "apiVersion: v1\n\
         kind: Config\n\
         clusters:\n\
         - name: sluicegate\n  cluster:\n    server: {server}\n\
         users:\n\
         - name: sluicegate\n  user: {user}\n\
         contexts:\n\
         - name: sluicegate\n  context:\n    cluster: sluicegate\n    user: sluicegate\n    namespace: default\n\
         current-context: sluicegate\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_current_context_leads_to_the_address() {
        let parsed: serde_json::Value =
            serde_norway::from_str(&text("127.0.0.1:7".parse().unwrap(), None, None)).unwrap();
        assert_eq!(parsed["current-context"], parsed["contexts"][0]["name"]);
        assert_eq!(parsed["contexts"][0]["context"]["cluster"], parsed["clusters"][0]["name"]);
        assert_eq!(parsed["clusters"][0]["cluster"]["server"], "http://127.0.0.1:7");
    }

    #[test]
    fn a_token_and_an_authority_are_told_and_mean_tls() {
        let told = text("127.0.0.1:7".parse().unwrap(), Some(Path::new("/a \"b\".pem")), Some("t"));
        let parsed: serde_json::Value = serde_norway::from_str(&told).unwrap();
        let cluster = &parsed["clusters"][0]["cluster"];
        assert_eq!(cluster["server"], "https://127.0.0.1:7");
        assert_eq!(cluster["certificate-authority"], "/a \"b\".pem");
        assert_eq!(parsed["users"][0]["user"]["token"], "t");
    }
}
