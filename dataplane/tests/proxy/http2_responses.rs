//! Responses of HTTP/2 instances are checked like those of HTTP/1 instances.

use std::rc::Rc;

use h2::server::SendResponse;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response};
use ring::Ring;
use sluicegate_dataplane::codec::http::MalformedHttp;
use sluicegate_dataplane::core::CoreLimits;
use sluicegate_dataplane::http::limits::INTERIM_MAX;
use sluicegate_dataplane::table::{Backend, Protocol};

use crate::fixture::{ProxyFixture, Reply, backend, instance, on_every_driver};
use crate::sharing::{publish, request_for, serving};
use crate::streams::{connect, whole};

type Field = (&'static str, &'static str);

/// For every pair of protocols; clients learn nothing about the instance, and the log has the cause.
#[test]
fn instance_beyond_a_limit_of_responses_is_a_bad_gateway() {
    on_every_driver(&CoreLimits::default(), async |fixture: ProxyFixture| {
        let http1 = instance(&fixture.ring, |seen| {
            let text = match seen.head.contains("/interim") {
                true => "HTTP/1.1 103 Hints\r\n\r\n".repeat(17) + "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
                false => "HTTP/1.1 101 Switching Protocols\r\nUpgrade: other\r\n\r\n".to_owned(),
            };
            vec![Reply::Send(text.into_bytes())]
        });
        let http2 = serving(&fixture.ring, &Rc::default(), |request, mut respond: SendResponse<bytes::Bytes>| {
            let (count, status) = if request.uri().path() == "/switch" { (1, 101) } else { (17, 103) };
            async move {
                for _ in 0..count {
                    let interim = Response::builder().status(status).body(()).unwrap();
                    respond.send_informational(interim).unwrap();
                }
                let _ = respond.send_response(Response::new(()), true);
            }
        });
        let (interim, switch) =
            (MalformedHttp::TooManyInterim.sentence(), MalformedHttp::SwitchNotRequested.sentence());
        assert!(interim.contains(&INTERIM_MAX.to_string()));
        let app = |instance, protocol| Backend { protocol, ..backend(&[instance], 0, None) };
        for (app, path, cause) in [
            (app(http1, Protocol::Http1), "/interim", interim),
            (app(http1, Protocol::Http1), "/switch", switch),
            (app(http2, Protocol::H2c), "/interim", interim),
            (app(http2, Protocol::H2c), "/switch", switch),
        ] {
            fixture.publish("app", app);
            let mut client = fixture.client().await;
            client.send(format!("GET {path} HTTP/1.1\r\nHost: app\r\nConnection: close\r\n\r\n")).await;
            let all = client.rest().await;
            assert!(all.contains("HTTP/1.1 502 ") && all.ends_with("bad gateway\n"), "{path}: {all}");
            assert!(!all.contains(cause), "{path}: {all}");
            let sender = connect(&fixture).await.unwrap();
            let request = request_for(Method::GET, path);
            let (answer, _) = sender.ready().await.unwrap().send_request(request, true).unwrap();
            let answer = answer.await.unwrap();
            assert_eq!(answer.status(), 502, "{path}");
            let body = String::from_utf8(whole(answer.into_body()).await.unwrap()).unwrap();
            assert_eq!(body, "bad gateway\n", "{path}");
        }
    });
}

