//! The settings that a peer announces (RFC 9113 6.5).

use bytes::{BufMut, BytesMut};

use crate::error::ConnectionFault;
use crate::limits::{FRAME_BYTES_MAX, WINDOW_BYTES_DEFAULT, WINDOW_BYTES_MAX};

pub const HEADER_TABLE_SIZE: u16 = 0x1;
pub const ENABLE_PUSH: u16 = 0x2;
pub const MAX_CONCURRENT_STREAMS: u16 = 0x3;
pub const INITIAL_WINDOW_SIZE: u16 = 0x4;
pub const MAX_FRAME_SIZE: u16 = 0x5;
pub const MAX_HEADER_LIST_SIZE: u16 = 0x6;
/// RFC 8441 3.
pub const ENABLE_CONNECT_PROTOCOL: u16 = 0x8;
/// RFC 9218 2.1.
pub const NO_RFC7540_PRIORITIES: u16 = 0x9;

/// The largest value of SETTINGS_MAX_FRAME_SIZE.
const FRAME_BYTES_UPPER: u32 = (1 << 24) - 1;

/// The settings of a peer that matter here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerSettings {
    pub header_table_bytes: u32,
    pub initial_window: u32,
    pub frame_bytes_max: u32,
    /// Streams that a client may have open.
    pub streams_max: u32,
    /// A server must not push, and so must not announce it (RFC 9113 6.5.2).
    pub pushes: bool,
}

impl Default for PeerSettings {
    fn default() -> Self {
        Self {
            header_table_bytes: 4096,
            initial_window: WINDOW_BYTES_DEFAULT,
            frame_bytes_max: FRAME_BYTES_MAX as u32,
            streams_max: u32::MAX,
            pushes: false,
        }
    }
}

impl PeerSettings {
    /// Reads the payload of a SETTINGS frame, whose length was checked. The last value of a setting counts, except that
    /// the smallest size of the header table must not be lost (RFC 7541 4.2): `on_table_bytes` gets each.
    pub fn update(&mut self, payload: &[u8], mut on_table_bytes: impl FnMut(u32)) -> Result<(), ConnectionFault> {
        for setting in payload.as_chunks::<6>().0 {
            let [id0, id1, value @ ..] = *setting;
            let value = u32::from_be_bytes(value);
            match u16::from_be_bytes([id0, id1]) {
                HEADER_TABLE_SIZE => {
                    self.header_table_bytes = value;
                    on_table_bytes(value);
                }
                ENABLE_PUSH | ENABLE_CONNECT_PROTOCOL | NO_RFC7540_PRIORITIES if value > 1 => {
                    return Err(ConnectionFault::SettingValue);
                }
                ENABLE_PUSH => self.pushes = value == 1,
                MAX_CONCURRENT_STREAMS => self.streams_max = value,
                INITIAL_WINDOW_SIZE if i64::from(value) > WINDOW_BYTES_MAX => {
                    return Err(ConnectionFault::InitialWindow);
                }
                INITIAL_WINDOW_SIZE => self.initial_window = value,
                MAX_FRAME_SIZE if !(FRAME_BYTES_MAX as u32..=FRAME_BYTES_UPPER).contains(&value) => {
                    return Err(ConnectionFault::SettingValue);
                }
                MAX_FRAME_SIZE => self.frame_bytes_max = value,
                _ => {} // unknown ones are ignored
            }
        }
        Ok(())
    }
}

/// Writes one setting.
pub fn put(out: &mut BytesMut, id: u16, value: u32) {
    out.put_u16(id);
    out.put_u32(value);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(settings: &[(u16, u32)]) -> Result<PeerSettings, ConnectionFault> {
        let mut payload = BytesMut::new();
        settings.iter().for_each(|(id, value)| put(&mut payload, *id, *value));
        let mut peer = PeerSettings::default();
        peer.update(&payload, |_| {}).map(|()| peer)
    }

    #[test]
    fn settings_are_read_and_invalid_values_are_errors() {
        let peer = read(&[(INITIAL_WINDOW_SIZE, 7), (0xbeef, 9), (MAX_FRAME_SIZE, 1 << 20), (HEADER_TABLE_SIZE, 0)]);
        let expected = PeerSettings {
            header_table_bytes: 0,
            initial_window: 7,
            frame_bytes_max: 1 << 20,
            ..PeerSettings::default()
        };
        assert_eq!(peer, Ok(expected));
        for (id, value, fault) in [
            (ENABLE_PUSH, 2, ConnectionFault::SettingValue),
            (INITIAL_WINDOW_SIZE, 1 << 31, ConnectionFault::InitialWindow),
            (MAX_FRAME_SIZE, 16_383, ConnectionFault::SettingValue),
            (MAX_FRAME_SIZE, 1 << 24, ConnectionFault::SettingValue),
            (ENABLE_CONNECT_PROTOCOL, 2, ConnectionFault::SettingValue),
            (NO_RFC7540_PRIORITIES, 2, ConnectionFault::SettingValue),
        ] {
            assert_eq!(read(&[(id, value)]), Err(fault), "{id:#x} = {value}");
        }
    }
}
