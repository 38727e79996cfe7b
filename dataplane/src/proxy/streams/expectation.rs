//! A client that waits for a word before it sends its body (RFC 9110 10.1.1). It is the instance's to say; many do not know
//! how, so that it comes from us when the instance has been silent for a while.

use ::http::{Response, StatusCode};
use ring::Tick;

use super::{Gone, Job, Reply};

pub(super) struct Expectation<'a> {
    job: &'a Job<'a>,
    /// When the instance has been silent for long enough.
    at: Tick,
}

impl<'a> Expectation<'a> {
    pub(super) fn of(job: &'a Job<'a>) -> Self {
        Self { job, at: job.proxy.ring.now() + job.proxy.limits.continue_after }
    }

    fn is_told(&self) -> bool {
        !self.job.head.expects_continue || self.job.course.told_to_continue.get()
    }

    /// How long the word is left to the instance, if the client waits for it.
    pub(super) fn due(&self) -> Option<Tick> {
        (!self.is_told() && !self.job.course.body_begun.get()).then_some(self.at)
    }

    /// Whether the word is to be said now.
    pub(super) fn is_due(&self) -> bool {
        self.due().is_some_and(|due| self.job.proxy.ring.now() >= due)
    }

    /// The instance has sent an interim answer; whether it is news to the client.
    pub(super) fn hear(&self, status: u16) -> bool {
        if status != 100 {
            return true;
        }
        let is_news = !self.is_told();
        self.job.course.told_to_continue.set(true);
        is_news
    }

    /// Says the word, unless the client began meanwhile.
    pub(super) async fn say(&self, reply: &mut impl Reply) -> Result<(), Gone> {
        if self.due().is_none() {
            return Ok(());
        }
        self.job.course.told_to_continue.set(true);
        let mut go_on = Response::new(());
        *go_on.status_mut() = StatusCode::CONTINUE;
        reply.interim(go_on).await
    }
}
