//! `sluicegate kubeconfig`: what kubectl, kn and client-go need to find the API.

use std::net::SocketAddr;
use std::process::ExitCode;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Address of the API, as the ready line of `sluicegate run` names it
    #[arg(long, value_name = "ADDR", env = "SLUICEGATE_API", default_value = "127.0.0.1:8001")]
    api: SocketAddr,
}

pub(crate) fn print(args: &Args) -> ExitCode {
    print!("{}", text(args.api));
    ExitCode::SUCCESS
}

/// A kubeconfig for an API without authentication.
fn text(api: SocketAddr) -> String {
    format!(
        "apiVersion: v1\n\
         kind: Config\n\
         clusters:\n\
         - name: sluicegate\n  cluster:\n    server: http://{api}\n\
         users:\n\
         - name: sluicegate\n  user: {{}}\n\
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
            serde_norway::from_str(&text("127.0.0.1:7".parse().unwrap())).unwrap();
        assert_eq!(parsed["current-context"], parsed["contexts"][0]["name"]);
        assert_eq!(parsed["contexts"][0]["context"]["cluster"], parsed["clusters"][0]["name"]);
        assert_eq!(parsed["clusters"][0]["cluster"]["server"], "http://127.0.0.1:7");
    }
}
