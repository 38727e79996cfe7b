//! A thread-per-connection HTTP/1.1 server, just large enough for the examples.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::Arc;

/// An example needs no more; a peer that sends more is disconnected.
const LINE_BYTES_MAX: u64 = 16 << 10;
const HEADERS_MAX: usize = 200;
const BODY_BYTES_MAX: usize = 8 << 20;

pub(super) struct ExampleRequest {
    pub(super) target: String,
    /// Names in lower case.
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: Vec<u8>,
}

impl ExampleRequest {
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str())
    }
}

pub(super) struct ExampleResponse {
    pub(super) status: u16,
    pub(super) content_type: &'static str,
    pub(super) body: String,
}

/// Serves `answer` on $PORT until the process is ended.
pub(super) fn serve(answer: impl Fn(&ExampleRequest) -> ExampleResponse + Send + Sync + 'static) -> io::Result<()> {
    let port = match std::env::var("PORT") {
        Ok(text) => text.parse().map_err(|_| io::Error::other(format!("PORT={text:?} is not a port")))?,
        Err(_) => 8080,
    };
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))?;
    println!("listening on {}", listener.local_addr()?);
    let answer = Arc::new(answer);
    for stream in listener.incoming() {
        let (stream, answer) = (stream?, Arc::clone(&answer));
        // A broken connection only affects its peer, and so does one for which no thread can be started.
        let serving = std::thread::Builder::new().spawn(move || drop(converse(&stream, &*answer)));
        if let Err(why) = serving {
            eprintln!("a connection is closed, because no thread can be started for it: {why}");
        }
    }
    Ok(())
}

fn converse(stream: &TcpStream, answer: &dyn Fn(&ExampleRequest) -> ExampleResponse) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut input = BufReader::new(stream);
    while let Some(request) = read_request(&mut input, stream)? {
        let said = answer(&request);
        let head = format!(
            "HTTP/1.1 {} Example\r\nContent-Type: {}\r\nContent-Length: {}\r\n\r\n",
            said.status,
            said.content_type,
            said.body.len()
        );
        let mut out = stream;
        out.write_all((head + &said.body).as_bytes())?;
    }
    Ok(())
}

fn read_request(input: &mut impl BufRead, mut out: &TcpStream) -> io::Result<Option<ExampleRequest>> {
    let first = line(input)?;
    let Some(target) = first.split(' ').nth(1) else { return Ok(None) };
    let mut request = ExampleRequest { target: target.to_owned(), headers: Vec::new(), body: Vec::new() };
    loop {
        let text = line(input)?;
        if text.is_empty() {
            break;
        }
        if request.headers.len() == HEADERS_MAX {
            return Err(io::Error::other("too many headers"));
        }
        let (name, value) = text.split_once(':').unwrap_or((&text, ""));
        request.headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }

    if request.header("expect").is_some_and(|value| value.eq_ignore_ascii_case("100-continue")) {
        out.write_all(b"HTTP/1.1 100 Continue\r\n\r\n")?;
    }
    if request.header("transfer-encoding").is_some() {
        request.body = read_chunks(input)?;
    } else if let Some(length) = request.header("content-length") {
        let length = length.parse().unwrap_or(usize::MAX);
        request.body = read_exactly(input, length)?;
    }
    Ok(Some(request))
}

/// One line without its end; empty at the end of the stream.
fn line(input: &mut impl BufRead) -> io::Result<String> {
    let mut text = String::new();
    input.take(LINE_BYTES_MAX).read_line(&mut text)?;
    Ok(text.trim_end_matches(['\r', '\n']).to_owned())
}

fn read_exactly(input: &mut impl BufRead, length: usize) -> io::Result<Vec<u8>> {
    if length > BODY_BYTES_MAX {
        return Err(io::Error::other("body too large"));
    }
    let mut bytes = vec![0; length];
    input.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn read_chunks(input: &mut impl BufRead) -> io::Result<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let size = line(input)?;
        let size = usize::from_str_radix(size.split(';').next().unwrap_or("").trim(), 16).map_err(io::Error::other)?;
        if size == 0 {
            while !line(input)?.is_empty() {}
            return Ok(body);
        }
        if body.len().saturating_add(size) > BODY_BYTES_MAX {
            return Err(io::Error::other("body too large"));
        }
        body.append(&mut read_exactly(input, size)?);
        line(input)?;
    }
}
