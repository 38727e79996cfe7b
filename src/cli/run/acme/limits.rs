//! Limits of ACME, each with its reason.

use std::time::Duration;

use jiff::SignedDuration;

/// Time for one request to the directory with its response; Let's Encrypt answers in seconds, when busy too.
pub(super) const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// Maximum size of a response. A chain of ten certificates is 20 KiB, and everything else is smaller.
pub(super) const RESPONSE_BYTES_MAX: usize = 256 << 10;

/// Time for a whole order: validation from several places, and the issue.
pub(super) const ORDER_TIMEOUT: Duration = Duration::from_secs(300);

/// Maximum orders within an hour, of all hosts together. Let's Encrypt allows an account 300 in three hours.
pub(super) const ORDERS_PER_HOUR_MAX: usize = 60;

/// Maximum hosts that certificates are kept for: one scan of them takes milliseconds.
pub(super) const HOSTS_MAX: usize = 10_000;

/// Wait after the first failure of a host. It doubles with each, so that five attempts fit into an hour: Let's Encrypt allows as
/// many failed validations of a host.
pub(super) const RETRY_DELAY_MIN: SignedDuration = SignedDuration::from_mins(2);

/// Longest wait between attempts of a host. A certificate has weeks left when its renewal begins.
pub(super) const RETRY_DELAY_MAX: SignedDuration = SignedDuration::from_hours(12);

/// Longest `Retry-After` that is honoured: a wrong clock of the directory must not end renewals.
pub(super) const RETRY_AFTER_MAX: SignedDuration = SignedDuration::from_hours(24);

/// Wait after a 429 or 503 without a usable `Retry-After`.
pub(super) const RETRY_AFTER_DEFAULT: SignedDuration = SignedDuration::from_mins(15);

/// Interval at which hosts and due dates are checked: a new host is noticed within this time.
pub(super) const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Maximum size of a file of ACME in the data folder. The schedule of [`HOSTS_MAX`] hosts is the largest.
pub(super) const FILE_BYTES_MAX: u64 = 4 << 20;
