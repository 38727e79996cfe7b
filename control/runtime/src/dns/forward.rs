//! Forwards queries unchanged to the host's name servers.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::timeout;

use super::resolv_conf::ResolvConf;
use super::{REPLY_BYTES_MAX, UPSTREAM_TIMEOUT, at_port};

/// The first usable answer of a server.
pub(super) async fn forward(query: &[u8], by_tcp: bool) -> Option<Vec<u8>> {
    // Read each time: DHCP and VPNs change it, and a query that leaves the host takes far longer.
    for server in ResolvConf::read().servers {
        let asked = async {
            if by_tcp { over_tcp(query, at_port(server)).await } else { over_udp(query, at_port(server)).await }
        };
        match timeout(UPSTREAM_TIMEOUT, asked).await {
            Ok(Ok(reply)) => return Some(reply),
            Ok(Err(why)) => tracing::debug!(%server, %why, "a name server cannot be asked"),
            Err(_) => tracing::debug!(%server, "a name server does not answer"),
        }
    }
    None
}

async fn over_udp(query: &[u8], server: SocketAddr) -> io::Result<Vec<u8>> {
    let any: IpAddr = if server.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    // A separate port for each query, so that an attacker cannot guess where an answer would be accepted.
    let socket = UdpSocket::bind((any, 0)).await?;
    socket.connect(server).await?;
    socket.send(query).await?;
    let mut reply = vec![0; REPLY_BYTES_MAX];
    loop {
        let length = socket.recv(&mut reply).await?;
        if length >= 2 && reply[..2] == query[..2] {
            reply.truncate(length);
            return Ok(reply);
        }
    }
}

async fn over_tcp(query: &[u8], server: SocketAddr) -> io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(server).await?;
    write(&mut stream, query).await?;
    read(&mut stream, REPLY_BYTES_MAX).await
}

/// A message with its length in front, as TCP has it.
pub(super) async fn write(stream: &mut TcpStream, message: &[u8]) -> io::Result<()> {
    let length = u16::try_from(message.len()).map_err(io::Error::other)?;
    let mut bytes = length.to_be_bytes().to_vec();
    bytes.extend_from_slice(message);
    stream.write_all(&bytes).await
}

pub(super) async fn read(stream: &mut TcpStream, bytes_max: usize) -> io::Result<Vec<u8>> {
    let length = usize::from(stream.read_u16().await?);
    if length > bytes_max {
        return Err(io::Error::other(format!("a message of {length} bytes, limit {bytes_max}")));
    }
    let mut message = vec![0; length];
    stream.read_exact(&mut message).await?;
    Ok(message)
}
