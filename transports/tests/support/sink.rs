//! A sink that records what it accepted and answers as a test specifies.

use std::io::{BufReader, Write};
use std::net::{Shutdown, TcpListener};
use std::sync::{Arc, Mutex};

use adapter::Event;

use super::http::{Message, read};
use super::wait;

/// Decides the status for a request and its events.
type Decide = Box<dyn FnMut(&Message, &[Event]) -> u16 + Send>;

#[derive(Clone)]
pub(crate) struct Sink {
    pub(crate) port: u16,
    state: Arc<Mutex<State>>,
}

struct State {
    accepted: Vec<Event>,
    requests: Vec<Message>,
    decide: Decide,
}

impl Sink {
    pub(crate) fn new() -> Sink {
        Sink::answering(|_, _| 202)
    }

    pub(crate) fn answering(decide: impl FnMut(&Message, &[Event]) -> u16 + Send + 'static) -> Sink {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let state = State { accepted: Vec::new(), requests: Vec::new(), decide: Box::new(decide) };
        let sink = Sink { port, state: Arc::new(Mutex::new(state)) };
        let served = sink.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let sink = served.clone();
                std::thread::spawn(move || {
                    let mut writer = stream.try_clone().unwrap();
                    let mut reader = BufReader::new(stream);
                    while let Some(request) = read(&mut reader) {
                        let status = sink.accept(request);
                        let response = format!("HTTP/1.1 {status} Test\r\ncontent-length: 0\r\n\r\n");
                        if writer.write_all(response.as_bytes()).is_err() {
                            break;
                        }
                    }
                    let _ = writer.shutdown(Shutdown::Both);
                });
            }
        });
        sink
    }

    fn accept(&self, request: Message) -> u16 {
        let mut headers = ::http::HeaderMap::new();
        for (name, value) in &request.headers {
            let name: ::http::HeaderName = name.parse().unwrap();
            headers.append(name, value.parse().unwrap());
        }
        let events = adapter::from_http(&headers, request.body.clone().into());
        let mut state = self.state.lock().unwrap();
        let Ok(events) = events else { return 400 };
        let status = (state.decide)(&request, &events);
        if status < 300 {
            state.accepted.extend(events);
        }
        state.requests.push(request);
        status
    }

    /// From now on.
    pub(crate) fn set(&self, decide: impl FnMut(&Message, &[Event]) -> u16 + Send + 'static) {
        self.state.lock().unwrap().decide = Box::new(decide);
    }

    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}/", self.port)
    }

    pub(crate) fn accepted(&self) -> Vec<Event> {
        self.state.lock().unwrap().accepted.clone()
    }

    pub(crate) fn requests(&self) -> Vec<Message> {
        self.state.lock().unwrap().requests.clone()
    }

    pub(crate) fn wait_for(&self, events: usize) -> Vec<Event> {
        wait(&format!("{events} events at the sink"), || {
            Some(self.accepted()).filter(|accepted| accepted.len() >= events)
        })
    }

    /// The numbers in the data, in the order of their first arrival.
    pub(crate) fn numbers(&self) -> Vec<u64> {
        let mut seen = std::collections::HashSet::new();
        self.accepted().iter().filter_map(number).filter(|number| seen.insert(*number)).collect()
    }

    /// Waits until 0..`events` arrived, and says how many of them came more than once.
    pub(crate) fn wait_for_numbers(&self, events: u64) -> usize {
        let numbers = wait(&format!("{events} numbers at the sink"), || {
            Some(self.numbers()).filter(|numbers| numbers.len() as u64 >= events)
        });
        assert_eq!(numbers, (0..events).collect::<Vec<_>>(), "lost or out of order");
        self.accepted().len() - numbers.len()
    }
}

/// The last number in the data, whatever its form.
fn number(event: &Event) -> Option<u64> {
    let text = String::from_utf8_lossy(event.data.as_deref()?).into_owned();
    let digits: Vec<&str> = text.split(|c: char| !c.is_ascii_digit()).filter(|digits| !digits.is_empty()).collect();
    digits.last()?.parse().ok()
}
