//! The console in Chromium. Skipped with a message where Chromium or its driver is missing.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use kit::background_clients::{BackgroundClients, keep_alive};
use kit::manifest::{NAMESPACE, service};
use kit::webdriver::{Browser, ColorScheme};
use kit::{Appliance, HttpCall, TIMEOUT, TestEvent};
use serde_json::json;

use super::{setup, with_one_dead_letter};

const IMAGE: &str = "example.com/hello";
/// The smallest window that the console is made for.
const SMALL: (u32, u32) = (1000, 700);
const OBJECTS: u64 = 10_000;
/// How long a page may take for one thing with 10,000 objects, on a busy machine and in a debug build.
const STALL_MAX: Duration = Duration::from_secs(10);

fn url(appliance: &Appliance, hash: &str) -> String {
    format!("http://{}/#/{hash}", appliance.console())
}

/// Fails if the page complained about anything.
fn assert_quiet(browser: &Browser, what: &str) {
    let said: Vec<_> = browser.console().into_iter().filter(|(level, _)| level != "INFO" && level != "DEBUG").collect();
    assert!(said.is_empty(), "{what}: {said:?}");
}

/// Nothing is wider than the window, and every control and picture has a name for screen readers.
fn assert_fits_and_is_named(browser: &Browser, what: &str) {
    let found = browser.run(
        r#"const wide = document.documentElement.scrollWidth > innerWidth ? ['the page'] : [];
        for (const one of document.querySelectorAll('main, .card, .tile')) {
            if (getComputedStyle(one).overflowX !== 'auto' && one.scrollWidth > one.clientWidth + 1) wide.push(one.className || one.id);
        }
        const nameless = [...document.querySelectorAll('button, a, input, select, [role=img], [role=button], [role=meter]')].filter(one =>
            one.offsetParent !== null && !one.getAttribute('aria-label') && !one.textContent.trim() && !one.labels?.length);
        return { wide, nameless: nameless.map(one => one.outerHTML.slice(0, 120)) };"#,
    );
    assert_eq!(found, json!({ "wide": [], "nameless": [] }), "{what}");
}

/// Measures how long the page does not answer, in milliseconds.
const WATCH_STALLS: &str = "window.longest = 0; let last = performance.now(); setInterval(() => {
    const now = performance.now(); window.longest = Math.max(window.longest, now - last - 50); last = now;
}, 50)";

const TEXT: &str = "return document.querySelector('main').innerText";

fn text(browser: &Browser) -> String {
    browser.run(TEXT).as_str().unwrap_or_default().to_owned()
}

fn wait_text(browser: &Browser, wanted: &str) {
    let found = kit::wait::try_until(TIMEOUT, || text(browser).contains(wanted).then_some(()));
    assert!(found.is_some(), "{wanted:?} is not in {}", text(browser));
}

/// A Service with traffic, and a Trigger with a dead letter.
fn with_traffic() -> (Appliance, kit::EventSink, BackgroundClients) {
    let (appliance, sink) = with_one_dead_letter(&setup().hello_image(IMAGE));
    appliance.api().create(&service("hello", IMAGE, "blue"));
    appliance.api().wait_ready("Service", NAMESPACE, "hello", TIMEOUT);
    let mut clients = BackgroundClients::new();
    let call = |_| HttpCall::get("/").host("hello.default.localhost");
    clients.add(keep_alive(appliance.http(), call, 200, Duration::from_millis(20)));
    clients.goes_on(5);
    (appliance, sink, clients)
}

#[test]
fn every_page_shows_live_traffic_in_dark_and_light() {
    let Some(browser) = Browser::start(SMALL.0, SMALL.1) else { return };
    let (appliance, _sink, clients) = with_traffic();
    for scheme in [ColorScheme::Dark, ColorScheme::Light] {
        browser.prefer(scheme);
        for (hash, wanted) in [
            ("overview", ["hello-00001", "hello.default.localhost", "Latency by revision", "1 ready"]),
            ("events/topology", ["main", "failing", "Brokers and Channels", "dead letter"]),
            ("events/trace", ["one", "dropped", "Outcomes", "Stream"]),
            ("events/dead-letters", ["default/failing", "one", "dropped", "Given up"]),
            ("objects", ["Not Ready, and why", "Trigger", "ConfigMap", "checked"]),
            ("objects/serving.knative.dev/v1/services", ["hello", "True", "1 object", "watched"]),
            (
                "objects/serving.knative.dev/v1/services/default/hello",
                ["ConfigurationsReady", "RoutesReady", "Ready", "Created"],
            ),
            ("health", ["core 0", "log 0", "Every event is accounted for", "trigger/default/failing"]),
        ] {
            browser.open(&url(&appliance, hash));
            for part in wanted {
                wait_text(&browser, part);
            }
            assert_fits_and_is_named(&browser, hash);
            assert_quiet(&browser, hash);
        }
        let dark = browser.run("return getComputedStyle(document.body).backgroundColor");
        let is_dark = dark.as_str().unwrap().contains("12, 16, 21");
        assert_eq!(is_dark, scheme == ColorScheme::Dark, "{dark}");
    }
    clients.end();
}

