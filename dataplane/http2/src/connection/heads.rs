//! Header sections: requests, and the trailers of both roles.

use super::{Connection, ConnectionRole, Event, FieldSection, OpenBlock, ResponsePriority, first_u31};
use crate::error::{ConnectionFault, ErrorCode, StreamFault};
use crate::field_block::MalformedFields;
use crate::frame::{self, FrameHeader};
use crate::frame_allowances::FloodKind;
use crate::limits::{BLOCK_BYTES_FACTOR, FIELD_BYTES_FACTOR};

/// The response to a head that is too large (RFC 6585 5).
const FIELDS_TOO_LARGE: u16 = 431;
/// The priority before the block of HEADERS.
const PRIORITY_BYTES: usize = 5;

impl Connection {
    pub(super) fn headers(&mut self, header: FrameHeader, payload: &[u8]) -> Result<Option<Event>, ConnectionFault> {
        let FrameHeader { stream, .. } = header;
        if stream == 0 {
            return Err(ConnectionFault::StreamId);
        }
        if stream.is_multiple_of(2) {
            return Err(match self.role {
                ConnectionRole::Server => ConnectionFault::EvenStream,
                ConnectionRole::Client => ConnectionFault::PushedStream,
            });
        }
        self.allowances.head_began();
        let block = block_of(header, payload)?;
        let ends = header.has(frame::END_STREAM);
        if header.has(frame::END_HEADERS) {
            return self.section(stream, ends, block);
        }
        self.block.clear();
        self.open_block = Some(OpenBlock { stream, ends });
        self.collect(block)?;
        Ok(None)
    }

    pub(super) fn continuation(
        &mut self,
        header: FrameHeader,
        payload: &[u8],
    ) -> Result<Option<Event>, ConnectionFault> {
        let OpenBlock { stream, ends } = self.open_block.ok_or(ConnectionFault::ContinuationUnexpected)?;
        if header.stream != stream {
            return Err(ConnectionFault::ContinuationExpected);
        }
        self.allowances.count(FloodKind::Continuations)?;
        self.collect(payload)?;
        if !header.has(frame::END_HEADERS) {
            return Ok(None);
        }
        self.open_block = None;
        let block = std::mem::take(&mut self.block); // rare: the memory is released
        self.section(stream, ends, &block)
    }

    /// Keeps a piece of a block.
    fn collect(&mut self, piece: &[u8]) -> Result<(), ConnectionFault> {
        if self.block.len() + piece.len() > BLOCK_BYTES_FACTOR * self.config.header_list_bytes_max as usize {
            return Err(ConnectionFault::Flood(FloodKind::Continuations));
        }
        self.block.extend_from_slice(piece);
        Ok(())
    }

    /// A whole header section. It is always decoded, because later ones may refer to its fields.
    fn section(&mut self, stream: u32, ends: bool, block: &[u8]) -> Result<Option<Event>, ConnectionFault> {
        self.fields.clear();
        let (fields, bytes_max) = (&mut self.fields, FIELD_BYTES_FACTOR * self.config.header_list_bytes_max as usize);
        self.decoder.decode(block, bytes_max, |name, value| fields.push(name, value))?;
        if self.role == ConnectionRole::Client {
            return self.response_section(stream, ends);
        }
        if stream > self.last_stream {
            self.last_stream = stream;
            return if self.is_ignored(stream) { Ok(None) } else { self.request(stream, ends) };
        }
        self.trailers(stream, ends)
    }

    fn request(&mut self, stream: u32, ends: bool) -> Result<Option<Event>, ConnectionFault> {
        if self.fields.is_too_large() {
            return self.refuse_too_large(stream, ends).map(|()| None);
        }
        if let Err(why) = self.fields.check_request(self.config.tunnels) {
            return self.refuse(stream, why.into()).map(|()| None);
        }
        if self.streams.open_count() >= self.config.streams_max as usize {
            return self.refuse(stream, StreamFault::Refused).map(|()| None);
        }
        let Some(key) = self.streams.open(stream, self.peer.initial_window, self.config.stream_window) else {
            return self.refuse(stream, StreamFault::Refused).map(|()| None);
        };
        let priority = self.fields.values(b"priority").next().map(ResponsePriority::parse);
        let length = self.fields.content_length().filter(|_| !ends);
        if let Some(state) = self.streams.get_mut(key) {
            state.receiving = !ends;
            state.head_received = true;
            state.length_left = length;
            state.priority = priority.unwrap_or_default();
        }
        Ok(Some(Event::Head { stream: key, ends }))
    }

    /// Answers a request whose fields were not all kept.
    fn refuse_too_large(&mut self, stream: u32, ends: bool) -> Result<(), ConnectionFault> {
        let length: [(&[u8], &[u8]); 1] = [(b"content-length", b"0")];
        self.output.fields(stream, FieldSection::Response(FIELDS_TOO_LARGE), length.into_iter(), true);
        if !ends {
            self.output.reset(stream, ErrorCode::NoError);
            self.streams.remember_reset(stream);
        }
        Ok(self.allowances.count(FloodKind::MadeResets)?)
    }

    pub(super) fn trailers(&mut self, stream: u32, ends: bool) -> Result<Option<Event>, ConnectionFault> {
        let Some(key) = self.streams.find(stream) else {
            let may_be_late = self.is_ignored(stream) || self.streams.was_reset(stream);
            return if may_be_late { Ok(None) } else { Err(ConnectionFault::ClosedStream) };
        };
        let Some(state) = self.streams.get_mut(key) else { return Ok(None) };
        let fault = if !state.receiving {
            Some(StreamFault::Closed)
        } else if !ends {
            Some(MalformedFields::TrailersWithoutEnd.into())
        } else if state.length_left.is_some_and(|left| left > 0) {
            Some(StreamFault::ContentLength)
        } else {
            None
        };
        if let Some(fault) = fault {
            return self.stream_fault(key, fault).map(Some);
        }
        state.receiving = false;
        self.streams.settle(key);
        let malformed = match self.fields.is_too_large() {
            true => Some(MalformedFields::Value),
            false => self.fields.check_trailers().err(),
        };
        Ok(Some(Event::Trailers { stream: key, malformed }))
    }
}

/// The header block of HEADERS, without padding and priority.
fn block_of(header: FrameHeader, payload: &[u8]) -> Result<&[u8], ConnectionFault> {
    let mut block = payload;
    if header.has(frame::PADDED) {
        let (pad, rest) = block.split_first().ok_or(ConnectionFault::FrameLength)?;
        let length = rest.len().checked_sub(usize::from(*pad)).ok_or(ConnectionFault::Padding)?;
        block = &rest[..length];
    }
    if header.has(frame::WITH_PRIORITY) {
        let (priority, rest) = block.split_at_checked(PRIORITY_BYTES).ok_or(ConnectionFault::FrameLength)?;
        if first_u31(priority) == header.stream {
            return Err(ConnectionFault::SelfDependency);
        }
        block = rest;
    }
    Ok(block)
}
