//! Tokens for our own deliveries: asked of the API for each account and audience, and renewed long before they
//! end. The cores hold a [`Pass`] and never hear of accounts.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use dataplane::events::admission::Pass;
use dataplane::table::Target;
use futures_util::StreamExt;
use futures_util::stream;
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::Api;
use kube::api::PostParams;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};

use super::world::World;
use crate::clock::{Deadline, Now};
use crate::kinds::names::is_path_segment;

/// How long a token is asked to be good for, in seconds.
const SECONDS: i64 = 3_600;
/// Of that, the share after which it is renewed: an API that is away for ten minutes costs nothing.
pub(super) const RENEW_AFTER: f64 = 0.8;
/// Between two attempts to get a token, at first and at most: an account may be made a moment after it is named.
const RETRY_MIN: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(10);
/// How long one request for a token may take.
const REQUEST_MAX: Duration = Duration::from_secs(10);
/// Requests for tokens at a time.
const REQUESTS_MAX: usize = 16;
/// How often what nobody holds any more is forgotten, if nothing else happens.
const TIDY_EVERY: Duration = Duration::from_secs(60);

/// Who shows a token, and to whom.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Holder {
    namespace: String,
    account: String,
    audience: String,
}

#[derive(Debug)]
struct Entry {
    /// Held by whatever delivers with it.
    pass: Weak<Pass>,
    due: Due,
    wait: Duration,
}

/// When a holder's next token is asked for.
#[derive(Debug)]
enum Due {
    /// There is none, or the last attempt failed.
    At(Instant),
    /// There is one, to be renewed then.
    Renewal(Deadline),
}

impl Due {
    fn is_now(&self, now: Now) -> bool {
        match self {
            Self::At(at) => *at <= now.monotonic,
            Self::Renewal(deadline) => deadline.has_passed(now),
        }
    }

    fn remaining(&self, now: Now) -> Duration {
        match self {
            Self::At(at) => at.saturating_duration_since(now.monotonic),
            Self::Renewal(deadline) => deadline.remaining(now),
        }
    }
}

#[derive(Debug, Default)]
pub struct Passes {
    by_holder: Mutex<HashMap<Holder, Entry>>,
    /// There is a new one, a receiver refused one, or the wall clock was set.
    bell: Arc<Notify>,
}

impl Passes {
    /// Has `account` shown to `target`, if both are there. Otherwise that gets the login of its URL, if it has one.
    pub fn stamp(&self, target: &mut Target, namespace: &str, account: Option<&str>, audience: Option<&str>) {
        target.pass = match (account, audience) {
            (Some(account), Some(audience)) if !audience.is_empty() => Some(self.of(Holder {
                namespace: namespace.into(),
                account: account.into(),
                audience: audience.into(),
            })),
            _ => target.pass.take().filter(|pass| pass.is_login()),
        };
    }

    fn of(&self, holder: Holder) -> Arc<Pass> {
        let mut known = self.lock();
        if let Some(pass) = known.get(&holder).and_then(|entry| entry.pass.upgrade()) {
            return pass;
        }
        let pass = Arc::new(Pass::renewed_by(Arc::clone(&self.bell)));
        let entry = Entry { pass: Arc::downgrade(&pass), due: Due::At(Instant::now()), wait: RETRY_MIN };
        known.insert(holder, entry);
        drop(known);
        self.bell.notify_one();
        pass
    }

    /// Those that need a token are looked for by both clocks.
    pub(super) fn clock_stepped(&self) {
        self.bell.notify_one();
    }

