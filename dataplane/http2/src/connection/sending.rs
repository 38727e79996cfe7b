//! What both roles send, and the responses of a server.

use super::{ANY_STREAM, Connection, ConnectionRole, FieldSection, SHUTDOWN_PING, SendingState, ShutdownState};
use crate::error::{ConnectionFault, ErrorCode, StreamGone};
use crate::stream_table::{StreamKey, StreamSlot};

impl Connection {
    /// Whether the bytes to send are fewer than the limit. More may be sent anyway, except of DATA, but callers that
    /// wait bound the memory.
    #[must_use]
    pub fn has_output_capacity(&self) -> bool {
        self.output.len() < self.config.output_bytes_max
    }

    /// Sends the head of a response. With a status below 200 it is an interim one. Names of fields are in lower case.
    pub fn send_head<'f>(
        &mut self,
        stream: StreamKey,
        status: u16,
        fields: impl Iterator<Item = (&'f [u8], &'f [u8])>,
        ends: bool,
    ) -> Result<(), StreamGone> {
        let state = self.sendable(stream, SendingState::Head)?;
        if status >= 200 {
            state.sending = if ends { SendingState::Ended } else { SendingState::Body };
        }
        self.output.fields(stream.id(), FieldSection::Response(status), fields, ends);
        self.streams.settle(stream);
        Ok(())
    }

    /// Sends content, and returns how many bytes were accepted: as many as the windows of the stream and the connection
    /// and the limit of the output allow. `ends`: the message ends with the last byte of
    /// `data`.
    pub fn send_data(&mut self, stream: StreamKey, data: &[u8], ends: bool) -> Result<usize, StreamGone> {
        let capacity = self.config.output_bytes_max.saturating_sub(self.output.len());
        let connection_window = self.send_window;
        let state = self.sendable(stream, SendingState::Body)?;
        let window = usize::try_from(state.send_window.min(connection_window)).unwrap_or(0);
        let accepted = data.len().min(window).min(capacity);
        if accepted == 0 && !(data.is_empty() && ends) {
            return Ok(0);
        }
        let ends = ends && accepted == data.len();
        state.send_window -= accepted as i64;
        if ends {
            state.sending = SendingState::Ended;
        }
        self.send_window -= accepted as i64;
        self.output.data(stream.id(), &data[..accepted], ends);
        self.streams.settle(stream);
        Ok(accepted)
    }

    /// Ends a message with trailers. Names of fields are in lower case.
    pub fn send_trailers<'f>(
        &mut self,
        stream: StreamKey,
        fields: impl Iterator<Item = (&'f [u8], &'f [u8])>,
    ) -> Result<(), StreamGone> {
        self.sendable(stream, SendingState::Body)?.sending = SendingState::Ended;
        self.output.fields(stream.id(), FieldSection::Trailers, fields, true);
        self.streams.settle(stream);
        Ok(())
    }

    /// Ends a stream early. What was sent on it before is still sent.
    pub fn reset(&mut self, stream: StreamKey, code: ErrorCode) {
        let Some(state) = self.streams.get_mut(stream).filter(|state| !state.is_closed()) else { return };
        state.reset = Some(code);
        self.output.reset(stream.id(), code);
        self.streams.remember_reset(stream.id());
        self.streams.settle(stream);
    }

    /// The error that ended the stream early.
    #[must_use]
    pub fn reset_code(&self, stream: StreamKey) -> Option<ErrorCode> {
        self.streams.get(stream).and_then(|state| state.reset)
    }

    /// Ends the use of a stream by the caller. One that is not finished is reset.
    pub fn detach(&mut self, stream: StreamKey) {
        let Some(state) = self.streams.get_mut(stream) else { return };
        state.attached = false;
        let unreleased = std::mem::take(&mut state.unreleased);
        // The client may stop sending a request that was answered (RFC 9113 8.1).
        let code = match (self.role, state.sending) {
            (ConnectionRole::Server, SendingState::Ended) => ErrorCode::NoError,
            _ => ErrorCode::Cancel,
        };
        match state.is_closed() {
            true => self.streams.settle(stream),
            false => self.reset(stream, code),
        }
        self.release_connection(unreleased);
    }

    /// Bytes of a message were forwarded: the peer may send as many more.
    pub fn release(&mut self, stream: StreamKey, bytes: usize) {
        let Some(state) = self.streams.get_mut(stream) else { return };
        let bytes = state.unreleased.min(u32::try_from(bytes).unwrap_or(u32::MAX));
        state.unreleased -= bytes;
        if state.receiving && state.reset.is_none() {
            state.unannounced += bytes;
            if state.unannounced >= self.config.stream_window / 2 {
                let increment = std::mem::take(&mut state.unannounced);
                state.receive_window += increment;
                self.output.window_update(stream.id(), increment);
            }
        }
        self.release_connection(bytes);
    }

    /// Tells the client to open no more streams (RFC 9113 6.8). Those that are open or on their way are served.
    pub fn shut_down(&mut self) {
        if self.shutdown == ShutdownState::No {
            self.shutdown = ShutdownState::Announced;
            self.output.goaway(ANY_STREAM, ErrorCode::NoError);
            self.output.ping(0, &SHUTDOWN_PING);
        }
    }

    /// Whether a graceful shutdown is complete: no stream is open, and none can come.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        matches!(self.shutdown, ShutdownState::Last(_)) && self.streams.open_count() == 0
    }

    /// Tells the peer why its connection ends.
    pub fn fail(&mut self, fault: ConnectionFault) {
        self.end(fault.code());
    }

    /// Tells the peer that the connection ends.
    pub fn end(&mut self, code: ErrorCode) {
        let served = match self.role {
            ConnectionRole::Server => self.last_stream,
            ConnectionRole::Client => 0, // a server opens none
        };
        self.output.goaway(served, code);
    }

    pub(super) fn release_connection(&mut self, bytes: u32) {
        self.unannounced += bytes;
        if self.unannounced > 0 && self.unannounced >= self.config.connection_window / 2 {
            let increment = std::mem::take(&mut self.unannounced);
            self.receive_window += increment;
            self.output.window_update(0, increment);
        }
    }

    /// The stream, if its response is in this state.
    fn sendable(&mut self, stream: StreamKey, sending: SendingState) -> Result<&mut StreamSlot, StreamGone> {
        let state = self.streams.get_mut(stream);
        state.filter(|state| state.reset.is_none() && state.sending == sending).ok_or(StreamGone)
    }
}
