//! Moves bytes between a client and a process until one of them ends.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use bytes::{Buf as _, BytesMut};
use rustix::termios::{Winsize, tcsetwinsize};
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::unix::pipe;
use tokio::time::{Instant, interval_at, sleep_until};

use super::client_event::{ClientEvent, OutputChannel, TerminalSize};
use super::instance_streams::ExecProcess;
use super::limits::{CHUNK_BYTES, DRAIN_TIMEOUT, IDLE_TIMEOUT, PING_INTERVAL, STDIN_BYTES_MAX};
use super::remote_command::RemoteCommandClient;
use super::session_status;

/// Runs until the process has ended and all its output is sent, or the client has left. Then the process is ended.
pub(crate) async fn run(mut client: RemoteCommandClient, process: ExecProcess) -> io::Result<()> {
    let mut session = ExecSession::new(process)?;
    if let Some(status) = session.run(&mut client).await? {
        drop(session); // the process does not wait for the client's answer
        client.finish(&status).await;
    }
    Ok(())
}

struct ExecSession {
    stdin: Option<pipe::Sender>,
    queue: InputQueue,
    stdout: ProcessOutput,
    stderr: ProcessOutput,
    terminal: Option<OwnedFd>,
    process: ExecProcess,
}

struct ProcessOutput {
    pipe: Option<pipe::Receiver>,
    buffer: Vec<u8>,
}

/// Input that the process has not read yet.
#[derive(Default)]
struct InputQueue {
    /// A copy: a view of one byte would keep all that was received with it.
    bytes: BytesMut,
    is_closed: bool,
}

impl ExecSession {
    /// Needs a Tokio runtime.
    fn new(mut process: ExecProcess) -> io::Result<Self> {
        let (stdin, stdout, stderr) = (process.stdin.take(), process.stdout.take(), process.stderr.take());
        let reader = |fd: Option<OwnedFd>| fd.map(pipe::Receiver::from_owned_fd).transpose();
        let terminal = process.terminal.take();
        let (stdin, stdout) = match &terminal {
            // A terminal is no pipe, and is read and written like one.
            Some(fd) => (
                Some(pipe::Sender::from_owned_fd_unchecked(fd.try_clone()?)?),
                Some(pipe::Receiver::from_owned_fd_unchecked(fd.try_clone()?)?),
            ),
            None => (stdin.map(pipe::Sender::from_owned_fd).transpose()?, reader(stdout)?),
        };
        let output = |pipe| ProcessOutput { pipe, buffer: vec![0; CHUNK_BYTES] };
        let (stdout, stderr) = (output(stdout), output(reader(stderr)?));
        Ok(Self { stdin, queue: InputQueue::default(), stdout, stderr, terminal, process })
    }

    /// The status to end with; `None`: the client has left.
    async fn run(&mut self, client: &mut RemoteCommandClient) -> io::Result<Option<Value>> {
        let (mut exit, mut drain_until) = (None, Instant::now());
        let mut idle_since = Instant::now();
        let mut pings = interval_at(Instant::now() + PING_INTERVAL, PING_INTERVAL);
        loop {
            if exit.is_some() && self.stdout.pipe.is_none() && self.stderr.pipe.is_none() {
                return Ok(exit);
            }
            tokio::select! {
                event = client.receive(), if self.queue.bytes.len() < STDIN_BYTES_MAX => {
                    match event? {
                        ClientEvent::Left => return Ok(None),
                        event => self.handle(event),
                    }
                    idle_since = Instant::now();
                }
                () = self.queue.write_to(&mut self.stdin), if self.queue.has_work() => {}
                count = self.stdout.read(), if self.stdout.pipe.is_some() => {
                    drain_until += send(client, OutputChannel::Stdout, self.stdout.take(count)).await?;
                    idle_since = Instant::now();
                }
                count = self.stderr.read(), if self.stderr.pipe.is_some() => {
                    drain_until += send(client, OutputChannel::Stderr, self.stderr.take(count)).await?;
                    idle_since = Instant::now();
                }
                ended = &mut self.process.exit, if exit.is_none() => {
                    exit = Some(session_status::of_exit(&ended));
                    drain_until = Instant::now() + DRAIN_TIMEOUT;
                }
                () = sleep_until(drain_until), if exit.is_some() => return Ok(exit),
                _ = pings.tick() => client.ping().await?,
                () = sleep_until(idle_since + IDLE_TIMEOUT) => return Ok(Some(session_status::idle())),
            }
        }
    }

