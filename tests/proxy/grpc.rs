//! gRPC through the built binary, with tonic at both ends.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::task::{Context, Poll};
use std::thread::JoinHandle;

use bytes::{Buf, BufMut, Bytes};
use futures_util::StreamExt as _;
use futures_util::stream::{self, BoxStream};
use http::uri::PathAndQuery;
use kit::{Appliance, ApplianceSetup, TIMEOUT, http2};
use tokio::sync::{mpsc, oneshot};
use tonic::body::Body;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::metadata::MetadataValue;
use tonic::server::NamedService;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Code, Request, Response, Status, Streaming};
use tower::{Service, service_fn};

const BIN: &str = env!("CARGO_BIN_EXE_sluicegate");
const HOST: &str = "chat.example.com";

/// Messages as they are: what is inside is no business of a proxy.
#[derive(Clone, Copy, Default)]
struct Raw;

impl Codec for Raw {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        *self
    }

    fn decoder(&mut self) -> Self {
        *self
    }
}

impl Encoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, out: &mut EncodeBuf<'_>) -> Result<(), Status> {
        out.put(item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        let length = from.remaining();
        Ok(Some(from.copy_to_bytes(length)))
    }
}

/// `Echo` says a message back, or fails if it begins with `!`; `Count` sends as many as it says; `Sum` takes many
/// and says their bytes; `Talk` answers each at once; `Hang` never does.
#[derive(Clone, Default)]
struct Chat {
    /// Calls of `Hang` that were given up.
    given_up: Arc<AtomicU64>,
}

impl NamedService for Chat {
    const NAME: &'static str = "test.Chat";
}

impl Service<http::Request<Body>> for Chat {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let (mut grpc, given_up) = (tonic::server::Grpc::new(Raw), Arc::clone(&self.given_up));
        Box::pin(async move {
            Ok(match request.uri().path() {
                "/test.Chat/Echo" => grpc.unary(service_fn(echo), request).await,
                "/test.Chat/Count" => grpc.server_streaming(service_fn(count), request).await,
                "/test.Chat/Sum" => grpc.client_streaming(service_fn(sum), request).await,
                "/test.Chat/Talk" => grpc.streaming(service_fn(talk), request).await,
                "/test.Chat/Hang" => {
                    let hang = service_fn(move |_: Request<Bytes>| {
                        let given_up = GivenUp(Arc::clone(&given_up));
                        async move {
                            std::future::pending::<()>().await;
                            drop(given_up);
                            Err::<Response<Bytes>, _>(Status::internal("never"))
                        }
                    });
                    grpc.unary(hang, request).await
                }
                _ => Status::unimplemented("no such method").into_http(),
            })
        })
    }
}

struct GivenUp(Arc<AtomicU64>);

impl Drop for GivenUp {
    fn drop(&mut self) {
        self.0.fetch_add(1, SeqCst);
    }
}

async fn echo(request: Request<Bytes>) -> Result<Response<Bytes>, Status> {
    let asked = request.metadata().get("x-asked").cloned();
    let message = request.into_inner();
    if message.starts_with(b"!") {
        let mut status = Status::not_found("nobody is called \u{fc}ber 100 %");
        status.metadata_mut().insert_bin("x-detail-bin", MetadataValue::from_bytes(b"\0\x01\xff"));
        return Err(status);
    }
    let mut response = Response::new(message);
    if let Some(asked) = asked {
        response.metadata_mut().insert("x-heard", asked);
    }
    Ok(response)
}

async fn count(request: Request<Bytes>) -> Result<Response<BoxStream<'static, Result<Bytes, Status>>>, Status> {
    let text = String::from_utf8(request.into_inner().to_vec()).unwrap();
    let (number, fails) = (text.trim_end_matches('!').parse::<u32>().unwrap(), text.ends_with('!'));
    let messages = stream::iter((0..number).map(|number| Ok(Bytes::from(number.to_string()))));
    let end = stream::iter(fails.then(|| Err(Status::data_loss("that was not all"))));
    Ok(Response::new(messages.chain(end).boxed()))
}

async fn sum(request: Request<Streaming<Bytes>>) -> Result<Response<Bytes>, Status> {
    let (mut messages, mut bytes, mut count) = (request.into_inner(), 0, 0);
    while let Some(message) = messages.message().await? {
        bytes += message.len();
        count += 1;
    }
    Ok(Response::new(Bytes::from(format!("{count} {bytes}"))))
}

