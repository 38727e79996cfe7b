//! `Expect: 100-continue`: a client that waits before it sends its body (RFC 9110 10.1.1). The instance should answer;
//! many do not implement it, so the proxy sends the 100 when the instance has been silent for a while.

use ::http::{Response, StatusCode};
use ring::Tick;

use super::{ClientGone, ResponseWriter, StreamRequest};

pub(super) struct ExpectContinue<'a> {
    job: &'a StreamRequest<'a>,
    /// When the proxy sends the 100 in place of a silent instance.
    at: Tick,
}

impl<'a> ExpectContinue<'a> {
    pub(super) fn of(job: &'a StreamRequest<'a>) -> Self {
        Self { job, at: job.proxy.ring.now() + job.proxy.limits.continue_after }
    }

    fn is_sent(&self) -> bool {
        !self.job.head.expects_continue || self.job.progress.continue_sent.get()
    }

    /// When the 100 is due, if the client still waits for it.
    pub(super) fn due(&self) -> Option<Tick> {
        (!self.is_sent() && !self.job.progress.body_started.get()).then_some(self.at)
    }

    /// Whether the 100 is due now.
    pub(super) fn is_due(&self) -> bool {
        self.due().is_some_and(|due| self.job.proxy.ring.now() >= due)
    }

    /// The instance sent an interim response. Returns whether to forward it.
    pub(super) fn observe(&self, status: u16) -> bool {
        if status != 100 {
            return true;
        }
        let is_news = !self.is_sent();
        self.job.progress.continue_sent.set(true);
        is_news
    }

    /// Sends the 100, unless the client began its body meanwhile.
    pub(super) async fn send(&self, reply: &mut impl ResponseWriter) -> Result<(), ClientGone> {
        if self.due().is_none() {
            return Ok(());
        }
        self.job.progress.continue_sent.set(true);
        let mut go_on = Response::new(());
        *go_on.status_mut() = StatusCode::CONTINUE;
        reply.interim(go_on).await
    }
}
