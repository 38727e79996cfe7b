//! What a start tells a person at a terminal, and otherwise one line of the log: version, process, data folder,
//! addresses, TLS, roles, and the next command to type.

use std::fmt::Write as _;
use std::io::{self, IsTerminal};
use std::net::SocketAddr;

use anyhow::Result;
use control::controllers::roles::Role;

use super::listener_name::ListenerName;
use super::sockets::BoundSockets;
use crate::config::RunConfig;
use crate::version::{COMMIT, VERSION};

/// The content of the banner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct StartBanner {
    data: String,
    workers: usize,
    roles: String,
    /// In the order in which they are shown. `api` is absent if the objects are a cluster's.
    addresses: Vec<(ListenerName, SocketAddr)>,
    api_tls: bool,
    console_tls: bool,
    next: String,
}

impl StartBanner {
    pub(super) fn new(config: &RunConfig, sockets: &BoundSockets) -> Result<Self> {
        let optional = [
            (ListenerName::Https, sockets.https.first()),
            (ListenerName::Private, sockets.private.first()),
            (ListenerName::PrivateHttps, sockets.private_https.first()),
            (ListenerName::EventsHttps, sockets.events_https.first()),
            (ListenerName::Api, sockets.api.as_ref()),
            (ListenerName::Console, sockets.console.as_ref()),
        ];
        let always = [(ListenerName::Http, &sockets.http[0]), (ListenerName::Events, &sockets.events[0])];
        let present = optional.into_iter().filter_map(|(name, listener)| Some((name, listener?)));
        let listeners = always.into_iter().chain(present).chain([(ListenerName::Admin, &sockets.admin)]);
        let addresses: Vec<(ListenerName, SocketAddr)> =
            listeners.map(|(name, listener)| Ok((name, listener.local_addr()?))).collect::<io::Result<_>>()?;
        Ok(Self {
            data: std::path::absolute(&config.data).unwrap_or_else(|_| config.data.clone()).display().to_string(),
            workers: config.workers,
            roles: roles(config).join(", "),
            api_tls: config.api_tls,
            console_tls: config.console_tls(),
            next: next_command(config, &addresses),
            addresses,
        })
    }

    /// Shows it: lines on a terminal, one line of the log otherwise.
    pub(super) fn show(&self) {
        if io::stderr().is_terminal() {
            complain!(part "{}", self.text());
        } else {
            self.log();
        }
    }

    fn text(&self) -> String {
        let mut text = format!("Sluicegate {VERSION} (commit {COMMIT}), process {}\n", std::process::id());
        let mut row = |name: &str, value: &str| {
            let _ = writeln!(text, "  {name:<20} {value}"); // a string takes everything
        };
        row("data folder", &self.data);
        row("workers", &self.workers.to_string());
        row("roles", &self.roles);
        for (name, _) in &self.addresses {
            row(name.key(), &self.url(*name).unwrap_or_default());
        }
        row("TLS", &self.tls());
        row("next", &self.next);
        text
    }

    fn log(&self) {
        let url = |name| self.url(name);
        tracing::info!(
            version = VERSION,
            commit = COMMIT,
            pid = std::process::id(),
            data = self.data,
            workers = self.workers,
            roles = self.roles,
            http = url(ListenerName::Http),
            https = url(ListenerName::Https),
            cluster_local = url(ListenerName::Private),
            cluster_local_https = url(ListenerName::PrivateHttps),
            events = url(ListenerName::Events),
            events_https = url(ListenerName::EventsHttps),
            api = url(ListenerName::Api),
            admin = url(ListenerName::Admin),
            console = url(ListenerName::Console),
            tls = self.tls(),
            next = self.next,
            "started"
        );
    }

    fn url(&self, wanted: ListenerName) -> Option<String> {
        let (_, address) = self.addresses.iter().find(|(name, _)| *name == wanted)?;
        Some(format!("{}://{address}", if self.has_tls(wanted) { "https" } else { "http" }))
    }

    fn has_tls(&self, name: ListenerName) -> bool {
        match name {
            ListenerName::Https | ListenerName::PrivateHttps | ListenerName::EventsHttps => true,
            ListenerName::Api => self.api_tls,
            ListenerName::Console => self.console_tls,
            ListenerName::Http | ListenerName::Private | ListenerName::Events | ListenerName::Admin => false,
            ListenerName::Gateway { .. } => false, // opened later, and not shown here
        }
    }

    /// The listeners with TLS, by their flags.
    fn tls(&self) -> String {
        let names = self.addresses.iter().map(|(name, _)| *name);
        let with: Vec<&str> = names.filter(|name| self.has_tls(*name)).map(ListenerName::key).collect();
        if with.is_empty() { "none of the listeners".to_owned() } else { with.join(", ") }
    }
}

fn roles(config: &RunConfig) -> Vec<&'static str> {
    if config.roles.is_chosen() {
        return config.roles.iter().map(Role::name).collect();
    }
    let objects = if config.kubeconfig.is_some() { "data plane of a cluster" } else { "control plane" };
    vec!["gateway", "event broker", objects]
}

fn next_command(config: &RunConfig, addresses: &[(ListenerName, SocketAddr)]) -> String {
    let at = |wanted| addresses.iter().find(|(name, _)| *name == wanted).map(|(_, address)| *address);
    match (config.kubeconfig.is_some(), at(ListenerName::Admin)) {
        (true, Some(admin)) => format!("curl http://{admin}/readyz"),
        _ => {
            let data = shell_word(&config.data.display().to_string());
            format!("sluicegate kubeconfig --data {data} > kubeconfig && export KUBECONFIG=$PWD/kubeconfig")
        }
    }
}

/// Quoted, if a shell would take the text for several words.
fn shell_word(text: &str) -> String {
    shlex::try_quote(text).map_or_else(|_| text.to_owned(), std::borrow::Cow::into_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn banner_names_addresses_tls_and_next_command() {
        let at = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let banner = StartBanner {
            data: "/var/lib/sluicegate".to_owned(),
            workers: 2,
            roles: "gateway, event broker, control plane".to_owned(),
            addresses: vec![
                (ListenerName::Http, at(8080)),
                (ListenerName::EventsHttps, at(8443)),
                (ListenerName::Api, at(8001)),
                (ListenerName::Admin, at(9090)),
            ],
            api_tls: true,
            console_tls: false,
            next: "sluicegate kubeconfig".to_owned(),
        };
        let text = banner.text();
        let row = |name: &str| {
            let mut rows = text.lines().filter_map(|line| line.trim_start().strip_prefix(name));
            rows.next().map(str::trim).unwrap_or_default().to_owned()
        };
        assert!(text.starts_with(&format!("Sluicegate {VERSION} (commit ")), "{text}");
        assert!(text.contains(&format!("process {}", std::process::id())), "{text}");
        assert_eq!(row("data folder"), "/var/lib/sluicegate");
        assert_eq!(row("http "), "http://127.0.0.1:8080");
        assert_eq!(row("api "), "https://127.0.0.1:8001");
        assert_eq!(row("admin "), "http://127.0.0.1:9090");
        assert_eq!(row("TLS"), "events-https, api");
        assert_eq!(row("next"), "sluicegate kubeconfig");
        let plain = StartBanner { api_tls: false, addresses: vec![(ListenerName::Http, at(1))], ..banner };
        assert_eq!(plain.tls(), "none of the listeners");
        assert_eq!(shell_word("/my data"), "'/my data'");
    }
}
