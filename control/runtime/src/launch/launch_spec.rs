//! The launch spec of an instance, as arguments: written by the appliance, read by init in the instance's own process.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use rustix::process::Pid;

use container::{BindMount, CgroupView, ExecSpec, ExecStdin};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::capabilities::Capabilities;
use crate::sandbox_spec::SandboxSpec;

/// The verb that the program's `main` passes to [`super::init::run`], with all following arguments.
pub const VERB: &str = "instance-init";

/// The specification that init needs to become the instance.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct LaunchSpec {
    pub(crate) sandbox: SandboxSpec,
    /// The rest follows on stdin.
    pub(crate) is_prefork: bool,
    /// It is the first process of a pid namespace, and will be a container.
    pub(crate) is_first_process: bool,
    /// It is in a container's pid namespace, and will enter the container.
    pub(crate) joins_container: bool,
    /// How it enters the container.
    pub(crate) enter: Option<ExecSpec>,
    /// The variables come on stdin.
    pub(crate) variables_follow: bool,
    /// It is a client's command, which reads this stdin; its arguments on stdin have a length prefix.
    pub(crate) session: Option<ExecStdin>,
    /// `NAME=VALUE`; the parent has set none.
    pub(crate) variables: Vec<OsString>,
    pub(crate) command: Vec<OsString>,
}

/// The arguments of the verb, as the parent writes them. The variables follow on stdin: init still has all
/// rights, so they must not be in its own environment, where `LD_PRELOAD` would take effect.
pub(crate) fn arguments(parent: Pid, place: &SandboxSpec, command: &[String]) -> Vec<OsString> {
    let mut words = first_words(parent, place);
    words.extend(["--variables".into(), "--".into()]);
    words.extend(command.iter().map(OsString::from));
    words
}

fn first_words(parent: Pid, place: &SandboxSpec) -> Vec<OsString> {
    let mut words: Vec<OsString> = vec![VERB.into(), "--parent".into(), parent.as_raw_nonzero().to_string().into()];
    append_sandbox(&mut words, place);
    words
}

/// The arguments of a prefork process in `place`, as far as they are known.
pub(crate) fn prefork_arguments(parent: Pid, place: &SandboxSpec) -> Vec<OsString> {
    let mut words = first_words(parent, place);
    words.push("--wait".into());
    words
}

/// The same for a future container.
pub(crate) fn first_process_arguments(parent: Pid, place: &SandboxSpec) -> Vec<OsString> {
    let mut words = prefork_arguments(parent, place);
    words.push("--first-process".into());
    words
}

/// The same for a process that will enter the container of its pid namespace.
pub(crate) fn join_arguments(parent: Pid, place: &SandboxSpec) -> Vec<OsString> {
    let mut words = prefork_arguments(parent, place);
    words.push("--in-container".into());
    words
}

/// The arguments of a client's command: of one next to the instance's own program, and of one that enters its container.
pub(crate) fn session_arguments(
    parent: Pid,
    place: &SandboxSpec,
    stdin: ExecStdin,
    command: Option<&[String]>,
) -> Vec<OsString> {
    let mut words = match command {
        Some(_) => first_words(parent, place),
        None => join_arguments(parent, place),
    };
    words.extend(["--session".into(), json(&stdin)]);
    if let Some(command) = command {
        words.extend(["--variables".into(), "--".into()]);
        words.extend(command.iter().map(OsString::from));
    }
    words
}

/// The input on stdin after [`arguments`]. `None` if a variable has a NUL in it, which no process can have.
pub(crate) fn encode_variables(variables: &[(String, String)]) -> Option<Vec<u8>> {
    let words: Vec<String> = variables.iter().map(|(name, value)| format!("{name}={value}")).collect();
    (!words.iter().any(|word| word.contains('\0'))).then(|| words.join("\0").into_bytes())
}

fn json(spec: &impl Serialize) -> OsString {
    serde_json::to_string(spec).expect("text and numbers always become JSON").into()
}

fn from_json<T: DeserializeOwned>(word: Option<OsString>) -> Result<T, &'static str> {
    word.and_then(|word| serde_json::from_str(word.to_str()?).ok()).ok_or(USAGE)
}

/// The launch spec for a prefork process: arguments with NULs between them. `None` if one contains a NUL.
pub(crate) fn encode(place: &SandboxSpec, variables: &[(String, String)], command: &[String]) -> Option<Vec<u8>> {
    let mut words = Vec::new();
    append_sandbox(&mut words, place);
    finish(words, variables, command)
}

