//! What only a client does: sends requests, receives responses, and obeys GOAWAY.

use super::{Connection, ConnectionFault, ErrorCode, Event, FieldSection, SendingState, first_u31, first_u32};
use crate::error::{StreamFault, StreamGone};
use crate::field_block::MalformedFields;
use crate::frame::FrameHeader;
use crate::frame_allowances::FloodKind;
use crate::hpack::RequestPseudoFields;
use crate::limits::STREAMS_BEFORE_SETTINGS;
use crate::stream_table::StreamKey;

/// Higher numbers do not exist: the connection takes no more streams (RFC 9113 5.1.1).
const LAST_STREAM: u32 = (1 << 31) - 1;

impl Connection {
    /// Streams that a client may have open: its own limit, and that of the server as far as it is known or shown by refusals.
    #[must_use]
    pub fn streams_max(&self) -> usize {
        let allowed = if self.settings_received { self.peer.streams_max } else { STREAMS_BEFORE_SETTINGS };
        self.config.streams_max.min(allowed).min(self.allowance.streams()) as usize
    }

    /// Whether a request can be sent now.
    #[must_use]
    pub fn can_send_request(&self) -> bool {
        !self.is_draining() && self.streams.open_count() < self.streams_max() && self.streams.has_free_slot()
    }

    /// Whether no more requests can ever be sent: the server has sent GOAWAY, or all numbers are used.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.peer_last.is_some() || self.last_stream >= LAST_STREAM
    }

    /// Sends the head of a request, if [`Connection::can_send_request`]. `ends`: it has no body.
    pub fn send_request<'f>(
        &mut self,
        head: RequestPseudoFields<'_>,
        fields: impl Iterator<Item = (&'f [u8], &'f [u8])>,
        ends: bool,
    ) -> Result<StreamKey, StreamGone> {
        if !self.can_send_request() {
            return Err(StreamGone);
        }
        let id = if self.last_stream == 0 { 1 } else { self.last_stream + 2 };
        let key = self.streams.open(id, self.peer.initial_window, self.config.stream_window).ok_or(StreamGone)?;
        self.last_stream = id;
        if let Some(state) = self.streams.get_mut(key) {
            state.sending = if ends { SendingState::Ended } else { SendingState::Body };
            state.is_head = head.method == b"HEAD";
        }
        self.output.fields(id, FieldSection::Request(head), fields, ends);
        self.allowances.request_sent();
        Ok(key)
    }

    /// A header section of a server: an interim head, the final one, or trailers.
    pub(super) fn response_section(&mut self, stream: u32, ends: bool) -> Result<Option<Event>, ConnectionFault> {
        self.opened(stream)?;
        let Some(key) = self.streams.find(stream) else { return self.trailers(stream, ends) };
        let state = self.streams.get(key);
        let (is_trailers, is_head) = state.map_or((false, false), |state| (state.head_received, state.is_head));
        if is_trailers {
            return self.trailers(stream, ends);
        }
        if self.fields.is_too_large() {
            return self.stream_fault(key, StreamFault::FieldsTooLarge).map(Some);
        }
        let status = match self.fields.check_response() {
            Ok(status) => status,
            Err(why) => return self.stream_fault(key, why.into()).map(Some),
        };
        if status < 200 {
            return match ends {
                false => Ok(Some(Event::Interim { stream: key })),
                true => self.stream_fault(key, MalformedFields::Status.into()).map(Some),
            };
        }
        let length = self.fields.content_length().filter(|_| !is_head && !matches!(status, 204 | 304));
        if ends && length.is_some_and(|length| length > 0) {
            return self.stream_fault(key, StreamFault::ContentLength).map(Some);
        }
        if let Some(state) = self.streams.get_mut(key) {
            state.head_received = true;
            state.receiving = !ends;
            state.length_left = length;
        }
        self.streams.settle(key);
        self.allowance.responded();
        Ok(Some(Event::Head { stream: key, ends }))
    }

    /// The server takes no more streams. A later GOAWAY can only take back more (RFC 9113 6.8).
    pub(super) fn goaway_received(&mut self, header: FrameHeader, payload: &[u8]) -> Result<Event, ConnectionFault> {
        if header.stream != 0 {
            return Err(ConnectionFault::StreamId);
        }
        self.allowances.count(FloodKind::Ignored)?;
        let last = first_u31(payload).min(self.peer_last.unwrap_or(LAST_STREAM));
        self.peer_last = Some(last);
        self.streams.close_after(last);
        Ok(Event::GoAway { last, code: ErrorCode::from_wire(first_u32(payload.get(4..).unwrap_or_default())) })
    }
}
