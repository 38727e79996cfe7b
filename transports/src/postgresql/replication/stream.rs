//! A replication connection: the start-up, simple queries, and copying in both directions, which tokio-postgres lacks.

use std::fmt::Display;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use adapter::tls::Tls;
use adapter::{Error, SecretFile};
use bytes::{Buf, Bytes, BytesMut};
use futures_util::future::Either;
use postgres_protocol::authentication::md5_hash;
use postgres_protocol::authentication::sasl::{ChannelBinding, SCRAM_SHA_256, ScramSha256};
use postgres_protocol::message::backend::{ErrorResponseBody, Message};
use postgres_protocol::message::frontend;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;

use super::super::connection::PostgresqlConnection;

/// The connection is made and the slot found or created within this time: a new slot waits for running transactions.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// The server ends its side within this time.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
/// Bytes of one message: a row with its old values.
const MESSAGE_BYTES_MAX: usize = 256 << 20;
/// Bytes of one read.
const READ_BYTES: usize = 64 << 10;
/// The first byte of CopyBothResponse, which the library does not know.
const COPY_BOTH: u8 = b'W';

/// A connection, with or without TLS.
trait ReplicationSocket: AsyncRead + AsyncWrite + Unpin {}
impl<S: AsyncRead + AsyncWrite + Unpin> ReplicationSocket for S {}

pub(super) struct ReplicationStream {
    socket: Box<dyn ReplicationSocket>,
    input: BytesMut,
}

pub(super) enum ReplicationMessage {
    /// A message of the output plugin.
    Data(Bytes),
    KeepAlive {
        position: u64,
        wants_reply: bool,
    },
}

/// What a query returned.
pub(super) struct QueryResult {
    pub(super) rows: usize,
}

impl ReplicationStream {
    pub(super) async fn open(connection: &PostgresqlConnection) -> Result<ReplicationStream, Error> {
        let opened = tokio::time::timeout(START_TIMEOUT, Self::connect(connection)).await;
        opened.unwrap_or_else(|_| Err(failed("connect", "timeout")))
    }

    async fn connect(connection: &PostgresqlConnection) -> Result<ReplicationStream, Error> {
        let tls = connection.tls.as_ref().filter(|tls| tls.is_enabled()).map(Tls::client).transpose()?;
        let password = connection.password.as_ref().map(SecretFile::read).transpose()?;
        let address = (connection.host.as_str(), connection.port.unwrap_or(5432));
        let mut tcp = TcpStream::connect(address).await.map_err(|error| failed("connect", error))?;
        let _ = tcp.set_nodelay(true);
        let socket: Box<dyn ReplicationSocket> = match tls {
            None => Box::new(tcp),
            Some(config) => {
                let mut request = BytesMut::new();
                frontend::ssl_request(&mut request);
                tcp.write_all(&request).await.map_err(|error| failed("connect", error))?;
                if tcp.read_u8().await.map_err(|error| failed("connect", error))? != b'S' {
                    return Err(failed("connect", "the server does not support TLS"));
                }
                let name = ServerName::try_from(connection.host.clone()).map_err(|error| failed("TLS", error))?;
                let connector = tokio_rustls::TlsConnector::from(Arc::clone(&config));
                Box::new(connector.connect(name, tcp).await.map_err(|error| failed("TLS", error))?)
            }
        };
        let mut stream = ReplicationStream { socket, input: BytesMut::new() };
        stream.authenticate(connection, password.as_deref()).await?;
        Ok(stream)
    }

    async fn authenticate(&mut self, connection: &PostgresqlConnection, password: Option<&str>) -> Result<(), Error> {
        let parameters = [
            ("user", connection.user.as_str()),
            ("database", connection.database.as_str()),
            ("replication", "database"),
            ("client_encoding", "UTF8"),
            ("application_name", "sluicegate-adapter"),
        ];
        self.write(|buffer| frontend::startup_message(parameters, buffer)).await?;
        let needed = || password.ok_or_else(|| Error::config("ADAPTER_RECEIVER: password: the server asks for one"));
        let mut scram: Option<ScramSha256> = None;
        loop {
            match self.next().await? {
                Message::AuthenticationOk | Message::ParameterStatus(_) | Message::BackendKeyData(_) => {}
                Message::NoticeResponse(_) => {}
                Message::ReadyForQuery(_) => return Ok(()),
                Message::AuthenticationCleartextPassword => {
                    let password = needed()?;
                    self.write(|buffer| frontend::password_message(password.as_bytes(), buffer)).await?;
                }
                Message::AuthenticationMd5Password(body) => {
                    let hash = md5_hash(connection.user.as_bytes(), needed()?.as_bytes(), body.salt());
                    self.write(|buffer| frontend::password_message(hash.as_bytes(), buffer)).await?;
                }
                Message::AuthenticationSasl(_) => {
                    let begun = ScramSha256::new(needed()?.as_bytes(), ChannelBinding::unsupported());
                    let first = begun.message().to_vec();
                    scram = Some(begun);
                    self.write(|buffer| frontend::sasl_initial_response(SCRAM_SHA_256, &first, buffer)).await?;
                }
                Message::AuthenticationSaslContinue(body) => {
                    let scram = scram.as_mut().ok_or_else(|| failed("authenticate", "SCRAM was not begun"))?;
                    scram.update(body.data()).map_err(|error| failed("authenticate", error))?;
                    let response = scram.message().to_vec();
                    self.write(|buffer| frontend::sasl_response(&response, buffer)).await?;
                }
                Message::AuthenticationSaslFinal(body) => {
                    let scram = scram.as_mut().ok_or_else(|| failed("authenticate", "SCRAM was not begun"))?;
                    scram.finish(body.data()).map_err(|error| failed("authenticate", error))?;
                }
                Message::ErrorResponse(body) => return Err(refused("authenticate", &body)),
                _ => return Err(failed("authenticate", "the server asks for a method that is not supported")),
            }
        }
    }

