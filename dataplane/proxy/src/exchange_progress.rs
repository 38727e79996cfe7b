//! What the two directions of an exchange share.

use std::cell::Cell;

use codec::http::BodyDecoder;

use super::activity::StreamActivity;
use super::deadlines::RequestSent;
use super::disconnect_watcher::SilenceTimer;

/// What the two directions of an exchange share.
pub(super) struct ExchangeProgress {
    /// The request body was read to its end.
    pub(super) request_read: Cell<bool>,
    /// All of it was sent.
    pub(super) sent: Cell<bool>,
    /// The first byte of the body arrived, so the client does not wait for `100 Continue`.
    pub(super) body_started: Cell<bool>,
    pub(super) activity: StreamActivity,
    /// Towards the client.
    pub(super) silence: SilenceTimer,
}

impl ExchangeProgress {
    pub(super) fn new(body: &BodyDecoder, body_begun: bool, activity: StreamActivity) -> Self {
        let done = body.is_done();
        Self {
            request_read: done.into(),
            sent: false.into(),
            body_started: body_begun.into(),
            activity,
            silence: SilenceTimer::default(),
        }
    }

    pub(super) fn is_request_read(&self) -> bool {
        self.request_read.get()
    }

    pub(super) fn is_sent(&self) -> bool {
        self.sent.get()
    }

    /// For timeouts that count from the end of the request.
    pub(super) fn request_sent(&self) -> RequestSent {
        if self.is_sent() { RequestSent::At(self.activity.last()) } else { RequestSent::No }
    }

    pub(super) fn is_body_started(&self) -> bool {
        self.body_started.get()
    }
}
