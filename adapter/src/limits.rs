//! Every limit of an adapter, each with its reason.

use std::time::Duration;

/// Events that are received and not yet settled. Bounds memory and the duplicates after a kill.
pub const WINDOW_EVENTS_MAX: usize = 2048;
/// Bytes of their data: small compared with the memory limit of an adapter.
pub const WINDOW_BYTES_MAX: usize = 16 << 20;
/// Queues between receiver and sink when each event is one request: that many requests are on the way at once.
pub const LANES: usize = 16;
/// Queues when events are sent in batches: fewer queues make larger batches.
pub const LANES_BATCHED: usize = 2;
/// Events of one batch: one 202 moves an offset by so many.
pub const BATCH_EVENTS_MAX: usize = 256;
/// Bytes of the data of one batch: below the request limit of Brokers (1 MiB) with room for attributes.
pub const BATCH_BYTES_MAX: usize = 512 << 10;
/// Bytes of a request body that the listener takes. A larger one is answered 413.
pub const BODY_BYTES_MAX: usize = 1 << 20;
/// Connections to one listener. Each holds at most one request body, so this bounds memory; more connections wait.
pub const CONNECTIONS_MAX: usize = 256;
/// A client sends the body of its request within this time, or gets 408.
pub const BODY_TIMEOUT: Duration = Duration::from_secs(30);
/// A client completes the TLS handshake within this time.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// After the last event is settled, its response reaches the client within this time.
pub const RESPONSE_TIME: Duration = Duration::from_millis(100);
/// Bytes of a response body that is read so that its connection can be used again.
pub const RESPONSE_BYTES_MAX: usize = 64 << 10;
/// Idle connections to the sink that are kept.
pub const IDLE_CONNECTIONS_MAX: usize = 16;
/// One request to the sink takes at most this long unless `delivery.timeout` says otherwise.
pub const SINK_TIMEOUT: Duration = Duration::from_secs(30);
/// A connection to the sink is made within this time.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The first pause after a failed request; it doubles up to `BACKOFF_MAX`.
pub const BACKOFF_MIN: Duration = Duration::from_millis(200);
/// The shortest pause, whatever `delivery.backoffDelay` says: a retry loop without a pause would occupy a core.
pub const BACKOFF_FLOOR: Duration = Duration::from_millis(10);
/// The longest pause: the delay between the recovery of a sink and the next event.
pub const BACKOFF_MAX: Duration = Duration::from_secs(10);
/// The longest `Retry-After` that is honoured. A larger value is a mistake of the sink.
pub const RETRY_AFTER_MAX: Duration = Duration::from_secs(300);
/// The first pause after a lost connection to the foreign system; it doubles up to `RECONNECT_MAX`.
pub const RECONNECT_MIN: Duration = Duration::from_millis(200);
/// The longest pause, so that a server that is back is used within 5 s.
pub const RECONNECT_MAX: Duration = Duration::from_secs(5);
/// After SIGTERM, events in flight are settled within this time; the rest is redelivered by the foreign system.
pub const SETTLE_TIMEOUT: Duration = Duration::from_secs(20);
/// A token file is read again after this time, so that a rotated token is used without a signal.
pub const TOKEN_AGE_MAX: Duration = Duration::from_secs(5);
/// Bytes of a secret file or of a configuration document.
pub const FILE_BYTES_MAX: u64 = 1 << 20;
