//! The limits of streaming sessions, each with its reason.

use std::time::Duration;

/// Sessions of all clients at a time. Each has a process or some connections, and some 100 KiB of buffers; at most 2 MiB for a
/// process that does not read its input, and 10 MiB for forwarded connections that do not.
pub(crate) const SESSIONS_MAX: usize = 256;
/// Sessions of one instance: users look into it, and a loop of a script does not fill its process table.
pub(crate) const SESSIONS_PER_INSTANCE_MAX: usize = 32;
/// A session ends after this time without a byte in either direction; a kubelet's default.
pub(crate) const IDLE_TIMEOUT: Duration = Duration::from_secs(4 * 3600);
/// Time for the client to open its streams; a kubelet's default.
pub(crate) const OPEN_TIMEOUT: Duration = Duration::from_secs(30);
/// Between two pings. The write fails soon after the client is gone, also while nothing is read from it.
pub(crate) const PING_INTERVAL: Duration = Duration::from_secs(10);
/// Time for the client to close the connection after the last frame. Closing with unread bytes could discard that frame.
pub(crate) const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);
/// Time for the output that is left when the process has ended. Processes that it left behind may hold its pipes, and are being
/// killed meanwhile.
pub(crate) const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);
/// Read from a process or a connection at a time.
pub(crate) const CHUNK_BYTES: usize = 16 * 1024;
/// Input that waits for the process to read it. Beyond it nothing is read from the client.
pub(crate) const STDIN_BYTES_MAX: usize = 256 * 1024;
/// Events of a client before all its streams are open. kubectl sends none.
pub(crate) const EARLY_EVENTS_MAX: usize = 64;
/// A message on the resize channel is some 30 bytes.
pub(crate) const RESIZE_BYTES_MAX: usize = 1024;
/// A WebSocket message. kubectl sends 32 KiB, and other clients what they have in a buffer.
pub(crate) const WEBSOCKET_MESSAGE_BYTES_MAX: usize = 1 << 20;
/// Connections that one client forwards at a time; a browser opens a handful.
pub(crate) const FORWARDED_CONNECTIONS_MAX: usize = 128;
/// Time that a forwarded connection has left when its client has finished. kubectl finishes also for users that are gone, and an
/// endless response would keep the connection. containerd leaves one second.
pub(crate) const FORWARDED_HALF_CLOSED_TIMEOUT: Duration = Duration::from_secs(10);
/// Chunks in each direction that wait between a forwarded connection and its client. The sockets have buffers too.
pub(crate) const FORWARDED_CHUNKS_MAX: usize = 4;
