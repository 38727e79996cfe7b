//! Connections to the ports of an instance.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpStream as StdTcpStream};

use tokio::net::TcpStream;
use tokio::time::timeout;

use super::SessionError;
use super::registry::{InstanceSessions, SessionHold, SessionRegistry};
use crate::host::HostContext;
use crate::limits::SESSION_CONNECT_TIMEOUT;

pub(super) async fn connect(
    registry: &SessionRegistry,
    host: &HostContext,
    instance: u64,
    port: u16,
) -> io::Result<(StdTcpStream, SessionHold)> {
    let ended = || io::Error::other("the instance has ended");
    let sessions = registry.get(instance).ok_or_else(ended)?;
    let hold = sessions.hold().await.map_err(|why| match why {
        SessionError::NotRunning => ended(),
        SessionError::Failed(why) => why,
    })?;
    let address = address(&sessions, port)?;
    if host.blocked_ports().contains(&address.port()) {
        return Err(io::Error::other(format!("{address} is a listener of the appliance")));
    }
    host.targets().admit_connect(address)?;
    let connected = timeout(SESSION_CONNECT_TIMEOUT, TcpStream::connect(address)).await?;
    let stream = connected.map_err(|why| {
        io::Error::new(why.kind(), format!("failed to connect to localhost:{port} inside the instance: {why}"))
    })?;
    Ok((stream.into_std()?, hold))
}

/// The network is the host's, so a port that no container of the instance has may be another program's.
fn address(sessions: &InstanceSessions, port: u16) -> io::Result<SocketAddr> {
    let by_container = || {
        let has_port = sessions.containers().iter().any(|one| one.port == port);
        has_port.then(|| SocketAddr::from((Ipv4Addr::LOCALHOST, port)))
    };
    sessions.ports.address_of(port).or_else(by_container).ok_or_else(|| {
        let named = sessions.ports.pairs().iter().map(|(port, _)| *port);
        let mut ports: Vec<u16> = named.chain(sessions.containers().iter().map(|one| one.port)).collect();
        ports.retain(|port| *port > 0);
        ports.sort_unstable();
        ports.dedup();
        let ports: Vec<String> = ports.iter().map(u16::to_string).collect();
        io::Error::other(format!(
            "no container of the instance has the port {port}; its ports are {}",
            ports.join(", ")
        ))
    })
}
