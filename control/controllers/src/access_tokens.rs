//! Tokens for our own deliveries: requested from the API for each account and audience, and renewed long before they
//! expire. The cores hold an [`AccessToken`] and do not know accounts.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use contract::access_token::AccessToken;
use contract::table::DeliveryTarget;
use futures_util::StreamExt;
use futures_util::stream;
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::api::PostParams;
use kube::{Api, Client};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};

use support::clock::{Deadline, Now, WallClock};
use support::names::is_path_segment;

/// How long a token is asked to be good for, in seconds.
const SECONDS: i64 = 3_600;
/// The share of the lifetime after which a token is renewed: an API that is down for ten minutes has no effect.
pub(crate) const RENEW_AT_FRACTION: f64 = 0.8;
/// Between two attempts to get a token, at first and at most: an account may be made a moment after it is named.
const RETRY_DELAY_MIN: Duration = Duration::from_millis(100);
const RETRY_DELAY_MAX: Duration = Duration::from_secs(10);
/// How long one request for a token may take.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Requests for tokens at a time.
const REQUESTS_MAX: usize = 16;
/// How often unused tokens are dropped, if nothing else happens.
const CLEANUP_INTERVAL: Duration = Duration::from_secs(60);

/// The account of a token, and its audience.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct AccessTokenKey {
    namespace: String,
    account: String,
    audience: String,
}

#[derive(Debug)]
struct TokenEntry {
    /// Held by whatever delivers with it.
    token: Weak<AccessToken>,
    renew_at: Due,
    retry_delay: Duration,
}

/// When a holder's next token is asked for.
#[derive(Debug)]
enum Due {
    /// There is no token yet, or the last attempt failed.
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
pub struct AccessTokenCache {
    by_key: Mutex<HashMap<AccessTokenKey, TokenEntry>>,
    /// There is a new one, a receiver refused one, or the wall clock was set.
    added: Arc<Notify>,
}

impl AccessTokenCache {
    /// Uses the token of `account` for `target`, if both are set. Otherwise the login of the URL, if it has one.
    pub fn attach(&self, target: &mut DeliveryTarget, namespace: &str, account: Option<&str>, audience: Option<&str>) {
        target.access_token = match (account, audience) {
            (Some(account), Some(audience)) if !audience.is_empty() => Some(self.get(AccessTokenKey {
                namespace: namespace.into(),
                account: account.into(),
                audience: audience.into(),
            })),
            _ => target.access_token.take().filter(|pass| pass.is_login()),
        };
    }

    fn get(&self, holder: AccessTokenKey) -> Arc<AccessToken> {
        let mut known = self.lock();
        if let Some(pass) = known.get(&holder).and_then(|entry| entry.token.upgrade()) {
            return pass;
        }
        let pass = Arc::new(AccessToken::renewed_by(Arc::clone(&self.added)));
        let entry = TokenEntry {
            token: Arc::downgrade(&pass),
            renew_at: Due::At(Instant::now()),
            retry_delay: RETRY_DELAY_MIN,
        };
        known.insert(holder, entry);
        drop(known);
        self.added.notify_one();
        pass
    }

    /// Tokens near their expiry, by both clocks.
    pub(crate) fn clock_stepped(&self) {
        self.added.notify_one();
    }

    /// The tokens to renew now, and the time until the next one.
    fn due(&self, now: Now) -> (Vec<(AccessTokenKey, Arc<AccessToken>)>, Option<Duration>) {
        let mut known = self.lock();
        known.retain(|_, entry| entry.token.strong_count() > 0);
        let (mut due, mut next) = (Vec::new(), None::<Duration>);
        for (holder, entry) in &mut *known {
            let Some(pass) = entry.token.upgrade() else { continue };
            // What a receiver refused is asked for at once, and after a failure in its time.
            let is_refused = pass.take_refusal() && matches!(entry.renew_at, Due::Renewal(_));
            if is_refused {
                entry.renew_at = Due::At(now.monotonic);
            }
            if entry.renew_at.is_now(now) {
                due.push((holder.clone(), pass));
            } else {
                let rest = entry.renew_at.remaining(now);
                next = Some(next.map_or(rest, |next| next.min(rest)));
            }
        }
        (due, next)
    }

