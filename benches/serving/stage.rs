//! An appliance with the example program as its image, and its resource use.

use std::time::Duration;

use kit::manifest::{NAMESPACE, service, with};
use kit::{Appliance, ApplianceSetup, TIMEOUT, wait};
use serde_json::{Value, json};

const BIN: &str = env!("CARGO_BIN_EXE_sluicegate");
pub(super) const HELLO: &str = "example.com/hello";
/// Names another program, with its arguments: the example is the appliance's own binary, whose start is a large part of
/// what a thousand starts take.
const PROGRAM: &str = "SLUICEGATE_BENCH_PROGRAM";
/// `USER_HZ`, in which Linux tells processor time everywhere.
const TICK: Duration = Duration::from_millis(10);

pub(super) struct Stage {
    pub(super) appliance: Appliance,
}

/// What [`HELLO`] stands for, in words.
pub(super) fn program() -> Vec<String> {
    let named = std::env::var(PROGRAM).unwrap_or_else(|_| format!("{BIN} example hello"));
    named.split_whitespace().map(str::to_owned).collect()
}

/// A Service that sleeps as soon as one may.
pub(super) fn hello(name: &str) -> Value {
    annotated(service(name, HELLO, name), "autoscaling.knative.dev/window", "6s")
}

/// With an annotation on its template.
pub(super) fn annotated(service: Value, name: &str, value: &str) -> Value {
    let place = format!("/spec/template/metadata/annotations/{}", name.replace('/', "~1"));
    with(service, &place, json!(value))
}

impl Stage {
    pub(super) fn start() -> Self {
        let setup = ApplianceSetup::new(BIN);
        Self { appliance: setup.flag("image", &format!("{HELLO}={}", program().join(" "))).start() }
    }

    /// Instances listen after so long.
    pub(super) fn start_slowly(seconds: u32) -> Self {
        let setup = ApplianceSetup::new(BIN);
        let script = format!("sleep {seconds}\nexec {BIN} example hello\n");
        let script = setup.write_file("slow.sh", &script);
        let appliance = setup.flag("image", &format!("{HELLO}=sh {}", script.display())).start();
        Self { appliance }
    }

    pub(super) fn create(&self, object: &Value, name: &str) {
        self.appliance.api().create(object);
        self.appliance.api().wait_ready("Service", NAMESPACE, name, TIMEOUT * 2);
    }

    pub(super) fn create_and_sleep(&self, object: &Value, name: &str) {
        self.create(object, name);
        self.wait_asleep();
    }

    pub(super) fn wait_asleep(&self) {
        // The server of JobSinks is a backend that is always there.
        let of_services = format!("{NAMESPACE}/");
        wait::until(TIMEOUT * 4, "all to sleep", || (self.instances(&of_services) == 0).then_some(()));
    }

    /// Ready instances of a Revision; of all together by the namespace and a slash.
    pub(super) fn instances(&self, revision: &str) -> u64 {
        self.metric("sluicegate_backend_instances", revision)
    }

    pub(super) fn metric(&self, name: &str, label: &str) -> u64 {
        self.appliance.metric(name, label)
    }

    /// Of the appliance's process, its code included.
    pub(super) fn memory_kib(&self) -> f64 {
        self.status_kib("VmRSS:")
    }

    /// What it has written to: code comes and goes with what is done.
    pub(super) fn own_memory_kib(&self) -> f64 {
        self.status_kib("RssAnon:")
    }

    fn status_kib(&self, name: &str) -> f64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.appliance.pid())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.split_whitespace().next().unwrap().parse().unwrap()
    }

    /// Processor time of the appliance so far.
    pub(super) fn busy(&self) -> Duration {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.appliance.pid())).unwrap();
        let words: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
        let ticks: u32 = words[11..13].iter().map(|word| word.parse::<u32>().unwrap()).sum();
        TICK * ticks
    }
}