/// The same for a process that enters a container.
pub(crate) fn encode_exec(spec: &ExecSpec, variables: &[(String, String)], command: &[String]) -> Option<Vec<u8>> {
    finish(vec!["--enter".into(), json(spec)], variables, command)
}

fn finish(mut words: Vec<OsString>, variables: &[(String, String)], command: &[String]) -> Option<Vec<u8>> {
    for (name, value) in variables {
        words.extend(["--variable".into(), format!("{name}={value}").into()]);
    }
    words.push("--".into());
    words.extend(command.iter().map(OsString::from));
    let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
    (!words.iter().any(|word| word.contains(&0))).then(|| words.join(&0))
}

fn append_sandbox(words: &mut Vec<OsString>, place: &SandboxSpec) {
    for prefork in &place.cgroups {
        words.extend(["--cgroup".into(), prefork.folder.clone().into(), prefork.mount_point.clone().into()]);
    }
    if let Some(file) = &place.resolver {
        words.extend(["--resolver".into(), file.clone().into()]);
    }
    for bind in &place.binds {
        let access = if bind.read_only { "ro" } else { "rw" };
        words.extend(["--bind".into(), bind.source.clone().into(), bind.target.clone().into(), access.into()]);
        if let Some(path) = &bind.sub_path {
            words.extend(["--sub-path".into(), path.clone().into()]);
        }
    }
    for (word, paths) in [("--mask", &place.masks), ("--unmask", &place.unmasked)] {
        words.extend(paths.iter().flat_map(|path| [OsString::from(word), path.clone().into()]));
    }
    if let Some(dir) = &place.working_dir {
        words.extend(["--dir".into(), dir.clone().into()]);
    }
    for (word, id) in [("--user", place.credentials.user), ("--group", place.credentials.group)] {
        words.extend(id.into_iter().flat_map(|id| [OsString::from(word), id.to_string().into()]));
    }
    if place.credentials.capabilities != Capabilities::default() {
        let bits = place.credentials.capabilities.bits();
        words.extend(["--capabilities".into(), OsString::from(bits.to_string())]);
    }
    if let Some(name) = &place.hostname {
        words.extend(["--hostname".into(), name.into()]);
    }
    for (word, set) in [
        ("--never-root", place.credentials.run_as_non_root),
        ("--read-only", place.read_only_root),
        ("--host-devices", place.host_devices),
    ] {
        words.extend(set.then(|| OsString::from(word)));
    }
    if let Some(spec) = &place.container {
        words.extend(["--container".into(), json(spec)]);
    }
}

const USAGE: &str = "usage: instance-init --parent PID [--cgroup DIR MOUNTED]... [--resolver FILE] [--bind SOURCE TARGET ro|rw [--sub-path PATH]]... [--mask PATH]... [--unmask PATH]... \
                     [--dir DIR] [--user UID] [--group GID] [--capabilities BITS] [--hostname NAME] [--never-root] [--read-only] [--host-devices] [--variables] -- COMMAND [ARGUMENT]... \
                     or: instance-init --parent PID [--cgroup DIR MOUNTED]... [--host-devices] --wait [--first-process | --in-container]";

/// Parses the arguments after the verb.
pub(crate) fn parse_arguments(
    arguments: impl IntoIterator<Item = OsString>,
) -> Result<(Pid, LaunchSpec), &'static str> {
    let mut words = arguments.into_iter();
    if words.next().is_none_or(|word| word != "--parent") {
        return Err(USAGE);
    }
    let parent = words
        .next()
        .and_then(|word| word.to_str()?.parse::<i32>().ok())
        .filter(|pid| *pid > 0)
        .and_then(Pid::from_raw)
        .ok_or(USAGE)?;
    Ok((parent, decode(words)?))
}

