//! The name server's thread: receives queries by UDP and TCP, and answers or forwards them.

use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use contract::service_names::SearchDomains;
use contract::table_publisher::TablePublisher;
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::Semaphore;
use tokio::task::{LocalSet, spawn_local};
use tokio::time::{sleep, timeout};

use super::query::{DnsAction, alias_answer, alias_query, decide, server_failure, truncate_for_udp};
use super::{
    CONNECTION_IDLE_TIMEOUT, CONNECTIONS_MAX, DnsServer, FORWARDS_MAX, QUERY_BYTES_MAX, UPSTREAM_TIMEOUT, forward,
};

/// After an error of a socket, which is mostly that no descriptor is left.
const RETRY_AFTER: Duration = Duration::from_millis(20);

pub(super) fn start(server: DnsServer, tables: Arc<TablePublisher>, domains: Arc<SearchDomains>) -> io::Result<()> {
    let reactor = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
    std::thread::Builder::new().name("names".to_owned()).spawn(move || {
        let served = LocalSet::new().block_on(&reactor, run(server, tables, domains));
        if let Err(why) = served {
            tracing::error!(%why, "names of other Services are no longer resolved; restart the appliance");
        }
    })?;
    Ok(())
}

async fn run(server: DnsServer, tables: Arc<TablePublisher>, domains: Arc<SearchDomains>) -> io::Result<()> {
    let DnsServer { udp, tcp, .. } = server;
    let (udp, tcp) = (Rc::new(UdpSocket::from_std(udp)?), TcpListener::from_std(tcp)?);
    let resolver = Rc::new(DnsHandler { domains, tables, forwards: Arc::new(Semaphore::new(FORWARDS_MAX)) });
    spawn_local(accept_connections(tcp, Rc::clone(&resolver)));
    let mut buffer = [0; QUERY_BYTES_MAX];
    loop {
        match udp.recv_from(&mut buffer).await {
            Ok((length, from)) => resolver.handle_datagram(&udp, &buffer[..length], from).await,
            Err(_) => sleep(RETRY_AFTER).await,
        }
    }
}

struct DnsHandler {
    domains: Arc<SearchDomains>,
    tables: Arc<TablePublisher>,
    forwards: Arc<Semaphore>,
}

impl DnsHandler {
    fn decide(&self, query: &[u8]) -> DnsAction {
        decide(query, &self.tables.load(), &self.domains)
    }

    /// A query that waits for others waits in a task, and the next query is processed meanwhile.
    async fn handle_datagram(&self, udp: &Rc<UdpSocket>, query: &[u8], from: SocketAddr) {
        let verdict = match self.decide(query) {
            DnsAction::Ignore => return,
            DnsAction::Answer(answer) => {
                let _ = udp.send_to(&truncate_for_udp(query, answer), from).await; // the client asks again
                return;
            }
            others => others,
        };
        let Ok(permit) = Arc::clone(&self.forwards).try_acquire_owned() else { return };
        let (udp, query) = (Rc::clone(udp), query.to_vec());
        spawn_local(async move {
            if let Some(answer) = forward_query(&query, &verdict, false).await {
                let _ = udp.send_to(&truncate_for_udp(&query, answer), from).await;
            }
            drop(permit);
        });
    }

    /// Queries one after the other, until the client goes.
    async fn handle_connection(&self, mut stream: TcpStream) -> io::Result<()> {
        loop {
            let query = timeout(CONNECTION_IDLE_TIMEOUT, forward::read(&mut stream, QUERY_BYTES_MAX)).await??;
            let answer = match self.decide(&query) {
                DnsAction::Ignore => return Ok(()),
                DnsAction::Answer(answer) => Some(answer),
                verdict => forward_query(&query, &verdict, true).await,
            };
            let Some(answer) = answer else { return Ok(()) };
            timeout(UPSTREAM_TIMEOUT, forward::write(&mut stream, &answer)).await??;
        }
    }
}

/// The answer of the host's servers.
async fn forward_query(query: &[u8], verdict: &DnsAction, by_tcp: bool) -> Option<Vec<u8>> {
    match verdict {
        DnsAction::FollowAlias(name) => match forward::forward(&alias_query(query, name)?, true).await {
            Some(reply) => alias_answer(query, name, &reply),
            None => server_failure(query),
        },
        _ => match forward::forward(query, by_tcp).await {
            Some(reply) => Some(reply),
            None => server_failure(query),
        },
    }
}

async fn accept_connections(listener: TcpListener, resolver: Rc<DnsHandler>) {
    let instances = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        // The semaphore is never closed.
        let Ok(instance) = Arc::clone(&instances).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let resolver = Rc::clone(&resolver);
                spawn_local(async move {
                    let _ = resolver.handle_connection(stream).await; // a client that disconnects early needs no answer
                    drop(instance);
                });
            }
            Err(_) => sleep(RETRY_AFTER).await,
        }
    }
}
