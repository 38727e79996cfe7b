//! The `Date` of responses that came without one (RFC 9110 6.6.1), and of local replies.
//!
//! Its text changes once a second, so a core formats it once a second and not for every response: the wall clock is
//! read when the ring's clock says that the second is over.

use std::cell::Cell;
use std::io::Write as _;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use codec::http::DateText;
use http::header::{self, HeaderMap, HeaderValue};
use httpdate::HttpDate;
use ring::Tick;

/// The last second that a header can express: of the year 9999.
const SECOND_MAX: u64 = 253_402_300_799;

thread_local! {
    /// Per core, because a core is a thread.
    static WRITTEN: Cell<CachedDate> = const { Cell::new(CachedDate { text: [b' '; 29], from: Tick::ZERO, until: Tick::ZERO }) };
}

/// The time at `now` on the core's ring.
#[inline]
#[must_use]
pub fn at(now: Tick) -> DateText {
    let mut written = WRITTEN.get();
    if !written.holds(now) {
        written = CachedDate::new(now, SystemTime::now());
        WRITTEN.set(written);
    }
    written.text
}

/// Adds the date to a response without one.
pub fn add(headers: &mut HeaderMap, now: Tick) {
    if !headers.contains_key(header::DATE)
        && let Ok(value) = HeaderValue::from_bytes(&at(now))
    {
        headers.insert(header::DATE, value);
    }
}

#[derive(Clone, Copy)]
struct CachedDate {
    text: DateText,
    from: Tick,
    /// The end of the second. A changed wall clock takes effect then.
    until: Tick,
}

impl CachedDate {
    fn new(now: Tick, wall: SystemTime) -> Self {
        let since = wall.duration_since(UNIX_EPOCH).unwrap_or_default();
        let second = UNIX_EPOCH + Duration::from_secs(since.as_secs().min(SECOND_MAX));
        let left = Duration::from_secs(1).saturating_sub(Duration::from_nanos(since.subsec_nanos().into()));
        let mut text = [b' '; 29];
        let _ = write!(&mut text[..], "{}", HttpDate::from(second)); // the length is constant
        Self { text, from: now, until: now + left }
    }

    fn holds(&self, now: Tick) -> bool {
        self.from <= now && now < self.until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parses it with httpdate.
    fn read(text: &DateText) -> SystemTime {
        httpdate::parse_http_date(std::str::from_utf8(text).unwrap()).unwrap()
    }

    #[test]
    fn date_is_cached_until_the_wall_clock_second_ends() {
        let wall = UNIX_EPOCH + Duration::from_millis(784_111_777_250);
        let now = Tick::from_nanos(5);
        let written = CachedDate::new(now, wall);
        assert_eq!(&written.text, b"Sun, 06 Nov 1994 08:49:37 GMT");
        assert!(written.holds(now) && written.holds(now + Duration::from_nanos(749_999_999)));
        assert!(!written.holds(now + Duration::from_millis(750)));
        assert!(!written.holds(Tick::ZERO), "a tick of another ring");
    }

    #[test]
    fn date_is_clamped_for_a_wrong_clock() {
        let ages = Duration::from_secs(SECOND_MAX * 2);
        for (wall, text) in [
            (UNIX_EPOCH - Duration::from_secs(1), b"Thu, 01 Jan 1970 00:00:00 GMT"),
            (UNIX_EPOCH + ages, b"Fri, 31 Dec 9999 23:59:59 GMT"),
        ] {
            assert_eq!(&CachedDate::new(Tick::ZERO, wall).text, text);
        }
    }

    #[test]
    fn response_gets_a_date_unless_it_has_one() {
        let mut headers = HeaderMap::new();
        add(&mut headers, Tick::ZERO);
        let sent = read(&at(Tick::ZERO));
        assert!(sent.elapsed().unwrap() < Duration::from_secs(60));
        assert_eq!(read(headers[header::DATE].as_bytes().try_into().unwrap()), sent);
        headers.insert(header::DATE, HeaderValue::from_static("mine"));
        add(&mut headers, Tick::ZERO);
        assert_eq!((headers.len(), &headers[header::DATE]), (1, &HeaderValue::from_static("mine")));
    }
}
