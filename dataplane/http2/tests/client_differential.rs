//! Against another implementation: a client [`Connection`] exchanges requests and responses with a server of the `h2`
//! crate, and both must see the same fields, content and trailers.
#![allow(clippy::unwrap_used, reason = "a helper of a test that fails is a failed test")]

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use http::Response;
use proptest::prelude::*;
use sluicegate_http2::hpack::RequestPseudoFields;
use sluicegate_http2::{Connection, ConnectionConfig, ErrorCode, Event, StreamKey};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};

mod support;

use support::messages::{Message, any_message, fields_of, grouped, map_of, sorted};

const CONFIG: ConnectionConfig = ConnectionConfig {
    streams_max: 3,
    slots_max: 6,
    stream_window: 5_000,
    connection_window: 70_000,
    header_list_bytes_max: 100_000,
    output_bytes_max: 10_000,
    tunnels: false,
};
const HEAD: RequestPseudoFields<'_> =
    RequestPseudoFields { method: b"POST", scheme: b"http", authority: b"app", path: b"/path?query" };

/// The client: sends requests, as many at a time as the server and its own limit allow, and keeps the responses.
struct Client {
    connection: Connection,
    requests: VecDeque<Message>,
    /// Requests that are not sent completely, with the bytes that were.
    sending: Vec<(StreamKey, Message, usize)>,
    receiving: HashMap<StreamKey, Message>,
    /// Each request with its response.
    done: Vec<(StreamKey, Message)>,
    exchanges: usize,
}

impl Client {
    async fn run(mut self, mut io: DuplexStream, piece: usize) -> Vec<(StreamKey, Message)> {
        let mut buffer = vec![0; piece];
        while self.done.len() < self.exchanges {
            self.open();
            self.send();
            let output = self.connection.take_output();
            io.write_all(&output).await.unwrap();
            if !output.is_empty() {
                continue;
            }
            let read = io.read(&mut buffer).await.unwrap();
            assert!(read > 0, "the server has closed the connection");
            let mut at = 0;
            while let Some(event) = self.connection.receive(&buffer[..read], &mut at, Duration::ZERO).unwrap() {
                self.event(event, &buffer);
            }
        }
        self.connection.end(ErrorCode::NoError);
        io.write_all(&self.connection.take_output()).await.unwrap();
        io.shutdown().await.unwrap();
        self.done
    }

    fn open(&mut self) {
        while self.connection.can_send_request() {
            let Some(request) = self.requests.pop_front() else { return };
            let ends = request.body.is_empty() && request.trailers.is_none();
            let fields = request.fields.iter().map(|(name, value)| (name.as_bytes(), &value[..]));
            let stream = self.connection.send_request(HEAD, fields, ends).unwrap();
            if !ends {
                self.sending.push((stream, request, 0));
            }
        }
    }

    fn send(&mut self) {
        let connection = &mut self.connection;
        self.sending.retain_mut(|(stream, request, sent)| {
            let rest = &request.body[*sent..];
            *sent += connection.send_data(*stream, rest, request.trailers.is_none()).unwrap();
            if *sent < request.body.len() {
                return true;
            }
            if let Some(trailers) = &request.trailers {
                let fields = trailers.iter().map(|(name, value)| (name.as_bytes(), &value[..]));
                connection.send_trailers(*stream, fields).unwrap();
            }
            false
        });
    }

    fn event(&mut self, event: Event, input: &[u8]) {
        match event {
            Event::Head { stream, ends } => {
                assert_eq!(self.connection.fields().status(), Some(201));
                let fields = fields_of(self.connection.fields());
                self.receiving.insert(stream, Message { fields, ..Message::default() });
                if ends {
                    self.ended(stream);
                }
            }
            Event::Data { stream, bytes } => {
                self.connection.release(stream, bytes.len());
                self.receiving.get_mut(&stream).unwrap().body.extend_from_slice(&input[bytes]);
            }
            Event::Trailers { stream, malformed } => {
                assert_eq!(malformed, None);
                self.receiving.get_mut(&stream).unwrap().trailers = Some(fields_of(self.connection.fields()));
                self.ended(stream);
            }
            Event::Ended { stream } => self.ended(stream),
            Event::WindowGrew { .. } => {}
            Event::Interim { .. } | Event::Reset { .. } | Event::GoAway { .. } => panic!("{event:?}"),
        }
    }

