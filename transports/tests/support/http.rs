//! A minimal HTTP/1.1 implementation for fixtures.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;

#[derive(Debug, Clone)]
pub(crate) struct Message {
    /// Request line or status line.
    pub(crate) line: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Message {
    pub(crate) fn header(&self, wanted: &str) -> Option<&str> {
        self.headers.iter().find(|(name, _)| name.eq_ignore_ascii_case(wanted)).map(|(_, value)| value.as_str())
    }

    pub(crate) fn status(&self) -> u16 {
        self.line.split(' ').nth(1).unwrap().parse().unwrap()
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// `None`: the peer closed the connection.
pub(crate) fn read(stream: &mut BufReader<TcpStream>) -> Option<Message> {
    let mut line = String::new();
    if stream.read_line(&mut line).ok()? == 0 {
        return None;
    }
    let mut headers = Vec::new();
    loop {
        let mut header = String::new();
        stream.read_line(&mut header).ok()?;
        let Some((name, value)) = header.trim_end().split_once(':') else { break };
        headers.push((name.to_owned(), value.trim().to_owned()));
    }
    let mut message = Message { line: line.trim_end().to_owned(), headers, body: Vec::new() };
    let length = message.header("content-length").map_or(0, |length| length.parse().unwrap());
    message.body = vec![0; length];
    match message.line.starts_with("HTTP/1.0") {
        // There the end of the connection is the end of the body.
        true => drop(stream.read_to_end(&mut message.body).ok()?),
        false => stream.read_exact(&mut message.body).ok()?,
    }
    Some(message)
}

pub(crate) fn request(
    port: u16,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> std::io::Result<Message> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    let mut head = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n", body.len());
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str("\r\n");
    stream.write_all(head.as_bytes())?;
    stream.write_all(body)?;
    read(&mut BufReader::new(stream)).ok_or_else(|| std::io::ErrorKind::UnexpectedEof.into())
}

pub(crate) fn get(port: u16, path: &str) -> std::io::Result<Message> {
    request(port, "GET", path, &[], b"")
}

/// Posts an event in binary mode whose data is `number`.
pub(crate) fn post_number(port: u16, number: u64) -> std::io::Result<Message> {
    let id = number.to_string();
    let headers = [
        ("ce-specversion", "1.0"),
        ("ce-type", "test"),
        ("ce-source", "/test"),
        ("ce-id", id.as_str()),
        ("content-type", "text/plain"),
    ];
    request(port, "POST", "/", &headers, id.as_bytes())
}
