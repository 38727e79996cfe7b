//! Becomes a container, for this crate's tests and measurements: `container-run PARENT`, with a [`Job`] as JSON on stdin; or
//! `container-run exec`, with the same on stdin, in the container's pid namespace. `container-run sibling SCRIPT` has a shell run a script in parallel.

use std::ffi::OsString;
use std::io::Read;
use std::process::ExitCode;

use container::launch::{LaunchError, PreparedContainer, Variables};
use container::{ContainerSpec, ExecSpec};
use serde::Deserialize;

#[derive(Deserialize)]
struct Job {
    #[serde(default)]
    container: ContainerSpec,
    #[serde(default)]
    exec: ExecSpec,
    command: Vec<String>,
    #[serde(default)]
    variables: Vec<(String, String)>,
}

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let failed = match arguments.next().as_deref() {
        Some("sibling") => {
            let shell = std::process::Command::new("sh").arg("-c").args(arguments).status();
            usage(&format!("{shell:?}"))
        }
        Some("exec") => exec(),
        Some(parent) => run(parent.parse().unwrap_or_default()),
        None => usage("it has no parent"),
    };
    eprintln!("container-run: {}", failed.message);
    ExitCode::from(failed.code)
}

fn run(parent: i32) -> LaunchError {
    let prepared = match PreparedContainer::create(parent) {
        Ok(prepared) => prepared,
        Err(why) => return why,
    };
    match job() {
        Ok(job) => prepared.become_container(&job.container, &words(&job.command), variables(job.variables), None),
        Err(why) => usage(&why),
    }
}

fn exec() -> LaunchError {
    match job() {
        Ok(job) => job.exec.become_process(&words(&job.command), variables(job.variables)),
        Err(why) => usage(&why),
    }
}

fn job() -> Result<Job, String> {
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text).map_err(|why| why.to_string())?;
    serde_json::from_str(&text).map_err(|why| why.to_string())
}

fn usage(why: &str) -> LaunchError {
    LaunchError { message: format!("the job cannot be read: {why}"), code: 2 }
}

fn words(command: &[String]) -> Vec<OsString> {
    command.iter().map(OsString::from).collect()
}

fn variables(all: Vec<(String, String)>) -> Variables {
    Variables(all.into_iter().map(|(name, value)| (name.into(), value.into())).collect())
}
