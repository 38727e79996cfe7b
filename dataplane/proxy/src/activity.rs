//! Idle timeouts of one request: how long it may wait for bytes that a peer has to send or to accept.
//!
//! Until the response begins, each read of the request body is limited by [`IdleTimeouts::request_body`]. From then on
//! both directions count as one stream, because a client that only listens and a server that only listens are both
//! alive: the stream is idle only when neither direction has carried a byte for [`IdleTimeouts::stream`].

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use ring::{Elapsed, Ring, Sleep, Tick};

use contract::table::RequestTimeouts;
use protocol::http::buffers::earlier;
use protocol::http::limits::HttpLimits;

/// The limits of one request. Eight bytes, because every connection has room for them.
#[derive(Debug, Clone, Copy)]
pub(super) struct IdleTimeouts {
    /// For the next bytes of the request's body, before the response begins.
    request_body: IdleTimeout,
    /// For bytes of either direction after that, and for a peer that has to take bytes.
    stream: IdleTimeout,
}

/// Milliseconds; 0: there is no limit. Longer ones than 49 days are cut to that. Four bytes instead of the sixteen of an
/// `Option<Duration>`, because every connection has room for several.
#[derive(Debug, Clone, Copy)]
pub(super) struct IdleTimeout(u32);

impl IdleTimeout {
    /// Converts a duration; a nonzero one is at least a millisecond.
    pub(super) fn new(wait: Duration) -> Self {
        let millis = u32::try_from(wait.as_millis()).unwrap_or(u32::MAX);
        Self(if wait.is_zero() { 0 } else { millis.max(1) })
    }

    pub(super) fn get(self) -> Option<Duration> {
        (self.0 != 0).then(|| Duration::from_millis(self.0.into()))
    }
}

impl IdleTimeouts {
    /// The timeouts of the backend, or the defaults where it has none.
    pub(super) fn of(limits: &HttpLimits, timeouts: &RequestTimeouts) -> Self {
        Self {
            request_body: IdleTimeout::new(timeouts.request_body.get().unwrap_or(limits.stall_max)),
            stream: IdleTimeout::new(timeouts.stream_idle.get().unwrap_or(limits.stream_idle_timeout)),
        }
    }
}

/// When bytes last passed in one request, for both directions.
pub(super) struct StreamActivity {
    timeouts: Cell<IdleTimeouts>,
    /// When bytes last passed, in either direction.
    last: Cell<Tick>,
    /// When the final response head arrived.
    answered: Cell<Option<Tick>>,
}

/// What a request waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ActivityTarget {
    /// The next bytes of the request body.
    Body,
    /// A peer that accepts bytes.
    Writable,
}

impl StreamActivity {
    pub(super) fn new(timeouts: IdleTimeouts) -> Self {
        Self { timeouts: timeouts.into(), last: Tick::ZERO.into(), answered: None.into() }
    }

    /// Called once the request has its backend.
    pub(super) fn set_timeouts(&self, timeouts: IdleTimeouts) {
        self.timeouts.set(timeouts);
    }

    pub(super) fn answer_begins(&self, now: Tick) {
        self.answered.set(Some(now));
        self.last.set(now);
    }

    pub(super) fn answered(&self) -> Option<Tick> {
        self.answered.get()
    }

    /// When bytes last passed, in either direction.
    pub(super) fn last(&self) -> Tick {
        self.last.get()
    }

    /// Called when bytes of the response arrive.
    pub(super) fn received(&self, now: Tick) {
        self.last.set(now);
    }

    /// Runs `read`, which brings the next bytes of the request body; fails when they take too long.
    pub(super) fn body<'a, F: Future>(&'a self, ring: &'a Ring, read: F) -> UnlessIdle<'a, F> {
        self.unless_idle(ring, (ActivityTarget::Body, None), read)
    }

    /// Runs `send`, which passes bytes to a peer; fails when the peer accepts no bytes for too long, or at `until`.
    pub(super) fn send<'a, F: Future>(&'a self, ring: &'a Ring, until: Option<Tick>, send: F) -> UnlessIdle<'a, F> {
        self.unless_idle(ring, (ActivityTarget::Writable, until), send)
    }

    fn unless_idle<'a, F: Future>(
        &'a self,
        ring: &'a Ring,
        (wanted, until): (ActivityTarget, Option<Tick>),
        future: F,
    ) -> UnlessIdle<'a, F> {
        UnlessIdle { future, activity: self, ring, wanted, until, since: ring.now(), sleep: None }
    }

    /// When a wait that began at `since` times out, as far as is known now.
    fn due(&self, wanted: ActivityTarget, since: Tick) -> Option<Tick> {
        let IdleTimeouts { request_body, stream } = self.timeouts.get();
        match (wanted, self.answered.get()) {
            (ActivityTarget::Body, None) => request_body.get().map(|wait| since + wait),
            (ActivityTarget::Body, Some(_)) | (ActivityTarget::Writable, _) => {
                stream.get().map(|wait| since.max(self.last.get()) + wait)
            }
        }
    }

    /// When to check the deadline again. The response may begin meanwhile, which changes the deadline.
    fn next_look(&self, wanted: ActivityTarget, since: Tick, now: Tick) -> Option<Tick> {
        let soon = match self.answered.get() {
            None => self.timeouts.get().stream.get().map(|wait| now + wait),
            Some(_) => None,
        };
        earlier(self.due(wanted, since), soon)
    }
}

