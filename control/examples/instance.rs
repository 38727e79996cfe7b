//! A program that tests run as an instance, and the init that starts it.
//!
//! `instance listen [SECONDS]` serves `200 ok` on PORT, at first after SECONDS.
//! `instance appliance DATA COMMAND [ARGUMENT]...` runs a command as an instance, prints `ready` when that wrote
//! something, and waits to be killed. With a folder as `LAYER` in its environment it runs a container of that, and prints so when it has
//! created `/tmp/up`. Everything after the verb `instance-init` goes to init.

use std::env;
use std::error::Error;
use std::ffi::OsString;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use sluicegate_control::runtime::{
    ContainerImage, HostConfig, InitProgram, InstanceCredentials, InstanceReport, InstanceReporter, InstanceSpec,
    ProbeCheck, ProbeSpec, ProcessRuntime, RestartPolicy, Runtime, init,
};

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let mut arguments = env::args_os().skip(1);
    match arguments.next() {
        Some(verb) if verb == init::VERB => Ok(init::run(arguments)),
        Some(verb) if verb == "listen" => listen(arguments.next()),
        Some(verb) if verb == "appliance" => {
            let data = PathBuf::from(arguments.next().ok_or("no data folder")?);
            let command = arguments.map(|word| word.into_string().map_err(|_| "not UTF-8"));
            appliance(&data, command.collect::<Result<_, _>>()?)
        }
        other => Err(format!("unknown verb {other:?}").into()),
    }
}

fn listen(delay: Option<OsString>) -> Result<ExitCode, Box<dyn Error>> {
    if let Some(delay) = delay {
        let seconds: f64 = delay.to_str().ok_or("not a number")?.parse()?;
        #[expect(clippy::disallowed_methods, reason = "a program of its own, which is to be slow")]
        std::thread::sleep(Duration::from_secs_f64(seconds));
    }
    let port: u16 = env::var("PORT")?.parse()?;
    let listener = TcpListener::bind(("127.0.0.1", port))?;
    println!("listening on {port}");
    for stream in listener.incoming() {
        let mut stream = stream?;
        let mut head = [0; 1024];
        let read = stream.read(&mut head)?;
        let head = String::from_utf8_lossy(&head[..read]);
        // Only probes that send the expected header get its health.
        let is_bad = head.starts_with("GET /bad ")
            || head.starts_with("GET /healthz ") && !head.contains("\r\nX-Probe: yes\r\n");
        let status = if is_bad { "500 no" } else { "200 ok" };
        // A probe that only connects is gone by now, and that is fine.
        let _ = write!(stream, "HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    }
    Ok(ExitCode::SUCCESS)
}

fn appliance(data: &Path, command: Vec<String>) -> Result<ExitCode, Box<dyn Error>> {
    let runtime = ProcessRuntime::open(data, InitProgram::this_program(), HostConfig::minimal())?;
    let log = data.join("instances/default/hello-00001/1.log").display().to_string();
    let image = env::var_os("LAYER").map(|layer| ContainerImage {
        layers: [PathBuf::from(layer)].into(),
        user: String::new(),
        stop_signal: rustix::process::Signal::TERM,
        pin: Arc::new(()),
    });
    let shown = if image.is_some() { "test -e /tmp/up" } else { "test -s $LOG" };
    let wrote = ["/bin/sh", "-c", shown].map(String::from).to_vec();
    let spec = InstanceSpec {
        pod: None,
        namespace: "default".into(),
        revision: "hello-00001".into(),
        service: String::new(),
        configuration: String::new(),
        image,
        command,
        env: vec![("LOG".into(), log), ("DATA".into(), data.display().to_string())],
        port: 8080,
        other_ports: Vec::new(),
        working_dir: None,
        volumes: Vec::new(),
        mounts: Vec::new(),
        reload_volume: None,
        credentials: InstanceCredentials::default(),
        read_only_root: false,
        restart: RestartPolicy::default(),
        resources: sluicegate_control::runtime::ResourceLimits::default(),
        termination_message: None,
        startup: None,
        liveness: None,
        detect_http2: false,
        readiness: ProbeSpec::single(ProbeCheck::Exec { command: wrote }),
        startup_timeout: Duration::from_secs(60),
        termination_grace_period: Duration::from_secs(60),
        init_containers: Vec::new(),
        sidecars: Vec::new(),
    };
    let (queue, mut reports) = tokio::sync::mpsc::unbounded_channel();
    let _instance = runtime.start(1, 1, Arc::new(spec), InstanceReporter::new(1, queue));
    while let Some((_, report)) = reports.blocking_recv() {
        match report {
            InstanceReport::Ready { .. } => println!("ready"),
            InstanceReport::Unready => println!("not ready"),
            InstanceReport::NotReadyReason(why) => println!("not ready yet: {why}"),
            InstanceReport::Sidecars(_) | InstanceReport::Ports(_) => {} // it has none
            InstanceReport::Restarting(_) | InstanceReport::Restarted => {} // its end is the instance's
            InstanceReport::Exited(gone) => return Err(gone.message.into()),
        }
    }
    Ok(ExitCode::SUCCESS)
}
