//! Instances as containers: Debian's static busybox as the image's only layer. Skipped with a message without root.

use std::os::unix::fs::{PermissionsExt, symlink};

use rustix::process::Signal;
use sluicegate_control::runtime::volumes::{InstanceMount, InstanceVolume, VolumeContent, VolumeFile, VolumeMedium};
use sluicegate_control::runtime::{ContainerImage, InstanceCredentials, ResourceLimits, Sidecar, may_mount};

use super::probes::asks;
use super::*;

const BUSYBOX: &str = "/bin/busybox";

/// `None`: containers cannot be tried here, and the log says why.
pub(super) fn image(host: &TestRuntimeHost, name: &str) -> Option<ContainerImage> {
    if !may_mount() || !Path::new(BUSYBOX).exists() {
        eprintln!("skipped: containers need root, and this test {BUSYBOX} (Debian's busybox-static)");
        return None;
    }
    let layer = host.dir.path().join(name);
    fs::create_dir_all(layer.join("bin")).unwrap();
    fs::create_dir_all(layer.join("etc")).unwrap();
    fs::copy(BUSYBOX, layer.join("bin/busybox")).unwrap();
    for applet in
        ["sh", "cat", "echo", "id", "sleep", "httpd", "test", "touch", "grep", "head", "tr", "setsid", "hostname", "ls"]
    {
        symlink("busybox", layer.join("bin").join(applet)).unwrap();
    }
    fs::write(layer.join("etc/passwd"), "app:x:1000:1000::/home/app:/bin/sh\n").unwrap();
    fs::write(layer.join("etc/image"), name).unwrap();
    Some(ContainerImage { layers: [layer].into(), user: String::new(), stop_signal: Signal::TERM, pin: Arc::new(()) })
}

pub(super) fn container(image: &ContainerImage, script: &str) -> InstanceSpec {
    let mut spec = InstanceSpec { image: Some(image.clone()), ..shell(script) };
    // As images say it: there is no host's to fall back on.
    spec.env.insert(0, ("PATH".into(), "/bin".into()));
    spec
}

/// Serves, and ends by itself when it is asked to.
const SERVE: &str =
    "trap 'echo bye; exit 0' TERM; httpd -p 127.0.0.1:$PORT -h /etc; echo up; while :; do sleep 1000 & wait $!; done";