    /// A simple query. An error leaves the connection usable.
    pub(super) async fn query(&mut self, statement: &str) -> Result<QueryResult, Error> {
        let done = tokio::time::timeout(START_TIMEOUT, self.query_now(statement)).await;
        done.unwrap_or_else(|_| Err(failed(statement, "timeout")))
    }

    async fn query_now(&mut self, statement: &str) -> Result<QueryResult, Error> {
        self.write(|buffer| frontend::query(statement, buffer)).await?;
        let mut result = Ok(QueryResult { rows: 0 });
        loop {
            match self.next().await? {
                Message::DataRow(_) => {
                    if let Ok(result) = &mut result {
                        result.rows += 1;
                    }
                }
                Message::ErrorResponse(body) => result = Err(refused(statement, &body)),
                Message::ReadyForQuery(_) => return result,
                _ => {}
            }
        }
    }

    /// Sends START_REPLICATION; after it only [`ReplicationStream::message`] and the status are allowed.
    pub(super) async fn start_copy(&mut self, statement: &str) -> Result<(), Error> {
        let started = tokio::time::timeout(START_TIMEOUT, self.start_copy_now(statement)).await;
        started.unwrap_or_else(|_| Err(failed("START_REPLICATION", "timeout")))
    }

    async fn start_copy_now(&mut self, statement: &str) -> Result<(), Error> {
        self.write(|buffer| frontend::query(statement, buffer)).await?;
        loop {
            match self.next_or_copy().await? {
                Either::Left(()) => return Ok(()),
                Either::Right(Message::ErrorResponse(body)) => return Err(refused("START_REPLICATION", &body)),
                Either::Right(_) => {}
            }
        }
    }

    /// The next message of the stream. Safe to use in `select!`: what was read stays in the buffer.
    pub(super) async fn message(&mut self) -> Result<ReplicationMessage, Error> {
        loop {
            let mut data = match self.next().await? {
                Message::CopyData(body) => body.into_bytes(),
                Message::ErrorResponse(body) => return Err(refused("replication", &body)),
                Message::CopyDone => return Err(failed("replication", "the server ended the stream")),
                _ => continue,
            };
            match data.first() {
                // The positions and the clock of the server stand before the message of the plugin.
                Some(b'w') if data.len() >= 25 => return Ok(ReplicationMessage::Data(data.split_off(25))),
                Some(b'k') if data.len() >= 18 => {
                    data.advance(1);
                    let position = data.get_u64();
                    data.advance(8);
                    return Ok(ReplicationMessage::KeepAlive { position, wants_reply: data.get_u8() == 1 });
                }
                _ => return Err(failed("replication", "a message is malformed")),
            }
        }
    }

    /// Tells the server that everything before `position` is safe. The reply is a keep-alive message.
    pub(super) async fn send_status(&mut self, position: u64, wants_reply: bool) -> Result<(), Error> {
        let mut status = vec![b'r'];
        for _ in ["written", "flushed", "applied"] {
            status.extend(position.to_be_bytes());
        }
        // The clock of the adapter, which the server only shows.
        status.extend([0; 8]);
        status.push(u8::from(wants_reply));
        self.write(|buffer| {
            frontend::CopyData::new(Bytes::from(status))?.write(buffer);
            Ok(())
        })
        .await
    }

    /// Ends the stream and waits until the server has read the last status.
    pub(super) async fn close(mut self) {
        let done = tokio::time::timeout(CLOSE_TIMEOUT, async {
            self.write(|buffer| {
                frontend::copy_done(buffer);
                frontend::terminate(buffer);
                Ok(())
            })
            .await?;
            while self.next().await.is_ok() {}
            Ok::<(), Error>(())
        });
        let _ = done.await;
    }

