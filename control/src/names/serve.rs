//! The name server's thread: takes queries in by UDP and TCP, and carries out what is judged.

use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use dataplane::names::Domains;
use dataplane::publish::Tables;
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::Semaphore;
use tokio::task::{LocalSet, spawn_local};
use tokio::time::{sleep, timeout};

use super::answer::{Verdict, failed, follow, followed, for_udp, judge};
use super::{
    CONNECTION_IDLE_MAX, CONNECTIONS_MAX, FORWARDS_MAX, NameServer, QUERY_BYTES_MAX, SERVER_PATIENCE, forward,
};

/// After an error of a socket, which is mostly that no descriptor is left.
const RETRY: Duration = Duration::from_millis(20);

pub(super) fn start(server: NameServer, tables: Arc<Tables>, domains: Arc<Domains>) -> io::Result<()> {
    let reactor = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
    std::thread::Builder::new().name("names".to_owned()).spawn(move || {
        let served = LocalSet::new().block_on(&reactor, live(server, tables, domains));
        if let Err(why) = served {
            tracing::error!(%why, "names of other Services are not answered any more; restart");
        }
    })?;
    Ok(())
}

async fn live(server: NameServer, tables: Arc<Tables>, domains: Arc<Domains>) -> io::Result<()> {
    let NameServer { udp, tcp, .. } = server;
    let (udp, tcp) = (Rc::new(UdpSocket::from_std(udp)?), TcpListener::from_std(tcp)?);
    let desk = Rc::new(Desk { domains, tables, forwards: Arc::new(Semaphore::new(FORWARDS_MAX)) });
    spawn_local(take_connections(tcp, Rc::clone(&desk)));
    let mut buffer = [0; QUERY_BYTES_MAX];
    loop {
        match udp.recv_from(&mut buffer).await {
            Ok((length, from)) => desk.datagram(&udp, &buffer[..length], from).await,
            Err(_) => sleep(RETRY).await,
        }
    }
}

struct Desk {
    domains: Arc<Domains>,
    tables: Arc<Tables>,
    forwards: Arc<Semaphore>,
}

impl Desk {
    fn judge(&self, query: &[u8]) -> Verdict {
        judge(query, &self.tables.load(), &self.domains)
    }

    /// What waits for others waits in a task, and the next query is looked at meanwhile.
    async fn datagram(&self, udp: &Rc<UdpSocket>, query: &[u8], from: SocketAddr) {
        let verdict = match self.judge(query) {
            Verdict::Ignore => return,
            Verdict::Answer(answer) => {
                let _ = udp.send_to(&for_udp(query, answer), from).await; // the client asks again
                return;
            }
            others => others,
        };
        let Ok(permit) = Arc::clone(&self.forwards).try_acquire_owned() else { return };
        let (udp, query) = (Rc::clone(udp), query.to_vec());
        spawn_local(async move {
            if let Some(answer) = outside(&query, &verdict, false).await {
                let _ = udp.send_to(&for_udp(&query, answer), from).await;
            }
            drop(permit);
        });
    }

    /// Queries one after the other, until the client goes.
    async fn connection(&self, mut stream: TcpStream) -> io::Result<()> {
        loop {
            let query = timeout(CONNECTION_IDLE_MAX, forward::read(&mut stream, QUERY_BYTES_MAX)).await??;
            let answer = match self.judge(&query) {
                Verdict::Ignore => return Ok(()),
                Verdict::Answer(answer) => Some(answer),
                verdict => outside(&query, &verdict, true).await,
            };
            let Some(answer) = answer else { return Ok(()) };
            timeout(SERVER_PATIENCE, forward::write(&mut stream, &answer)).await??;
        }
    }
}

/// What the host's servers say.
async fn outside(query: &[u8], verdict: &Verdict, by_tcp: bool) -> Option<Vec<u8>> {
    match verdict {
        Verdict::Follow(name) => match forward::ask(&follow(query, name)?, true).await {
            Some(reply) => followed(query, name, &reply),
            None => failed(query),
        },
        _ => match forward::ask(query, by_tcp).await {
            Some(reply) => Some(reply),
            None => failed(query),
        },
    }
}

async fn take_connections(listener: TcpListener, desk: Rc<Desk>) {
    let seats = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        // The semaphore is never closed.
        let Ok(seat) = Arc::clone(&seats).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let desk = Rc::clone(&desk);
                spawn_local(async move {
                    let _ = desk.connection(stream).await; // who goes early needs no answer
                    drop(seat);
                });
            }
            Err(_) => sleep(RETRY).await,
        }
    }
}
