//! The pictures of the documentation: the demo's console, with traffic. Written only with `UPDATE_SCREENSHOTS=1`; otherwise the
//! test checks that they are there and small.

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use kit::background_clients::BackgroundClients;
use kit::webdriver::{Browser, ColorScheme};
use kit::{HttpCall, TestEvent, wait};
use rustix::process::{Pid, Signal, kill_process};

use super::BIN;

/// Pictures are part of the repository and of pages that people load.
const PICTURE_BYTES_MAX: u64 = 200 * 1024;
/// (picture, page, colours, size of the window, what must be there before it is taken).
type Picture = (&'static str, &'static str, ColorScheme, (u32, u32), &'static str);
/// Opens the newest dead letter.
const SELECT: &str = "const row = document.querySelector('.rows [data-row]'); if (!row) return false; \
     if (!document.querySelector('.row.selected')) row.click(); return document.querySelector('.timeline') !== null";
const PICTURES: [Picture; 6] = [
    (
        "console-overview",
        "overview",
        ColorScheme::Dark,
        (1360, 860),
        "return document.querySelectorAll('.cold').length >= 2",
    ),
    (
        "console-overview-light",
        "overview",
        ColorScheme::Light,
        (1360, 860),
        "return document.querySelectorAll('.cold').length >= 2",
    ),
    (
        "console-events",
        "events/topology",
        ColorScheme::Dark,
        (1360, 660),
        "return document.querySelectorAll('.edge text').length >= 4",
    ),
    (
        "console-dead-letters",
        "events/dead-letters?subscriber=trigger%2Fdefault%2Faudit",
        ColorScheme::Dark,
        (1360, 860),
        SELECT,
    ),
    (
        "console-objects",
        "objects/serving.knative.dev/v1/services/default/hello",
        ColorScheme::Light,
        (1360, 660),
        "return document.querySelectorAll('.plain tbody tr').length > 5",
    ),
    (
        "console-health",
        "health",
        ColorScheme::Dark,
        (1360, 860),
        "return document.querySelectorAll('.balance').length >= 3",
    ),
];
/// Long enough for plots to have a history.
const WARM_UP: Duration = Duration::from_secs(75);

struct Demo(Child);

impl Drop for Demo {
    fn drop(&mut self) {
        let _ = kill_process(Pid::from_child(&self.0), Signal::TERM); // it may have ended already
        let _ = self.0.wait();
    }
}

fn picture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("docs/images").join(format!("{name}.png"))
}

/// The address after `name` in what the demo prints.
fn address(said: &str, name: &str) -> SocketAddr {
    let rest = said.split_once(name).unwrap().1;
    let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.' && c != ':').unwrap_or(rest.len());
    rest[..end].parse().unwrap()
}

#[test]
fn pictures_of_the_console_are_there_and_small() {
    if std::env::var_os("UPDATE_SCREENSHOTS").is_some() {
        take();
    }
    for (name, ..) in PICTURES {
        let bytes = std::fs::metadata(picture(name)).unwrap_or_else(|why| panic!("{name}: {why}")).len();
        assert!(bytes <= PICTURE_BYTES_MAX, "{name}: {bytes} bytes");
    }
}

fn take() {
    let Some(browser) = Browser::start(1360, 860) else { return };
    let mut demo = Demo(Command::new(BIN).arg("demo").stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap());
    let mut lines = BufReader::new(demo.0.stdout.take().unwrap()).lines();
    let mut said = String::new();
    while !said.contains("/metrics") {
        said.push_str(&lines.next().unwrap().unwrap());
        said.push('\n');
    }
    let (console, http, events) = (
        address(&said, "console: http://"),
        address(&said, "Host: green-hello.default.localhost' http://"),
        address(&said, "curl -i http://"),
    );
    let clients = traffic(http, events);
    let open = |hash: &str| browser.open(&format!("http://{console}/#/{hash}"));
    open("overview");
    wait::rest(WARM_UP);
    for (name, hash, scheme, (width, height), ready) in PICTURES {
        browser.prefer(scheme);
        browser.resize(width, height);
        // Not loaded again: the plots keep their history.
        browser.run(&format!("location.hash = '#/{hash}'"));
        browser.wait(name, ready);
        wait::rest(Duration::from_secs(3));
        std::fs::write(picture(name), browser.screenshot()).unwrap();
    }
    clients.end();
}

/// Requests to both revisions, events of three types, and now and then one that wakes a Service.
fn traffic(http: SocketAddr, events: SocketAddr) -> BackgroundClients {
    let mut clients = BackgroundClients::new();
    for pause_ms in [11, 17, 23] {
        clients.add(move |stop, count| {
            while !stop.load(SeqCst) {
                let answer = HttpCall::get("/").host("hello.default.localhost").send(http);
                assert_eq!(answer.status, 200, "{answer}");
                count.fetch_add(1, SeqCst);
                wait::rest(Duration::from_millis(pause_ms));
            }
            Ok(())
        });
    }
    clients.add(move |stop, _| {
        while !stop.load(SeqCst) {
            HttpCall::get("/").host("sleepy.default.localhost").send(http);
            for _ in 0..110 {
                if stop.load(SeqCst) {
                    break;
                }
                wait::rest(Duration::from_millis(100));
            }
        }
        Ok(())
    });
    clients.add(move |stop, _| {
        for nth in 0_u64.. {
            if stop.load(SeqCst) {
                break;
            }
            let kind = ["com.example.order", "com.example.payment", "com.example.payment"][(nth % 3) as usize];
            let data = format!("{{ \"number\": {nth}, \"item\": \"tea\", \"price\": 12.5 }}");
            let event =
                TestEvent::new(&format!("{}-{nth}", &kind[12..])).with("type", kind).with("source", "/shop/web");
            let event = event.data("application/json", data);
            let _ = event.binary("/brokers/default/shop").send(events);
            wait::rest(Duration::from_millis(90));
        }
        Ok(())
    });
    clients
}