    async fn write(&mut self, encode: impl FnOnce(&mut BytesMut) -> io::Result<()>) -> Result<(), Error> {
        let mut buffer = BytesMut::new();
        encode(&mut buffer).map_err(|error| failed("write", error))?;
        self.socket.write_all(&buffer).await.map_err(|error| failed("write", error))?;
        self.socket.flush().await.map_err(|error| failed("write", error))
    }

    async fn next(&mut self) -> Result<Message, Error> {
        match self.next_or_copy().await? {
            Either::Right(message) => Ok(message),
            Either::Left(()) => Err(failed("read", "the server copies without having been asked")),
        }
    }

    /// The left side is CopyBothResponse.
    async fn next_or_copy(&mut self) -> Result<Either<(), Message>, Error> {
        loop {
            if let Some(length) = self.input.get(1..5) {
                let length = length.iter().fold(0, |length, byte| length << 8 | usize::from(*byte));
                if length > MESSAGE_BYTES_MAX {
                    return Err(failed("read", format!("a message has {length} bytes, limit {MESSAGE_BYTES_MAX}")));
                }
                if self.input[0] == COPY_BOTH && self.input.len() > length {
                    self.input.advance(length + 1);
                    return Ok(Either::Left(()));
                }
                if self.input[0] != COPY_BOTH
                    && let Some(message) = Message::parse(&mut self.input).map_err(|error| failed("read", error))?
                {
                    return Ok(Either::Right(message));
                }
            }
            self.input.reserve(READ_BYTES);
            let read = self.socket.read_buf(&mut self.input).await.map_err(|error| failed("read", error))?;
            if read == 0 {
                return Err(failed("read", "the connection was lost"));
            }
        }
    }
}

fn failed(action: &str, error: impl Display) -> Error {
    Error::connection(format!("PostgreSQL: {action}: {error}"))
}

/// The code and the message of the server.
fn refused(action: &str, body: &ErrorResponseBody) -> Error {
    use postgres_protocol::message::backend::ErrorField;
    let (mut code, mut text) = (String::new(), String::new());
    let mut fields = body.fields();
    while let Ok(Some(field)) = next_field(&mut fields) {
        let value = |field: &ErrorField<'_>| String::from_utf8_lossy(field.value_bytes()).into_owned();
        match field.type_() {
            b'C' => code = value(&field),
            b'M' => text = value(&field),
            _ => {}
        }
    }
    failed(action, format!("{text} ({code})"))
}

fn next_field<'a>(
    fields: &mut postgres_protocol::message::backend::ErrorFields<'a>,
) -> io::Result<Option<postgres_protocol::message::backend::ErrorField<'a>>> {
    use fallible_iterator::FallibleIterator;
    fields.next()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a server sends before it closes the connection.
    fn answer(bytes: &[u8], read: impl AsyncFnOnce(&mut ReplicationStream) -> Result<(), Error>) -> Result<(), Error> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (mut server, client) = tokio::io::duplex(1 << 16);
            server.write_all(bytes).await.unwrap();
            server.shutdown().await.unwrap();
            read(&mut ReplicationStream { socket: Box::new(client), input: BytesMut::new() }).await
        })
    }

    #[test]
    fn cut_or_hostile_messages_are_errors_and_no_panic() {
        let mut data = b"d\0\0\0\x1dw".to_vec();
        data.extend([0; 24]);
        let mut keep_alive = b"d\0\0\0\x16k".to_vec();
        keep_alive.extend([0; 17]);
        for whole in [&data, &keep_alive] {
            assert!(answer(whole, async |stream| stream.message().await.map(drop)).is_ok());
            for end in 0..whole.len() {
                assert!(answer(&whole[..end], async |stream| stream.message().await.map(drop)).is_err(), "{end}");
            }
        }
        for hostile in [
            &b"d\0\0\0\0"[..],
            b"d\0\0\0\x03",
            b"d\0\0\0\x04",
            b"d\xff\xff\xff\xff",
            b"d\x10\0\0\x01",
            b"d\0\0\0\x05k",
            b"d\0\0\0\x05w",
            b"d\0\0\0\x05?",
            b"W\0\0\0\0",
            b"W\0\0\0\x07\0\0\x01",
            b"E\0\0\0\x05C",
            b"E\0\0\0\x06C\xff",
            b"c\0\0\0\x04",
            b"?\0\0\0\x04",
        ] {
            assert!(answer(hostile, async |stream| stream.message().await.map(drop)).is_err(), "{hostile:?}");
            let _ = answer(hostile, async |stream| stream.start_copy_now("START_REPLICATION").await);
            let _ = answer(hostile, async |stream| stream.query_now("SELECT 1").await.map(drop));
        }
    }
}
