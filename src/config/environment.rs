//! Variables with our prefix: settings, variables of instances, and those set by a cluster.

use clap::Args;
use control::runtime::PLATFORM_VARIABLES;

use super::Settings;

/// Variables with our prefix that are no setting of `run`: the log filter, and the token of API clients.
const OTHER_VARIABLES: [&str; 2] = ["SLUICEGATE_LOG", "SLUICEGATE_TOKEN"];

/// Rejects variables with our prefix that match no flag.
pub(super) fn refuse_unknown(variables: impl Iterator<Item = (String, String)>) -> Result<(), String> {
    let run = Settings::augment_args(clap::Command::new("run"));
    for (name, value) in variables.filter(|(name, _)| name.starts_with("SLUICEGATE_")) {
        let is_setting = run.get_arguments().any(|arg| arg.get_env().is_some_and(|env| env == name.as_str()));
        // The appliance may itself be an instance of another.
        let is_known = OTHER_VARIABLES.contains(&name.as_str()) || PLATFORM_VARIABLES.contains(&name.as_str());
        if !is_setting && !is_known && !is_service_link(&name, &value) {
            return Err(format!("unknown environment variable {name}; `sluicegate run --help` lists them"));
        }
    }
    Ok(())
}

/// Whether a cluster has set it because a Service of its namespace is called `sluicegate` (or has that
/// prefix): all containers there have `…_SERVICE_HOST`, `…_SERVICE_PORT`, `…_SERVICE_PORT_NAME`,
/// `…_PORT=tcp://…` and `…_PORT_80_TCP…`.
fn is_service_link(name: &str, value: &str) -> bool {
    let of_port = |rest: &str| rest.starts_with('_') && rest[1..].starts_with(|c: char| c.is_ascii_digit());
    name.ends_with("_SERVICE_HOST")
        || name.contains("_SERVICE_PORT")
        || (name.ends_with("_PORT") && value.contains("://"))
        || name.split_once("_PORT").is_some_and(|(_, rest)| of_port(rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_variable_with_prefix_is_rejected_by_name() {
        let names = |list: &[&str]| {
            list.iter().map(|name| ((*name).to_owned(), "9".to_owned())).collect::<Vec<_>>().into_iter()
        };
        assert!(refuse_unknown(names(&["PATH", "SLUICEGATE_HTTP", "SLUICEGATE_LOG"])).is_ok());
        let why = refuse_unknown(names(&["SLUICEGATE_HTPP"])).unwrap_err();
        assert!(why.contains("SLUICEGATE_HTPP"), "{why}");
        let of_flags = ["SLUICEGATE_API_TLS_CERT", "SLUICEGATE_API_TOKENS", "SLUICEGATE_TOKEN"];
        assert_eq!(refuse_unknown(names(&of_flags)), Ok(()));
        let of_an_instance = ["SLUICEGATE_INSTANCE", "SLUICEGATE_VOLUMES", "SLUICEGATE_TERMINATION_LOG"];
        assert_eq!(refuse_unknown(names(&of_an_instance)), Ok(()));
    }

    /// APP-13: where a Service has our name, every container has variables with our prefix.
    #[test]
    fn service_link_variables_are_ignored() {
        for (name, value) in [
            ("SLUICEGATE_SERVICE_HOST", "10.0.0.1"),
            ("SLUICEGATE_SERVICE_PORT", "80"),
            ("SLUICEGATE_SERVICE_PORT_HTTP", "80"),
            ("SLUICEGATE_PORT", "tcp://10.0.0.1:80"),
            ("SLUICEGATE_PORT_80_TCP", "tcp://10.0.0.1:80"),
            ("SLUICEGATE_PORT_80_TCP_ADDR", "10.0.0.1"),
            ("SLUICEGATE_EVENTS_SERVICE_HOST", "10.0.0.2"),
        ] {
            let given = (name.to_owned(), value.to_owned());
            assert_eq!(refuse_unknown(std::iter::once(given)), Ok(()), "{name}");
        }
        for name in ["SLUICEGATE_PORT", "SLUICEGATE_PORTS", "SLUICEGATE_HTTP_PORT_X"] {
            let given = (name.to_owned(), "8080".to_owned());
            assert!(refuse_unknown(std::iter::once(given)).is_err(), "{name}");
        }
    }
}
