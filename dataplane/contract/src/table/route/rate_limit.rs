//! Rate limits: how many requests of a key a rule passes in a time.
//!
//! Each key has a token bucket, kept as the time at which it is full again (the generic cell rate algorithm of ITU-T I.371): one
//! word, changed by compare-exchange, so that all cores share it without a lock. The table of keys has a fixed size; a new key
//! takes the place of the one whose bucket is full, or will be first.

use std::hash::{BuildHasher as _, Hash};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use foldhash::quality::RandomState;

use super::request::RouteRequest;
use crate::forwarded_chain::client_ip;

/// Keys that one limit tells apart: 256 KiB. With more active keys than that the limit of some starts again.
const KEYS_MAX: usize = 1 << 14;
/// Places of one key in the table: all are looked at.
const WAYS: usize = 8;
/// Requests of a limit, and of its burst.
pub const RATE_REQUESTS_MAX: u32 = 1_000_000;
/// The time of a limit: longer ones would be quotas, which have to outlive a restart.
pub const RATE_PERIOD_MAX: Duration = Duration::from_secs(3600);

/// So many requests in a period, and in a burst.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RateLimit {
    pub requests: u32,
    pub period: Duration,
    /// Requests that may come at once after a pause. At least 1.
    pub burst: u32,
    pub key: RateLimitKey,
}

/// What is counted together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RateLimitKey {
    /// All requests of the rule.
    Rule,
    /// The client's address; of IPv6 the network of 64 bits, which a client usually has for itself.
    Client,
    /// The value of a request header; requests without it are counted together.
    Header(Box<str>),
}

/// A limit with its buckets.
#[derive(Debug)]
pub struct RateLimiter {
    limit: RateLimit,
    hasher: RandomState,
    /// One for a whole rule, else [`KEYS_MAX`].
    buckets: Box<[TokenBucket]>,
}

#[derive(Debug, Default)]
struct TokenBucket {
    /// Hash of the key.
    key: AtomicU64,
    /// In nanoseconds of the caller's clock.
    full_at: AtomicU64,
}

/// A request is over its limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RateLimited {
    /// The next request of the key passes after this time.
    pub retry_after: Duration,
}

impl PartialEq for RateLimiter {
    /// Two limiters with the same limit are the same rule; their buckets are state.
    fn eq(&self, other: &Self) -> bool {
        self.limit == other.limit
    }
}

impl Eq for RateLimiter {}

impl RateLimiter {
    #[must_use]
    pub fn new(limit: RateLimit) -> Self {
        let count = if limit.key == RateLimitKey::Rule { 1 } else { KEYS_MAX };
        let buckets = std::iter::repeat_with(TokenBucket::default).take(count).collect();
        Self { limit, hasher: RandomState::default(), buckets }
    }

    #[must_use]
    pub fn limit(&self) -> &RateLimit {
        &self.limit
    }

    /// Takes a token for a request. `now` is the time since any moment that is the same for all cores.
    ///
    /// # Errors
    ///
    /// There is none.
    pub fn admit(&self, route_request: &RouteRequest<'_>, now: Duration) -> Result<(), RateLimited> {
        let key = match &self.limit.key {
            RateLimitKey::Rule => 0,
            RateLimitKey::Client => {
                let (Some(peer), Some(request)) = (route_request.peer, route_request.request) else { return Ok(()) };
                self.hash(client_ip(request, peer).map(network))
            }
            RateLimitKey::Header(name) => self.hash(route_request.headers(name).next()),
        };
        self.admit_key(key, u64::try_from(now.as_nanos()).unwrap_or(u64::MAX >> 1))
    }

    fn hash(&self, key: impl Hash) -> u64 {
        self.hasher.hash_one(key)
    }

    fn admit_key(&self, key: u64, now: u64) -> Result<(), RateLimited> {
        let nanos = u64::try_from(self.limit.period.as_nanos()).unwrap_or(u64::MAX >> 1);
        let step = (nanos / u64::from(self.limit.requests.max(1))).max(1);
        let depth = step.saturating_mul(u64::from(self.limit.burst.max(1)));
        let bucket = self.bucket(key, now);
        let mut full_at = bucket.full_at.load(Relaxed);
        loop {
            let next = full_at.max(now).saturating_add(step);
            let wait = next.saturating_sub(now.saturating_add(depth));
            if wait > 0 {
                return Err(RateLimited { retry_after: Duration::from_nanos(wait) });
            }
            match bucket.full_at.compare_exchange_weak(full_at, next, Relaxed, Relaxed) {
                Ok(_) => return Ok(()),
                Err(other) => full_at = other,
            }
        }
    }

    /// The bucket of a key. Two cores that take a place for two keys at once count them together once, which errs towards
    /// the limit.
    fn bucket(&self, key: u64, now: u64) -> &TokenBucket {
        if self.buckets.len() == 1 {
            return &self.buckets[0];
        }
        let first = usize::try_from(key % (KEYS_MAX / WAYS) as u64).unwrap_or_default() * WAYS;
        let ways = &self.buckets[first..first + WAYS];
        if let Some(bucket) = ways.iter().find(|bucket| bucket.key.load(Relaxed) == key) {
            return bucket;
        }
        let emptiest = ways.iter().min_by_key(|bucket| bucket.full_at.load(Relaxed)).unwrap_or(&ways[0]);
        emptiest.key.store(key, Relaxed);
        emptiest.full_at.store(now, Relaxed);
        emptiest
    }
}

