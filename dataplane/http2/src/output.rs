//! The bytes that a connection has to send: frames of all streams, in order.

use bytes::{BufMut, Bytes, BytesMut};

use crate::error::ErrorCode;
use crate::frame::{self, FrameHeader, HEADER_BYTES, PREFACE};
use crate::hpack::{HpackEncoder, RequestPseudoFields};
use crate::limits::FRAME_BYTES_MAX;
use crate::settings;

/// What is to be sent, and the state of compression.
#[derive(Debug, Default)]
pub(crate) struct FrameOutput {
    bytes: BytesMut,
    pub(crate) encoder: HpackEncoder,
    /// A name in lower case.
    name: Vec<u8>,
}

/// What a header section begins with.
#[derive(Debug, Clone, Copy)]
pub(crate) enum FieldSection<'a> {
    Request(RequestPseudoFields<'a>),
    /// With this status.
    Response(u16),
    Trailers,
}

impl FrameOutput {
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    pub(crate) fn take(&mut self) -> Bytes {
        self.bytes.split().freeze()
    }

    pub(crate) fn settings(&mut self, values: &[(u16, u32)]) {
        self.header(6 * values.len(), frame::SETTINGS, 0, 0);
        values.iter().for_each(|(id, value)| settings::put(&mut self.bytes, *id, *value));
    }

    pub(crate) fn settings_ack(&mut self) {
        self.header(0, frame::SETTINGS, frame::ACK, 0);
    }

    pub(crate) fn ping(&mut self, flags: u8, payload: &[u8]) {
        self.header(payload.len(), frame::PING, flags, 0);
        self.bytes.put_slice(payload);
    }

    pub(crate) fn goaway(&mut self, last_stream: u32, code: ErrorCode) {
        self.header(8, frame::GOAWAY, 0, 0);
        self.bytes.put_u32(last_stream);
        self.bytes.put_u32(code as u32);
    }

    pub(crate) fn reset(&mut self, stream: u32, code: ErrorCode) {
        self.header(4, frame::RST_STREAM, 0, stream);
        self.bytes.put_u32(code as u32);
    }

    pub(crate) fn window_update(&mut self, stream: u32, increment: u32) {
        self.header(4, frame::WINDOW_UPDATE, 0, stream);
        self.bytes.put_u32(increment);
    }

    /// Writes DATA: one frame, or several if there is more than fits.
    pub(crate) fn data(&mut self, stream: u32, mut data: &[u8], ends: bool) {
        loop {
            let (piece, rest) = data.split_at(data.len().min(FRAME_BYTES_MAX));
            data = rest;
            let flags = if ends && data.is_empty() { frame::END_STREAM } else { 0 };
            self.header(piece.len(), frame::DATA, flags, stream);
            self.bytes.put_slice(piece);
            if data.is_empty() {
                return;
            }
        }
    }

    /// Writes what a client's connection begins with.
    pub(crate) fn preface(&mut self) {
        self.bytes.put_slice(PREFACE);
    }

    /// Writes a header section.
    pub(crate) fn fields<'f>(
        &mut self,
        stream: u32,
        section: FieldSection<'_>,
        fields: impl Iterator<Item = (&'f [u8], &'f [u8])>,
        ends: bool,
    ) {
        let start = self.bytes.len();
        self.bytes.put_bytes(0, HEADER_BYTES);
        self.encoder.begin(&mut self.bytes);
        match section {
            FieldSection::Request(head) => self.encoder.request(head, &mut self.bytes),
            FieldSection::Response(status) => self.encoder.status(status, &mut self.bytes),
            FieldSection::Trailers => {}
        }
        for (name, value) in fields {
            if name.iter().any(u8::is_ascii_uppercase) {
                self.name.clear();
                self.name.extend(name.iter().map(u8::to_ascii_lowercase));
                self.encoder.field(&self.name, value, &mut self.bytes);
            } else {
                self.encoder.field(name, value, &mut self.bytes);
            }
        }
        let length = self.bytes.len() - start - HEADER_BYTES;
        let end = if ends { frame::END_STREAM } else { 0 };
        if length <= FRAME_BYTES_MAX {
            let header = FrameHeader { length, kind: frame::HEADERS, flags: end | frame::END_HEADERS, stream };
            self.bytes[start..start + HEADER_BYTES].copy_from_slice(&header.encode());
            return;
        }
        let block = self.bytes.split_off(start + HEADER_BYTES);
        self.bytes.truncate(start);
        let mut kind = (frame::HEADERS, end);
        for (at, piece) in block.chunks(FRAME_BYTES_MAX).enumerate() {
            let last = (at + 1) * FRAME_BYTES_MAX >= block.len();
            self.header(piece.len(), kind.0, kind.1 | if last { frame::END_HEADERS } else { 0 }, stream);
            self.bytes.put_slice(piece);
            kind = (frame::CONTINUATION, 0);
        }
    }

    fn header(&mut self, length: usize, kind: u8, flags: u8, stream: u32) {
        FrameHeader { length, kind, flags, stream }.put(&mut self.bytes);
    }
}