    /// Those that need a token now, and how long until the next one does.
    fn due(&self, now: Now) -> (Vec<(Holder, Arc<Pass>)>, Option<Duration>) {
        let mut known = self.lock();
        known.retain(|_, entry| entry.pass.strong_count() > 0);
        let (mut due, mut next) = (Vec::new(), None::<Duration>);
        for (holder, entry) in &mut *known {
            let Some(pass) = entry.pass.upgrade() else { continue };
            // What a receiver refused is asked for at once, and after a failure in its time.
            let is_refused = pass.take_refusal() && matches!(entry.due, Due::Renewal(_));
            if is_refused {
                entry.due = Due::At(now.monotonic);
            }
            if entry.due.is_now(now) {
                due.push((holder.clone(), pass));
            } else {
                let rest = entry.due.remaining(now);
                next = Some(next.map_or(rest, |next| next.min(rest)));
            }
        }
        (due, next)
    }

    /// Notes how a request went: for how long its token is good.
    fn note(&self, holder: &Holder, good_for: Option<Duration>, now: Now) -> Duration {
        let mut known = self.lock();
        let Some(entry) = known.get_mut(holder) else { return RETRY_MIN };
        match good_for {
            Some(good_for) => {
                entry.wait = RETRY_MIN;
                let after = good_for.mul_f64(RENEW_AFTER).max(RETRY_MIN);
                entry.due = Due::Renewal(Deadline::new(now, after));
            }
            None => {
                entry.due = Due::At(now.monotonic + entry.wait);
                entry.wait = (entry.wait * 2).min(RETRY_MAX);
            }
        }
        entry.wait
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Holder, Entry>> {
        self.by_holder.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Gets and renews tokens, for ever.
pub(super) async fn tend(world: &World) {
    loop {
        let (due, next) = world.passes.due(world.config.clock.both());
        if !due.is_empty() {
            stream::iter(due)
                .for_each_concurrent(REQUESTS_MAX, |(holder, pass)| async move {
                    renew(world, &holder, &pass).await;
                })
                .await;
            continue;
        }
        let rest = next.map_or(TIDY_EVERY, |next| next.min(TIDY_EVERY));
        tokio::select! {
            () = sleep(rest) => {}
            () = world.passes.bell.notified() => {}
        }
    }
}

async fn renew(world: &World, holder: &Holder, pass: &Pass) {
    let Holder { namespace, account, audience } = holder;
    let why = match ask(world, namespace, account, audience, SECONDS).await {
        Ok((token, good_for)) => {
            pass.renew(&token);
            world.passes.note(holder, Some(good_for), world.config.clock.both());
            return;
        }
        Err(why) => why,
    };
    let wait = world.passes.note(holder, None, world.config.clock.both());
    // The first attempts may come before the account.
    if wait >= RETRY_MAX {
        tracing::warn!(namespace, account, audience, why, "no token for deliveries; tried again");
    } else {
        tracing::debug!(namespace, account, audience, why, "no token yet");
    }
}

/// A token of `account` for `audience` (none: for the API), and for how long it is good; or why there is none.
pub(super) async fn ask(
    world: &World,
    namespace: &str,
    account: &str,
    audience: &str,
    seconds: i64,
) -> Result<(String, Duration), String> {
    if !is_path_segment(account) {
        return Err(format!("serviceaccounts \"{account}\" not found"));
    }
    let api: Api<ServiceAccount> = Api::namespaced(world.client.clone(), namespace);
    let wanted = TokenRequest {
        spec: TokenRequestSpec {
            audiences: if audience.is_empty() { Vec::new() } else { vec![audience.to_owned()] },
            expiration_seconds: Some(seconds),
            ..TokenRequestSpec::default()
        },
        ..TokenRequest::default()
    };
    let parameters = PostParams::default();
    match timeout(REQUEST_MAX, api.create_token_request(account, &parameters, &wanted)).await {
        Ok(Ok(TokenRequest { status: Some(status), .. })) => {
            let ends = status.expiration_timestamp.0.as_second();
            let seconds = ends.saturating_sub(world.config.clock.now().as_second());
            Ok((status.token, Duration::from_secs(u64::try_from(seconds).unwrap_or(0))))
        }
        Ok(Ok(_)) => Err("the answer has no token".to_owned()),
        Ok(Err(kube::Error::Api(status))) => Err(status.message),
        Ok(Err(why)) => Err(why.to_string()),
        Err(_) => Err("no answer".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;

    use super::*;
    use crate::clock::WallClock;
    use crate::controllers::trusts::Trusts;

    #[tokio::test(start_paused = true)]
    async fn a_pass_is_shared_renewed_in_time_and_forgotten_with_its_last_holder() {
        let (passes, clock) = (Passes::default(), WallClock::default());
        let stamped = |account: Option<&str>, audience: Option<&str>| {
            let mut one = Trusts::default().target(&"http://s/".into()).unwrap();
            passes.stamp(&mut one, "ns", account, audience);
            one
        };
        assert_eq!(stamped(Some("a"), None).pass, None);
        assert_eq!(stamped(None, Some("x")).pass, None);
        let (one, same, other) =
            (stamped(Some("a"), Some("x")), stamped(Some("a"), Some("x")), stamped(Some("a"), Some("y")));
        assert_eq!(one, same);
        assert_ne!(one, other);
        let (due, next) = passes.due(clock.both());
        assert_eq!((due.len(), next), (2, None));
        let (holder, _) = due.iter().find(|(holder, _)| holder.audience == "x").unwrap();
        passes.note(holder, Some(Duration::from_secs(1_000)), clock.both());
        drop((other, due.len()));
        let holder = holder.clone();
        drop(due);
        let (due, next) = passes.due(clock.both());
        assert_eq!((due.len(), next), (0, Some(Duration::from_secs(800))));
        let waits: Vec<_> = (0..9).map(|_| passes.note(&holder, None, clock.both())).collect();
        assert!(waits.is_sorted() && waits.last() == Some(&RETRY_MAX), "{waits:?}");
        drop((one, same));
        tokio::time::advance(RETRY_MAX).await;
        assert_eq!(passes.due(clock.both()).0.len(), 0);
    }

    /// A token that has ended by the wall clock gets 401 from every receiver, whatever the timers say.
    #[tokio::test(start_paused = true)]
    async fn token_is_renewed_by_the_clock_that_is_first() {
        let clock = WallClock::simulated("2026-01-01T00:00:00Z".parse().unwrap());
        let passes = Passes::default();
        let mut target = Trusts::default().target(&"http://s/".into()).unwrap();
        passes.stamp(&mut target, "ns", Some("a"), Some("x"));
        let is_due = || passes.due(clock.both()).0.len() == 1;
        let renew = || {
            let (holder, pass) = passes.due(clock.both()).0.remove(0);
            pass.renew("t");
            passes.note(&holder, Some(Duration::from_secs(3_600)), clock.both());
        };
        for hours in [2, -1, 24, -48] {
            renew();
            assert!(!is_due());
            clock.step(SignedDuration::from_hours(hours));
            assert!(is_due(), "{hours} h");
        }
        renew();
        tokio::time::advance(Duration::from_secs(2_879)).await; // the wall clock stands still
        assert!(!is_due());
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(is_due());
    }

    #[tokio::test(start_paused = true)]
    async fn token_that_a_receiver_refused_is_renewed_at_once() {
        let clock = WallClock::default();
        let passes = Passes::default();
        let mut target = Trusts::default().target(&"http://s/".into()).unwrap();
        passes.stamp(&mut target, "ns", Some("a"), Some("x"));
        let pass = target.pass.clone().unwrap();
        let (holder, _) = passes.due(clock.both()).0.remove(0);
        pass.renew("first");
        passes.note(&holder, Some(Duration::from_secs(3_600)), clock.both());
        assert!(passes.due(clock.both()).0.is_empty());
        pass.refuse();
        assert_eq!(passes.due(clock.both()).0.len(), 1);
        // A failed attempt is not made sooner because a receiver refuses again.
        passes.note(&holder, None, clock.both());
        pass.refuse();
        assert!(passes.due(clock.both()).0.is_empty());
    }
}
