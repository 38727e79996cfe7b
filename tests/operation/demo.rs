//! The README's first command: one process splits requests by weight, starts scaled-to-zero Services and fans events out.

use std::io::{BufRead, BufReader, Lines};
use std::process::{Child, ChildStdout, Command, Stdio};

use kit::HttpCall;
use rustix::process::{Pid, Signal, kill_process};

const BIN: &str = env!("CARGO_BIN_EXE_sluicegate");

/// Ends with the test, however that ends. Its appliance ends with it.
struct Demo(Child);

impl Drop for Demo {
    fn drop(&mut self) {
        let _ = kill_process(Pid::from_child(&self.0), Signal::TERM); // it may have ended already
        let _ = self.0.wait();
    }
}

fn through(lines: &mut Lines<BufReader<ChildStdout>>, start: &str) -> Vec<String> {
    let mut all = Vec::new();
    for line in lines.map_while(Result::ok) {
        let words = line.split_whitespace().collect::<Vec<_>>().join(" ");
        let found = words.starts_with(start);
        all.push(words);
        if found {
            return all;
        }
    }
    panic!("the demo ended before {start:?}: {all:#?}");
}

/// APP-04: weighted routing, the wait for a cold start and the fan-out of events, all in one process, with a link to its
/// console; and it ends when it is stopped.
#[test]
fn the_demo_shows_what_it_says() {
    let mut demo = Demo(Command::new(BIN).arg("demo").stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap());
    let mut lines = BufReader::new(demo.0.stdout.take().unwrap()).lines();
    let said = through(&mut lines, "Try it");
    let line = |start: &str| said.iter().find(|line| line.starts_with(start)).unwrap_or_else(|| panic!("{said:#?}"));

    let first: f64 = line("split").split(' ').nth(2).unwrap().parse().unwrap();
    assert!((75.0..85.0).contains(&first), "{first} % of 1,000 is four standard deviations from 80");
    assert!(line("cold start").ends_with("ms from request to answer, process start included"));
    assert!(line("events").starts_with("events 200 accepted;"));
    // Delivered, filtered, dead-lettered, dropped, retries.
    assert_eq!(line("orders"), "orders 100 100 0 0 0");
    assert_eq!(line("payments"), "payments 100 100 0 0 0");
    assert_eq!(line("audit"), "audit 0 100 100 0 200");

    let console = line("Open the console:").rsplit("http://").next().unwrap().trim_end_matches('/');
    let page = HttpCall::get("/").send(console.parse().unwrap());
    assert!(page.status == 200 && page.text().contains("<title>Sluicegate</title>"), "{page}");

    through(&mut lines, "curl http://127.0.0.1:");
    kill_process(Pid::from_child(&demo.0), Signal::TERM).unwrap();
    assert!(demo.0.wait().unwrap().success());
}
