//! All listeners, bound before anything runs, so that a taken port stops the start.

pub(super) mod activation;
pub(super) mod unix;

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use socket2::{Domain, Protocol, Socket, Type};

use super::listener_name::ListenerName;
use crate::config::RunConfig;
use activation::PassedSockets;
use unix::PreparedSocket;

/// Descriptors of the listening sockets, for a successor.
pub(super) struct SocketDescriptors(Vec<(ListenerName, TcpListener)>);

impl SocketDescriptors {
    pub(super) fn all(&self) -> impl Iterator<Item = (ListenerName, &TcpListener)> {
        self.0.iter().map(|(name, listener)| (*name, listener))
    }

    pub(super) fn workers(&self) -> usize {
        self.all().filter(|(name, _)| *name == ListenerName::Http).count()
    }

    pub(super) fn address(&self, wanted: ListenerName) -> Option<SocketAddr> {
        self.all().find(|(name, _)| *name == wanted).and_then(|(_, listener)| listener.local_addr().ok())
    }
}

/// Connections that the kernel completes before a core accepts them; the kernel clamps it to somaxconn.
pub(super) const BACKLOG: i32 = 4096;

pub(super) struct BoundSockets {
    /// One for each core, on one address (SO_REUSEPORT): the kernel distributes connections over them.
    pub(super) http: Vec<TcpListener>,
    /// Likewise; empty without `--https`.
    pub(super) https: Vec<TcpListener>,
    /// Likewise; empty without `--cluster-local`.
    pub(super) private: Vec<TcpListener>,
    /// Likewise; empty without `--cluster-local-https`.
    pub(super) private_https: Vec<TcpListener>,
    pub(super) events: Vec<TcpListener>,
    /// Likewise; empty without `--events-https`.
    pub(super) events_https: Vec<TcpListener>,
    /// `None` when the objects are a cluster's.
    pub(super) api: Option<TcpListener>,
    /// `None` without `--api-socket`.
    pub(super) api_socket: Option<UnixListener>,
    pub(super) admin: TcpListener,
    /// `None` without `--console`.
    pub(super) console: Option<TcpListener>,
}

impl BoundSockets {
    /// Binds all listeners but those that the service manager has `passed`.
    pub(super) fn bind(
        config: &RunConfig,
        passed: &mut PassedSockets,
        api_socket: &mut Option<PreparedSocket>,
    ) -> Result<Self> {
        use ListenerName::{Admin, Api, Console, Events, EventsHttps, Http, Https, Private, PrivateHttps};
        let mut one = |name: ListenerName, address: SocketAddr| match passed.take(name, address, false)? {
            Some(listener) => Ok(listener),
            None => retry_while_taken(|| listen(address, false)).with_context(|| taken(name, address)),
        };
        let admin = one(Admin, config.admin)?;
        let api = if config.kubeconfig.is_none() { Some(one(Api, config.api)?) } else { None };
        let console = config.console.map(|address| one(Console, address)).transpose()?;
        let mut each = |name: ListenerName, address: Option<SocketAddr>| {
            let Some(address) = address else { return Ok(Vec::new()) };
            match passed.take(name, address, true)? {
                // The cores accept from one queue: sockets with an address of their own would have to be the service manager's.
                Some(listener) => (0..config.workers).map(|_| Ok(listener.try_clone()?)).collect(),
                None => for_cores(name, address, config.workers),
            }
        };
        let sockets = Self {
            http: each(Http, Some(config.http))?,
            https: each(Https, config.https)?,
            private: each(Private, config.private)?,
            private_https: each(PrivateHttps, config.private_https)?,
            events: each(Events, Some(config.events))?,
            events_https: each(EventsHttps, config.events_https)?,
            api,
            admin,
            console,
            api_socket: None,
        };
        passed.check_used()?;
        // Last, because it cannot be undone when one of the others fails.
        Ok(Self { api_socket: api_socket.take().map(|prepared| prepared.publish(false)).transpose()?, ..sockets })
    }

    /// Those that another process listened on.
    pub(super) fn inherit(
        inherited: Vec<(ListenerName, OwnedFd)>,
        api_socket: &mut Option<PreparedSocket>,
    ) -> Result<Self> {
        let mut by_name = BTreeMap::<ListenerName, Vec<TcpListener>>::new();
        for (name, socket) in inherited {
            by_name.entry(name).or_default().push(socket.into());
        }
        let mut all = |name| by_name.remove(&name).unwrap_or_default();
        Ok(Self {
            http: all(ListenerName::Http),
            https: all(ListenerName::Https),
            private: all(ListenerName::Private),
            private_https: all(ListenerName::PrivateHttps),
            events: all(ListenerName::Events),
            events_https: all(ListenerName::EventsHttps),
            api: all(ListenerName::Api).pop(),
            api_socket: api_socket.take().map(|prepared| prepared.publish(true)).transpose()?,
            admin: all(ListenerName::Admin).pop().context("the other process has no admin listener")?,
            console: all(ListenerName::Console).pop(),
        })
    }