    /// Notes how a request went: for how long its token is good.
    fn record_result(&self, holder: &AccessTokenKey, good_for: Option<Duration>, now: Now) -> Duration {
        let mut known = self.lock();
        let Some(entry) = known.get_mut(holder) else { return RETRY_DELAY_MIN };
        match good_for {
            Some(good_for) => {
                entry.retry_delay = RETRY_DELAY_MIN;
                let after = good_for.mul_f64(RENEW_AT_FRACTION).max(RETRY_DELAY_MIN);
                entry.renew_at = Due::Renewal(Deadline::new(now, after));
            }
            None => {
                entry.renew_at = Due::At(now.monotonic + entry.retry_delay);
                entry.retry_delay = (entry.retry_delay * 2).min(RETRY_DELAY_MAX);
            }
        }
        entry.retry_delay
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<AccessTokenKey, TokenEntry>> {
        self.by_key.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Asks an API for tokens.
#[derive(Clone, Copy)]
pub(crate) struct TokenRequester<'a> {
    pub(crate) client: &'a Client,
    pub(crate) clock: &'a WallClock,
}

impl AccessTokenCache {
    /// Gets and renews tokens, forever.
    pub(crate) async fn run(&self, requester: TokenRequester<'_>) {
        loop {
            let (due, next) = self.due(requester.clock.both());
            if !due.is_empty() {
                stream::iter(due)
                    .for_each_concurrent(REQUESTS_MAX, |(holder, pass)| async move {
                        self.renew(requester, &holder, &pass).await;
                    })
                    .await;
                continue;
            }
            let rest = next.map_or(CLEANUP_INTERVAL, |next| next.min(CLEANUP_INTERVAL));
            tokio::select! {
                () = sleep(rest) => {}
                () = self.added.notified() => {}
            }
        }
    }

    async fn renew(&self, requester: TokenRequester<'_>, holder: &AccessTokenKey, pass: &AccessToken) {
        let AccessTokenKey { namespace, account, audience } = holder;
        let why = match requester.request(namespace, account, audience, SECONDS).await {
            Ok((token, good_for)) => {
                pass.renew(&token);
                self.record_result(holder, Some(good_for), requester.clock.both());
                return;
            }
            Err(why) => why,
        };
        let wait = self.record_result(holder, None, requester.clock.both());
        // The first attempts may come before the account.
        if wait >= RETRY_DELAY_MAX {
            tracing::warn!(namespace, account, audience, why, "no token for deliveries; tried again");
        } else {
            tracing::debug!(namespace, account, audience, why, "no token yet");
        }
    }
}

impl TokenRequester<'_> {
    /// A token of `account` for `audience` (none: for the API), and its lifetime; or why it was not issued.
    pub(crate) async fn request(
        self,
        namespace: &str,
        account: &str,
        audience: &str,
        seconds: i64,
    ) -> Result<(String, Duration), String> {
        if !is_path_segment(account) {
            return Err(format!("serviceaccounts \"{account}\" not found"));
        }
        let api: Api<ServiceAccount> = Api::namespaced(self.client.clone(), namespace);
        let wanted = TokenRequest {
            spec: TokenRequestSpec {
                audiences: if audience.is_empty() { Vec::new() } else { vec![audience.to_owned()] },
                expiration_seconds: Some(seconds),
                ..TokenRequestSpec::default()
            },
            ..TokenRequest::default()
        };
        let parameters = PostParams::default();
        match timeout(REQUEST_TIMEOUT, api.create_token_request(account, &parameters, &wanted)).await {
            Ok(Ok(TokenRequest { status: Some(status), .. })) => {
                let ends = status.expiration_timestamp.0.as_second();
                let seconds = ends.saturating_sub(self.clock.now().as_second());
                Ok((status.token, Duration::from_secs(u64::try_from(seconds).unwrap_or(0))))
            }
            Ok(Ok(_)) => Err("the answer has no token".to_owned()),
            Ok(Err(kube::Error::Api(status))) => Err(status.message),
            Ok(Err(why)) => Err(why.to_string()),
            Err(_) => Err("no answer".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;

    use super::*;
    use crate::trust_store::TrustStore;

    #[tokio::test(start_paused = true)]
    async fn a_pass_is_shared_renewed_in_time_and_forgotten_with_its_last_holder() {
        let (passes, clock) = (AccessTokenCache::default(), WallClock::default());
        let stamped = |account: Option<&str>, audience: Option<&str>| {
            let mut one = TrustStore::default().target(&"http://s/".into()).unwrap();
            passes.attach(&mut one, "ns", account, audience);
            one
        };
        assert_eq!(stamped(Some("a"), None).access_token, None);
        assert_eq!(stamped(None, Some("x")).access_token, None);
        let (one, same, other) =
            (stamped(Some("a"), Some("x")), stamped(Some("a"), Some("x")), stamped(Some("a"), Some("y")));
        assert_eq!(one, same);
        assert_ne!(one, other);
        let (due, next) = passes.due(clock.both());
        assert_eq!((due.len(), next), (2, None));
        let (holder, _) = due.iter().find(|(holder, _)| holder.audience == "x").unwrap();
        passes.record_result(holder, Some(Duration::from_secs(1_000)), clock.both());
        drop((other, due.len()));
        let holder = holder.clone();
        drop(due);
        let (due, next) = passes.due(clock.both());
        assert_eq!((due.len(), next), (0, Some(Duration::from_secs(800))));
        let waits: Vec<_> = (0..9).map(|_| passes.record_result(&holder, None, clock.both())).collect();
        assert!(waits.is_sorted() && waits.last() == Some(&RETRY_DELAY_MAX), "{waits:?}");
        drop((one, same));
        tokio::time::advance(RETRY_DELAY_MAX).await;
        assert_eq!(passes.due(clock.both()).0.len(), 0);
    }

    /// A token that has ended by the wall clock gets 401 from every receiver, whatever the timers say.
    #[tokio::test(start_paused = true)]
    async fn token_is_renewed_by_the_clock_that_is_first() {
        let clock = WallClock::simulated("2026-01-01T00:00:00Z".parse().unwrap());
        let passes = AccessTokenCache::default();
        let mut target = TrustStore::default().target(&"http://s/".into()).unwrap();
        passes.attach(&mut target, "ns", Some("a"), Some("x"));
        let is_due = || passes.due(clock.both()).0.len() == 1;
        let renew = || {
            let (holder, pass) = passes.due(clock.both()).0.remove(0);
            pass.renew("t");
            passes.record_result(&holder, Some(Duration::from_secs(3_600)), clock.both());
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
        let passes = AccessTokenCache::default();
        let mut target = TrustStore::default().target(&"http://s/".into()).unwrap();
        passes.attach(&mut target, "ns", Some("a"), Some("x"));
        let pass = target.access_token.clone().unwrap();
        let (holder, _) = passes.due(clock.both()).0.remove(0);
        pass.renew("first");
        passes.record_result(&holder, Some(Duration::from_secs(3_600)), clock.both());
        assert!(passes.due(clock.both()).0.is_empty());
        pass.refuse();
        assert_eq!(passes.due(clock.both()).0.len(), 1);
        // A failed attempt is not made sooner because a receiver refuses again.
        passes.record_result(&holder, None, clock.both());
        pass.refuse();
        assert!(passes.due(clock.both()).0.is_empty());
    }
}
