//! One connection of the test registry.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Mutex;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::{RegistryFault, RegistryLogin, RegistryState, sha256};

/// A request as it came in.
#[derive(Debug, Clone)]
pub struct SeenRequest {
    pub method: String,
    /// With its query.
    pub path: String,
    pub authorization: Option<String>,
    pub range: Option<String>,
}

/// What the registry answers.
#[derive(Debug, Clone, Default)]
pub struct TestResponse {
    status: u16,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
    fault: Option<RegistryFault>,
}

/// Longer heads are no client's of ours.
const HEAD_BYTES_MAX: u64 = 64 << 10;

pub(super) fn serve(stream: &TcpStream, address: SocketAddr, state: &Mutex<RegistryState>) {
    let mut reader = BufReader::new(stream);
    while let Some((request, body)) = read_request(&mut reader) {
        let response = answer(&request, &body, address, &mut state.lock().expect("no test panicked with it"));
        if !write_response(stream, &request, &response) {
            return;
        }
    }
}

fn read_request(reader: &mut BufReader<&TcpStream>) -> Option<(SeenRequest, Vec<u8>)> {
    let mut head = reader.by_ref().take(HEAD_BYTES_MAX);
    let mut line = String::new();
    head.read_line(&mut line).ok().filter(|bytes| *bytes > 0)?;
    let mut words = line.split_whitespace();
    let (method, path) = (words.next()?.to_owned(), words.next()?.to_owned());
    let mut request = SeenRequest { method, path, authorization: None, range: None };
    let mut length = 0;
    loop {
        let mut line = String::new();
        head.read_line(&mut line).ok().filter(|bytes| *bytes > 0)?;
        let Some((name, value)) = line.trim_end().split_once(':') else { break };
        let value = value.trim().to_owned();
        match name.to_ascii_lowercase().as_str() {
            "authorization" => request.authorization = Some(value),
            "range" => request.range = Some(value),
            "content-length" => length = value.parse().ok()?,
            _ => {}
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some((request, body))
}

fn answer(request: &SeenRequest, body: &[u8], address: SocketAddr, state: &mut RegistryState) -> TestResponse {
    state.seen.push(request.clone());
    let fault = state.faults.iter_mut().find(|(path, _, left)| *left > 0 && request.path.contains(path.as_str()));
    let fault = fault.map(|(_, fault, left)| {
        *left -= 1;
        fault.clone()
    });
    if let Some(RegistryFault::Status(status, headers)) = &fault {
        let headers = headers.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
        return TestResponse { status: *status, headers, ..TestResponse::default() };
    }
    if request.path.starts_with("/token") {
        return token(request, body, state);
    }
    if let Some(challenge) = challenge(request, address, state) {
        let headers = vec![("WWW-Authenticate".to_owned(), challenge)];
        return TestResponse { status: 401, headers, ..TestResponse::default() };
    }
    let path = request.path.split('?').next().unwrap_or_default().trim_start_matches("/v2/");
    let Some((media_type, bytes)) = state.documents.get(path) else {
        let body = br#"{"errors":[{"code":"NAME_UNKNOWN","message":"not in this registry"}]}"#.to_vec();
        return TestResponse { status: 404, body, ..TestResponse::default() };
    };
    let mut headers = vec![("Content-Type".to_owned(), media_type.clone())];
    if path.contains("/manifests/") {
        headers.push(("Docker-Content-Digest".to_owned(), sha256(bytes)));
    }
    let from = request.range.as_deref().and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok());
    let from = from.filter(|_| !matches!(fault, Some(RegistryFault::IgnoreRange)));
    match from.filter(|from| *from < bytes.len()) {
        Some(from) => {
            headers.push(("Content-Range".into(), format!("bytes {from}-{}/{}", bytes.len() - 1, bytes.len())));
            TestResponse { status: 206, headers, body: bytes[from..].to_vec(), fault }
        }
        None => TestResponse { status: 200, headers, body: bytes.clone(), fault },
    }
}

/// The challenge for a request that does not carry what it needs.
fn challenge(request: &SeenRequest, address: SocketAddr, state: &mut RegistryState) -> Option<String> {
    match &state.login {
        RegistryLogin::None => None,
        RegistryLogin::Basic { user, password } => {
            let expected = format!("Basic {}", STANDARD.encode(format!("{user}:{password}")));
            (request.authorization.as_ref() != Some(&expected)).then(|| "Basic realm=\"test\"".to_owned())
        }
        RegistryLogin::Bearer { .. } => {
            let token = request.authorization.as_deref().and_then(|header| header.strip_prefix("Bearer "));
            match token.and_then(|token| state.tokens.get_mut(token)) {
                Some(left) if *left > 0 => {
                    *left -= 1;
                    None
                }
                _ => Some(format!("Bearer realm=\"http://{address}/token\",service=\"test\"")),
            }
        }
    }
}

fn token(request: &SeenRequest, body: &[u8], state: &mut RegistryState) -> TestResponse {
    let RegistryLogin::Bearer { user, requests_per_token } = &state.login else {
        return TestResponse { status: 404, ..TestResponse::default() };
    };
    if let Some((user, password)) = user {
        let basic = format!("Basic {}", STANDARD.encode(format!("{user}:{password}")));
        let form = String::from_utf8_lossy(body);
        let has_identity = form.split('&').any(|field| field == format!("refresh_token={password}"));
        if request.authorization.as_ref() != Some(&basic) && !has_identity {
            return TestResponse { status: 401, ..TestResponse::default() };
        }
    }
    let (token, times) = (format!("token-{}", state.tokens.len()), *requests_per_token);
    state.tokens.insert(token.clone(), times);
    let body = format!(r#"{{"token":"{token}","expires_in":300}}"#).into_bytes();
    TestResponse { status: 200, body, ..TestResponse::default() }
}

/// False when the connection is of no more use.
fn write_response(mut stream: &TcpStream, request: &SeenRequest, response: &TestResponse) -> bool {
    let TestResponse { status, headers, body, fault } = response;
    if matches!(fault, Some(RegistryFault::Hang)) {
        let _ = stream.read(&mut [0]); // until it goes
        return false;
    }
    let mut head = format!("HTTP/1.1 {status} x\r\nContent-Length: {}\r\n", body.len());
    headers.iter().for_each(|(name, value)| head.push_str(&format!("{name}: {value}\r\n")));
    head.push_str("\r\n");
    if stream.write_all(head.as_bytes()).is_err() {
        return false;
    }
    if request.method == "HEAD" {
        return true;
    }
    let mut body = body.clone();
    match fault {
        Some(RegistryFault::CutAfter(bytes)) => {
            let _ = stream.write_all(&body[..body.len().min(*bytes)]); // the client may be gone
            let _ = stream.shutdown(std::net::Shutdown::Both);
            return false;
        }
        Some(RegistryFault::StallAfter(bytes)) => {
            let _ = stream.write_all(&body[..body.len().min(*bytes)]); // the client may be gone
            let _ = stream.read(&mut [0]); // until it goes
            return false;
        }
        Some(RegistryFault::Drip) => {
            let _ = stream.set_read_timeout(Some(std::time::Duration::from_millis(5))); // else it is slower still
            for byte in &body {
                if stream.write_all(&[*byte]).is_err() || matches!(stream.read(&mut [0]), Ok(0)) {
                    break; // it has gone
                }
            }
            return false;
        }
        Some(RegistryFault::FlipFirstByte) => body.iter_mut().take(1).for_each(|byte| *byte ^= 1),
        _ => {}
    }
    stream.write_all(&body).is_ok()
}
