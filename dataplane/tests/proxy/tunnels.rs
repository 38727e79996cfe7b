//! WebSockets: how long a tunnel lives, and what it holds.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use sluicegate_dataplane::core::CoreLimits;
use sluicegate_dataplane::load::BackendLoad;
use sluicegate_dataplane::table::{Backend, Timeouts};

use crate::house::{House, backend, on_every_machine, raw_instance, read_through};

const ASK: &str = "GET / HTTP/1.1\r\nHost: app\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
/// One frame of text, from a client that masks with zeros.
const FRAME: &[u8] = &[0x81, 0x82, 0, 0, 0, 0, b'h', b'i'];
const GOING_AWAY: &[u8] = &[0x88, 0x02, 0x03, 0xe9];

/// An instance that takes the upgrade and says back what it hears.
pub(crate) fn echo(house: &House) -> SocketAddr {
    raw_instance(&house.ring, |stream| {
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

/// Silence ends a tunnel with a Close frame, traffic keeps it, and its place is given back.
#[test]
fn a_tunnel_lives_while_something_passes() {
    let mut limits = CoreLimits::default();
    limits.http.tunnel_idle_max = Duration::from_millis(1500);
    on_every_machine(&limits, async |house: House| {
        let address = echo(&house);
        let load = Arc::<BackendLoad>::default();
        let backend = Backend { load: Arc::clone(&load), ..backend(&[address], 1, None) };
        let instance = Arc::clone(&backend.endpoints[0].load);
        house.publish("app", backend);

        let mut client = house.client().await;
        client.send(ASK).await;
        let head = client.take_through(b"\r\n\r\n").await.unwrap();
        assert!(head.starts_with(b"HTTP/1.1 101 "), "{}", String::from_utf8_lossy(&head));
        assert_eq!((instance.in_flight(), instance.requests()), (1, 0), "X-QP-07: nobody waits for its end");
        // Together longer than the limit, each pause shorter.
        for _ in 0..6 {
            house.pause(300).await;
            client.send(FRAME).await;
            assert_eq!(client.take_through(b"hi").await.unwrap(), FRAME);
        }
        assert_eq!(load.demand(), 1);
        assert_eq!(client.take_through(GOING_AWAY).await.unwrap(), GOING_AWAY);
        drop(client);
        while load.demand() > 0 {
            house.pause(1).await;
        }
    });
}

/// AMB-11: the limits of a Revision hold for what is said in a tunnel as for any answer. The 101 is the first word.
#[test]
fn a_tunnel_ends_when_the_time_of_its_answer_is_up() {
    on_every_machine(&CoreLimits::default(), async |house: House| {
        let address = echo(&house);
        let limit = Duration::from_millis(500);
        for (timeouts, speaks) in [
            (Timeouts { total: limit, ..Timeouts::NONE }, true),
            (Timeouts { idle: limit, ..Timeouts::NONE }, true),
            (Timeouts { idle: limit, ..Timeouts::NONE }, false),
        ] {
            let mut app = backend(&[address], 0, None);
            app.timeouts = timeouts;
            house.publish("app", app);
            let mut client = house.client().await;
            client.send(ASK).await;
            assert!(client.take_through(b"\r\n\r\n").await.unwrap().starts_with(b"HTTP/1.1 101 "));
            if speaks {
                client.send(FRAME).await;
                assert_eq!(client.take_through(b"hi").await.unwrap(), FRAME);
            }
            assert_eq!(client.take_through(GOING_AWAY).await.unwrap(), GOING_AWAY, "{timeouts:?}");
        }

        // An instance that has switched in time goes on, be it silent.
        let mut app = backend(&[address], 0, None);
        app.timeouts = Timeouts { response_start: limit, ..Timeouts::NONE };
        house.publish("app", app);
        let mut client = house.client().await;
        client.send(ASK).await;
        client.take_through(b"\r\n\r\n").await.unwrap();
        for _ in 0..3 {
            house.pause(700).await;
            client.send(FRAME).await;
            assert_eq!(client.take_through(b"hi").await.unwrap(), FRAME);
        }
    });
}