fn fields(given: &[Field]) -> HeaderMap {
    let mut fields = HeaderMap::new();
    for (name, value) in given {
        fields.append(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    fields
}

/// An instance that sends the same response to each request.
fn fixed_response_instance(
    ring: &Ring,
    status: u16,
    head: &'static [Field],
    trailers: Option<&'static [Field]>,
) -> std::net::SocketAddr {
    serving(ring, &Rc::default(), move |_, mut respond: SendResponse<bytes::Bytes>| async move {
        let mut answer = Response::builder().status(status).body(()).unwrap();
        *answer.headers_mut() = fields(head);
        let Ok(mut answer) = respond.send_response(answer, false) else { return };
        let _ = answer.send_data("body".into(), trailers.is_none());
        if let Some(trailers) = trailers {
            let _ = answer.send_trailers(fields(trailers));
        }
    })
}

/// The response to an HTTP/1 client as text, and that to an HTTP/2 client.
async fn both_responses(fixture: &ProxyFixture) -> (String, Result<Response<Vec<u8>>, h2::Error>) {
    let mut client = fixture.client().await;
    client.send("GET / HTTP/1.1\r\nHost: app\r\nConnection: close\r\n\r\n").await;
    let text = client.rest().await.to_ascii_lowercase();
    let sender = connect(fixture).await.unwrap();
    let (answer, _) = sender.ready().await.unwrap().send_request(request_for(Method::GET, "/"), true).unwrap();
    let whole = async {
        let (head, body) = answer.await?.into_parts();
        Ok(Response::from_parts(head, whole(body).await?))
    };
    (text, whole.await)
}

/// RFC 9113 8.2.1 (a value has no blanks around it), RFC 9110 8.6, and names that look like other fields.
#[test]
fn ambiguous_http2_response_is_a_502() {
    const HEADS: [&[Field]; 6] = [
        &[("x-p", "  a")],
        &[("x-p", "a\t")],
        &[("content-length", "")],
        &[("content-length", "4"), ("content-length", "5")],
        &[("content_length", "4")],
        &[("transfer_encoding", "chunked")],
    ];
    for head in HEADS {
        on_every_driver(&CoreLimits::default(), move |fixture: ProxyFixture| async move {
            publish(&fixture, fixed_response_instance(&fixture.ring, 200, head, None));
            let (text, answer) = both_responses(&fixture).await;
            assert!(text.starts_with("http/1.1 502 "), "{head:?}: {text}");
            assert_eq!(answer.unwrap().status(), 502, "{head:?}");
        });
    }
}

/// RFC 9110 8.6: a repeated equal length is merged.
#[test]
fn repeated_equal_length_is_forwarded_once() {
    on_every_driver(&CoreLimits::default(), async |fixture: ProxyFixture| {
        const TWICE: &[Field] = &[("content-length", "4"), ("content-length", "4")];
        publish(&fixture, fixed_response_instance(&fixture.ring, 200, TWICE, None));
        let (text, answer) = both_responses(&fixture).await;
        assert_eq!(text.matches("content-length: 4\r\n").count(), 1, "{text}");
        assert!(text.ends_with("\r\n\r\nbody"), "{text}");
        let answer = answer.unwrap();
        assert_eq!(answer.headers().get_all("content-length").iter().count(), 1);
        assert_eq!(answer.into_body(), b"body");
    });
}

/// RFC 9110 15.3.5, 15.4.5: bytes after such a head are not content.
#[test]
fn response_without_content_has_no_body() {
    for status in [204, 304] {
        on_every_driver(&CoreLimits::default(), move |fixture: ProxyFixture| async move {
            publish(&fixture, fixed_response_instance(&fixture.ring, status, &[("x", "y")], None));
            let (text, answer) = both_responses(&fixture).await;
            assert!(text.starts_with(&format!("http/1.1 {status} ")) && text.ends_with("\r\n\r\n"), "{text}");
            let answer = answer.unwrap();
            assert_eq!((answer.status().as_u16(), answer.into_body()), (status, Vec::new()));
        });
    }
}

/// RFC 9113 8.2.1, 8.1.1: a response that is malformed at its end must not look complete to a client.
#[test]
fn response_with_padded_trailers_is_cut() {
    const ENDS: [(&[Field], bool); 2] = [(&[("x-t", "a b")], true), (&[("x-t", " a")], false)];
    for (trailers, whole) in ENDS {
        on_every_driver(&CoreLimits::default(), move |fixture: ProxyFixture| async move {
            publish(&fixture, fixed_response_instance(&fixture.ring, 200, &[], Some(trailers)));
            let (text, answer) = both_responses(&fixture).await;
            assert_eq!(text.ends_with("0\r\nx-t: a b\r\n\r\n"), whole, "{text}");
            assert_eq!(text.contains("\r\n0\r\n"), whole, "{text}");
            assert_eq!(answer.is_ok(), whole, "{answer:?}");
        });
    }
}