async fn talk(
    request: Request<Streaming<Bytes>>,
) -> Result<Response<BoxStream<'static, Result<Bytes, Status>>>, Status> {
    let answered = request.into_inner().map(|message| Ok(Bytes::from([b"re: ".as_slice(), &message?].concat())));
    Ok(Response::new(answered.boxed()))
}

/// The application, running.
struct Application {
    address: SocketAddr,
    chat: Chat,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Application {
    fn start() -> Self {
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
        listener.set_nonblocking(true).unwrap();
        let (address, chat) = (listener.local_addr().unwrap(), Chat::default());
        let (served, (stop, stopped)) = (chat.clone(), oneshot::channel::<()>());
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async move {
                let incoming = TcpIncoming::from(tokio::net::TcpListener::from_std(listener).unwrap());
                let serving = Server::builder().add_service(served).serve_with_incoming(incoming);
                tokio::select! {
                    ended = serving => ended.unwrap(),
                    _ = stopped => {}
                }
            });
        });
        Self { address, chat, stop: Some(stop), thread: Some(thread) }
    }
}

impl Drop for Application {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn gateway(application: &Application) -> Appliance {
    let rule = format!("{HOST}=h2c://{}", application.address);
    ApplianceSetup::new(BIN).flag("route", &rule).flag("workers", "1").start()
}

type Grpc = tonic::client::Grpc<Channel>;

async fn client(appliance: &Appliance) -> Grpc {
    let endpoint = Endpoint::from_shared(format!("http://{}", appliance.http())).unwrap();
    let endpoint = endpoint.origin(format!("http://{HOST}").parse().unwrap()).timeout(TIMEOUT);
    let mut grpc = Grpc::new(endpoint.connect().await.unwrap());
    grpc.ready().await.unwrap();
    grpc
}

fn method(name: &'static str) -> PathAndQuery {
    PathAndQuery::from_static(name)
}

async fn say(grpc: &mut Grpc, message: &'static str) -> Result<Response<Bytes>, Status> {
    grpc.ready().await.unwrap();
    grpc.unary(Request::new(Bytes::from_static(message.as_bytes())), method("/test.Chat/Echo"), Raw).await
}

/// Unary calls: messages, metadata both ways, and many at a time on one connection.
#[test]
fn unary_calls_bring_messages_and_metadata_both_ways() {
    let application = Application::start();
    let appliance = gateway(&application);
    http2::run(async {
        let mut grpc = client(&appliance).await;
        let mut request = Request::new(Bytes::from_static(b"hello"));
        request.metadata_mut().insert("x-asked", "what".parse().unwrap());
        let response = grpc.unary(request, method("/test.Chat/Echo"), Raw).await.unwrap();
        assert_eq!(response.metadata().get("x-heard").unwrap(), "what");
        assert_eq!(response.into_inner(), "hello");

        let large: Bytes = (0..3_000_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        grpc.ready().await.unwrap();
        let said = grpc.unary(Request::new(large.clone()), method("/test.Chat/Echo"), Raw).await.unwrap();
        assert!(said.into_inner() == large);

        let calls: Vec<_> = (0..50)
            .map(|_| {
                let mut grpc = grpc.clone();
                tokio::spawn(async move { say(&mut grpc, "x").await.unwrap().into_inner() })
            })
            .collect();
        for call in calls {
            assert_eq!(call.await.unwrap(), "x");
        }
    });
}

/// A status is what the application said, to the byte, whether it is in trailers or alone in the head.
#[test]
fn errors_arrive_as_they_were_said() {
    let application = Application::start();
    let appliance = gateway(&application);
    http2::run(async {
        let mut grpc = client(&appliance).await;
        let alone = say(&mut grpc, "!").await.unwrap_err();
        assert_eq!((alone.code(), alone.message()), (Code::NotFound, "nobody is called \u{fc}ber 100 %"));
        let detail = alone.metadata().get_bin("x-detail-bin").unwrap().to_bytes().unwrap();
        assert_eq!(&detail[..], b"\0\x01\xff");

        grpc.ready().await.unwrap();
        let request = Request::new(Bytes::from_static(b"3!"));
        let mut messages = grpc.server_streaming(request, method("/test.Chat/Count"), Raw).await.unwrap().into_inner();
        for number in 0..3 {
            assert_eq!(messages.message().await.unwrap().unwrap(), number.to_string());
        }
        let behind = messages.message().await.unwrap_err();
        assert_eq!((behind.code(), behind.message()), (Code::DataLoss, "that was not all"));

        grpc.ready().await.unwrap();
        let unknown = grpc.unary(Request::new(Bytes::new()), method("/test.Chat/Nothing"), Raw).await;
        assert_eq!(unknown.unwrap_err().code(), Code::Unimplemented);
        assert_eq!(say(&mut grpc, "on").await.unwrap().into_inner(), "on");
    });
}

/// Streams of either side, and of both at a time: no message waits for the end of anything.
#[test]
fn messages_stream_from_either_side_and_both() {
    let application = Application::start();
    let appliance = gateway(&application);
    http2::run(async {
        let mut grpc = client(&appliance).await;
        let request = Request::new(Bytes::from_static(b"5000"));
        let mut messages = grpc.server_streaming(request, method("/test.Chat/Count"), Raw).await.unwrap().into_inner();
        for number in 0..5000 {
            assert_eq!(messages.message().await.unwrap().unwrap(), number.to_string());
        }
        assert!(messages.message().await.unwrap().is_none());
        assert!(messages.trailers().await.unwrap().is_some());

        grpc.ready().await.unwrap();
        let many = stream::iter((0..1000).map(|_| Bytes::from_static(&[7; 1000])));
        let sum = grpc.client_streaming(Request::new(many), method("/test.Chat/Sum"), Raw).await.unwrap();
        assert_eq!(sum.into_inner(), "1000 1000000");

        grpc.ready().await.unwrap();
        let (said, hear) = mpsc::channel::<Bytes>(1);
        let spoken = stream::unfold(hear, |mut hear| async { hear.recv().await.map(|said| (said, hear)) });
        let talk = grpc.streaming(Request::new(Box::pin(spoken)), method("/test.Chat/Talk"), Raw);
        let mut replies = talk.await.unwrap().into_inner(); // before any message was sent
        for turn in 0..100 {
            said.send(Bytes::from(turn.to_string())).await.unwrap();
            assert_eq!(replies.message().await.unwrap().unwrap(), format!("re: {turn}"));
        }
        drop(said);
        assert!(replies.message().await.unwrap().is_none());
    });
}

/// A call that its client gives up, by its deadline or by itself, is given up at the application too.
#[test]
fn a_call_that_is_given_up_ends_at_the_application() {
    let application = Application::start();
    let appliance = gateway(&application);
    http2::run(async {
        let mut grpc = client(&appliance).await;
        let mut request = Request::new(Bytes::new());
        request.set_timeout(std::time::Duration::from_millis(300));
        let late = grpc.unary(request, method("/test.Chat/Hang"), Raw).await.unwrap_err();
        assert!(matches!(late.code(), Code::Cancelled | Code::DeadlineExceeded), "{late:?}");
        let mut other = grpc.clone();
        let call = tokio::spawn(async move {
            other.ready().await.unwrap();
            other.unary(Request::new(Bytes::new()), method("/test.Chat/Hang"), Raw).await.map(drop)
        });
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        call.abort();
        while application.chat.given_up.load(SeqCst) < 2 {
            tokio::time::sleep(std::time::Duration::from_millis(2)).await;
        }
        assert_eq!(say(&mut grpc, "on").await.unwrap().into_inner(), "on");
    });
}

/// What the gateway has to say itself is said in gRPC's words.
#[test]
fn an_application_that_is_gone_is_unavailable_and_one_that_never_was_is_unknown() {
    let application = Application::start();
    let appliance = gateway(&application);
    http2::run(async {
        let mut grpc = client(&appliance).await;
        assert_eq!(say(&mut grpc, "x").await.unwrap().into_inner(), "x");
        drop(application);
        let gone = say(&mut grpc, "x").await.unwrap_err();
        assert_eq!(gone.code(), Code::Unavailable, "{gone:?}");
        let endpoint = Endpoint::from_shared(format!("http://{}", appliance.http())).unwrap();
        let endpoint = endpoint.origin("http://nobody.example.com".parse().unwrap());
        let unknown = say(&mut Grpc::new(endpoint.connect().await.unwrap()), "x").await.unwrap_err();
        assert_eq!(unknown.code(), Code::Unimplemented, "{unknown:?}");
        assert_eq!(unknown.message(), "not found", "the operator's business is not the client's");
    });
}
