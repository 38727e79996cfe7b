//! System calls on sockets that the drivers of this machine's kernel share.

use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};

use crate::address::{self, SocketAddress};
use crate::limits::BACKLOG_MAX;
use crate::op::SocketHandle;

/// Sends end in an error, not in a signal.
pub(crate) const NO_SIGNAL: i32 = libc::MSG_NOSIGNAL;

/// A stream socket that can be connected to `address`. `flags`: those of `socket(2)` beside `SOCK_CLOEXEC`.
pub(crate) fn connectable(address: &SocketAddress, flags: i32) -> io::Result<SocketHandle> {
    let socket = new_socket(address, flags)?;
    if address.domain() != libc::AF_UNIX {
        set_option(&socket, libc::IPPROTO_TCP, libc::TCP_NODELAY)?;
    }
    Ok(SocketHandle(socket.into_raw_fd()))
}

/// A listening socket at `address`, shared with other rings.
pub(crate) fn listen(address: &SocketAddress) -> io::Result<SocketHandle> {
    let socket = new_socket(address, 0)?;
    set_option(&socket, libc::SOL_SOCKET, libc::SO_REUSEADDR)?;
    set_option(&socket, libc::SOL_SOCKET, libc::SO_REUSEPORT)?;
    // Accepted sockets inherit it.
    set_option(&socket, libc::IPPROTO_TCP, libc::TCP_NODELAY)?;
    let (pointer, bytes) = address.pointer();
    // SAFETY: pointer and length are those of `address`, which outlives the call.
    check(unsafe { libc::bind(socket.as_raw_fd(), pointer, bytes) })?;
    // SAFETY: takes no pointer; the descriptor is open and owned here.
    check(unsafe { libc::listen(socket.as_raw_fd(), BACKLOG_MAX) })?;
    Ok(SocketHandle(socket.into_raw_fd()))
}

/// Takes over a listener that was opened elsewhere.
pub(crate) fn adopt(listener: TcpListener) -> io::Result<SocketHandle> {
    let socket = OwnedFd::from(listener);
    set_option(&socket, libc::IPPROTO_TCP, libc::TCP_NODELAY)?;
    Ok(SocketHandle(socket.into_raw_fd()))
}

pub(crate) fn local_address(socket: SocketHandle) -> io::Result<SocketAddr> {
    // SAFETY: `ask` passes storage for any address and its size.
    address::ask(|storage, bytes| unsafe { libc::getsockname(socket.0, storage, bytes) })
}

pub(crate) fn peer_address(socket: SocketHandle) -> io::Result<SocketAddr> {
    // SAFETY: `ask` passes storage for any address and its size.
    address::ask(|storage, bytes| unsafe { libc::getpeername(socket.0, storage, bytes) })
}

/// `SO_LINGER` with zero time, or without.
pub(crate) fn set_reset_on_close(socket: SocketHandle, resets: bool) -> io::Result<()> {
    let linger = libc::linger { l_onoff: resets.into(), l_linger: 0 };
    let (level, option) = (libc::SOL_SOCKET, libc::SO_LINGER);
    let bytes = size_of::<libc::linger>() as libc::socklen_t;
    // SAFETY: the pointer is to a `linger` of the given size that outlives the call.
    check(unsafe { libc::setsockopt(socket.0, level, option, (&raw const linger).cast(), bytes) })?;
    Ok(())
}

/// Sends the acknowledgement of received bytes now. The result does not matter: a Unix socket refuses the option, and a
/// broken connection reports its failure to the next receive.
pub(crate) fn acknowledge(socket: SocketHandle) {
    let on: libc::c_int = 1;
    let bytes = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the pointer is to an integer of the given size that outlives the call.
    unsafe { libc::setsockopt(socket.0, libc::IPPROTO_TCP, libc::TCP_QUICKACK, (&raw const on).cast(), bytes) };
}

/// Two descriptors of one eventfd: to wait for, and to write to.
pub(crate) fn eventfd(flags: i32) -> io::Result<(OwnedFd, fs::File)> {
    // SAFETY: takes no pointer.
    let fd = check(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | flags) })?;
    // SAFETY: the kernel has just created this descriptor, and it has no other owner.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    let copy = fs::File::from(fd.try_clone()?);
    Ok((fd, copy))
}

fn new_socket(address: &SocketAddress, flags: i32) -> io::Result<OwnedFd> {
    // SAFETY: takes no pointer.
    let fd = check(unsafe { libc::socket(address.domain(), libc::SOCK_STREAM | libc::SOCK_CLOEXEC | flags, 0) })?;
    // SAFETY: the kernel has just created this descriptor, and it has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Enables an integer option.
fn set_option(socket: &OwnedFd, level: i32, option: i32) -> io::Result<()> {
    let on: libc::c_int = 1;
    let bytes = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the pointer is to an integer of the given size that outlives the call.
    check(unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, (&raw const on).cast(), bytes) })?;
    Ok(())
}

pub(crate) fn check(result: libc::c_int) -> io::Result<RawFd> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}
