//! The wire format of protobuf: numbered fields, each a number or bytes.

/// Why a body is no message of ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum ProtobufError {
    /// The kind has no table here: the client has to send JSON.
    UnknownKind,
    Malformed,
    /// Schemas nest more than [`super::SCHEMA_DEPTH_MAX`] levels.
    TooDeep,
    /// There are more than [`super::MESSAGES_MAX`] messages in it.
    TooMany,
}

pub(super) fn text(bytes: &[u8]) -> Result<String, ProtobufError> {
    std::str::from_utf8(bytes).map(str::to_owned).map_err(|_| ProtobufError::Malformed)
}

/// Content of one field on the wire.
#[derive(Debug, Clone, Copy)]
pub(super) enum WireValue<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

/// Takes a message apart, field by field.
pub(super) struct ProtobufReader<'a> {
    pub(super) remaining: &'a [u8],
}

impl<'a> ProtobufReader<'a> {
    pub(super) fn next(&mut self) -> Result<Option<(u64, WireValue<'a>)>, ProtobufError> {
        if self.remaining.is_empty() {
            return Ok(None);
        }
        let tag = self.varint()?;
        let part = match tag & 7 {
            0 => WireValue::Number(self.varint()?),
            1 => WireValue::Bytes(self.read_bytes(8)?),
            2 => {
                let length = usize::try_from(self.varint()?).map_err(|_| ProtobufError::Malformed)?;
                WireValue::Bytes(self.read_bytes(length)?)
            }
            5 => WireValue::Bytes(self.read_bytes(4)?),
            _ => return Err(ProtobufError::Malformed),
        };
        Ok(Some((tag >> 3, part)))
    }

    fn varint(&mut self) -> Result<u64, ProtobufError> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let (byte, rest) = self.remaining.split_first().ok_or(ProtobufError::Malformed)?;
            self.remaining = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(ProtobufError::Malformed)
    }

    fn read_bytes(&mut self, length: usize) -> Result<&'a [u8], ProtobufError> {
        let (taken, rest) = self.remaining.split_at_checked(length).ok_or(ProtobufError::Malformed)?;
        self.remaining = rest;
        Ok(taken)
    }
}
