//! The service of the example: it answers every request with a greeting. Yours takes its place.
#![forbid(unsafe_code)]

use std::io::{self, BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;

const RESPONSE: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 6\r\n\r\nhello\n";

fn main() -> io::Result<()> {
    let port = std::env::var("PORT").unwrap_or_else(|_| "8080".to_owned());
    let listener = TcpListener::bind(format!("127.0.0.1:{port}"))?;
    for stream in listener.incoming() {
        let stream = stream?;
        thread::spawn(move || serve(stream));
    }
    Ok(())
}

/// One connection: a response after each empty line, which ends the head of a request without a body.
fn serve(stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let (mut reader, mut writer) = (BufReader::new(stream.try_clone()?), stream);
    let mut line = String::new();
    while reader.read_line(&mut line)? > 0 {
        if line == "\r\n" {
            writer.write_all(RESPONSE)?;
        }
        line.clear();
    }
    Ok(())
}
