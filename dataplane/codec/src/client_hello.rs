//! The first message of a TLS client, as far as the server name that it asks for (RFC 8446 4.1.2, RFC 6066 3).
//!
//! The message is read in place, whatever the number of records that it comes in; only the name is copied, because it may
//! continue in the next record. Nothing else in it is believed or changed: its bytes go on to the server that they are for.

use std::fmt;
use std::net::IpAddr;

/// Bytes of a ClientHello with the headers of its records. One with a post-quantum key share has some 2 KiB; nginx, HAProxy
/// and Envoy read as many.
pub const CLIENT_HELLO_BYTES_MAX: usize = 16 * 1024;

/// Records of a ClientHello. Most clients send one, and some hide the name from filters with a few; each costs a look for
/// every piece that arrives.
pub const CLIENT_HELLO_RECORDS_MAX: usize = 64;

/// The longest name of DNS (RFC 1035 2.3.4).
const SERVER_NAME_BYTES_MAX: usize = 255;
const RECORD_HEADER_BYTES: usize = 5;
/// The longest plaintext of a record (RFC 8446 5.1).
const RECORD_BYTES_MAX: usize = 1 << 14;
const MESSAGE_HEADER_BYTES: usize = 4;
const HANDSHAKE: u8 = 22;
const CLIENT_HELLO: u8 = 1;
const SERVER_NAME: u16 = 0;
const HOST_NAME: u8 = 0;

/// A host name in lower case.
#[derive(Clone, Copy)]
pub struct ServerName {
    bytes: [u8; SERVER_NAME_BYTES_MAX],
    count: u8,
}

/// What the bytes are so far.
#[allow(
    clippy::large_enum_variant,
    reason = "read at once from the stack; a box would be an allocation for each connection"
)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParsedClientHello {
    /// The message is not complete before there are this many bytes.
    NeedBytes(usize),
    /// Complete. `None`: it names no host, or an address, which RFC 6066 forbids.
    Complete(Option<ServerName>),
    Malformed(MalformedClientHello),
}

/// Why bytes are not a ClientHello.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MalformedClientHello {
    /// The first byte is not one of a TLS handshake.
    NotTls,
    /// A handshake message, but another one.
    NotClientHello,
    /// Larger than [`CLIENT_HELLO_BYTES_MAX`].
    TooLarge,
    /// In more records than [`CLIENT_HELLO_RECORDS_MAX`].
    TooManyRecords,
    /// A record that is empty, too long, or of another version or kind.
    Record,
    /// A length that is longer than what it is in.
    Length,
    /// Bytes after the end of a part.
    Trailing,
    /// The name is there twice, is empty, or has bytes that no host name has.
    ServerName,
}

impl MalformedClientHello {
    #[must_use]
    pub fn sentence(self) -> &'static str {
        match self {
            Self::NotTls => "the connection does not begin with a TLS handshake",
            Self::NotClientHello => "the first message is not a ClientHello",
            Self::TooLarge => "the ClientHello is too large",
            Self::TooManyRecords => "the ClientHello is in too many records",
            Self::Record => "a record of the ClientHello is not valid",
            Self::Length => "a length in the ClientHello is not valid",
            Self::Trailing => "the ClientHello has bytes after its end",
            Self::ServerName => "the server name is not valid",
        }
    }
}

impl ServerName {
    fn new() -> Self {
        Self { bytes: [0; SERVER_NAME_BYTES_MAX], count: 0 }
    }

    #[must_use]
    pub fn as_str(&self) -> &str {
        // Only ASCII is written.
        std::str::from_utf8(&self.bytes[..usize::from(self.count)]).unwrap_or_default()
    }

    fn push(&mut self, byte: u8) -> Result<(), MalformedClientHello> {
        let is_valid = byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b':');
        let slot = self.bytes.get_mut(usize::from(self.count)).filter(|_| is_valid);
        *slot.ok_or(MalformedClientHello::ServerName)? = byte.to_ascii_lowercase();
        self.count += 1;
        Ok(())
    }
}

