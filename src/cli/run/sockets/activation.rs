//! Listening sockets that systemd made before the start (`sluicegate.socket`): connections wait in their queues while the
//! appliance starts, and ports below 1024 need no right of it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{SocketAddr, TcpListener};

use anyhow::{Context, Result, bail, ensure};
use listenfd::ListenFd;

use super::super::listener_name::ListenerName;

/// `FileDescriptorName=` of each passed socket, separated by colons.
const NAMES: &str = "LISTEN_FDNAMES";
/// The listeners that a socket unit may make, by the names of their flags.
const PASSED: [ListenerName; 9] = [
    ListenerName::Http,
    ListenerName::Https,
    ListenerName::Private,
    ListenerName::PrivateHttps,
    ListenerName::Events,
    ListenerName::EventsHttps,
    ListenerName::Api,
    ListenerName::Admin,
    ListenerName::Console,
];

/// The sockets that were passed. They stay open here, so that a start that fails at another address can be tried again.
#[derive(Debug, Default)]
pub(in crate::cli::run) struct PassedSockets {
    sockets: BTreeMap<ListenerName, TcpListener>,
    used: BTreeSet<ListenerName>,
}

impl PassedSockets {
    /// None outside a unit with sockets.
    ///
    /// # Errors One of them has no name of ours, or is no TCP listener.
    pub(in crate::cli::run) fn read() -> Result<Self> {
        let names = std::env::var(NAMES).unwrap_or_default();
        let mut passed = ListenFd::from_env();
        let names: Vec<&str> = names.split(':').collect();
        let mut sockets = BTreeMap::new();
        for index in 0..passed.len() {
            let name = listener_name(names.get(index).copied().unwrap_or_default())?;
            let socket = passed.take_tcp_listener(index).with_context(|| format!("socket unit: {}", name.flag()))?;
            let socket = socket.with_context(|| format!("socket unit: {}: no TCP listener", name.flag()))?;
            ensure!(sockets.insert(name, socket).is_none(), "socket unit: {} has two sockets", name.flag());
        }
        Ok(Self { sockets, used: BTreeSet::new() })
    }

    /// The socket of a listener with the address `wanted`. A blocking one is for a ring.
    ///
    /// # Errors It listens elsewhere: the address of the settings would be a wrong statement.
    pub(super) fn take(
        &mut self,
        name: ListenerName,
        wanted: SocketAddr,
        is_blocking: bool,
    ) -> Result<Option<TcpListener>> {
        let Some(socket) = self.sockets.get(&name) else { return Ok(None) };
        let have = socket.local_addr()?;
        let is_same = wanted.ip() == have.ip() && (wanted.port() == 0 || wanted.port() == have.port());
        let flag = name.flag();
        ensure!(
            is_same,
            "{flag} is {wanted}, and the socket unit listens on {have}; make ListenStream= and {flag} the same"
        );
        socket.set_nonblocking(!is_blocking)?;
        self.used.insert(name);
        Ok(Some(socket.try_clone()?))
    }

    /// # Errors A socket was passed for a listener that the settings do not have.
    pub(super) fn check_used(&self) -> Result<()> {
        let unused = self.sockets.iter().find(|(name, _)| !self.used.contains(name));
        let Some((name, socket)) = unused else { return Ok(()) };
        let (flag, address) = (name.flag(), socket.local_addr()?);
        bail!("the socket unit listens on {address} for {flag}, which is not set; set {flag} {address}")
    }
}

fn listener_name(text: &str) -> Result<ListenerName> {
    let known = PASSED.into_iter().find(|name| name.key() == text);
    known.with_context(|| {
        let names: Vec<&str> = PASSED.into_iter().map(ListenerName::key).collect();
        format!("socket unit: FileDescriptorName={text} is none of {}", names.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passed_socket_must_have_the_address_of_its_flag() {
        let passed = || {
            let socket = TcpListener::bind("127.0.0.1:0").unwrap();
            let address = socket.local_addr().unwrap();
            (
                PassedSockets { sockets: BTreeMap::from([(ListenerName::Http, socket)]), ..PassedSockets::default() },
                address,
            )
        };
        let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
        for wanted in [any, passed().1] {
            let (mut sockets, address) = passed();
            let wanted = if wanted == any { any } else { address };
            assert_eq!(sockets.take(ListenerName::Http, wanted, true).unwrap().unwrap().local_addr().unwrap(), address);
            assert!(sockets.take(ListenerName::Events, wanted, true).unwrap().is_none());
            sockets.check_used().unwrap();
        }
        let (mut sockets, _) = passed();
        let refused = sockets.take(ListenerName::Http, "127.0.0.2:0".parse().unwrap(), true).unwrap_err().to_string();
        assert!(refused.contains("--http is 127.0.0.2:0") && refused.contains("ListenStream="), "{refused}");
        let unused = passed().0.check_used().unwrap_err().to_string();
        assert!(unused.contains("--http, which is not set"), "{unused}");
    }

    #[test]
    fn name_of_a_passed_socket_is_the_name_of_its_flag() {
        assert_eq!(listener_name("cluster-local").unwrap(), ListenerName::Private);
        let refused = listener_name("sluicegate.socket").unwrap_err().to_string();
        assert!(refused.contains("sluicegate.socket") && refused.contains("http, https"), "{refused}");
    }
}
