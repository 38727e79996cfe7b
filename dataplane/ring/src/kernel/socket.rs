//! TCP sockets, with the options that all of ours have.

use std::ffi::c_int;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use super::check;
use crate::address::Address;
use crate::limits::BACKLOG_MAX;

/// Between two programs of one host there is no queue to be careful of, and nothing is lost. A host's own choice for the network (BBR,
/// say) keeps a rate and a clock for each connection all the same: 2 to 3 % of a proxied request. Every kernel has this one.
const LOOPBACK_CONGESTION_CONTROL: &[u8] = b"reno";

/// One that is to be connected.
pub(super) fn for_stream(address: &Address) -> io::Result<OwnedFd> {
    let socket = new(address)?;
    tune(&socket, address.std)?;
    Ok(socket)
}

/// One that listens, side by side with those of other rings.
pub(super) fn listening(address: &Address) -> io::Result<OwnedFd> {
    let socket = new(address)?;
    switch_on(&socket, libc::SOL_SOCKET, libc::SO_REUSEADDR)?;
    switch_on(&socket, libc::SOL_SOCKET, libc::SO_REUSEPORT)?;
    tune(&socket, address.std)?;
    let (pointer, bytes) = address.pointer();
    // SAFETY: pointer and length are those of `address`, which outlives the call.
    check(unsafe { libc::bind(socket.as_raw_fd(), pointer, bytes) })?;
    // SAFETY: takes no pointer; the descriptor is ours.
    check(unsafe { libc::listen(socket.as_raw_fd(), BACKLOG_MAX) })?;
    Ok(socket)
}

/// One that listens already.
pub(super) fn adopted(listener: TcpListener) -> io::Result<OwnedFd> {
    let address = listener.local_addr()?;
    let socket = OwnedFd::from(listener);
    tune(&socket, address)?;
    Ok(socket)
}

fn new(address: &Address) -> io::Result<OwnedFd> {
    // SAFETY: takes no pointer.
    let fd = check(unsafe { libc::socket(address.domain(), libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) })?;
    // SAFETY: the kernel has just made this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// What streams need; those that a listener accepts inherit it.
fn tune(socket: &OwnedFd, address: SocketAddr) -> io::Result<()> {
    switch_on(socket, libc::IPPROTO_TCP, libc::TCP_NODELAY)?;
    if address.ip().is_loopback() {
        // A host that forbids it keeps its own choice.
        let _ = set(socket, libc::IPPROTO_TCP, libc::TCP_CONGESTION, LOOPBACK_CONGESTION_CONTROL);
    }
    Ok(())
}

fn switch_on(socket: &OwnedFd, level: c_int, option: c_int) -> io::Result<()> {
    let on: c_int = 1;
    set(socket, level, option, &on.to_ne_bytes())
}

fn set(socket: &OwnedFd, level: c_int, option: c_int, value: &[u8]) -> io::Result<()> {
    let bytes = value.len() as libc::socklen_t;
    // SAFETY: pointer and length are those of `value`, which outlives the call.
    check(unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, value.as_ptr().cast(), bytes) })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn congestion_control(socket: &OwnedFd) -> Vec<u8> {
        let (mut name, mut bytes) = ([0_u8; 16], 16);
        let (level, option) = (libc::IPPROTO_TCP, libc::TCP_CONGESTION);
        let to = name.as_mut_ptr().cast();
        // SAFETY: the kernel writes at most as many bytes as it is told that there are.
        check(unsafe { libc::getsockopt(socket.as_raw_fd(), level, option, to, &raw mut bytes) }).unwrap();
        name.into_iter().take_while(|byte| *byte != 0).collect()
    }

    #[test]
    fn only_within_the_host_is_its_congestion_control_left() {
        let hosts_own = congestion_control(&new(&Address::new(([192, 0, 2, 1], 80).into())).unwrap());
        let made = |address: SocketAddr| congestion_control(&for_stream(&Address::new(address)).unwrap());
        assert_eq!(made(([127, 0, 0, 1], 80).into()), LOOPBACK_CONGESTION_CONTROL);
        assert_eq!(made(([192, 0, 2, 1], 80).into()), hosts_own);

        for (at, expected) in [([127, 0, 0, 1], LOOPBACK_CONGESTION_CONTROL), ([0, 0, 0, 0], &hosts_own)] {
            let address = SocketAddr::from((at, 0));
            assert_eq!(congestion_control(&listening(&Address::new(address)).unwrap()), expected);
            let bound = TcpListener::bind(address).unwrap();
            assert_eq!(congestion_control(&adopted(bound).unwrap()), expected);
        }
    }
}
