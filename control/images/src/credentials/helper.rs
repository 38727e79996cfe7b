//! `docker-credential-NAME get`: credential helpers.

use std::io::{Read as _, Write as _};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde::Deserialize;

use super::Login;
use crate::error::Error;
use crate::limits::HELPER_OUTPUT_BYTES_MAX;

/// Helpers of cloud providers call a service over the network. A helper that waits for a person must not block the pull.
const HELPER_TIMEOUT: Duration = Duration::from_secs(20);
/// The output of a helper that has no login for a server: the pull continues without one.
const NOT_FOUND: &str = "credentials not found";
/// The user name that marks an identity token.
const TOKEN_USER: &str = "<token>";

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct HelperAnswer {
    #[serde(default)]
    username: String,
    secret: String,
}

/// The login that helper `name` has for `server`.
pub(super) async fn get(name: &str, server: &str) -> Result<Option<Login>, Error> {
    // It becomes part of a program's name, so it must not be a path.
    if name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.')) {
        return Err(failure(name, "the name of a credential helper has letters, digits, `-`, `_` and `.` only".into()));
    }
    let (program, server) = (format!("docker-credential-{name}"), server.to_owned());
    let done = tokio::task::spawn_blocking(move || {
        run(&program, &server, HELPER_TIMEOUT).map_err(|detail| failure(&program, detail))
    });
    done.await.unwrap_or_else(|why| Err(failure(name, why.to_string())))
}

fn failure(what: &str, detail: String) -> Error {
    Error::Credentials { what: format!("credential helper {what}"), detail }
}

fn run(program: &str, server: &str, timeout: Duration) -> Result<Option<Login>, String> {
    let mut child = Command::new(program)
        .arg("get")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|why| format!("cannot be started: {why}; install it, or remove it from docker's config.json"))?;
    let output = converse(&mut child, server, Instant::now() + timeout);
    if output.is_err() {
        let _ = child.kill(); // it may have ended by itself
    }
    let status = child.wait().map_err(|why| why.to_string())?;
    let output = output.map_err(|why| if why.is_empty() { format!("gave no answer in {timeout:?}") } else { why })?;
    if !status.success() {
        let said = output.trim();
        return if said.contains(NOT_FOUND) { Ok(None) } else { Err(format!("{status}: {}", first_line(said))) };
    }
    let answer: HelperAnswer =
        serde_json::from_str(&output).map_err(|_| "its answer is not the expected JSON".to_owned())?;
    Ok(Some(match answer.username.as_str() {
        TOKEN_USER => Login::IdentityToken(answer.secret),
        _ => Login::Basic { username: answer.username, password: answer.secret },
    }))
}

fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().chars().take(200).collect()
}

/// Writes the server and reads to the end. An empty error is a timeout.
fn converse(child: &mut Child, server: &str, deadline: Instant) -> Result<String, String> {
    if let Some(mut stdin) = child.stdin.take() {
        let _ = stdin.write_all(server.as_bytes()); // a helper that ended already says why on its stdout
    }
    let mut stdout = child.stdout.take().ok_or("no stdout")?;
    let (mut output, mut piece) = (Vec::new(), [0; 4096]);
    loop {
        wait_readable(&stdout, deadline)?;
        match stdout.read(&mut piece).map_err(|why| why.to_string())? {
            0 => break,
            bytes => output.extend_from_slice(&piece[..bytes]),
        }
        if output.len() as u64 > HELPER_OUTPUT_BYTES_MAX {
            return Err(format!("its answer is longer than {HELPER_OUTPUT_BYTES_MAX} bytes"));
        }
    }
    // It has said all, but may not have ended.
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).ok_or("no process")?;
    let process = pidfd_open(pid, PidfdFlags::empty()).map_err(|why| why.to_string())?;
    wait_readable(&process, deadline)?;
    String::from_utf8(output).map_err(|_| "its answer is not UTF-8".to_owned())
}

fn wait_readable(file: &impl std::os::fd::AsFd, deadline: Instant) -> Result<(), String> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(String::new());
        }
        let left = left.try_into().map_err(|_| "no valid timeout")?;
        match poll(&mut [PollFd::from_borrowed_fd(file.as_fd(), PollFlags::IN)], Some(&left)) {
            Ok(0) => return Err(String::new()),
            Ok(_) => return Ok(()),
            Err(rustix::io::Errno::INTR) => {}
            Err(why) => return Err(why.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn helper(script: &str) -> (tempfile::TempDir, String) {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("docker-credential-test");
        std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).expect("a script");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("executable");
        let path = path.display().to_string();
        (folder, path)
    }

    #[test]
    fn helper_answers_with_login_or_token() {
        let (_folder, program) =
            helper(r#"read s; echo "{\"ServerURL\":\"$s\",\"Username\":\"u\",\"Secret\":\"$s\"}""#);
        let login = run(&program, "a.b", HELPER_TIMEOUT).expect("an answer");
        assert_eq!(login, Some(Login::Basic { username: "u".into(), password: "a.b".into() }));
        let (_folder, program) = helper(r#"echo '{"Username":"<token>","Secret":"t"}'"#);
        assert_eq!(run(&program, "a.b", HELPER_TIMEOUT), Ok(Some(Login::IdentityToken("t".into()))));
    }

    #[test]
    fn helper_without_login_is_no_error() {
        let (_folder, program) = helper("echo 'credentials not found in native keychain'; exit 1");
        assert_eq!(run(&program, "a.b", HELPER_TIMEOUT), Ok(None));
        let (_folder, program) = helper("echo broken; exit 1");
        assert!(run(&program, "a.b", HELPER_TIMEOUT).is_err_and(|why| why.contains("broken")));
    }

    #[test]
    fn helper_that_hangs_is_killed_at_the_timeout() {
        for script in ["exec sleep 600", "echo '{}'; exec >&-; exec sleep 600"] {
            let (_folder, program) = helper(script);
            let outcome = run(&program, "a.b", Duration::from_millis(300));
            assert!(outcome.as_ref().is_err_and(|why| why.contains("no answer")), "{outcome:?}");
        }
    }

    #[tokio::test]
    async fn helper_name_with_a_path_is_refused() {
        assert!(get("../../tmp/x", "a.b").await.is_err());
    }
}