impl fmt::Debug for ServerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_str().fmt(f)
    }
}

impl PartialEq for ServerName {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for ServerName {}

/// Reads the first bytes of a connection.
#[must_use]
pub fn parse(bytes: &[u8]) -> ParsedClientHello {
    match complete(bytes) {
        Err(why) => ParsedClientHello::Malformed(why),
        Ok(Completeness::NeedBytes(count)) => ParsedClientHello::NeedBytes(count),
        Ok(Completeness::Complete { message_bytes }) => {
            let mut reader = MessageReader { bytes, at: 0, record_left: 0, left: MESSAGE_HEADER_BYTES + message_bytes };
            match reader.client_hello() {
                Ok(name) => ParsedClientHello::Complete(name),
                Err(why) => ParsedClientHello::Malformed(why),
            }
        }
    }
}

enum Completeness {
    NeedBytes(usize),
    /// Without the header of the message.
    Complete {
        message_bytes: usize,
    },
}

/// Looks at the headers of the records and of the message alone.
fn complete(bytes: &[u8]) -> Result<Completeness, MalformedClientHello> {
    let (mut at, mut records, mut payload, mut header) = (0, 0, 0, [0; MESSAGE_HEADER_BYTES]);
    loop {
        if let Some(&first) = bytes.get(at)
            && first != HANDSHAKE
        {
            return Err(if at == 0 { MalformedClientHello::NotTls } else { MalformedClientHello::Record });
        }
        if records == CLIENT_HELLO_RECORDS_MAX {
            return Err(MalformedClientHello::TooManyRecords);
        }
        let Some(&[_, major, _, high, low]) = bytes.get(at..at + RECORD_HEADER_BYTES) else {
            return need(at + RECORD_HEADER_BYTES);
        };
        let record_bytes = usize::from(u16::from_be_bytes([high, low]));
        if major != 3 || record_bytes == 0 || record_bytes > RECORD_BYTES_MAX {
            return Err(MalformedClientHello::Record);
        }
        at += RECORD_HEADER_BYTES;
        records += 1;
        let arrived = &bytes[at.min(bytes.len())..bytes.len().min(at + record_bytes)];
        for (slot, byte) in header.iter_mut().skip(payload).zip(arrived) {
            *slot = *byte;
        }
        if payload == 0 && arrived.first().is_some_and(|kind| *kind != CLIENT_HELLO) {
            return Err(MalformedClientHello::NotClientHello);
        }
        let arrived_payload = payload + arrived.len();
        let message_bytes = usize::from(header[1]) << 16 | usize::from(header[2]) << 8 | usize::from(header[3]);
        if arrived_payload >= MESSAGE_HEADER_BYTES {
            let rest = (MESSAGE_HEADER_BYTES + message_bytes).saturating_sub(payload);
            if at + rest > CLIENT_HELLO_BYTES_MAX {
                return Err(MalformedClientHello::TooLarge);
            }
            if arrived.len() >= rest {
                return Ok(Completeness::Complete { message_bytes });
            }
            if record_bytes >= rest {
                return need(at + rest);
            }
        }
        if arrived.len() < record_bytes {
            return need(at + record_bytes);
        }
        payload += record_bytes;
        at += record_bytes;
    }
}

fn need(count: usize) -> Result<Completeness, MalformedClientHello> {
    if count > CLIENT_HELLO_BYTES_MAX {
        Err(MalformedClientHello::TooLarge)
    } else {
        Ok(Completeness::NeedBytes(count))
    }
}

/// Reads a complete message over the borders of its records.
struct MessageReader<'a> {
    bytes: &'a [u8],
    at: usize,
    /// Of the current record.
    record_left: usize,
    /// Of the current part of the message.
    left: usize,
}

