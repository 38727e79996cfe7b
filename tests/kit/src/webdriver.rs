//! A browser that a test steers: Debian's Chromium and its driver, over the W3C WebDriver protocol.

use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{HttpCall, HttpConnection, TIMEOUT, wait};

/// As Debian installs them.
const CHROMIUM: &str = "/usr/bin/chromium";
const DRIVER: &str = "/usr/bin/chromedriver";
/// How long one command may take: a page load on a busy machine.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(120);

/// The colours that a page is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ColorScheme {
    Dark,
    Light,
}

/// A headless browser with a profile of its own; it ends with the test.
#[derive(Debug)]
pub struct Browser {
    driver: Child,
    address: SocketAddr,
    session: String,
    _profile: TempDir,
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = HttpCall::new("DELETE", &self.session).try_send(self.address); // ends the browser
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}

impl Browser {
    /// With a window of this size; `None`, with a message, where Chromium or its driver is missing.
    pub fn start(width: u32, height: u32) -> Option<Self> {
        if let Some(missing) = [CHROMIUM, DRIVER].into_iter().find(|program| !Path::new(program).exists()) {
            eprintln!("skipped: there is no {missing}");
            return None;
        }
        let free = TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap();
        let driver = Command::new(DRIVER)
            .arg(format!("--port={}", free.port()))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let profile = TempDir::new().unwrap();
        let arguments = [
            "--headless=new".to_owned(),
            "--no-sandbox".to_owned(),
            "--disable-gpu".to_owned(),
            "--disable-dev-shm-usage".to_owned(),
            "--disable-background-networking".to_owned(),
            "--disable-component-update".to_owned(),
            "--hide-scrollbars".to_owned(),
            format!("--user-data-dir={}", profile.path().display()),
        ];
        let options = json!({ "binary": CHROMIUM, "args": arguments });
        let wanted = json!({
            "browserName": "chrome", "goog:loggingPrefs": { "browser": "ALL" }, "goog:chromeOptions": options,
        });
        let mut browser = Self { driver, address: free, session: String::new(), _profile: profile };
        wait::until(TIMEOUT, "the driver listens", || HttpCall::get("/status").try_send(free).ok());
        let opened = browser.post("/session", &json!({ "capabilities": { "alwaysMatch": wanted } }));
        browser.session = format!("/session/{}", opened["sessionId"].as_str().unwrap());
        browser.resize(width, height);
        Some(browser)
    }

    pub fn resize(&self, width: u32, height: u32) {
        let size = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        self.devtools("Emulation.setDeviceMetricsOverride", &size);
    }

    pub fn prefer(&self, scheme: ColorScheme) {
        let value = if scheme == ColorScheme::Dark { "dark" } else { "light" };
        let features = json!({ "features": [{ "name": "prefers-color-scheme", "value": value }] });
        self.devtools("Emulation.setEmulatedMedia", &features);
    }

    pub fn open(&self, url: &str) {
        self.post(&format!("{}/url", self.session), &json!({ "url": url }));
    }

    /// The value of a script's `return`.
    pub fn run(&self, script: &str) -> Value {
        self.post(&format!("{}/execute/sync", self.session), &json!({ "script": script, "args": [] }))
    }

    /// Waits until the script returns something other than null and false.
    pub fn wait(&self, what: &str, script: &str) -> Value {
        wait::until(TIMEOUT, what, || Some(self.run(script)).filter(|value| !value.is_null() && *value != false))
    }

    /// Presses keys in the element that has the focus.
    pub fn press(&self, keys: &str) {
        let actions: Vec<Value> = keys
            .chars()
            .flat_map(|key| ["keyDown", "keyUp"].map(|kind| json!({ "type": kind, "value": key.to_string() })))
            .collect();
        let input = json!({ "actions": [{ "type": "key", "id": "keys", "actions": actions }] });
        self.post(&format!("{}/actions", self.session), &input);
    }

    /// What the page has written to its console since the last call, by level and text.
    pub fn console(&self) -> Vec<(String, String)> {
        let entries = self.post(&format!("{}/se/log", self.session), &json!({ "type": "browser" }));
        let text = |entry: &Value, name: &str| entry[name].as_str().unwrap_or_default().to_owned();
        entries.as_array().unwrap().iter().map(|entry| (text(entry, "level"), text(entry, "message"))).collect()
    }

    /// The window as PNG.
    pub fn screenshot(&self) -> Vec<u8> {
        let answer = self.call(&HttpCall::get(&format!("{}/screenshot", self.session)));
        STANDARD.decode(answer.as_str().unwrap()).unwrap()
    }

    fn devtools(&self, command: &str, parameters: &Value) {
        let body = json!({ "cmd": command, "params": parameters });
        self.post(&format!("{}/goog/cdp/execute", self.session), &body);
    }

    fn post(&self, path: &str, body: &Value) -> Value {
        self.call(&HttpCall::post(path).json(body))
    }

    fn call(&self, call: &HttpCall) -> Value {
        let mut connection = HttpConnection::open(self.address);
        connection.timeout(COMMAND_TIMEOUT);
        let answer = connection.call(call);
        assert_eq!(answer.status, 200, "{answer}");
        answer.json()["value"].take()
    }
}