    /// Duplicates of all descriptors. As long as they are open the kernel accepts connections, even without
    /// an accepting process.
    pub(super) fn keep(&self) -> Result<SocketDescriptors> {
        let named = |name: ListenerName, listeners: &[TcpListener]| -> Result<Vec<(ListenerName, TcpListener)>> {
            listeners.iter().map(|listener| Ok((name, listener.try_clone()?))).collect()
        };
        let mut all = named(ListenerName::Http, &self.http)?;
        all.extend(named(ListenerName::Https, &self.https)?);
        all.extend(named(ListenerName::Private, &self.private)?);
        all.extend(named(ListenerName::PrivateHttps, &self.private_https)?);
        all.extend(named(ListenerName::Events, &self.events)?);
        all.extend(named(ListenerName::EventsHttps, &self.events_https)?);
        all.extend(named(ListenerName::Api, self.api.as_slice())?);
        all.extend(named(ListenerName::Admin, std::slice::from_ref(&self.admin))?);
        all.extend(named(ListenerName::Console, self.console.as_slice())?);
        Ok(SocketDescriptors(all))
    }

    /// The line with the addresses of all listeners.
    pub(super) fn ready_line(&self) -> Result<String> {
        let api = match &self.api {
            Some(listener) => listener.local_addr()?.to_string(),
            None => "-".to_owned(),
        };
        let mut further = String::new();
        let optional: [(&str, &[TcpListener]); 5] = [
            ("https", &self.https),
            ("private", &self.private),
            ("private-https", &self.private_https),
            ("events-https", &self.events_https),
            ("console", self.console.as_slice()),
        ];
        for (name, listeners) in optional {
            if let Some(listener) = listeners.first() {
                further.push_str(&format!(" {name}={}", listener.local_addr()?));
            }
        }
        Ok(format!(
            "ready http={} events={} api={api} admin={}{further}",
            self.http[0].local_addr()?,
            self.events[0].local_addr()?,
            self.admin.local_addr()?
        ))
    }
}

fn for_cores(name: ListenerName, address: SocketAddr, cores: usize) -> Result<Vec<TcpListener>> {
    // SO_REUSEPORT would let a second appliance of the same user share the port and take half of the
    // requests; an ordinary bind first detects another listener.
    let probe = retry_while_taken(|| listen(address, false)).with_context(|| taken(name, address))?;
    let address = probe.local_addr()?;
    drop(probe);
    (0..cores).map(|_| listen(address, true).with_context(|| taken(name, address))).collect()
}

/// Retries while the address is taken: after a crash the kernel tears down the dead process's rings, and
/// with them its listeners, with some delay (5 to 17 ms measured; a supervisor restarts faster).
fn retry_while_taken(bind: impl Fn() -> Result<TcpListener>) -> Result<TcpListener> {
    /// A dead process releases its address within milliseconds.
    const BIND_WAIT_MAX: Duration = Duration::from_secs(1);
    const STEP: Duration = Duration::from_millis(5);
    let begin = Instant::now();
    loop {
        match bind() {
            Err(why) if is_taken(&why) && begin.elapsed() < BIND_WAIT_MAX => {
                #[allow(clippy::disallowed_methods, reason = "nothing runs yet but this thread")]
                std::thread::sleep(STEP);
            }
            outcome => return outcome,
        }
    }
}

pub(super) fn is_taken(why: &anyhow::Error) -> bool {
    why.downcast_ref::<std::io::Error>().is_some_and(|why| why.kind() == ErrorKind::AddrInUse)
}

fn taken(name: ListenerName, address: SocketAddr) -> String {
    format!("cannot listen on {} {address}; choose another address, or port 0 for any", name.flag())
}

fn listen(address: SocketAddr, shared: bool) -> Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM.cloexec(), Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    if shared {
        socket.set_reuse_port(true)?;
    }
    // Tokio requires non-blocking listeners; on the ring a non-blocking one would return EAGAIN.
    socket.set_nonblocking(!shared)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_share_port_and_second_appliance_does_not() {
        let listeners = for_cores(ListenerName::Http, "127.0.0.1:0".parse().unwrap(), 3).unwrap();
        let address = listeners[0].local_addr().unwrap();
        assert!(listeners.iter().all(|l| l.local_addr().unwrap() == address));

        let why = for_cores(ListenerName::Http, address, 1).unwrap_err().to_string();
        assert!(why.contains("--http"), "{why}");
    }
}
