//! A blocking HTTP/1.1 client for tests: one socket, the request is sent byte by byte as given.

use std::io::{self, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};

use serde_json::Value;

use crate::TIMEOUT;
use crate::message::{HttpResponse, chunks};
use crate::wait;

/// A request to be sent. Nothing is added but `Host` and, for a body, its framing.
#[derive(Debug, Clone)]
pub struct HttpCall {
    method: String,
    target: String,
    host: Option<String>,
    headers: Vec<(String, String)>,
    body: Option<Vec<u8>>,
}

impl HttpCall {
    pub fn new(method: &str, target: &str) -> Self {
        let (method, target) = (method.to_owned(), target.to_owned());
        Self { method, target, host: None, headers: Vec::new(), body: None }
    }

    pub fn get(target: &str) -> Self {
        Self::new("GET", target)
    }

    pub fn post(target: &str) -> Self {
        Self::new("POST", target)
    }

    /// Without this, `Host` is the address that is called.
    pub fn host(mut self, host: &str) -> Self {
        self.host = Some(host.to_owned());
        self
    }

    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    pub fn body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = Some(body.into());
        self
    }

    pub fn json(self, value: &Value) -> Self {
        self.header("Content-Type", "application/json").body(value.to_string())
    }

    /// Sends it on a connection of its own and waits for the answer.
    pub fn send(&self, to: SocketAddr) -> HttpResponse {
        match self.try_send(to) {
            Ok(response) => response,
            Err(why) => panic!("{} {} at {to}: {why}", self.method, self.target),
        }
    }

    /// As [`HttpCall::send`], for callers that live with a peer that goes away.
    pub fn try_send(&self, to: SocketAddr) -> io::Result<HttpResponse> {
        HttpConnection::try_open(to)?.try_call(self)
    }

    /// What goes over the wire.
    pub fn to_bytes(&self, to: SocketAddr) -> Vec<u8> {
        let mut out = self.head(to);
        match &self.body {
            Some(body) => {
                out.push_str(&format!("Content-Length: {}\r\n\r\n", body.len()));
                [out.as_bytes(), body].concat()
            }
            None => [out.as_bytes(), b"\r\n"].concat(),
        }
    }

    /// What goes over the wire when the body goes out as chunks of `size` bytes.
    pub fn to_chunked_bytes(&self, to: SocketAddr, size: usize) -> Vec<u8> {
        let mut out = self.head(to);
        out.push_str("Transfer-Encoding: chunked\r\n\r\n");
        let body = self.body.as_deref().unwrap_or_default();
        [out.into_bytes(), chunks(body.chunks(size))].concat()
    }

    fn head(&self, to: SocketAddr) -> String {
        let host = self.host.clone().unwrap_or_else(|| to.to_string());
        let mut out = format!("{} {} HTTP/1.1\r\nHost: {host}\r\n", self.method, self.target);
        for (name, value) in &self.headers {
            out.push_str(&format!("{name}: {value}\r\n"));
        }
        out
    }
}

/// A larger request is written while its answer is read: a peer that answers meanwhile accepts no more of it while that is unread, and how
/// much lies between the two is the socket buffers' to say.
const AT_ONCE_BYTES_MAX: usize = 64 << 10;

/// One connection, kept open.
#[derive(Debug)]
pub struct HttpConnection {
    socket: TcpStream,
    peer: SocketAddr,
    received: Vec<u8>,
}

impl HttpConnection {
    pub fn open(to: SocketAddr) -> Self {
        match Self::try_open(to) {
            Ok(connection) => connection,
            Err(why) => panic!("connecting to {to}: {why}"),
        }
    }

    pub fn try_open(to: SocketAddr) -> io::Result<Self> {
        let socket = TcpStream::connect_timeout(&to, TIMEOUT)?;
        socket.set_read_timeout(Some(TIMEOUT))?;
        socket.set_write_timeout(Some(TIMEOUT))?;
        socket.set_nodelay(true)?;
        Ok(Self { socket, peer: to, received: Vec::new() })
    }

    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Sends the call and waits for its answer; the connection stays open.
    pub fn call(&mut self, call: &HttpCall) -> HttpResponse {
        match self.try_call(call) {
            Ok(response) => response,
            Err(why) => panic!("{} {} at {}: {why}", call.method, call.target, self.peer),
        }
    }