pin_project_lite::pin_project! {
    /// See [`StreamActivity::body`] and [`StreamActivity::send`]. A named type for the same reason as [`ring::Timeout`].
    #[must_use = "futures do nothing until they are awaited"]
    pub(super) struct UnlessIdle<'a, F> {
        #[pin]
        future: F,
        activity: &'a StreamActivity,
        ring: &'a Ring,
        wanted: ActivityTarget,
        until: Option<Tick>,
        since: Tick,
        sleep: Option<Sleep>,
    }
}

impl<F: Future> Future for UnlessIdle<'_, F> {
    type Output = Result<F::Output, Elapsed>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let (activity, wanted, since) = (*this.activity, *this.wanted, *this.since);
        if let Poll::Ready(output) = this.future.poll(cx) {
            activity.last.set(this.ring.now());
            return Poll::Ready(Ok(output));
        }
        loop {
            if this.sleep.is_none() {
                let look = earlier(*this.until, activity.next_look(wanted, since, this.ring.now()));
                *this.sleep = look.map(|at| this.ring.sleep_until(at));
            }
            let Some(sleep) = this.sleep.as_mut() else { return Poll::Pending };
            ready!(Pin::new(sleep).poll(cx));
            *this.sleep = None;
            let due = earlier(*this.until, activity.due(wanted, since));
            if due.is_some_and(|due| this.ring.now() >= due) {
                return Poll::Ready(Err(Elapsed));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::rc::Rc;

    use ring::sim::{FaultProfile, Simulation};

    use super::*;
    use contract::table::OwnTimeout;

    const BODY: Duration = Duration::from_secs(60);
    const STREAM: Duration = Duration::from_secs(300);

    fn timeouts(request_body: Duration, stream_idle: Duration) -> IdleTimeouts {
        let own = RequestTimeouts {
            request_body: OwnTimeout::new(Some(request_body)),
            stream_idle: OwnTimeout::new(Some(stream_idle)),
            ..RequestTimeouts::NONE
        };
        IdleTimeouts::of(&HttpLimits::default(), &own)
    }

    /// How long a wait for nothing lasts while `script` runs concurrently.
    fn lasts<F: Future<Output = ()> + 'static>(
        timeouts: IdleTimeouts,
        wanted: ActivityTarget,
        script: impl FnOnce(Ring, Rc<StreamActivity>) -> F,
    ) -> Duration {
        let ring = Simulation::new(1, FaultProfile::calm()).ring();
        let activity = Rc::new(StreamActivity::new(timeouts));
        ring.spawn(script(ring.clone(), Rc::clone(&activity)));
        let begun = ring.now();
        let idle = activity.unless_idle(&ring, (wanted, None), pending::<()>());
        assert_eq!(ring.block_on(idle), Err(Elapsed));
        let lasted = ring.now() - begun;
        ring.shutdown();
        lasted
    }

    async fn nothing(_ring: Ring, _activity: Rc<StreamActivity>) {}

    fn about(lasted: Duration, wanted: Duration) {
        assert!(lasted >= wanted && lasted < wanted + Duration::from_secs(1), "{lasted:?}, not {wanted:?}");
    }

    #[test]
    fn body_wait_before_response_has_body_timeout() {
        about(lasts(timeouts(BODY, STREAM), ActivityTarget::Body, nothing), BODY);
        // Only the bytes of the request count: an instance sends nothing before its response.
        let lasted = lasts(timeouts(BODY, STREAM), ActivityTarget::Body, async |ring, activity| {
            ring.sleep(BODY / 2).await;
            activity.received(ring.now());
        });
        about(lasted, BODY);
    }

    #[test]
    fn stream_after_response_lives_while_either_side_sends() {
        for stream in [Duration::from_secs(10), STREAM] {
            for wanted in [ActivityTarget::Body, ActivityTarget::Writable] {
                let lasted = lasts(timeouts(BODY, stream), wanted, move |ring, activity| async move {
                    activity.answer_begins(ring.now());
                    for _ in 0..100 {
                        ring.sleep(stream / 2).await;
                        activity.received(ring.now());
                    }
                });
                about(lasted, stream * 51);
            }
        }
    }

    #[test]
    fn late_response_start_extends_the_deadline() {
        let lasted = lasts(timeouts(BODY, STREAM), ActivityTarget::Body, async |ring, activity| {
            ring.sleep(BODY - Duration::from_secs(1)).await;
            activity.answer_begins(ring.now());
        });
        about(lasted, BODY - Duration::from_secs(1) + STREAM);
    }

    #[test]
    fn zero_timeout_means_no_limit() {
        let without = timeouts(Duration::ZERO, Duration::ZERO);
        assert!(without.request_body.get().is_none() && without.stream.get().is_none());
        let of_all = IdleTimeouts::of(&HttpLimits::default(), &RequestTimeouts::NONE);
        assert_eq!((of_all.request_body.get(), of_all.stream.get()), (Some(BODY), Some(STREAM)));
    }
}
