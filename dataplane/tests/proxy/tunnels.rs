//! WebSockets: how long a tunnel lives, and what it holds.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use sluicegate_dataplane::core::CoreLimits;
use sluicegate_dataplane::load::BackendLoad;
use sluicegate_dataplane::table::{Backend, RequestTimeouts};

use crate::fixture::{ProxyFixture, backend, on_every_driver, raw_instance, read_through};

const ASK: &str = "GET / HTTP/1.1\r\nHost: app\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
/// One text frame of a client that masks with zeros.
const FRAME: &[u8] = &[0x81, 0x82, 0, 0, 0, 0, b'h', b'i'];
const GOING_AWAY: &[u8] = &[0x88, 0x02, 0x03, 0xe9];

/// An instance that accepts the upgrade and echoes what it receives.
pub(crate) fn echo(fixture: &ProxyFixture) -> SocketAddr {
    raw_instance(&fixture.ring, |stream| {
        Box::pin(async move {
            read_through(&stream, b"\r\n\r\n").await;
            let switch = "HTTP/1.1 101 Switching\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
            stream.send(switch.as_bytes().to_vec()).await.unwrap();
            while let Ok(bytes) = stream.recv().await {
                if bytes.is_empty() || stream.send(bytes).await.is_err() {
                    return;
                }
            }
        })
    })
}

/// Silence ends a tunnel with a Close frame, traffic keeps it open, and its permit is released.
#[test]
fn tunnel_lives_while_bytes_pass() {
    let mut limits = CoreLimits::default();
    limits.http.tunnel_idle_max = Duration::from_millis(1500);
    on_every_driver(&limits, async |fixture: ProxyFixture| {
        let address = echo(&fixture);
        let load = Arc::<BackendLoad>::default();
        let backend = Backend { load: Arc::clone(&load), ..backend(&[address], 1, None) };
        let instance = Arc::clone(&backend.endpoints[0].load);
        fixture.publish("app", backend);

        let mut client = fixture.client().await;
        client.send(ASK).await;
        let head = client.take_through(b"\r\n\r\n").await.unwrap();
        assert!(head.starts_with(b"HTTP/1.1 101 "), "{}", String::from_utf8_lossy(&head));
        assert_eq!((instance.in_flight(), instance.requests()), (1, 0), "X-QP-07: a drain does not wait for it");
        // In total longer than the limit, each pause shorter.
        for _ in 0..6 {
            fixture.pause(300).await;
            client.send(FRAME).await;
            assert_eq!(client.take_through(b"hi").await.unwrap(), FRAME);
        }
        assert_eq!(load.demand(), 1);
        assert_eq!(client.take_through(GOING_AWAY).await.unwrap(), GOING_AWAY);
        drop(client);
        while load.demand() > 0 {
            fixture.pause(1).await;
        }
    });
}

/// AMB-11: the timeouts of a Revision apply to a tunnel as to any response. The 101 is the first byte.
#[test]
fn tunnel_ends_at_its_response_deadline() {
    on_every_driver(&CoreLimits::default(), async |fixture: ProxyFixture| {
        let address = echo(&fixture);
        let limit = Duration::from_millis(500);
        for (timeouts, speaks) in [
            (RequestTimeouts { total: limit, ..RequestTimeouts::NONE }, true),
            (RequestTimeouts { idle: limit, ..RequestTimeouts::NONE }, true),
            (RequestTimeouts { idle: limit, ..RequestTimeouts::NONE }, false),
        ] {
            let mut app = backend(&[address], 0, None);
            app.timeouts = timeouts;
            fixture.publish("app", app);
            let mut client = fixture.client().await;
            client.send(ASK).await;
            assert!(client.take_through(b"\r\n\r\n").await.unwrap().starts_with(b"HTTP/1.1 101 "));
            if speaks {
                client.send(FRAME).await;
                assert_eq!(client.take_through(b"hi").await.unwrap(), FRAME);
            }
            assert_eq!(client.take_through(GOING_AWAY).await.unwrap(), GOING_AWAY, "{timeouts:?}");
        }

        // An instance that has switched in time may be silent.
        let mut app = backend(&[address], 0, None);
        app.timeouts = RequestTimeouts { response_start: limit, ..RequestTimeouts::NONE };
        fixture.publish("app", app);
        let mut client = fixture.client().await;
        client.send(ASK).await;
        client.take_through(b"\r\n\r\n").await.unwrap();
        for _ in 0..3 {
            fixture.pause(700).await;
            client.send(FRAME).await;
            assert_eq!(client.take_through(b"hi").await.unwrap(), FRAME);
        }
    });
}
