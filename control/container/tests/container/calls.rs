//! System calls and sockets of a container's programs: perl of the host makes any call by its number.

use std::fs;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{SocketAddr, UnixListener};

use super::Container;

const PERL: &str = "/usr/bin/perl";

fn with_perl() -> Option<Container> {
    let mut container = Container::new()?;
    if !container.add_program(PERL) {
        eprintln!("skipped: {PERL} is not on this host");
        return None;
    }
    Some(container)
}

fn perl(container: &Container, script: &str) -> String {
    let output = container.run(&[PERL, "-e", script]);
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

const EPERM: i32 = 1;
const ENOSYS: i32 = 38;

/// RT-ISO-04: mount, bpf, keyctl and their like fail with EPERM, and `clone3` as if it did not exist.
#[test]
#[cfg(target_arch = "x86_64")]
fn filtered_calls_fail_by_number() {
    let Some(container) = with_perl() else { return };
    for (call, wanted) in [
        ("165, 0, 0, 0, 0, 0", EPERM),         // mount
        ("321, 0, 0, 0", EPERM),               // bpf
        ("250, 0, 0, 0, 0, 0", EPERM),         // keyctl
        ("248, 0, 0, 0, 0, 0", EPERM),         // add_key
        ("272, 0x10000000", EPERM),            // unshare, user namespace
        ("56, 0x10000011, 0, 0, 0, 0", EPERM), // clone, user namespace
        ("56, 0x20011, 0, 0, 0, 0", EPERM),    // clone, mount namespace
        ("425, 8, 0", EPERM),                  // io_uring_setup
        ("298, 0, 0, 0, 0, 0", EPERM),         // perf_event_open
        ("304, 0, 0, 0", EPERM),               // open_by_handle_at
        ("41, 40, 1, 0", EPERM),               // socket, AF_VSOCK
        ("135, 0x40000", EPERM),               // personality, no randomization
        ("435, 0, 0", ENOSYS),                 // clone3
        ("135, 0xffffffff", 0),                // personality, asked
        ("41, 2, 1, 0", 0),                    // socket, AF_INET
    ] {
        let seen = perl(&container, &format!("print syscall({call}) < 0 ? $! + 0 : 0"));
        assert_eq!(seen, wanted.to_string(), "{call}");
    }
}

#[test]
fn process_has_default_capabilities_and_filter() {
    let Some(container) = Container::new() else { return };
    let status = container.shell("grep -E '^(Seccomp|NoNewPrivs|CapEff|CapBnd):' /proc/self/status | tr '\\t' ' '");
    assert!(status.contains("NoNewPrivs: 1\n") && status.contains("Seccomp: 2\n"), "{status}");
    let kept = format!("{:016x}", container.spec.capabilities);
    assert!(status.contains(&format!("CapEff: {kept}\n")) && status.contains(&format!("CapBnd: {kept}\n")), "{status}");
}

/// The network is the host's, and its sockets without a path are not the container's anyway; its own are.
#[test]
fn abstract_sockets_of_host_are_out_of_reach() {
    let Some(container) = with_perl() else { return };
    let name = format!("sluicegate-test-{}", std::process::id());
    let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(name.as_bytes()).unwrap()).unwrap();
    listener.set_nonblocking(true).unwrap();
    let connect = "sub at { pack('S a*', 1, \"\\0\" . $_[0]) } sub try { socket(my $s, 1, 1, 0); connect($s, at($_[0])) ? 0 : $! + 0 }";
    let host = perl(&container, &format!("{connect} print try('{name}')"));
    if host == "0" && !is_scoped() {
        return eprintln!("skipped: Linux scopes no sockets before 6.12");
    }
    assert_eq!(host, EPERM.to_string());
    assert!(listener.accept().is_err());
    let own = perl(
        &container,
        &format!(
            "{connect} socket(my $l, 1, 1, 0); bind($l, at('own')); listen($l, 1); print fork ? wait && $? >> 8 : exit try('own')"
        ),
    );
    assert_eq!(own, "0");
}

fn is_scoped() -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(['.', '-']).map(|part| part.parse::<u32>().unwrap_or(0));
    (numbers.next(), numbers.next()) >= (Some(6), Some(12))
}

/// A setuid program of the image gains nothing.
#[test]
fn setuid_program_gains_nothing() {
    let Some(mut container) = with_perl() else { return };
    let program = container.spec.layers[0].join("usr/bin/perl");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o6755)).unwrap();
    container.spec.user.run_as_user = Some(1000);
    let seen =
        perl(&container, "print qq($< $>\n); open(F, '</proc/self/status'); print grep { /^Cap(Eff|Prm|Amb)/ } <F>");
    let zero = "0000000000000000";
    assert_eq!(seen, format!("1000 1000\nCapPrm:\t{zero}\nCapEff:\t{zero}\nCapAmb:\t{zero}\n"));
}