/// The part of an address that stands for a client.
fn network(ip: IpAddr) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V4(ip) => ip.into(),
        IpAddr::V6(ip) => {
            let [a, b, c, d, ..] = ip.segments();
            IpAddr::from([a, b, c, d, 0, 0, 0, 0])
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use codec::http::{Parsed, RequestHead, parse_request};

    use super::*;
    use crate::client_address::{ClientAddress, ClientScheme};

    fn limiter(requests: u32, seconds: u64, burst: u32, key: RateLimitKey) -> RateLimiter {
        RateLimiter::new(RateLimit { requests, period: Duration::from_secs(seconds), burst, key })
    }

    fn ask(limiter: &RateLimiter, client: &str, line: &str, now_ms: u64) -> Result<(), Duration> {
        let text = format!("GET / HTTP/1.1\r\nHost: a\r\n{line}\r\n");
        let mut head = RequestHead::default();
        assert!(matches!(parse_request(text.as_bytes(), &mut head), Parsed::Head { .. }));
        let peer = ClientAddress::new(client.parse().unwrap(), ClientScheme::Http);
        let request = RouteRequest::client(head.view(text.as_bytes()), &peer);
        limiter.admit(&request, Duration::from_millis(now_ms)).map_err(|limited| limited.retry_after)
    }

    #[test]
    fn burst_passes_and_then_the_rate() {
        let limiter = limiter(10, 1, 5, RateLimitKey::Rule);
        let passed =
            |from: u64, count: usize| (0..count).filter(|_| ask(&limiter, "192.0.2.1:1", "", from).is_ok()).count();
        assert_eq!(passed(10_000, 20), 5, "a burst");
        assert_eq!(ask(&limiter, "192.0.2.1:1", "", 10_000), Err(Duration::from_millis(100)));
        assert_eq!([passed(10_100, 5), passed(10_150, 5), passed(10_300, 5)], [1, 0, 2], "one each 100 ms");
        assert_eq!(passed(20_000, 20), 5, "a pause fills the bucket, and no more");
    }

    #[test]
    fn keys_have_buckets_of_their_own() {
        let by_client = limiter(1, 60, 1, RateLimitKey::Client);
        for (client, passes) in [
            ("192.0.2.1:1", true),
            ("192.0.2.1:2", false),
            ("[::ffff:192.0.2.1]:3", false),
            ("192.0.2.2:1", true),
            ("[2001:db8::1]:1", true),
            ("[2001:db8::ffff:1]:1", false),
            ("[2001:db8:0:1::1]:1", true),
        ] {
            assert_eq!(ask(&by_client, client, "", 1).is_ok(), passes, "{client}");
        }
        let by_header = limiter(1, 60, 1, RateLimitKey::Header("X-Api-Key".into()));
        for (line, passes) in [
            ("X-Api-Key: a\r\n", true),
            ("x-api-key: a\r\n", false),
            ("X-Api-Key: b\r\n", true),
            ("", true),
            ("X-Other: a\r\n", false),
        ] {
            assert_eq!(ask(&by_header, "192.0.2.1:1", line, 1).is_ok(), passes, "{line}");
        }
    }

    #[test]
    fn flood_of_keys_takes_no_more_memory_and_spares_the_busiest() {
        let limiter = limiter(1, 60, 1, RateLimitKey::Client);
        assert!(limiter.admit_key(1, 1).is_ok());
        let nanos = |seconds: u64| seconds * 1_000_000_000;
        for key in 2..200_000 {
            // The key that is asked for again and again is fuller than those of the flood.
            if key % 1000 == 0 {
                assert!(limiter.admit_key(1, nanos(1)).is_err());
            }
            let _ = limiter.admit_key(1 + key * KEYS_MAX as u64, 0);
        }
        assert_eq!(limiter.buckets.len(), KEYS_MAX);
    }

    #[test]
    fn cores_share_one_limit() {
        let limiter = Arc::new(limiter(1000, 3600, 1000, RateLimitKey::Rule));
        let cores: Vec<_> = (0..4)
            .map(|_| {
                let limiter = Arc::clone(&limiter);
                std::thread::spawn(move || (0..1000).filter(|_| limiter.admit_key(0, 1).is_ok()).count())
            })
            .collect();
        assert_eq!(cores.into_iter().map(|core| core.join().unwrap()).sum::<usize>(), 1000);
    }

    #[test]
    fn extreme_limits_do_not_overflow() {
        let fast = limiter(u32::MAX, 0, u32::MAX, RateLimitKey::Rule);
        assert!(fast.admit_key(0, u64::MAX).is_ok());
        let slow =
            RateLimiter::new(RateLimit { requests: 0, period: Duration::MAX, burst: 0, key: RateLimitKey::Rule });
        assert!(slow.admit_key(0, 0).is_ok() && slow.admit_key(0, 0).is_err());
    }
}