#[test]
fn rate_and_live_mark_follow_the_stream() {
    let Some(browser) = Browser::start(SMALL.0, SMALL.1) else { return };
    let (mut appliance, _sink, clients) = with_traffic();
    browser.open(&url(&appliance, "overview"));
    browser.wait("a rate", "return parseFloat(document.querySelector('.tile .figure')?.textContent) > 0");
    browser.wait("live", "return document.querySelector('.live.ok') !== null");
    clients.end();
    appliance.kill();
    browser.wait("the loss of the appliance", "return document.querySelector('.live.bad') !== null");
    wait_text(&browser, "does not answer");
}

#[test]
fn keys_move_between_pages_search_and_rows() {
    let Some(browser) = Browser::start(SMALL.0, SMALL.1) else { return };
    let appliance = setup().start();
    browser.open(&url(&appliance, "overview"));
    browser.wait("the first figures", "return document.querySelector('.tile') !== null");
    browser.press("3");
    browser.wait("objects", "return location.hash === '#/objects' && document.querySelector('.kinds a') !== null");
    browser.open(&url(&appliance, "objects/core/v1/namespaces"));
    browser.wait("rows", "return document.querySelectorAll('.rows [data-row]').length >= 4");
    browser.press("jj");
    let row = || browser.run("return document.activeElement.dataset.key ?? ''").as_str().unwrap().to_owned();
    let second = row();
    browser.press("k");
    assert!(second.starts_with('/') && row() != second, "{second}");
    browser.press("/");
    assert_eq!(browser.run("return document.activeElement.id"), "search");
    browser.press("serving");
    browser.wait("the match alone", "return document.querySelectorAll('.rows [data-row]').length === 1");
    // Escape clears the search.
    browser.press("\u{e00c}");
    browser.wait("all rows", "return document.querySelectorAll('.rows [data-row]').length >= 4");
    browser.press("\u{e00c}t");
    let theme = browser.run("return document.documentElement.dataset.theme");
    assert!(theme == "dark" || theme == "light", "{theme}");
    assert_quiet(&browser, "keys");
}

/// A dead letter is found, looked at and sent again, as a person would.
#[test]
fn dead_letter_is_redriven_in_the_browser() {
    let Some(browser) = Browser::start(1280, 800) else { return };
    let (appliance, sink) = with_one_dead_letter(&setup());
    browser.open(&url(&appliance, "events/dead-letters"));
    browser.wait("the dead letter", "return document.querySelector('.rows [data-row]') !== null");
    browser.run("document.querySelector('.rows [data-row]').click()");
    wait_text(&browser, "attempt 1:");
    browser.open(&url(&appliance, "events/dead-letters?subscriber=trigger%2Fdefault%2Ffailing"));
    browser.wait("the actions", "return document.querySelector('#redrive')?.textContent === 'Redrive 1'");
    assert_eq!(browser.run("return document.querySelector('#redrive').disabled"), true, "it is read-only at first");
    browser.run("document.querySelector('[aria-label=\"Allow actions\"]').click()");
    browser.wait("the button", "return document.querySelector('#redrive').disabled === false");
    browser.run("document.querySelector('#redrive').click()");
    sink.wait_for(2, TIMEOUT);
    wait_text(&browser, "1 sent");
    wait_text(&browser, "Everything arrived");
    assert_quiet(&browser, "redrive");
}

#[test]
fn subscriber_is_changed_in_the_browser() {
    let Some(browser) = Browser::start(1280, 800) else { return };
    let (appliance, _sink) = with_one_dead_letter(&setup());
    let other = kit::EventSink::start();
    browser.open(&url(&appliance, "events/dead-letters?subscriber=trigger%2Fdefault%2Ffailing"));
    browser.wait("the actions", "return document.querySelector('#redrive') !== null");
    browser.run("document.querySelector('[aria-label=\"Allow actions\"]').click()");
    browser.wait("the button", "return document.querySelector('#redrive').disabled === false");
    browser.run(&format!(
        "const field = document.querySelector('input[name=uri]'); field.value = {:?}; field.form.requestSubmit()",
        other.url()
    ));
    browser.wait("the message", "return document.querySelector('#status').textContent.includes('now.')");
    let trigger = appliance.api().get("Trigger", NAMESPACE, "failing").unwrap();
    assert_eq!(trigger["spec"]["subscriber"]["uri"], other.url());
    assert_eq!(TestEvent::new("two").binary("/brokers/default/main").send(appliance.events()).status, 202);
    other.wait_for(1, TIMEOUT);
    assert_quiet(&browser, "patch");
}