/// Arguments up to the command, or to the flag that says that it follows later.
pub(crate) fn decode(mut words: impl Iterator<Item = OsString>) -> Result<LaunchSpec, &'static str> {
    let id = |word: Option<OsString>| word.and_then(|word| word.to_str()?.parse::<u32>().ok()).ok_or(USAGE);
    let mut launch = LaunchSpec::default();
    let place = &mut launch.sandbox;
    loop {
        match words.next().as_ref().and_then(|word| word.to_str()) {
            Some("--cgroup") => {
                let mut next = || words.next().ok_or(USAGE);
                place.cgroups.push(CgroupView { folder: next()?.into(), mount_point: next()?.into() });
            }
            Some("--resolver") => place.resolver = Some(words.next().ok_or(USAGE)?.into()),
            Some("--bind") => {
                let mut next = || words.next().ok_or(USAGE);
                let (source, target, access) = (next()?.into(), next()?.into(), next()?);
                let read_only = access != "rw";
                place.binds.push(BindMount { source, sub_path: None, target, read_only, is_own: false });
            }
            Some("--sub-path") => {
                let bind = place.binds.last_mut().ok_or(USAGE)?;
                bind.sub_path = Some(words.next().ok_or(USAGE)?.into());
            }
            Some("--mask") => place.masks.push(words.next().ok_or(USAGE)?.into()),
            Some("--unmask") => place.unmasked.push(words.next().ok_or(USAGE)?.into()),
            Some("--user") => place.credentials.user = Some(id(words.next())?),
            Some("--group") => place.credentials.group = Some(id(words.next())?),
            Some("--capabilities") => {
                let bits = words.next().and_then(|word| word.to_str()?.parse().ok()).ok_or(USAGE)?;
                place.credentials.capabilities = Capabilities::from_bits(bits);
            }
            Some("--hostname") => {
                place.hostname = Some(words.next().and_then(|word| word.into_string().ok()).ok_or(USAGE)?);
            }
            Some("--never-root") => place.credentials.run_as_non_root = true,
            Some("--read-only") => place.read_only_root = true,
            Some("--host-devices") => place.host_devices = true,
            Some("--dir") => place.working_dir = Some(words.next().ok_or(USAGE)?.into()),
            Some("--variable") => launch.variables.push(words.next().ok_or(USAGE)?),
            Some("--wait") => launch.is_prefork = true,
            Some("--first-process") => launch.is_first_process = true,
            Some("--in-container") => launch.joins_container = true,
            Some("--variables") => launch.variables_follow = true,
            Some("--container") => place.container = Some(Box::new(from_json(words.next())?)),
            Some("--session") => launch.session = Some(from_json(words.next())?),
            Some("--enter") => launch.enter = Some(from_json(words.next())?),
            Some("--") => break,
            None if launch.is_prefork => return Ok(launch),
            _ => return Err(USAGE),
        }
    }
    launch.command = words.collect();
    if launch.command.is_empty() || launch.is_prefork { Err(USAGE) } else { Ok(launch) }
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt;

    use container::ContainerSpec;

    use super::*;
    use crate::InstanceCredentials;

    fn words(list: &[&str]) -> Vec<OsString> {
        list.iter().map(OsString::from).collect()
    }

    #[test]
    fn what_the_parent_writes_is_what_init_reads() {
        let command = vec!["sh".to_owned(), "-c".to_owned(), "--".to_owned()];
        let bind = |target: &str, read_only| BindMount {
            source: "/a b".into(),
            sub_path: None,
            target: target.into(),
            read_only,
            is_own: false,
        };
        let prefork = |folder: &str| CgroupView { folder: folder.into(), mount_point: "/sys/fs".into() };
        let place = SandboxSpec {
            cgroups: vec![prefork("/sys/fs/c g"), prefork("/x")],
            resolver: Some("/etc/res olv".into()),
            binds: vec![
                bind("/--", true),
                BindMount { sub_path: Some("--".into()), ..bind("/b", false) },
                bind("/c", false),
            ],
            masks: vec!["/da ta".into(), "/s".into()],
            unmasked: vec!["/da ta/own".into()],
            working_dir: Some("/work dir".into()),
            credentials: InstanceCredentials {
                user: Some(1000),
                group: Some(0),
                run_as_non_root: true,
                has_user_namespace: false,
                capabilities: Capabilities::from_manifest(&[], &["ALL".to_owned()]),
            },
            hostname: Some("a-b".into()),
            read_only_root: true,
            host_devices: true,
            container: Some(Box::new(ContainerSpec {
                hostname: "--".into(),
                scratch: OsString::from_vec(b"/not \xff UTF-8".to_vec()).into(),
                ..ContainerSpec::default()
            })),
        };
        let written = arguments(Pid::from_raw(7).unwrap(), &place, &command);
        assert_eq!(written[0], VERB);

        let (parent, launch) = parse_arguments(written[1..].iter().cloned()).unwrap();
        assert_eq!(parent.as_raw_nonzero().get(), 7);
        assert_eq!(launch.sandbox, place);
        assert_eq!(launch.command, words(&["sh", "-c", "--"]));

        let variables = [("A".to_owned(), "b=c".to_owned()), ("EMPTY".to_owned(), String::new())];
        let orders = encode(&place, &variables, &command).unwrap();
        let later = decode(orders.split(|byte| *byte == 0).map(|word| OsString::from_vec(word.to_vec()))).unwrap();
        assert_eq!(later.variables, words(&["A=b=c", "EMPTY="]));
        assert_eq!(LaunchSpec { variables: Vec::new(), variables_follow: true, ..later }, launch);
        assert_eq!(encode_variables(&variables).unwrap(), b"A=b=c\0EMPTY=");
        assert_eq!(encode_variables(&[("A".to_owned(), "b\0LD_PRELOAD=c".to_owned())]), None);
    }

    #[test]
    fn prefork_process_gets_sandbox_without_command() {
        let prefork = CgroupView { folder: "/a".into(), mount_point: "/".into() };
        let place = SandboxSpec { cgroups: vec![prefork], host_devices: true, ..SandboxSpec::default() };
        let written = prefork_arguments(Pid::from_raw(7).unwrap(), &place);
        let (_, launch) = parse_arguments(written[1..].iter().cloned()).unwrap();
        assert!(launch.is_prefork && !launch.is_first_process);
        assert_eq!(launch.sandbox, place);
        let written = first_process_arguments(Pid::from_raw(7).unwrap(), &place);
        assert!(parse_arguments(written[1..].iter().cloned()).unwrap().1.is_first_process);
    }

    #[test]
    fn entering_process_gets_its_command() {
        let spec = ExecSpec { working_dir: Some("/w".into()), parent: 7, ..ExecSpec::default() };
        let command = vec!["cat".to_owned(), "--enter".to_owned()];
        let written = join_arguments(Pid::from_raw(7).unwrap(), &SandboxSpec::default());
        assert!(parse_arguments(written[1..].iter().cloned()).unwrap().1.joins_container);
        let orders = encode_exec(&spec, &[("A".to_owned(), "1".to_owned())], &command).unwrap();
        let launch = decode(orders.split(|byte| *byte == 0).map(|word| OsString::from_vec(word.to_vec()))).unwrap();
        assert_eq!((launch.enter, launch.command), (Some(spec), words(&["cat", "--enter"])));
        assert_eq!(launch.variables, words(&["A=1"]));
    }

    #[test]
    fn session_process_gets_its_stdin_mode() {
        let (parent, place) = (Pid::from_raw(7).unwrap(), SandboxSpec::default());
        let command = vec!["sh".to_owned(), "--session".to_owned()];
        for stdin in [ExecStdin::Null, ExecStdin::Inherited, ExecStdin::Terminal] {
            let written = session_arguments(parent, &place, stdin, Some(&command));
            let launch = parse_arguments(written[1..].iter().cloned()).unwrap().1;
            assert_eq!((launch.session, launch.variables_follow), (Some(stdin), true));
            assert_eq!(launch.command, words(&["sh", "--session"]));
            let written = session_arguments(parent, &place, stdin, None);
            let launch = parse_arguments(written[1..].iter().cloned()).unwrap().1;
            assert!(launch.session == Some(stdin) && launch.joins_container && launch.is_prefork);
        }
    }

    /// The text of a manifest cannot become an option of init.
    #[test]
    fn orders_have_no_nul_within_a_word() {
        let place = SandboxSpec::default();
        let of = |value: &str, word: &str| {
            encode(&place, &[("A".to_owned(), value.to_owned())], &["sh".to_owned(), word.to_owned()])
        };
        assert!(of("b", "").is_some());
        assert!(of("b\0--bind", "c").is_none() && of("b", "c\0--user").is_none());
    }

    #[test]
    fn anything_else_is_refused() {
        for bad in [
            &[][..],
            &["--parent"],
            &["--parent", "x", "--", "sh"],
            &["--parent", "0", "--", "sh"],
            &["--parent", "-1", "--", "sh"],
            &["--parent", "7", "sh"],
            &["--parent", "7", "--"],
            &["--parent", "7", "--bind", "/a", "/b"],
            &["--parent", "7", "--dir"],
            &["--parent", "7", "--mask"],
            &["--parent", "7", "--user", "root", "--", "sh"],
            &["--parent", "7", "--group", "-1", "--", "sh"],
            &["--parent", "7", "--wait", "--", "sh"],
            &["--parent", "7", "--cgroup", "/a", "/b"],
            &["--parent", "7", "--container", "{", "--", "sh"],
            &["--parent", "7", "--enter", "--", "sh"],
            &["--parent", "7", "--session", "all", "--", "sh"],
        ] {
            assert!(parse_arguments(words(bad)).is_err(), "{bad:?}");
        }
    }
}
