//! What a client of the remote command protocol sends, and the channels that it reads, in either protocol.

use std::io;

use bytes::Bytes;
use serde::Deserialize;

use super::limits::RESIZE_BYTES_MAX;

/// An action of the client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ClientEvent {
    Stdin(Bytes),
    StdinClosed,
    Resize(TerminalSize),
    /// It has closed the connection.
    Left,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub(crate) struct TerminalSize {
    #[serde(rename = "Width")]
    pub(crate) columns: u16,
    #[serde(rename = "Height")]
    pub(crate) rows: u16,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OutputChannel {
    Stdout,
    Stderr,
    /// For the `Status` of the end.
    Error,
}

/// Reads the JSON documents of the resize channel, which come in any pieces.
#[derive(Debug, Default)]
pub(super) struct ResizeParser {
    pending: Vec<u8>,
}

impl ResizeParser {
    /// The last size, if a document is complete.
    pub(super) fn push(&mut self, bytes: &[u8]) -> io::Result<Option<TerminalSize>> {
        if self.pending.len() + bytes.len() > RESIZE_BYTES_MAX {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the terminal's size is too long"));
        }
        self.pending.extend_from_slice(bytes);
        let mut sizes = serde_json::Deserializer::from_slice(&self.pending).into_iter::<TerminalSize>();
        let (mut last, mut used) = (None, 0);
        loop {
            match sizes.next() {
                Some(Ok(size)) => (last, used) = (Some(size), sizes.byte_offset()),
                Some(Err(why)) if why.is_eof() => break,
                Some(Err(why)) => return Err(io::Error::new(io::ErrorKind::InvalidData, why)),
                None => {
                    used = self.pending.len();
                    break;
                }
            }
        }
        self.pending.drain(..used);
        Ok(last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terminal_size_is_read_in_any_pieces() {
        let mut parser = ResizeParser::default();
        let size = |columns, rows| Some(TerminalSize { columns, rows });
        assert_eq!(parser.push(b"{\"Width\":80,\"Hei").unwrap(), None);
        assert_eq!(parser.push(b"ght\":24}\n").unwrap(), size(80, 24));
        assert_eq!(parser.push(b"{\"Width\":1,\"Height\":2}{\"Width\":3,\"Height\":4}").unwrap(), size(3, 4));
        assert_eq!(parser.push(b"").unwrap(), None);
        for bad in [&b"x"[..], b"{\"Width\":-1,\"Height\":2}", &[b' '; RESIZE_BYTES_MAX + 1]] {
            assert!(ResizeParser::default().push(bad).is_err());
        }
    }
}