#[test]
fn logs_of_an_instance_follow() {
    let Some(browser) = Browser::start(1280, 800) else { return };
    let (appliance, _sink, clients) = with_traffic();
    browser.open(&url(&appliance, "objects/serving.knative.dev/v1/services/default/hello?tab=logs"));
    browser.wait("an instance", "return document.querySelector('[data-log]')?.dataset.log.startsWith('hello-')");
    wait_text(&browser, "following");
    clients.end();
    assert_quiet(&browser, "logs");
}

/// Another user sees what the roles grant, and is asked for a token where the API wants one.
#[test]
fn page_asks_for_a_token_where_the_api_does() {
    let Some(browser) = Browser::start(SMALL.0, SMALL.1) else { return };
    let setup = setup().switch("api-authenticate");
    let appliance = setup.start();
    browser.open(&url(&appliance, "overview"));
    browser.wait("the question", "return document.querySelector('dialog input[name=token]') !== null");
    let kubeconfig = std::fs::read_to_string(setup.data().join("api/kubeconfig")).unwrap();
    let token = kubeconfig.lines().find_map(|line| line.trim().strip_prefix("token: ")).unwrap();
    browser.run(&format!(
        "const field = document.querySelector('dialog input[name=token]'); field.value = {token:?}; field.form.requestSubmit()"
    ));
    browser.wait("the figures", "return document.querySelector('.tile') !== null");
}

/// Creates ConfigMaps from several threads.
fn create_many(appliance: &Appliance) {
    let (at, next) = (appliance.api().address(), Arc::new(AtomicU64::new(0)));
    let threads: Vec<_> = (0..16)
        .map(|_| {
            let next = Arc::clone(&next);
            std::thread::spawn(move || {
                let mut connection = kit::HttpConnection::open(at);
                loop {
                    let nth = next.fetch_add(1, Relaxed);
                    if nth >= OBJECTS {
                        return;
                    }
                    let map = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": format!("map-{nth:05}") } });
                    let call = HttpCall::post("/api/v1/namespaces/default/configmaps").json(&map);
                    assert_eq!(connection.call(&call).status, 201);
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

/// Only the rows in sight are elements, and the page answers while it reads.
#[test]
fn ten_thousand_objects_do_not_stall_the_page() {
    let Some(browser) = Browser::start(SMALL.0, SMALL.1) else { return };
    let appliance = setup().start();
    create_many(&appliance);
    let count = |script: &str| browser.run(script).as_u64().unwrap_or_default();
    const ROWS: &str = "return Number(document.querySelector('[role=table]')?.getAttribute('aria-rowcount') ?? 0)";
    browser.open(&url(&appliance, "objects/core/v1/configmaps"));
    browser.run(WATCH_STALLS);
    kit::wait::until(TIMEOUT, "all rows", || (count(ROWS) > OBJECTS).then_some(()));
    let elements = count("return document.querySelectorAll('.rows [data-row]').length");
    assert!((10..100).contains(&elements), "{elements} rows are elements");

    let timed = |what: &str, act: &dyn Fn()| {
        let began = Instant::now();
        act();
        assert!(began.elapsed() < STALL_MAX, "{what} took {:?}", began.elapsed());
    };
    timed("scroll", &|| {
        browser.run("const rows = document.querySelector('.rows'); rows.scrollTop = rows.scrollHeight");
        browser.wait("the last rows", "return [...document.querySelectorAll('.rows [data-row]')].some(one => Number(one.getAttribute('aria-rowindex')) > 10000)");
    });
    timed("search", &|| {
        browser.press("/map-07777");
        browser.wait("the match", "return document.querySelectorAll('.rows [data-row]').length === 1 && document.querySelector('.rows').innerText.includes('map-07777')");
    });
    // A change comes by the watch.
    timed("watch", &|| {
        appliance.api().delete("ConfigMap", NAMESPACE, "map-07777");
        browser.wait("its end", "return document.querySelectorAll('.rows [data-row]').length === 0");
    });
    let longest = browser.run("return window.longest").as_f64().unwrap();
    assert!(longest < STALL_MAX.as_secs_f64() * 1000.0, "the page stalled for {longest} ms");
    assert_quiet(&browser, "10,000 objects");
}