/// What mounts, folders and control groups of `host` are there.
pub(super) async fn nothing_left(host: &TestRuntimeHost, id: u64) {
    let path = host.dir.path().to_str().unwrap();
    assert!(!fs::read_to_string("/proc/self/mountinfo").unwrap().contains(path));
    let folder = host.folder().join(format!("{id}.rootfs"));
    for _ in 0..TIMEOUT.as_millis() / 10 {
        if !folder.exists() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{} stays", folder.display());
}

/// RT-LIFE-05: the kernel drops a SIGTERM for a first process without a handler; such a container does not take its grace period.
#[tokio::test]
async fn container_without_stop_handler_ends_at_once() {
    let host = TestRuntimeHost::new();
    let Some(image) = image(&host, "deaf") else { return };
    let script = "exec httpd -f -p 127.0.0.1:$PORT -h /etc";
    let grace = Duration::from_secs(3600);
    let spec = InstanceSpec { termination_grace_period: grace, ..container(&image, script) };
    let mut instance = host.start(1, spec);
    instance.ready().await;
    instance.handle.stop();
    tokio::time::timeout(TIMEOUT, instance.gone()).await.unwrap();
    nothing_left(&host, 1).await;
}

/// RT-ENV-01, RT-LIFE-05, RT-FS-06: it serves on its port with its image's files, ends in good order, and leaves nothing.
#[tokio::test]
async fn container_serves_its_image_and_leaves_nothing() {
    let host = TestRuntimeHost::new();
    let Some(image) = image(&host, "hello") else { return };
    let mut instance = host.start(1, container(&image, SERVE));
    let mut stream = TcpStream::connect(instance.ready().await).unwrap();
    std::io::Write::write_all(&mut stream, b"GET /image HTTP/1.0\r\n\r\n").unwrap();
    let mut answer = String::new();
    std::io::Read::read_to_string(&mut stream, &mut answer).unwrap();
    assert!(answer.contains(" 200 ") && answer.ends_with("hello"), "{answer}");
    instance.handle.stop();
    let gone = instance.gone().await;
    assert_eq!(gone.cause, ExitCause::Exited(0), "{}", gone.message);
    assert!(host.log(1).contains(" stdout F bye"), "{}", gone.message);
    nothing_left(&host, 1).await;
}

#[tokio::test]
async fn container_has_documented_environment_and_user() {
    let host = TestRuntimeHost::new();
    let Some(image) = image(&host, "hello") else { return };
    let image = ContainerImage { user: "app".into(), ..image };
    let script = "env; id -u; hostname; test -e /proc/self/exe && ls /proc/self/fd; ls /; exit 3";
    let gone = host.start(1, container(&image, script)).gone().await;
    assert_eq!(gone.cause, ExitCause::Exited(3), "{}", gone.message);
    let log = host.log(1);
    for wanted in ["HOME=/home/app", "PATH=/bin", "K_SERVICE=hello", "1000", "hello-00001-deployment-1", "dev", "proc"]
    {
        assert!(log.lines().any(|line| line.ends_with(&format!(" F {wanted}"))), "{wanted}: {log}");
    }
    assert!(!log.contains("SLUICEGATE_VOLUMES") && !log.contains(" F root\n") && !log.contains(" F home\n"), "{log}");
}

/// RT-USER-05
#[tokio::test]
async fn run_as_non_root_ends_start_of_root_image() {
    let host = TestRuntimeHost::new();
    let Some(image) = image(&host, "hello") else { return };
    let credentials = InstanceCredentials { run_as_non_root: true, ..InstanceCredentials::default() };
    let gone = host.start(1, InstanceSpec { credentials, ..container(&image, "echo ran") }).gone().await;
    assert!(gone.message.contains("runAsNonRoot"), "{}", gone.message);
}

#[tokio::test]
async fn stop_signal_of_image_ends_container() {
    let host = TestRuntimeHost::new();
    let Some(image) = image(&host, "hello") else { return };
    let image = ContainerImage { stop_signal: Signal::USR1, ..image };
    let script = "trap 'exit 9' USR1; trap 'exit 8' TERM; touch /tmp/up; while :; do sleep 1000 & wait $!; done";
    let mut instance =
        host.start(1, InstanceSpec { readiness: asks("test -e /tmp/up", 3), ..container(&image, script) });
    instance.ready().await;
    instance.handle.stop();
    assert_eq!(instance.gone().await.cause, ExitCause::Exited(9));
}

/// Its command runs inside, with the container's files, user and variables; one that fails ends the instance.
#[tokio::test]
async fn exec_probe_runs_inside_container() {
    let host = TestRuntimeHost::new();
    let Some(image) = image(&host, "hello") else { return };
    let image = ContainerImage { user: "app".into(), ..image };
    let script = "echo yes >/tmp/up; sleep 1; echo no >/tmp/up; sleep 1000";
    let inside = "grep -q yes /tmp/up && grep -q hello /etc/image && test $(id -u) = 1000 && test $K_SERVICE = hello && test $HOME = /home/app";
    let mut spec = container(&image, script);
    (spec.readiness, spec.liveness) = (asks(inside, 3), Some(asks(inside, 1)));
    spec.termination_grace_period = Duration::from_millis(100);
    let mut instance = host.start(1, spec);
    instance.ready().await;
    let gone = loop {
        if let InstanceReport::Exited(gone) = instance.report().await {
            break gone;
        }
    };
    assert!(matches!(gone.cause, ExitCause::Unhealthy(_)), "{gone:?}");
    nothing_left(&host, 1).await;
}

/// Each container of an instance has an image of its own; volumes are theirs in common.
#[tokio::test]
async fn sidecars_and_init_containers_have_images_of_their_own() {
    let host = TestRuntimeHost::new();
    let (Some(main), Some(side)) = (image(&host, "main"), image(&host, "side")) else { return };
    let mounts = || {
        vec![InstanceMount { volume: "shared".into(), path: "/srv/shared".into(), sub_path: None, read_only: false }]
    };
    let volumes = vec![InstanceVolume { name: "shared".into(), content: VolumeContent::Empty(VolumeMedium::Disk) }];
    let with = |image: &ContainerImage, script: &str| InstanceSpec {
        volumes: volumes.clone(),
        mounts: mounts(),
        readiness: asks("test -e /srv/shared/beside", 3),
        ..container(image, script)
    };
    let other =
        |name: &str, script: &str| Sidecar { name: name.into(), has_readiness_probe: false, spec: with(&side, script) };
    let mut spec = with(&main, "cat /srv/shared/first /etc/image; echo; test -e /srv/mine && echo theirs; sleep 1000");
    spec.init_containers = vec![other("first", "cat /etc/image >/srv/shared/first; touch /srv/mine")];
    spec.sidecars = vec![other("beside", "test -e /srv/mine || cat /etc/image >/srv/shared/beside; sleep 1000")];
    spec.termination_grace_period = Duration::from_millis(100);
    let mut instance = host.start(1, spec);
    loop {
        match instance.report().await {
            InstanceReport::Ready { .. } => break,
            InstanceReport::Exited(gone) => panic!("{gone:?}"),
            _ => {}
        }
    }
    host.wrote(1, " F sidemain").await;
    assert!(!host.log(1).contains("theirs"));
    instance.handle.stop();
    while !matches!(instance.report().await, InstanceReport::Exited(_)) {}
    nothing_left(&host, 1).await;
}

/// RT-FS-01, RT-FS-02, RT-FS-10: files at a path that the image lacks, and nothing else to write to but `/tmp`.
#[tokio::test]
async fn read_only_container_reads_volumes_and_writes_tmp() {
    let host = TestRuntimeHost::new();
    let Some(image) = image(&host, "hello") else { return };
    let file = VolumeFile { path: "colour".into(), bytes: b"red".to_vec(), mode: 0o644 };
    let mut spec = container(
        &image,
        "cat /etc/settings/colour; for at in / /etc /etc/settings /tmp /dev/shm; do touch $at/x 2>/dev/null && echo $at; done; echo so >/dev/termination-log; exit 1",
    );
    spec.volumes = vec![InstanceVolume { name: "settings".into(), content: VolumeContent::Files(vec![file]) }];
    spec.mounts = vec![InstanceMount {
        volume: "settings".into(),
        path: "/etc/settings".into(),
        sub_path: None,
        read_only: true,
    }];
    spec.read_only_root = true;
    spec.termination_message =
        Some(sluicegate_control::runtime::TerminationMessagePath::Path("/dev/termination-log".into()));
    spec.image.as_mut().unwrap().user = "app".into();
    let gone = host.start(1, spec).gone().await;
    assert!(gone.message.contains("it said: so"), "{}", gone.message);
    let log = host.log(1);
    let said: Vec<_> = log.lines().filter_map(|line| Some(line.split_once(" F ")?.1)).collect();
    assert_eq!(said, ["red/tmp", "/dev/shm"], "{log}");
}

/// A program that left its session stands still as well, where there is cgroup v2.
#[tokio::test]
async fn frozen_container_stands_still_as_a_whole() {
    let host = TestRuntimeHost::new();
    let Some(image) = image(&host, "hello") else { return };
    let script = "setsid sh -c 'while :; do echo x >>/tmp/count; sleep 0.01; done' & touch /tmp/up; while :; do sleep 1000 & wait $!; done";
    let mut spec = container(&image, script);
    spec.readiness = asks("test -e /tmp/count", 3);
    spec.resources = ResourceLimits { cpu_milli_request: 100, ..ResourceLimits::default() };
    spec.termination_grace_period = Duration::from_millis(100);
    let mut instance = host.start(1, spec);
    instance.ready().await;
    let count = host.folder().join("1.rootfs/main.0/upper/tmp/count");
    let record: serde_json::Value = serde_json::from_slice(&fs::read(host.folder().join("1.run")).unwrap()).unwrap();
    let groups = fs::read_to_string(format!("/proc/{}/cgroup", record["process"]["pid"])).unwrap();
    if !groups.lines().any(|line| line.starts_with("0::") && line.contains("/sluicegate-")) {
        return eprintln!("skipped: no control group of version 2 here: {groups}");
    }
    instance.handle.freeze();
    let length = || fs::metadata(&count).unwrap().len();
    let mut last = 0;
    let stands = async {
        // Twice the same, some hundred lines apart.
        while std::mem::replace(&mut last, length()) != last {
            tokio::time::sleep(Duration::from_millis(1000)).await;
        }
    };
    tokio::time::timeout(TIMEOUT, stands).await.unwrap();
    instance.handle.thaw();
    while length() == last {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    instance.handle.stop();
    instance.gone().await;
    nothing_left(&host, 1).await;
}

/// RT-CG-03
#[tokio::test]
async fn container_without_memory_is_oom_killed() {
    let host = TestRuntimeHost::new();
    let Some(image) = image(&host, "hello") else { return };
    let resources = ResourceLimits { memory_bytes_max: 64 << 20, ..ResourceLimits::default() };
    let script = "cat /sys/fs/cgroup/memory.max /sys/fs/cgroup/memory/memory.limit_in_bytes 2>/dev/null; \
                  x=$(head -c 300000000 /dev/zero | tr '\\0' a); echo never; sleep 1000";
    let gone = host.start(1, InstanceSpec { resources, ..container(&image, script) }).gone().await;
    let log = host.log(1);
    if !log.contains(" F 67108864") {
        return eprintln!("skipped: memory cannot be limited here: {log}");
    }
    assert_eq!(gone.cause.to_string(), "OOMKilled", "{}", gone.message);
}

/// A start is the same whether a process waited for it or not.
#[tokio::test]
async fn waiting_process_becomes_the_same_container() {
    let host = TestRuntimeHost::with_config(HostConfig { prefork_processes: 1, ..HostConfig::minimal() });
    let Some(image) = image(&host, "hello") else { return };
    let look = "env | grep -v -e ^PORT= -e ^SLUICEGATE_ -e ^HOSTNAME=; id; cat /proc/self/cgroup /etc/resolv.conf; ls / /dev /proc/self/fd; \
                grep -e NoNewPrivs -e Seccomp -e ^Sig[PBIC] -e ^Cap /proc/self/status; echo $$";
    let mut seen = Vec::new();
    for id in 1..=3 {
        let gone = host.start(id, container(&image, look)).gone().await;
        assert_eq!(gone.cause, ExitCause::Exited(0), "{}", gone.message);
        let log = host.log(id);
        seen.push(log.lines().filter_map(|line| Some(line.split_once(" F ")?.1.to_owned())).collect::<Vec<_>>());
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    assert!(seen[0].iter().any(|line| line == "NoNewPrivs:\t1"), "{:?}", seen[0]);
    assert_eq!(seen[0], seen[1]);
    assert_eq!(seen[1], seen[2]);
}

/// A killed appliance leaves processes and files no longer than until the next one starts.
#[tokio::test]
async fn killed_appliance_leaves_no_container() {
    let host = TestRuntimeHost::new();
    let Some(image) = image(&host, "hello") else { return };
    let data = tempfile::tempdir().unwrap();
    fs::set_permissions(data.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let mut appliance = Command::new(example())
        .args([
            "appliance",
            data.path().to_str().unwrap(),
            "/bin/sh",
            "-c",
            "/bin/setsid /bin/sleep 1234567 & /bin/touch /tmp/up; /bin/sleep 1234567",
        ])
        .env("LAYER", &image.layers[0])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut said = BufReader::new(appliance.stdout.take().unwrap());
    while line != "ready\n" {
        line.clear();
        assert_ne!(said.read_line(&mut line).unwrap(), 0, "it ended");
    }
    appliance.kill().unwrap();
    appliance.wait().unwrap();
    let runs = || {
        let all = fs::read_dir("/proc").unwrap().flatten();
        let lines = all.filter_map(|entry| fs::read_to_string(entry.path().join("cmdline")).ok());
        lines.filter(|line| line.contains("sleep\x001234567")).count()
    };
    let scratch = data.path().join("instances/default/hello-00001/1.rootfs");
    assert!(scratch.exists());
    drop(ProcessRuntime::open(data.path(), init(), HostConfig::minimal()).unwrap());
    assert_eq!(runs(), 0);
    assert!(!scratch.exists());
}
