//! The cluster-local gateway: host names through which instances reach each other.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;

use ::control::controllers::listeners::ServiceListenerConfig;
use ::control::dns::{DnsServer, InstanceGateway};
use ::control::runtime::may_mount;
use dataplane::service_names::SearchDomains;
use dataplane::table_publisher::TablePublisher;
use socket2::{Domain, Protocol, Socket, Type};

use super::service_sockets::{LOOPBACK, ServiceSockets};
use super::sockets::BACKLOG;
use crate::config::RunConfig;

/// Where internal callers connect.
pub(super) struct ClusterLocalGateway {
    /// Two listeners for each core, plain and TLS, none without a gateway; and the search domain of names
    /// without a dot.
    pub(super) listeners: (Vec<(TcpListener, TcpListener)>, Arc<SearchDomains>),
    /// The settings for instances, or why there is no gateway.
    pub(super) gateway: Result<InstanceGateway, String>,
    /// How core Services open ports for instances, if there is a gateway.
    pub(super) services: Option<ServiceListenerConfig>,
}

/// Never passed to a successor, whose instances have a gateway of its own.
pub(super) fn open(config: &RunConfig, tables: &Arc<TablePublisher>) -> ClusterLocalGateway {
    let domains = Arc::<SearchDomains>::default();
    match make(config, tables, &domains) {
        Ok((core_listeners, gateway)) => {
            let opener = Arc::new(ServiceSockets { workers: config.workers });
            let services = ServiceListenerConfig { opener, domains: Arc::clone(&domains), server: gateway.server };
            let listeners = (core_listeners, domains);
            ClusterLocalGateway { listeners, gateway: Ok(gateway), services: Some(services) }
        }
        Err(why) => ClusterLocalGateway { listeners: (Vec::new(), domains), gateway: Err(why), services: None },
    }
}

fn make(
    config: &RunConfig,
    tables: &Arc<TablePublisher>,
    domains: &Arc<SearchDomains>,
) -> Result<(Vec<(TcpListener, TcpListener)>, InstanceGateway), String> {
    if !may_mount() {
        return Err("the appliance is not root".to_owned());
    }
    let server = DnsServer::bind(&config.data)?;
    let listeners = || listeners(config.workers).map_err(|why| format!("on loopback: {why}"));
    let ((plain, http), (by_tls, https)) = (listeners()?, listeners()?);
    let gateway = InstanceGateway { server: server.address(), host_ports: (http, https) };
    server.serve(Arc::clone(tables), Arc::clone(domains)).map_err(|why| why.to_string())?;
    Ok((plain.into_iter().zip(by_tls).collect(), gateway))
}

/// On a free port, one for each core. On every address, because names lead to many, and on this interface
/// alone, so that it is unreachable from outside.
fn listeners(cores: usize) -> io::Result<(Vec<TcpListener>, u16)> {
    let (mut all, mut port) = (Vec::new(), 0);
    for _ in 0..cores {
        let socket = Socket::new(Domain::IPV4, Type::STREAM.cloexec(), Some(Protocol::TCP))?;
        socket.bind_device(Some(LOOPBACK))?;
        socket.set_reuse_port(true)?;
        socket.bind(&SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)).into())?;
        socket.listen(BACKLOG)?;
        let listener = TcpListener::from(socket);
        port = listener.local_addr()?.port();
        all.push(listener);
    }
    Ok((all, port))
}