    fn ended(&mut self, stream: StreamKey) {
        self.done.push((stream, self.receiving.remove(&stream).unwrap()));
        self.connection.detach(stream);
    }
}

/// What the server got, by the number of the stream.
type Seen = Rc<RefCell<HashMap<u32, Message>>>;

/// The server of the `h2` crate: reads each request to its end, and answers with the next of `responses`.
async fn serve(io: DuplexStream, responses: Vec<Message>, seen: Seen) {
    let mut builder = h2::server::Builder::new();
    builder.initial_window_size(3_000).max_concurrent_streams(CONFIG.streams_max);
    let mut connection = builder.handshake::<_, Bytes>(io).await.unwrap();
    let mut responses = responses.into_iter();
    while let Some(accepted) = connection.accept().await {
        let (request, mut respond) = accepted.unwrap();
        let (response, seen) = (responses.next().unwrap(), Rc::clone(&seen));
        tokio::task::spawn_local(async move {
            let (parts, mut body) = request.into_parts();
            assert_eq!((parts.method.as_str(), parts.uri.to_string().as_str()), ("POST", "http://app/path?query"));
            let mut message = Message { fields: grouped(&parts.headers), ..Message::default() };
            while let Some(bytes) = body.data().await {
                let bytes = bytes.unwrap();
                body.flow_control().release_capacity(bytes.len()).unwrap();
                message.body.extend_from_slice(&bytes);
            }
            message.trailers = body.trailers().await.unwrap().map(|map| grouped(&map));
            seen.borrow_mut().insert(respond.stream_id().as_u32(), message);
            let mut head = Response::builder().status(201).body(()).unwrap();
            *head.headers_mut() = map_of(&response.fields);
            let ends = response.body.is_empty() && response.trailers.is_none();
            let mut stream = respond.send_response(head, ends).unwrap();
            if !ends {
                stream.send_data(response.body.into(), response.trailers.is_none()).unwrap();
                if let Some(trailers) = &response.trailers {
                    stream.send_trailers(map_of(trailers)).unwrap();
                }
            }
        });
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn server_of_the_h2_crate_and_client_see_the_same_exchanges(
        exchanges in proptest::collection::vec((any_message(), any_message()), 1..8),
        piece in proptest::sample::select(vec![1, 10, 1_000, 100_000]),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let (requests, responses): (Vec<_>, Vec<_>) = exchanges.into_iter().unzip();
        let (ours, theirs) = tokio::io::duplex(50_000);
        let client = Client {
            connection: Connection::client(CONFIG, Duration::ZERO),
            requests: requests.iter().cloned().collect(),
            sending: Vec::new(),
            receiving: HashMap::new(),
            done: Vec::new(),
            exchanges: requests.len(),
        };
        let (local, seen) = (tokio::task::LocalSet::new(), Seen::default());
        let mut done = local.block_on(&runtime, async {
            let served = tokio::task::spawn_local(serve(theirs, responses.clone(), Rc::clone(&seen)));
            let done = client.run(ours, piece).await;
            served.await.unwrap();
            done
        });
        // Streams are opened in the order of the requests, and the server accepts them in the same order.
        done.sort_by_key(|(stream, _)| stream.id());
        let received: Vec<_> = done.into_iter().map(|(_, response)| sorted(response)).collect();
        prop_assert_eq!(received, responses.into_iter().map(sorted).collect::<Vec<_>>());
        let mut seen: Vec<_> = seen.take().into_iter().collect();
        seen.sort_by_key(|(stream, _)| *stream);
        let seen: Vec<_> = seen.into_iter().map(|(_, request)| sorted(request)).collect();
        prop_assert_eq!(seen, requests.into_iter().map(sorted).collect::<Vec<_>>());
    }
}