    fn handle(&mut self, event: ClientEvent) {
        match event {
            ClientEvent::Stdin(bytes) if self.stdin.is_some() && !self.queue.is_closed => {
                self.queue.bytes.extend_from_slice(&bytes);
            }
            ClientEvent::StdinClosed => self.queue.is_closed = true,
            ClientEvent::Resize(size) => self.resize(size),
            ClientEvent::Stdin(_) | ClientEvent::Left => {}
        }
    }

    fn resize(&self, size: TerminalSize) {
        if let Some(terminal) = &self.terminal {
            let size = Winsize { ws_row: size.rows, ws_col: size.columns, ws_xpixel: 0, ws_ypixel: 0 };
            let _ = tcsetwinsize(terminal, size); // fails only if the process has ended
        }
    }
}

/// Returns how long the client took. In that time no output was read, so it does not count towards [`DRAIN_TIMEOUT`].
async fn send(client: &mut RemoteCommandClient, channel: OutputChannel, bytes: &[u8]) -> io::Result<Duration> {
    let start = Instant::now();
    client.send(channel, bytes).await?;
    Ok(start.elapsed())
}

impl InputQueue {
    fn has_work(&self) -> bool {
        !self.bytes.is_empty() || self.is_closed
    }

    /// Writes some of it, and closes `stdin` behind the last byte. Can be cancelled without loss.
    async fn write_to(&mut self, stdin: &mut Option<pipe::Sender>) {
        let Some(pipe) = stdin else {
            *self = Self::default();
            return;
        };
        if self.bytes.is_empty() {
            *stdin = None;
            return;
        }
        match pipe.write(&self.bytes).await {
            Ok(count) => self.bytes.advance(count),
            Err(_) => *stdin = None, // the process does not read any more
        }
    }
}

impl ProcessOutput {
    /// The error of a terminal whose other side is closed is its end.
    async fn read(&mut self) -> usize {
        match &mut self.pipe {
            Some(pipe) => pipe.read(&mut self.buffer).await.unwrap_or(0),
            None => 0,
        }
    }

    fn take(&mut self, count: usize) -> &[u8] {
        if count == 0 {
            self.pipe = None;
        }
        &self.buffer[..count]
    }
}

#[cfg(test)]
mod tests {
    use std::future::ready;
    use std::io::Write as _;

    use futures_util::StreamExt as _;
    use tokio_tungstenite::WebSocketStream;
    use tokio_tungstenite::tungstenite::Message;
    use tokio_tungstenite::tungstenite::protocol::Role;

    use super::super::instance_streams::{ExecExit, RequestedStdio};
    use super::super::test_connection::upgraded_pair;
    use super::*;

    /// As `kubectl exec POD -- cat FILE | less` reads.
    #[tokio::test]
    async fn slow_client_receives_all_output_of_ended_process() {
        let (output, mut input) = io::pipe().unwrap();
        let text = [b'x'; 60_000]; // less than a pipe holds
        input.write_all(&text).unwrap();
        drop(input);
        let exit = Box::pin(ready(ExecExit::Code(0)));
        let stdout = Some(output.into());
        let process = ExecProcess { stdin: None, stdout, stderr: None, terminal: None, exit, guard: Box::new(()) };
        let (io, peer) = upgraded_pair(1024).await;
        let stdio = RequestedStdio { stdout: true, ..RequestedStdio::default() };
        let session = tokio::spawn(async move { run(RemoteCommandClient::websocket(io, stdio).await?, process).await });
        let mut socket = WebSocketStream::from_raw_socket(peer, Role::Client, None).await;
        let mut received = 0;
        while let Some(Ok(message)) = socket.next().await {
            let Message::Binary(message) = message else { continue };
            if message[0] == 1 && message.len() > 1 {
                if received == 0 {
                    tokio::time::pause(); // from here on time passes only in the next line
                }
                tokio::time::sleep(2 * DRAIN_TIMEOUT).await;
                received += message.len() - 1;
            }
        }
        session.await.unwrap().unwrap();
        assert_eq!(received, text.len());
    }
}