impl MessageReader<'_> {
    fn client_hello(&mut self) -> Result<Option<ServerName>, MalformedClientHello> {
        self.skip(MESSAGE_HEADER_BYTES)?;
        self.skip(2 + 32)?; // the version, which newer ones do not change, and the random
        let session_id = self.u8()?;
        self.skip(session_id.into())?;
        let ciphers = self.u16()?;
        self.skip(ciphers.into())?;
        let compressions = self.u8()?;
        self.skip(compressions.into())?;
        if self.left == 0 {
            return Ok(None); // no extensions
        }
        let extensions = self.u16()?;
        let name = self.part(extensions.into(), Self::extensions)?;
        if self.left > 0 { Err(MalformedClientHello::Trailing) } else { Ok(name) }
    }

    fn extensions(&mut self) -> Result<Option<ServerName>, MalformedClientHello> {
        let (mut found, mut name) = (false, None);
        while self.left > 0 {
            let (kind, length) = (self.u16()?, self.u16()?);
            if kind != SERVER_NAME {
                self.skip(length.into())?;
                continue;
            }
            if std::mem::replace(&mut found, true) {
                return Err(MalformedClientHello::ServerName);
            }
            name = self.part(length.into(), Self::server_names)?;
        }
        Ok(name)
    }

    fn server_names(&mut self) -> Result<Option<ServerName>, MalformedClientHello> {
        let length = self.u16()?;
        let name = self.part(length.into(), |list| {
            let mut name = None;
            while list.left > 0 {
                let (kind, length) = (list.u8()?, list.u16()?);
                if kind != HOST_NAME {
                    list.skip(length.into())?;
                } else if name.is_some() {
                    return Err(MalformedClientHello::ServerName);
                } else {
                    name = Some(list.part(length.into(), Self::host_name)?);
                }
            }
            name.ok_or(MalformedClientHello::ServerName)
        })?;
        Ok(Some(name).filter(|name| name.as_str().parse::<IpAddr>().is_err()))
    }

    fn host_name(&mut self) -> Result<ServerName, MalformedClientHello> {
        let mut name = ServerName::new();
        while self.left > 0 {
            name.push(self.u8()?)?;
        }
        if name.count == 0 { Err(MalformedClientHello::ServerName) } else { Ok(name) }
    }

    /// Reads a part of `length` bytes to its end.
    fn part<T>(
        &mut self,
        length: usize,
        read: impl FnOnce(&mut Self) -> Result<T, MalformedClientHello>,
    ) -> Result<T, MalformedClientHello> {
        let after = self.left.checked_sub(length).ok_or(MalformedClientHello::Length)?;
        self.left = length;
        let value = read(self)?;
        if self.left > 0 {
            return Err(MalformedClientHello::Trailing);
        }
        self.left = after;
        Ok(value)
    }

    fn u8(&mut self) -> Result<u8, MalformedClientHello> {
        self.left = self.left.checked_sub(1).ok_or(MalformedClientHello::Length)?;
        self.enter_record();
        let byte = *self.bytes.get(self.at).ok_or(MalformedClientHello::Length)?;
        self.at += 1;
        self.record_left -= 1;
        Ok(byte)
    }

    fn u16(&mut self) -> Result<u16, MalformedClientHello> {
        Ok(u16::from_be_bytes([self.u8()?, self.u8()?]))
    }

    fn skip(&mut self, count: usize) -> Result<(), MalformedClientHello> {
        self.left = self.left.checked_sub(count).ok_or(MalformedClientHello::Length)?;
        let mut rest = count;
        while rest > 0 {
            self.enter_record();
            let step = rest.min(self.record_left);
            self.at += step;
            self.record_left -= step;
            rest -= step;
        }
        Ok(())
    }

    /// The message is complete, and no record of it is empty: [`complete`] has seen each header.
    fn enter_record(&mut self) {
        if self.record_left == 0 {
            let length = self.bytes.get(self.at + 3..self.at + RECORD_HEADER_BYTES);
            self.record_left =
                length.map_or(usize::MAX, |length| usize::from(u16::from_be_bytes([length[0], length[1]])));
            self.at += RECORD_HEADER_BYTES;
        }
    }
}

#[cfg(test)]
mod tests;