    pub fn try_call(&mut self, call: &HttpCall) -> io::Result<HttpResponse> {
        let (bytes, to_head) = (call.to_bytes(self.peer), call.method == "HEAD");
        if bytes.len() <= AT_ONCE_BYTES_MAX {
            self.socket.write_all(&bytes)?;
            return self.try_receive(to_head);
        }
        let mut writer = self.socket.try_clone()?;
        std::thread::scope(|scope| {
            let sending = scope.spawn(move || writer.write_all(&bytes));
            let answer = self.try_receive(to_head);
            sending.join().expect("the writer does not panic").and(answer)
        })
    }

    /// Sends bytes as they are. A peer that has already answered and closed is no failure here:
    /// its answer is what the test looks at.
    pub fn send(&mut self, bytes: &[u8]) {
        let _ = self.socket.write_all(bytes);
    }

    /// Says that nothing more will be sent.
    pub fn finish(&mut self) {
        let _ = self.socket.shutdown(Shutdown::Write);
    }

    /// The next final answer, to a request that was not HEAD.
    pub fn receive(&mut self) -> HttpResponse {
        match self.try_receive(false) {
            Ok(response) => response,
            Err(why) => panic!("receiving from {}: {why}", self.peer),
        }
    }

    /// The next final answer; interim ones are noted in it.
    pub fn try_receive(&mut self, to_head: bool) -> io::Result<HttpResponse> {
        let mut interim = Vec::new();
        loop {
            let response = self.receive_one(to_head)?;
            if response.status >= 200 || response.status == 101 {
                return Ok(HttpResponse { interim, ..response });
            }
            interim.push(response.status);
        }
    }

    /// The next answer, interim ones included.
    pub fn receive_one(&mut self, to_head: bool) -> io::Result<HttpResponse> {
        let mut closed = false;
        loop {
            let parsed = HttpResponse::parse(&self.received, to_head, closed)
                .map_err(|why| io::Error::new(io::ErrorKind::InvalidData, why.0))?;
            if let Some((response, length)) = parsed {
                self.received.drain(..length);
                return Ok(response);
            }
            if closed {
                let why = format!("closed after {} bytes", self.received.len());
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, why));
            }
            closed = self.fill()? == 0;
        }
    }

    /// Waits for the peer to close, and returns what came before that. `None`: it did not close.
    pub fn rest(&mut self) -> Option<Vec<u8>> {
        loop {
            match self.fill() {
                Ok(0) => return Some(std::mem::take(&mut self.received)),
                Ok(_) => {}
                Err(why) if why.kind() == io::ErrorKind::ConnectionReset => {
                    return Some(std::mem::take(&mut self.received));
                }
                Err(_) => return None,
            }
        }
    }

    /// Limits how long one read waits, for tests that expect silence.
    pub fn timeout(&mut self, limit: std::time::Duration) {
        self.socket.set_read_timeout(Some(limit)).unwrap();
    }

    fn fill(&mut self) -> io::Result<usize> {
        let mut piece = [0; 16 * 1024];
        let length = wait::read(&mut self.socket, &mut piece)?;
        self.received.extend_from_slice(&piece[..length]);
        Ok(length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TestUpstream;

    #[test]
    fn a_call_carries_its_host_headers_and_body() {
        let upstream = TestUpstream::start("one");
        let call = HttpCall::post("/echo?a=1").host("app.example.com").header("X-One", "1").body("text");
        let seen = call.send(upstream.address()).json();

        assert_eq!(seen["method"], "POST");
        assert_eq!(seen["target"], "/echo?a=1");
        assert_eq!(seen["headers"]["host"], "app.example.com");
        assert_eq!(seen["headers"]["x-one"], "1");
        assert_eq!(seen["body"], "text");
    }

    #[test]
    fn one_connection_carries_many_calls() {
        let upstream = TestUpstream::start("one");
        let mut connection = HttpConnection::open(upstream.address());
        for size in [0, 1, 100, 100_000] {
            let body = vec![b'x'; size];
            assert_eq!(connection.call(&HttpCall::post("/mirror").body(body.clone())).body, body);
        }
        assert_eq!((upstream.connections(), upstream.requests()), (1, 4));
    }

    #[test]
    fn pipelined_calls_are_answered_in_order() {
        let upstream = TestUpstream::start("one");
        let mut connection = HttpConnection::open(upstream.address());
        let calls = ["a", "b", "c"].map(|text| HttpCall::post("/mirror").body(text).to_bytes(upstream.address()));
        connection.send(&calls.concat());
        for text in ["a", "b", "c"] {
            assert_eq!(connection.receive().text(), text);
        }
    }

    #[test]
    fn a_peer_that_hangs_up_is_an_error_and_not_an_answer() {
        let upstream = TestUpstream::start("one");
        assert!(HttpCall::get("/hangup").try_send(upstream.address()).is_err());
    }
}
