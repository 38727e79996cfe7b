//! Against another implementation: a client of the `h2` crate exchanges requests and responses with a
//! [`Connection`], and both must see the same fields, content and trailers.
#![allow(clippy::unwrap_used, reason = "a helper of a test that fails is a failed test")]

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use proptest::prelude::*;
use sluicegate_http2::{Connection, ConnectionConfig, Event, StreamKey};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};

mod support;

use support::messages::{Message, any_message, fields_of, grouped, map_of, sorted};

const CONFIG: ConnectionConfig = ConnectionConfig {
    streams_max: 100,
    slots_max: 200,
    stream_window: 5_000,
    connection_window: 70_000,
    header_list_bytes_max: 100_000,
    output_bytes_max: 10_000,
    tunnels: false,
};

/// The server: keeps requests, and sends each its response once it has ended.
struct Server {
    connection: Connection,
    responses: VecDeque<Message>,
    requests: HashMap<StreamKey, Message>,
    done: Vec<Message>,
    /// Responses that are not sent completely, with the bytes that were.
    sending: Vec<(StreamKey, Message, usize)>,
}

impl Server {
    async fn run(mut self, mut io: DuplexStream, piece: usize) -> Vec<Message> {
        let mut buffer = vec![0; piece];
        loop {
            while self.connection.output_len() > 0 {
                let output = self.connection.take_output();
                if io.write_all(&output).await.is_err() {
                    return self.done;
                }
                self.send();
            }
            let Ok(count) = io.read(&mut buffer).await else { return self.done };
            if count == 0 {
                return self.done;
            }
            let mut at = 0;
            while let Some(event) = self.connection.receive(&buffer[..count], &mut at, Duration::ZERO).unwrap() {
                self.event(event, &buffer);
            }
        }
    }

    fn event(&mut self, event: Event, input: &[u8]) {
        match event {
            Event::Head { stream, ends } => {
                let fields = fields_of(self.connection.fields());
                self.requests.insert(stream, Message { fields, ..Message::default() });
                if ends {
                    self.answer(stream);
                }
            }
            Event::Data { stream, bytes } => {
                self.connection.release(stream, bytes.len());
                self.requests.get_mut(&stream).unwrap().body.extend_from_slice(&input[bytes]);
            }
            Event::Trailers { stream, malformed } => {
                assert_eq!(malformed, None);
                self.requests.get_mut(&stream).unwrap().trailers = Some(fields_of(self.connection.fields()));
                self.answer(stream);
            }
            Event::Ended { stream } => self.answer(stream),
            Event::WindowGrew { .. } => self.send(),
            Event::Reset { code, .. } => panic!("{code:?}"),
            Event::Interim { .. } | Event::GoAway { .. } => unreachable!("only a server sends them"),
        }
    }

    fn answer(&mut self, stream: StreamKey) {
        self.done.push(self.requests.remove(&stream).unwrap());
        let response = self.responses.pop_front().unwrap();
        let ends = response.body.is_empty() && response.trailers.is_none();
        let fields = response.fields.iter().map(|(name, value)| (name.as_bytes(), &value[..]));
        self.connection.send_head(stream, 200, fields, ends).unwrap();
        match ends {
            true => self.connection.detach(stream),
            false => self.sending.push((stream, response, 0)),
        }
        self.send();
    }

    fn send(&mut self) {
        let connection = &mut self.connection;
        self.sending.retain_mut(|(stream, response, sent)| {
            let rest = &response.body[*sent..];
            *sent += connection.send_data(*stream, rest, response.trailers.is_none()).unwrap();
            if *sent < response.body.len() {
                return true;
            }
            if let Some(trailers) = &response.trailers {
                let fields = trailers.iter().map(|(name, value)| (name.as_bytes(), &value[..]));
                connection.send_trailers(*stream, fields).unwrap();
            }
            connection.detach(*stream);
            false
        });
    }
}

async fn call(client: h2::client::SendRequest<Bytes>, message: Message) -> Message {
    let mut request = Request::post("http://app/path?query").body(()).unwrap();
    *request.headers_mut() = map_of(&message.fields);
    let mut client = client.ready().await.unwrap();
    let ends = message.body.is_empty() && message.trailers.is_none();
    let (response, mut stream) = client.send_request(request, ends).unwrap();
    if !ends {
        stream.send_data(message.body.into(), message.trailers.is_none()).unwrap();
        if let Some(trailers) = &message.trailers {
            stream.send_trailers(map_of(trailers)).unwrap();
        }
    }
    let (parts, mut body) = response.await.unwrap().into_parts();
    let mut received = Message { fields: grouped(&parts.headers), ..Message::default() };
    while let Some(bytes) = body.data().await {
        let bytes = bytes.unwrap();
        body.flow_control().release_capacity(bytes.len()).unwrap();
        received.body.extend_from_slice(&bytes);
    }
    received.trailers = body.trailers().await.unwrap().map(|map| grouped(&map));
    received
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn both_ends_see_the_same_exchanges(
        exchanges in proptest::collection::vec((any_message(), any_message()), 1..6),
        piece in proptest::sample::select(vec![1, 10, 1_000, 100_000]),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let (requests, responses): (Vec<_>, Vec<_>) = exchanges.into_iter().unzip();
        let (ours, theirs) = tokio::io::duplex(50_000);
        let server = Server {
            connection: Connection::server(CONFIG, Duration::ZERO),
            responses: responses.iter().cloned().collect(),
            requests: HashMap::new(),
            done: Vec::new(),
            sending: Vec::new(),
        };
        let local = tokio::task::LocalSet::new();
        let (received, mut seen) = local.block_on(&runtime, async {
            let served = tokio::task::spawn_local(server.run(ours, piece));
            let (client, connection) = h2::client::handshake(theirs).await.unwrap();
            let connection = tokio::task::spawn_local(connection);
            let calls = requests.iter().cloned().map(|message| tokio::task::spawn_local(call(client.clone(), message)));
            let mut received = Vec::new();
            for call in calls.collect::<Vec<_>>() {
                received.push(call.await.unwrap());
            }
            drop(client);
            connection.await.unwrap().unwrap();
            (received, served.await.unwrap())
        });
        // Responses go to requests in the order in which these end.
        let sorted_all = |messages: Vec<Message>| {
            let mut all: Vec<_> = messages.into_iter().map(sorted).collect();
            all.sort_by(|a, b| (&a.fields, &a.body, &a.trailers).cmp(&(&b.fields, &b.body, &b.trailers)));
            all
        };
        prop_assert_eq!(sorted_all(received), sorted_all(responses));
        seen = sorted_all(seen);
        prop_assert_eq!(seen, sorted_all(requests));
    }
}
