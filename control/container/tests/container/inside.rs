//! What a container's programs see of the system.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use super::Container;

#[test]
fn program_is_first_process_and_sees_no_other() {
    let Some(container) = Container::new() else { return };
    let seen = container.shell("echo $$; echo /proc/[0-9]*; hostname; cat /etc/hostname; pwd");
    assert_eq!(seen, "1\n/proc/1\nhello-00001\nhello-00001\n/\n");
}

#[test]
fn program_has_variables_of_its_own_only() {
    let Some(mut container) = Container::new() else { return };
    container.variables.push(("A".into(), "b c".into()));
    let seen = container.shell("env");
    let mut names: Vec<_> = seen.lines().filter_map(|line| Some(line.split_once('=')?.0)).collect();
    names.sort_unstable();
    assert_eq!(names, ["A", "HOME", "PATH", "PWD", "SHLVL"]);
    assert!(seen.contains("A=b c\n") && seen.contains("HOME=/root\n"), "{seen}");
}

/// RT-USER-01: by name, with supplementary groups; the home is the user's.
#[test]
fn user_is_image_user_with_groups() {
    let Some(mut container) = Container::new() else { return };
    container.spec.user.image = "app".into();
    assert_eq!(
        container.shell("id -u; id -g; id -G; echo $HOME"),
        "1000\n1001\n50 1001\n/home/app\n".replace("50 1001", "1001 50")
    );
    container.spec.user.image = "app:staff".into();
    assert_eq!(container.shell("id -g"), "50\n");
    container.spec.user.run_as_user = Some(7);
    assert_eq!(container.shell("id -u; id -g; echo $HOME"), "7\n0\n/\n");
}

/// RT-USER-05
#[test]
fn run_as_non_root_refuses_root_image() {
    let Some(mut container) = Container::new() else { return };
    container.spec.user.run_as_non_root = true;
    let refused = container.shell("echo ran");
    assert!(refused.contains("runAsNonRoot") && !refused.contains("ran\n"), "{refused}");
}

/// RT-FS-09, RT-FD-03
#[test]
fn devices_are_those_of_the_specification() {
    let Some(container) = Container::new() else { return };
    let seen = container.shell(
        "ls /dev | tr '\\n' ' '; echo; echo x >/dev/null; head -c 3 /dev/zero | wc -c; readlink /dev/ptmx; ls /dev/sda /dev/vda /dev/mem /dev/console",
    );
    let names = seen.lines().next().unwrap();
    for name in
        ["fd", "full", "null", "ptmx", "pts", "random", "shm", "stderr", "stdin", "stdout", "tty", "urandom", "zero"]
    {
        assert!(names.split(' ').any(|one| one == name), "{name}: {seen}");
    }
    assert!(seen.contains("3\npts/ptmx\n") && seen.matches("No such file").count() == 4, "{seen}");
}

/// RT-FS-02, RT-FS-05, RT-FS-06, RT-FS-07
#[test]
fn platform_files_are_there() {
    let Some(mut container) = Container::new() else { return };
    let resolver = container.folder("host").join("resolv.conf");
    fs::write(&resolver, "nameserver 127.9.9.9\n").unwrap();
    container.spec.resolver = Some(resolver);
    let seen = container.shell("cat /etc/resolv.conf; grep -c hello-00001 /etc/hosts; touch /tmp/x && stat -c %a /tmp");
    assert_eq!(seen, "nameserver 127.9.9.9\n2\n1777\n");
}

#[test]
fn image_without_folders_gets_them() {
    let Some(mut container) = Container::new() else { return };
    for folder in ["tmp", "proc", "sys", "dev"] {
        fs::remove_dir(container.spec.layers[0].join(folder)).unwrap();
    }
    container.spec.working_dir = Some("/srv/app".into());
    assert_eq!(
        container.shell("pwd; stat -c %a /tmp; test -e /proc/1/stat && test -c /dev/null && echo ok"),
        "/srv/app\n1777\nok\n"
    );
}

#[test]
fn upper_layers_hide_what_they_whiteout() {
    let Some(mut container) = Container::new() else { return };
    let lower = container.add_layer("lower");
    fs::create_dir_all(lower.join("data/opaque")).unwrap();
    for file in ["data/kept", "data/gone", "data/opaque/old"] {
        fs::write(lower.join(file), "lower").unwrap();
    }
    let upper = container.add_layer("upper");
    fs::create_dir_all(upper.join("data/opaque")).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        upper.join("data/gone"),
        rustix::fs::FileType::CharacterDevice,
        rustix::fs::Mode::from_raw_mode(0o600),
        rustix::fs::makedev(0, 0),
    )
    .unwrap();
    fs::write(upper.join("data/opaque/new"), "upper").unwrap();
    rustix::fs::setxattr(upper.join("data/opaque"), "trusted.overlay.opaque", b"y", rustix::fs::XattrFlags::empty())
        .unwrap();
    fs::write(upper.join("data/kept"), "upper").unwrap();
    assert_eq!(
        container.shell("ls /data /data/opaque; cat /data/kept"),
        "/data:\nkept\nopaque\n\n/data/opaque:\nnew\nupper"
    );
}

#[test]
fn hundred_layers_with_long_paths_are_mounted() {
    let Some(mut container) = Container::new() else { return };
    let long = "x".repeat(200);
    for number in 0..100 {
        let layer = container.add_layer(&format!("{long}/{long}/{number}:a,b"));
        fs::write(layer.join(format!("file-{number}")), "").unwrap();
        fs::write(layer.join("last"), number.to_string()).unwrap();
    }
    assert_eq!(container.shell("ls / | grep -c file-; cat /last"), "100\n99");
}

#[test]
fn what_a_container_writes_is_not_in_its_image() {
    let Some(container) = Container::new() else { return };
    assert_eq!(container.shell("echo x >/etc/new && rm /etc/passwd && ls /etc/new"), "/etc/new\n");
    let base = &container.spec.layers[0];
    assert!(base.join("etc/passwd").exists() && !base.join("etc/new").exists());
    let mode = fs::metadata(base).unwrap().permissions().mode() & 0o7777;
    assert_eq!(
        container.shell("stat -c %a /; ls /etc/new 2>&1 | wc -l; ls /etc/passwd"),
        format!("{mode:o}\n1\n/etc/passwd\n")
    );
}

#[test]
fn missing_program_is_named() {
    let Some(container) = Container::new() else { return };
    let output = container.run(&["no-such-program"]);
    assert_eq!(output.status.code(), Some(127));
    assert!(String::from_utf8_lossy(&output.stderr).contains("cannot run no-such-program"));
    assert_eq!(container.run(&["/etc/passwd"]).status.code(), Some(126));
}
