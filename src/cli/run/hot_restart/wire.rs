//! Messages and descriptors over a Unix socket: a message is four bytes of length, then JSON.

use std::io::{IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use anyhow::{Context, Result, bail, ensure};
use rustix::io::retry_on_intr;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Largest message, in bytes: a name for each socket of all listeners that Gateways can open, on 128 cores.
const MESSAGE_BYTES_MAX: usize = 4 << 20;

pub(super) fn send(mut stream: &UnixStream, word: &impl Serialize) -> Result<()> {
    let text = serde_json::to_vec(word)?;
    ensure!(text.len() <= MESSAGE_BYTES_MAX, "a message of {} bytes, limit {MESSAGE_BYTES_MAX}", text.len());
    let mut whole = (text.len() as u32).to_be_bytes().to_vec();
    whole.extend_from_slice(&text);
    stream.write_all(&whole).context("the other process has ended")
}

pub(super) fn receive<T: DeserializeOwned>(mut stream: &UnixStream) -> Result<T> {
    let mut length = [0; 4];
    stream.read_exact(&mut length).context("the other process sends nothing")?;
    let length = u32::from_be_bytes(length) as usize;
    ensure!(length <= MESSAGE_BYTES_MAX, "a message of {length} bytes, limit {MESSAGE_BYTES_MAX}");
    let mut text = vec![0; length];
    stream.read_exact(&mut text).context("the other process closed the connection")?;
    serde_json::from_slice(&text).context("the other process sent an invalid message")
}

/// The message at the beginning of `bytes`, once it is complete.
pub(super) fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<Option<T>> {
    let Some((length, rest)) = bytes.split_first_chunk() else { return Ok(None) };
    let length = u32::from_be_bytes(*length) as usize;
    ensure!(length <= MESSAGE_BYTES_MAX, "a message of {length} bytes, limit {MESSAGE_BYTES_MAX}");
    let whole = rest.get(..length).map(serde_json::from_slice).transpose();
    whole.context("the other process sent an invalid message")
}

/// Sends one descriptor with a byte that carries it.
pub(super) fn give(stream: &UnixStream, descriptor: BorrowedFd<'_>) -> Result<()> {
    let descriptors = [descriptor];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    ensure!(control.push(SendAncillaryMessage::ScmRights(&descriptors)), "no space for one descriptor");
    retry_on_intr(|| sendmsg(stream.as_fd(), &[IoSlice::new(b".")], &mut control, SendFlags::NOSIGNAL))?;
    Ok(())
}

pub(super) fn take(stream: &UnixStream) -> Result<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    retry_on_intr(|| {
        recvmsg(stream.as_fd(), &mut [IoSliceMut::new(&mut byte)], &mut control, RecvFlags::CMSG_CLOEXEC)
    })?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(mut descriptors) = message
            && let Some(descriptor) = descriptors.next()
        {
            return Ok(descriptor);
        }
    }
    bail!("an announced socket did not arrive")
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn sent_descriptor_is_same_socket() {
        let (one, other) = UnixStream::pair().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        send(&one, &"here").unwrap();
        give(&one, listener.as_fd()).unwrap();
        send(&one, &7).unwrap();

        assert_eq!(receive::<String>(&other).unwrap(), "here");
        let taken = TcpListener::from(take(&other).unwrap());
        assert_eq!(receive::<u32>(&other).unwrap(), 7);
        assert_eq!(taken.local_addr().unwrap(), listener.local_addr().unwrap());
        let address = listener.local_addr().unwrap();
        drop(listener);
        std::net::TcpStream::connect(address).unwrap();
        taken.accept().unwrap();
    }

    #[test]
    fn invalid_message_is_rejected() {
        for bytes in [&b"\xff\xff\xff\xff"[..], b"\0\0\0\x01x", b"\0\0\0\x09\"", b""] {
            let (mut one, other) = UnixStream::pair().unwrap();
            one.write_all(bytes).unwrap();
            drop(one);
            assert!(receive::<String>(&other).is_err(), "{bytes:?}");
        }
        let (one, other) = UnixStream::pair().unwrap();
        send(&one, &"no descriptor").unwrap();
        assert!(take(&other).is_err());
    }
}
